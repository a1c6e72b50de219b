/*
 * launch/pmix.c - PMIx tells this process its rank, and sends rank 0's address to the others.
 *
 * Only the address goes through PMIx.  Then the connection is closed, because a fence of PMIx
 * cannot be aborted by another thread and may miss its deadline, and because the threads of libpmix
 * must have ended before this process forks its rank.
 */
#include "launch/pmix.h"

#include "base/clock.h"

#include <pmix.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t pmix_self;

static const char pmix_key[] = "heddle.hub";

static hd_status pmix_fail(struct hd_problem *problem, const char *what, pmix_status_t status)
{
    hd_problem_place(problem, "PMIx");
    hd_problem_remedy(problem, "start heddle with mpirun or srun --mpi=pmix, or with RANK, "
                               "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
    return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_PEER, "%s: %s", what,
                          PMIx_Error_string(status));
}

static pmix_status_t pmix_ask(const pmix_proc_t *process, const char *what, uint32_t *number)
{
    pmix_value_t *value = NULL;
    const pmix_status_t status = PMIx_Get(process, what, NULL, 0, &value);

    if (status != PMIX_SUCCESS) {
        return status;
    }
    if (value->type == PMIX_UINT32) {
        *number = value->data.uint32;
    } else if (value->type == PMIX_UINT16) {
        *number = value->data.uint16;
    }
    const pmix_status_t result = value->type == PMIX_UINT32 || value->type == PMIX_UINT16
                                     ? PMIX_SUCCESS
                                     : PMIX_ERR_TYPE_MISMATCH;
    PMIX_VALUE_RELEASE(value);
    return result;
}

hd_status hd_pmix_begin(uint32_t *rank, uint32_t *rank_count, uint32_t *local_rank,
                        struct hd_problem *problem)
{
    pmix_proc_t all;
    pmix_status_t status = PMIx_Init(&pmix_self, NULL, 0);

    if (status != PMIX_SUCCESS) {
        return pmix_fail(problem, "PMIX_RANK is set, but no PMIx server responded", status);
    }
    PMIX_PROC_CONSTRUCT(&all);
    PMIX_LOAD_PROCID(&all, pmix_self.nspace, PMIX_RANK_WILDCARD);
    *rank = pmix_self.rank;
    status = pmix_ask(&all, PMIX_JOB_SIZE, rank_count);
    if (status == PMIX_SUCCESS) {
        status = pmix_ask(&pmix_self, PMIX_LOCAL_RANK, local_rank);
    }
    if (status != PMIX_SUCCESS) {
        hd_pmix_finish();
        return pmix_fail(problem, "the launcher does not tell the number of ranks", status);
    }
    return HD_OK;
}

static pmix_status_t pmix_put_hub(const struct hd_hub_address *hub)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    struct hd_hub_address copy = *hub;

    value.data.bo.bytes = (char *)&copy;
    value.data.bo.size = sizeof copy;
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, pmix_key, &value);
    if (status == PMIX_SUCCESS) {
        status = PMIx_Commit();
    }
    return status;
}

static pmix_status_t pmix_meet(uint64_t deadline_ns)
{
    const uint64_t now_ns = hd_now_ns();
    int seconds = deadline_ns > now_ns ? (int)((deadline_ns - now_ns) / HD_S_NS) + 1 : 1;
    bool collects = true;
    pmix_info_t info[2];

    PMIX_INFO_CONSTRUCT(&info[0]);
    PMIX_INFO_CONSTRUCT(&info[1]);
    PMIX_INFO_LOAD(&info[0], PMIX_COLLECT_DATA, &collects, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    const pmix_status_t status = PMIx_Fence(NULL, 0, info, 2);
    PMIX_INFO_DESTRUCT(&info[0]);
    PMIX_INFO_DESTRUCT(&info[1]);
    return status;
}

static pmix_status_t pmix_get_hub(struct hd_hub_address *hub)
{
    pmix_value_t *value = NULL;
    pmix_proc_t zero;

    PMIX_PROC_CONSTRUCT(&zero);
    PMIX_LOAD_PROCID(&zero, pmix_self.nspace, 0);
    pmix_status_t status = PMIx_Get(&zero, pmix_key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) {
        return status;
    }
    if (value->type == PMIX_BYTE_OBJECT && value->data.bo.size == sizeof *hub) {
        memcpy(hub, value->data.bo.bytes, sizeof *hub);
    } else {
        status = PMIX_ERR_TYPE_MISMATCH; /* rank 0 runs another version */
    }
    PMIX_VALUE_RELEASE(value);
    return status;
}

hd_status hd_pmix_exchange(uint32_t rank, struct hd_hub_address *hub, uint64_t deadline_ns,
                           struct hd_problem *problem)
{
    pmix_status_t status = rank == 0 ? pmix_put_hub(hub) : PMIX_SUCCESS;

    if (status == PMIX_SUCCESS) {
        status = pmix_meet(deadline_ns);
    }
    if (status != PMIX_SUCCESS) {
        return pmix_fail(problem, "the ranks cannot exchange rank 0's address", status);
    }
    status = rank != 0 ? pmix_get_hub(hub) : PMIX_SUCCESS;
    return status != PMIX_SUCCESS ? pmix_fail(problem, "rank 0 has not sent its address", status)
                                  : HD_OK;
}

void hd_pmix_finish(void)
{
    PMIx_Finalize(NULL, 0);
}
