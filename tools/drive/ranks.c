/* drive/ranks.c - two ranks, their parents, and which rank is the cause of a failure. */
#include "drive/ranks.h"
#include "base/clock.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { GRACE_MS = 700, SETTLE_MS = 2000, SWAP_BYTES_MAX = 4096 };

/* SAY_ENDED: the rank of the sender has ended.  SAY_FAILED: the sender knows a cause.  The link has
   other messages of its own. */
enum { SAY_ENDED = HD_LINK_MESSAGE, SAY_FAILED };

/* Shared by a parent and its ranks; the results follow. */
struct region {
    _Atomic uint32_t has_failed; /* some rank has filled `problem` */
    struct hd_problem problem;
    _Alignas(64) unsigned char results[];
};

/* What one parent knows. */
struct pair {
    const struct hd_drive_ranks *ranks;
    void *results;
    struct hd_problem problem; /* the cause; exit_code 0: none yet */
    bool is_peer_done;         /* launched: the other parent has told how its rank ended */
    uint64_t failed_ns;        /* when the cause was known; 0: never */
};

/* The parent of rank 0 in a launched pair. */
static bool ranks_is_hub(const struct pair *pair)
{
    return pair->ranks->link != NULL && hd_link_rank(pair->ranks->link) == 0;
}

static void ranks_tell(const struct pair *pair, uint32_t kind, const struct hd_problem *problem)
{
    const struct hd_link_message message = {kind, hd_link_rank(pair->ranks->link), problem,
                                            sizeof *problem};
    hd_link_send(pair->ranks->link, UINT32_MAX, &message);
}

/* The first cause stays. */
static void ranks_blame(struct pair *pair, const struct hd_problem *problem)
{
    if (pair->problem.exit_code != 0) {
        return;
    }
    pair->problem = *problem;
    pair->failed_ns = hd_now_ns();
    if (pair->ranks->link != NULL) {
        ranks_tell(pair, SAY_FAILED, problem);
    }
}

static void ranks_note_end(struct pair *pair, struct region *region,
                           const struct hd_launch_event *event)
{
    struct hd_problem problem = {0};

    hd_problem_place(&problem, "rank %u", event->rank);
    if (event->kind == HD_LAUNCH_KILLED) {
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "died of SIG%s",
                       sigabbrev_np(event->signal));
        ranks_blame(pair, &problem);
    } else if (atomic_load(&region->has_failed) == 2) {
        ranks_blame(pair, &region->problem);
    } else if (event->exit_code != 0) {
        hd_problem_set(&problem, HD_SYSTEM, HD_EXIT_FAILED, "exited with code %d",
                       event->exit_code);
        ranks_blame(pair, &problem);
    }
    if (pair->ranks->link != NULL) {
        ranks_tell(pair, SAY_ENDED, &pair->problem);
    }
}

static void ranks_note_signal(struct pair *pair, int32_t number)
{
    struct hd_problem problem = {0};

    hd_problem_set(&problem, HD_ABORTED, 128 + number, "ended by SIG%s", sigabbrev_np(number));
    ranks_blame(pair, &problem);
}

/* Not the hub, and the hub has given its verdict or is unreachable. */
static bool ranks_is_left_alone(const struct pair *pair)
{
    const struct hd_link *link = pair->ranks->link;
    return link != NULL && !ranks_is_hub(pair) &&
           (hd_link_verdict(link) != NULL || hd_link_is_lost(link, 0));
}

static bool ranks_on_event(void *context, void *shared, const struct hd_launch_event *event)
{
    struct pair *pair = context;
    struct region *region = shared;

    switch (event->kind) {
    case HD_LAUNCH_EXITED:
    case HD_LAUNCH_KILLED:
        ranks_note_end(pair, region, event);
        break;
    case HD_LAUNCH_SIGNALLED:
        ranks_note_signal(pair, event->signal);
        break;
    case HD_LAUNCH_ENDED:
        if (!pair->ranks->link || ranks_is_hub(pair)) {
            memcpy(pair->results, region->results, pair->ranks->result_bytes);
        }
        break;
    default:
        break;
    }
    return pair->problem.exit_code != 0 || ranks_is_left_alone(pair);
}

/* --- a launched pair ------------------------------------------------------------------------- */

static void ranks_on_message(void *context, const struct hd_link_message *message)
{
    struct pair *pair = context;
    struct hd_problem problem;

    if (hd_problem_read(&problem, message->bytes, message->byte_count) != HD_OK) {
        return;
    }
    if (problem.exit_code != 0 && pair->problem.exit_code == 0) {
        pair->problem = problem;
        pair->failed_ns = hd_now_ns();
    }
    pair->is_peer_done |= message->kind == SAY_ENDED || message->kind == HD_LINK_FAILED;
}

static void ranks_on_lost(void *context, uint32_t rank)
{
    struct pair *pair = context;
    struct hd_problem problem = {0};

    if (!pair->is_peer_done && hd_link_verdict(pair->ranks->link) == NULL) {
        hd_problem_place(&problem, "rank %u", rank);
        hd_problem_set(&problem, HD_PEER_LOST, HD_EXIT_PEER, "the connection was lost");
        pair->is_peer_done = true;
        ranks_blame(pair, &problem);
    }
}

static bool ranks_is_settled(void *context, void *shared)
{
    const struct pair *pair = context;
    const struct hd_link *link = pair->ranks->link;
    const bool is_late =
        pair->failed_ns != 0 && hd_now_ns() - pair->failed_ns > SETTLE_MS * HD_MS_NS;

    (void)shared;
    if (ranks_is_hub(pair)) {
        return pair->is_peer_done || hd_link_is_lost(link, 1) || is_late;
    }
    return ranks_is_left_alone(pair) || is_late;
}

/* --- a rank ---------------------------------------------------------------------------------- */

bool hd_drive_share_host(const struct hd_link *link)
{
    return link == NULL || strcmp(hd_link_peer(link, 0)->boot, hd_link_peer(link, 1)->boot) == 0;
}

/* Linux may wake a rank on the core of the other one and leave it there for a while; what a message
   then takes is the time of the scheduler.  So every second core is rank 0's, and the rest are
   rank 1's, for their threads too. */
static void ranks_take_cores(uint32_t rank)
{
    cpu_set_t all, own;
    uint32_t count = 0;

    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < (int)HD_DRIVE_RANK_COUNT) {
        return;
    }
    for (uint32_t core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &all) && count++ % HD_DRIVE_RANK_COUNT == rank) {
            CPU_SET(core, &own);
        }
    }
    sched_setaffinity(0, sizeof own, &own);
}

static int32_t ranks_rank_main(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    const struct pair *pair = context;
    struct region *region = shared;
    struct hd_problem problem = {0};
    struct hd_drive_rank rank = {
        .context = pair->ranks->context,
        .bootstrap = bootstrap,
        .rank = hd_bootstrap_rank(bootstrap),
        .ordinal = hd_drive_share_host(pair->ranks->link) ? hd_bootstrap_rank(bootstrap) : 0,
        .timeout_ns = pair->ranks->timeout_ns,
        .results = region->results,
    };
    uint32_t none = 0;

    if (pair->ranks->has_own_cores && pair->ranks->link == NULL) {
        ranks_take_cores(rank.rank);
    }
    const hd_status status = pair->ranks->body(&rank, &problem);
    if (status != HD_OK && problem.exit_code == 0) {
        hd_problem_set(&problem, status, HD_EXIT_FAILED, "%s", hd_status_name(status));
    }
    /* The first rank that fails writes the problem: 1 while it writes, 2 once it is written. */
    if (problem.exit_code != 0 && atomic_compare_exchange_strong(&region->has_failed, &none, 1)) {
        if (problem.place[0] == '\0') {
            hd_problem_place(&problem, "rank %u", rank.rank);
        }
        region->problem = problem;
        atomic_store(&region->has_failed, 2);
    }
    return problem.exit_code;
}

hd_status hd_drive_swap(const struct hd_drive_rank *rank, const void *mine, void *theirs,
                        uint64_t bytes)
{
    unsigned char all[HD_DRIVE_RANK_COUNT * SWAP_BYTES_MAX];

    assert(bytes <= SWAP_BYTES_MAX && rank->rank < HD_DRIVE_RANK_COUNT);
    const hd_status status =
        hd_bootstrap_gather(rank->bootstrap, mine, bytes, all, hd_now_ns() + rank->timeout_ns);
    if (status == HD_OK) {
        memcpy(theirs, all + (1 - rank->rank) * bytes, bytes);
    }
    return status;
}

hd_status hd_drive_ranks_run(const struct hd_drive_ranks *ranks, void *results,
                             struct hd_problem *problem)
{
    struct pair pair = {.ranks = ranks, .results = results};
    const struct hd_link_listener listener = {&pair, ranks_on_message, ranks_on_lost};
    static struct hd_launch_outcome outcome;
    const struct hd_launch launch = {
        .rank_count = HD_DRIVE_RANK_COUNT,
        .shared_bytes = sizeof(struct region) + ranks->result_bytes,
        .gather_bytes = ranks->gather_bytes,
        .context = &pair,
        .rank_main = ranks_rank_main,
        .on_event = ranks_on_event,
        .grace_ms = GRACE_MS,
        .link = ranks->link,
        .is_settled = ranks_is_settled,
    };

    assert(ranks->gather_bytes <= SWAP_BYTES_MAX);
    if (ranks->link != NULL) {
        hd_link_listen(ranks->link, &listener);
    }
    const hd_status status = hd_launch_run(&launch, &outcome, problem);
    const struct hd_problem *verdict = ranks->link != NULL ? hd_link_verdict(ranks->link) : NULL;
    if (verdict != NULL) {
        pair.problem = *verdict;
    }
    if (status == HD_OK && pair.problem.exit_code != 0) {
        *problem = pair.problem;
        return HD_ABORTED;
    }
    return status;
}
