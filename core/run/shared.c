#include "run/shared.h"
#include "base/number.h"

/* Takes the next `bytes` of the memory; *end counts all that is taken. */
static void *shared_take(unsigned char *memory, uint64_t *end, uint64_t bytes)
{
    const uint64_t offset = hd_round_up(*end, 64);

    *end = offset + bytes;
    return memory != NULL ? memory + offset : NULL;
}

static void shared_count(struct hd_shared *shared, const struct hd_job *job)
{
    const struct hd_pipeline *pipeline = job->pipeline;

    *shared = (struct hd_shared){
        .rank_count = pipeline->rank_count,
        .remote_count = pipeline->remote_count,
    };
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        shared->actions_max = hd_max_u64(shared->actions_max, pipeline->rank_begin[rank + 1] -
                                                                  pipeline->rank_begin[rank]);
    }
    if (job->config->output.trace) {
        shared->record_count = shared->actions_max * job->config->output.trace_steps;
    }
}

uint64_t hd_shared_map(struct hd_shared *shared, const struct hd_job *job, void *memory)
{
    const uint64_t ranks = job->pipeline->rank_count;
    const uint64_t steps_bytes = job->config->train.steps * sizeof(double);
    uint64_t end = 0;

    shared_count(shared, job);
    shared->board = shared_take(memory, &end, hd_board_bytes(job->pipeline->rank_count));
    shared->results = shared_take(memory, &end, sizeof *shared->results);
    shared->losses = shared_take(memory, &end, steps_bytes);
    shared->norms = shared_take(memory, &end, steps_bytes);
    shared->step_seconds = shared_take(memory, &end, steps_bytes);
    shared->ranks = shared_take(memory, &end, ranks * sizeof *shared->ranks);
    shared->channels = shared_take(memory, &end, shared->remote_count * sizeof *shared->channels);
    shared->records =
        shared_take(memory, &end, ranks * shared->record_count * sizeof *shared->records);
    return end;
}
