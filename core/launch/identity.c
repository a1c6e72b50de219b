#include "launch/identity.h"

#include "base/log.h"
#include "launch/pmix.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, VARIABLE_COUNT };

static const char *const identity_names[VARIABLE_COUNT] = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                                           "MASTER_ADDR", "MASTER_PORT"};

static hd_status identity_refuse(struct hd_problem *problem, const char *variable,
                                 const char *reason)
{
    hd_problem_place(problem, "environment");
    hd_problem_key(problem, "%s", variable);
    hd_problem_remedy(problem, "set all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
                               "MASTER_PORT, as torchrun does, or none of them");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* A whole number below `limit`. */
static hd_status identity_read_number(const char *variable, unsigned long limit, uint32_t *number,
                                      struct hd_problem *problem)
{
    const char *const text = getenv(variable);
    char reason[256], *end = NULL;

    if (text == NULL || *text == '\0') {
        return identity_refuse(problem, variable,
                               text != NULL ? "it is set, but empty"
                                            : "it is not set, but another of these variables is");
    }
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || *end != '\0' || *text < '0' || *text > '9' || value >= limit) {
        snprintf(reason, sizeof reason, "'%.64s' is not a whole number from 0 to %lu", text,
                 limit - 1);
        return identity_refuse(problem, variable, reason);
    }
    *number = (uint32_t)value;
    return HD_OK;
}

/* torchrun's own store may listen on the port that torchrun gives to the ranks. */
static bool identity_is_port_taken(void)
{
    const char *const text = getenv("TORCHELASTIC_USE_AGENT_STORE");

    return text != NULL && strcmp(text, "True") == 0;
}

static hd_status identity_read_variables(struct hd_identity *identity, struct hd_problem *problem)
{
    const char *const address = getenv(identity_names[MASTER_ADDR]);
    struct hd_hub_address *const hub = &identity->hub;
    const char *fault;
    uint32_t port = 0;

    for (unsigned i = RANK; i <= WORLD_SIZE; i++) {
        const char *const text = getenv(identity_names[i]);
        if (text != NULL && *text == '\0') {
            return identity_refuse(problem, identity_names[i], "it is set, but empty");
        }
    }
    hd_status status = identity_read_number(identity_names[WORLD_SIZE], HD_LAUNCH_RANK_MAX + 1ul,
                                            &identity->rank_count, problem);
    if (status == HD_OK) {
        status = identity_read_number(identity_names[RANK], UINT32_MAX, &identity->rank, problem);
    }
    if (status != HD_OK || identity->rank_count == 1) {
        return status; /* a world of one process forks its ranks, whatever else is set */
    }
    if (identity->rank >= identity->rank_count) {
        char reason[128];
        snprintf(reason, sizeof reason, "rank %u is not below WORLD_SIZE, which is %u",
                 identity->rank, identity->rank_count);
        return identity_refuse(problem, identity_names[RANK], reason);
    }
    status = identity_read_number(identity_names[LOCAL_RANK], identity->rank_count,
                                  &identity->local_rank, problem);
    if (status == HD_OK) {
        status = identity_read_number(identity_names[MASTER_PORT], 65535ul, &port, problem);
    }
    if (status == HD_OK && port == 0) {
        status = identity_refuse(problem, identity_names[MASTER_PORT],
                                 "'0' is not a port that ranks can connect to");
    }
    if (status == HD_OK && (address == NULL || *address == '\0')) {
        status =
            identity_refuse(problem, identity_names[MASTER_ADDR], "it is not set, but RANK is");
    }
    if (status == HD_OK && strlen(address) >= sizeof hub->addresses[0]) {
        status = identity_refuse(problem, identity_names[MASTER_ADDR],
                                 "it is longer than 63 characters");
    }
    if (status == HD_OK && (fault = hd_socket_fault(address)) != NULL) {
        char text[256];
        snprintf(text, sizeof text, "cannot resolve '%s': %s", address, fault);
        status = identity_refuse(problem, identity_names[MASTER_ADDR], text);
    }
    if (status != HD_OK) {
        return status;
    }
    identity->launcher = HD_LAUNCHER_VARIABLES;
    memcpy(hub->addresses[0], address, strlen(address) + 1);
    hub->address_count = 1;
    hub->port = (uint16_t)(port + identity_is_port_taken());
    return HD_OK;
}

static bool identity_has_variables(void)
{
    return getenv(identity_names[RANK]) != NULL || getenv(identity_names[WORLD_SIZE]) != NULL;
}

hd_status hd_launch_check_environment(struct hd_problem *problem)
{
    static const struct {
        const char *variable; /* how many tasks the launcher has started */
        const char *remedy;
    } rows[] = {
        {"SLURM_STEP_NUM_TASKS", "start it once: srun -n 1 -c CORES heddle run ..."},
        {"OMPI_COMM_WORLD_SIZE", "start it once: heddle run ..., without mpirun"},
        {"PMI_SIZE", "start it once: heddle run ..., without mpiexec"},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const value = getenv(rows[i].variable);
        const unsigned long task_count = value != NULL ? strtoul(value, NULL, 10) : 0;
        if (task_count > 1) {
            hd_problem_place(problem, "environment");
            hd_problem_key(problem, "%s", rows[i].variable);
            hd_problem_remedy(problem, "%s", rows[i].remedy);
            return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                  "it is %lu: a launcher has started this command %lu times, and "
                                  "each process would fork all ranks of the pipeline",
                                  task_count, task_count);
        }
    }
    return HD_OK;
}

static hd_status identity_ask_pmix(struct hd_identity *identity, struct hd_problem *problem)
{
    const hd_status status =
        hd_pmix_begin(&identity->rank, &identity->rank_count, &identity->local_rank, problem);

    if (status == HD_OK) {
        identity->launcher = HD_LAUNCHER_PMIX;
    }
    if (status == HD_OK && identity->rank_count == 1) {
        hd_identity_finish(identity);
    }
    return status;
}

hd_status hd_identity_find(struct hd_identity *identity, struct hd_problem *problem)
{
    hd_status status = HD_OK;

    *identity = (struct hd_identity){.rank_count = 1};
    if (identity_has_variables()) {
        status = identity_read_variables(identity, problem);
    } else if (getenv("PMIX_RANK") != NULL && getenv("PMIX_NAMESPACE") != NULL) {
        status = identity_ask_pmix(identity, problem);
    } else {
        status = hd_launch_check_environment(problem);
    }
    if (status == HD_OK && identity->launcher == HD_LAUNCHER_NONE) {
        hd_log(HD_LOG_DEBUG, "launch: no launcher of several ranks found: this process forks them");
    } else if (status == HD_OK) {
        hd_log(HD_LOG_DEBUG, "launch: by %s, this process is rank %u of %u, local rank %u",
               identity->launcher == HD_LAUNCHER_PMIX ? "PMIx" : "torchrun's variables",
               identity->rank, identity->rank_count, identity->local_rank);
    }
    return status;
}

void hd_identity_finish(struct hd_identity *identity)
{
    if (identity->launcher == HD_LAUNCHER_PMIX) {
        hd_pmix_finish();
    }
    identity->launcher = HD_LAUNCHER_NONE;
}

bool hd_identity_is_member(void)
{
    const char *const text = getenv(identity_has_variables() ? identity_names[RANK] : "PMIX_RANK");

    return text != NULL && strtoul(text, NULL, 10) > 0;
}

hd_status hd_identity_check_world(const struct hd_identity *identity, uint32_t rank_count,
                                  uint32_t replica_count, struct hd_problem *problem)
{
    const uint64_t wanted = (uint64_t)rank_count * replica_count;

    if (identity->launcher == HD_LAUNCHER_NONE || identity->rank_count == wanted) {
        return HD_OK;
    }
    hd_problem_place(problem, "environment");
    hd_problem_remedy(problem, "start %llu processes, or set pipeline.ranks=%u",
                      (unsigned long long)wanted, identity->rank_count);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "pipeline.ranks = %u, grid.data = %u: P*D = %llu, got %u processes",
                          rank_count, replica_count, (unsigned long long)wanted,
                          identity->rank_count);
}

hd_status hd_identity_exchange(struct hd_identity *identity, uint64_t deadline_ns,
                               struct hd_problem *problem)
{
    hd_status status = HD_OK;

    assert(identity->launcher != HD_LAUNCHER_NONE);
    if (identity->launcher == HD_LAUNCHER_PMIX) {
        status = hd_pmix_exchange(identity->rank, &identity->hub, deadline_ns, problem);
        hd_identity_finish(identity);
        identity->launcher = HD_LAUNCHER_VARIABLES; /* from here on both launchers are alike */
    }
    return status;
}
