#include "cli/join.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hd_cli_be_member(struct hd_cli *cli)
{
    if (hd_identity_is_member()) {
        cli->is_json = false;
        cli->is_quiet = true;
    }
}

/* A fixed number of processes has a remedy of its own: no key can change it. */
static hd_status join_check_world(const struct hd_identity *identity,
                                  const struct hd_cli_world *world, struct hd_problem *problem)
{
    if (!world->is_fixed || identity->rank_count == world->rank_count) {
        return hd_identity_check_world(identity, world->rank_count, world->replica_count, problem);
    }
    hd_problem_place(problem, "environment");
    hd_problem_remedy(problem, "start %u processes", world->rank_count);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "this command needs %u processes, got %u", world->rank_count,
                          identity->rank_count);
}

hd_status hd_cli_join(struct hd_cli *cli, const struct hd_cli_world *world, struct hd_link **link,
                      char *address)
{
    struct hd_identity identity;

    hd_status status = hd_identity_find(&identity, &cli->problem);
    if (status != HD_OK || identity.launcher == HD_LAUNCHER_NONE) {
        return status;
    }
    char plan[HD_HASH_TEXT_BYTES + 8];
    snprintf(plan, sizeof plan, "plan = %.64s", world->hash);
    char *const facts = world->facts != NULL ? world->facts(world->context) : strdup(plan);
    const struct hd_link_request request = {&identity, facts, world->patience_s};
    status = join_check_world(&identity, world, &cli->problem);
    if (status == HD_OK && facts == NULL) {
        status = hd_problem_no_memory(&cli->problem, 0, "what the ranks compare");
    }
    if (status == HD_OK) {
        status = hd_link_open(&request, link, &cli->problem);
    }
    if (status == HD_OK && address != NULL) {
        memcpy(address, identity.hub.addresses[0], sizeof identity.hub.addresses[0]);
    }
    free(facts);
    hd_identity_finish(&identity);
    return status;
}
