#include "cli/join.h"

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
    const struct hd_link_request request = {&identity, world->hash, world->patience_s};
    status = join_check_world(&identity, world, &cli->problem);
    if (status == HD_OK) {
        status = hd_link_open(&request, link, &cli->problem);
    }
    if (status == HD_OK && address != NULL) {
        memcpy(address, identity.hub.addresses[0], sizeof identity.hub.addresses[0]);
    }
    hd_identity_finish(&identity);
    return status;
}
