/* launch/pmix_absent.c - in a build without libpmix: every use fails with the remedy. */
#include "launch/pmix.h"

hd_status hd_pmix_begin(uint32_t *rank, uint32_t *rank_count, uint32_t *local_rank,
                        struct hd_problem *problem)
{
    (void)rank;
    (void)rank_count;
    (void)local_rank;
    hd_problem_place(problem, "environment");
    hd_problem_key(problem, "PMIX_RANK");
    hd_problem_remedy(problem, "install libpmix-dev and build again, or set RANK, WORLD_SIZE, "
                               "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                          "the launcher uses PMIx, and this heddle was built without libpmix");
}

hd_status hd_pmix_exchange(uint32_t rank, struct hd_hub_address *hub, uint64_t deadline_ns,
                           struct hd_problem *problem)
{
    (void)rank;
    (void)hub;
    (void)deadline_ns;
    return hd_pmix_begin(NULL, NULL, NULL, problem);
}

void hd_pmix_finish(void)
{
}
