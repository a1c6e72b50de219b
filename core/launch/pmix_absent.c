/* launch/pmix_absent.c - in a build without libpmix: says so. */
#include "launch/identity.h"

hd_status hd_pmix_begin(struct hd_identity *identity, struct hd_problem *problem)
{
    (void)identity;
    hd_problem_place(problem, "environment");
    hd_problem_key(problem, "PMIX_RANK");
    hd_problem_remedy(problem, "install libpmix-dev and build again, or set RANK, WORLD_SIZE, "
                               "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                          "a launcher speaks PMIx, and this heddle was built without libpmix");
}

hd_status hd_pmix_exchange(struct hd_identity *identity, uint64_t deadline_ns,
                           struct hd_problem *problem)
{
    (void)deadline_ns;
    return hd_pmix_begin(identity, problem);
}

void hd_pmix_finish(void)
{
}
