#include "report/costs.h"
#include "base/memory.h"
#include "run/model.h"

/* One key of [cost]. */
struct cost_row {
    const char *key;
    const struct hd_config_numbers *numbers;
    uint32_t count; /* how many numbers are needed, if not one */
};

enum { ROW_COUNT = 5 };

static void costs_rows(const struct hd_config *config, uint32_t stage_count,
                       struct cost_row rows[ROW_COUNT])
{
    const struct cost_row all[ROW_COUNT] = {
        {"forward", &config->cost.forward, stage_count},
        {"backward", &config->cost.backward, stage_count},
        {"input_gradient", &config->cost.input_gradient, stage_count},
        {"weight_gradient", &config->cost.weight_gradient, stage_count},
        {"transfer", &config->cost.transfer, stage_count - 1},
    };

    for (unsigned i = 0; i < ROW_COUNT; i++) {
        rows[i] = all[i];
    }
}

/* Spreads each list over its stages: values [ROW_COUNT x stage_count]. */
static hd_status costs_read(const struct hd_config *config, uint32_t stage_count, double *values,
                            struct hd_problem *problem)
{
    struct cost_row rows[ROW_COUNT];
    hd_status status = HD_OK;

    costs_rows(config, stage_count, rows);
    for (uint64_t i = 0; status == HD_OK && i < ROW_COUNT; i++) {
        const struct hd_config_numbers *numbers = rows[i].numbers;
        status = hd_cost_list_check(config, rows[i].key, rows[i].numbers, rows[i].count, problem);
        for (uint32_t stage = 0; status == HD_OK && stage < rows[i].count; stage++) {
            values[i * stage_count + stage] = numbers->values[numbers->count == 1 ? 0 : stage];
        }
    }
    return status;
}

hd_status hd_costs_timeline(const struct hd_config *config, const struct hd_pipeline *pipeline,
                            struct hd_timeline **timeline, struct hd_problem *problem)
{
    const uint64_t stages = pipeline->stage_count;
    double *values = hd_memory_take(ROW_COUNT * stages * sizeof *values, 64, "job");

    if (values == NULL) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                              "cannot allocate memory for the costs");
    }
    hd_status status = costs_read(config, pipeline->stage_count, values, problem);
    if (status == HD_OK) {
        const uint32_t mode = config->cost.mode;
        const struct hd_timeline_costs costs = {
            .forward = values,
            .backward = values + stages,
            .input_gradient = values + 2 * stages,
            .weight_gradient = values + 3 * stages,
            .transfer = values + 4 * stages,
            .mode = mode == HD_TRANSFER_OVERLAPPED && pipeline->is_serial
                        ? (uint32_t)HD_TRANSFER_SERIAL
                        : mode,
        };
        status = hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &costs, timeline, problem);
    }
    hd_memory_give(values);
    return status;
}
