#include "run/rank.h"
#include "base/memory.h"

#include <assert.h>

hd_status hd_rank_blame(struct hd_rank *rank, hd_status status, const struct hd_problem *problem)
{
    assert(problem->exit_code > 0);
    hd_board_abort(rank->shared->board, problem);
    hd_bootstrap_abort(rank->bootstrap);
    return status;
}

hd_status hd_rank_leave(struct hd_rank *rank, hd_status status, const char *what,
                        struct hd_problem *problem)
{
    if (hd_board_is_aborted(rank->shared->board)) {
        hd_board_cause(rank->shared->board, problem);
        return status;
    }
    hd_problem_place(problem, "rank %u", rank->rank);
    hd_problem_set(problem, status, status == HD_TIMEOUT ? HD_EXIT_PEER : HD_EXIT_FAILED, "%s: %s",
                   what, hd_status_name(status));
    return hd_rank_blame(rank, status, problem);
}

hd_status hd_rank_no_memory(struct hd_rank *rank, struct hd_problem *problem)
{
    hd_problem_remedy(problem, "%s", hd_engine_memory_remedy);
    return hd_rank_leave(rank, HD_NO_MEMORY, "cannot allocate memory", problem);
}

hd_status hd_rank_gather(struct hd_rank *rank, const struct hd_meeting *meeting,
                         struct hd_problem *problem)
{
    hd_engine_phase(rank->engine, HD_PHASE_TOGETHER); /* or the wait would have no deadline */
    const hd_status status = meeting->bytes > 0
                                 ? hd_bootstrap_gather(rank->bootstrap, meeting->mine,
                                                       meeting->bytes, meeting->all, HD_RANK_FAR_NS)
                                 : hd_bootstrap_fence(rank->bootstrap, HD_RANK_FAR_NS);

    return status != HD_OK ? hd_rank_leave(rank, status, meeting->what, problem) : HD_OK;
}

uint64_t hd_rank_held_bytes(void)
{
    struct hd_memory_use uses[HD_MEMORY_TAG_MAX];
    const uint32_t count = hd_memory_report(uses, HD_MEMORY_TAG_MAX);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++) {
        bytes += uses[i].bytes;
    }
    return bytes;
}
