/*
 * tests/fuzz/fuzz_csv.c - any bytes as a table of PyTorch's: refused, or a plan that is written and
 * read back to itself.
 */
#include "memory_file.h"
#include "plan/csv.h"
#include "report/csv_write.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static struct hd_pipeline *plan_of(const char *path)
{
    struct hd_pipeline_source source;
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};
    hd_status status = hd_csv_read(path, &source, &problem);

    assert(status == HD_OK || problem.exit_code == HD_EXIT_USAGE);
    if (status == HD_OK) {
        status = hd_pipeline_from_actions(&source, &pipeline, &problem);
    }
    assert(status == HD_OK || (problem.exit_code != 0 && problem.message[0] != '\0'));
    return pipeline;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct hd_pipeline *const pipeline = plan_of(memory_file(0, bytes, count));
    struct hd_problem problem = {0};

    if (pipeline == NULL) {
        return 0;
    }
    FILE *const stream = memory_file_write(1);
    assert(hd_csv_write(pipeline, stream, &problem) == HD_OK);
    fclose(stream);
    struct hd_pipeline *const again = plan_of(memory_file_path(1));
    assert(again != NULL && again->action_count == pipeline->action_count);
    assert(memcmp(again->actions, pipeline->actions,
                  again->action_count * sizeof again->actions[0]) == 0);
    assert(memcmp(again->stage_rank, pipeline->stage_rank,
                  again->stage_count * sizeof again->stage_rank[0]) == 0);
    hd_pipeline_verify_serial(pipeline, &problem);
    hd_pipeline_destroy(again);
    hd_pipeline_destroy(pipeline);
    return 0;
}
