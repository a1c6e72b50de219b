#include "report/csv_write.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Writes an action, or a pair with the one after it; returns how many it wrote. */
static uint64_t csv_write_cell(const struct hd_pipeline *pipeline, uint64_t index, uint64_t end,
                               FILE *stream)
{
    const struct hd_action *action = &pipeline->actions[index];
    const struct hd_action *after = action + 1;
    const bool is_pair = (action->flags & HD_PAIRED) && index + 1 < end &&
                         (pipeline->idle_before == NULL || pipeline->idle_before[index + 1] == 0);

    if (!is_pair) {
        fprintf(stream, "%u%c%u", action->stage, action->kind, action->microbatch);
        return 1;
    }
    fprintf(stream, "(%u%c%u;%u%c%u)OVERLAP_F_B", action->stage, action->kind, action->microbatch,
            after->stage, after->kind, after->microbatch);
    return 2;
}

static void csv_write_row(const struct hd_pipeline *pipeline, uint32_t rank, FILE *stream)
{
    const uint64_t begin = pipeline->rank_begin[rank];
    const uint64_t end = pipeline->rank_begin[rank + 1];

    for (uint64_t index = begin; index < end;) {
        const uint32_t idle = pipeline->idle_before != NULL ? pipeline->idle_before[index] : 0;
        if (index > begin) {
            fputc(',', stream);
        }
        for (uint32_t tick = 0; tick < idle; tick++) {
            fputc(',', stream);
        }
        index += csv_write_cell(pipeline, index, end, stream);
    }
    fputs("\r\n", stream);
}

hd_status hd_csv_write(const struct hd_pipeline *pipeline, FILE *stream, struct hd_problem *problem)
{
    assert(pipeline != NULL && stream != NULL);
    if (pipeline->replica_count > 1) {
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                              "a table holds one chain of stages, but %s runs %u",
                              pipeline->schedule, pipeline->replica_count);
    }
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        csv_write_row(pipeline, rank, stream);
    }
    if (fflush(stream) != 0 || ferror(stream)) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot write the table: %s",
                              strerror(errno));
    }
    return HD_OK;
}
