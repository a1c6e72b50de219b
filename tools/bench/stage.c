/* bench/stage.c - a stage on its device, without an engine. */
#include "bench/stage.h"
#include "base/memory.h"
#include "base/try.h"
#include "engine/region.h"
#include "train/initial.h"

#include <assert.h>
#include <stdio.h>

static const struct hd_lent *stage_lent_of(const struct hd_bench_stage *stage)
{
    return &stage->device->lent;
}

static hd_status stage_take_regions(struct hd_bench_stage *stage, uint64_t token_bytes)
{
    const struct hd_lent *lent = stage_lent_of(stage);
    const struct hd_regions regions = {.ops = lent->ops,
                                       .kernel = lent->kernel,
                                       .alignment = hd_lent_alignment(lent),
                                       .is_device = lent->about.memory == HD_MEMORY_CUDA};
    const struct hd_stage_needs *needs = &stage->needs;
    const struct {
        uint64_t bytes;
        void **out;
    } rows[] = {
        {needs->parameter_bytes, &stage->memory.parameters},
        {needs->optimizer_bytes, &stage->memory.optimizer},
        {needs->scratch_bytes, &stage->memory.scratch},
        {needs->gradient_bytes[HD_DENSE], &stage->memory.gradients[HD_DENSE]},
        {needs->gradient_bytes[HD_EXPERT], &stage->memory.gradients[HD_EXPERT]},
        {token_bytes, &stage->tokens},
        {needs->boundary_bytes, &stage->output},
        {needs->term_count * sizeof(double), &stage->terms},
    };

    stage->memory.size = sizeof stage->memory;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HD_TRY(hd_regions_take(&regions, rows[i].bytes, "bench", rows[i].out));
        if (rows[i].bytes > 0) {
            HD_TRY(hd_regions_fill(&regions, *rows[i].out, rows[i].bytes, 0));
        }
    }
    return HD_OK;
}

static hd_status stage_draw_tensor(struct hd_bench_stage *stage, const struct hd_stage_spec *spec,
                                   uint64_t seed, uint32_t index)
{
    const struct hd_lent *lent = stage_lent_of(stage);
    struct hd_tensor tensor = {.size = sizeof tensor};

    HD_TRY(lent->ops->tensor(stage->instance, index, &tensor));
    void *values = hd_memory_take(hd_tensor_count(&tensor) * sizeof(double), 4096, "bench");
    if (values == NULL) {
        return HD_NO_MEMORY;
    }
    hd_initial_fill(&tensor, seed, spec->init_std, values);
    const hd_status status = lent->ops->tensor_copy(stage->instance, index, HD_MASTER, 1, values);
    hd_memory_give(values);
    return status;
}

/* Any tokens will do: how even the routing is depends on the drawn router. */
static hd_status stage_draw_tokens(struct hd_bench_stage *stage, const struct hd_stage_spec *spec)
{
    const uint64_t count = (uint64_t)spec->batch * spec->sequence;
    int32_t *tokens = hd_memory_take(count * sizeof *tokens, 4096, "bench");

    if (tokens == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint64_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)(i * 2654435761u % spec->vocabulary);
    }
    const hd_status status =
        hd_lent_copy_now(stage_lent_of(stage), stage->tokens, tokens, count * sizeof *tokens);
    hd_memory_give(tokens);
    return status;
}

static hd_status stage_create(struct hd_bench_stage *stage, const struct hd_stage_spec *spec,
                              uint64_t seed)
{
    const struct hd_lent *lent = stage_lent_of(stage);

    HD_TRY(lent->ops->stage_needs(&lent->host, spec, &stage->needs));
    HD_TRY(stage_take_regions(stage, (uint64_t)spec->batch * spec->sequence * sizeof(int32_t)));
    HD_TRY(lent->ops->stage_create(lent->kernel, spec, &stage->memory, &stage->instance));
    for (uint32_t i = 0; i < stage->needs.tensor_count; i++) {
        HD_TRY(stage_draw_tensor(stage, spec, seed, i));
    }
    return stage_draw_tokens(stage, spec);
}

hd_status hd_bench_stage_open(struct hd_bench_stage *stage, struct hd_drive_device *device,
                              const struct hd_stage_spec *spec, uint64_t seed,
                              struct hd_problem *problem)
{
    assert(spec->has_embedding && !spec->has_head && spec->block_count > 0);
    *stage = (struct hd_bench_stage){.device = device, .needs = {.size = sizeof stage->needs}};
    const hd_status status = stage_create(stage, spec, seed);
    return status == HD_OK ? HD_OK : hd_drive_device_blame(device, status, problem);
}

void hd_bench_stage_close(struct hd_bench_stage *stage)
{
    if (stage->instance != NULL) {
        stage_lent_of(stage)->ops->stage_destroy(stage->instance);
        stage->instance = NULL;
    }
}

hd_status hd_bench_stage_forward(const struct hd_bench_stage *stage, uint32_t count)
{
    const struct hd_pass pass = {.size = sizeof pass,
                                 .tokens = stage->tokens,
                                 .output = stage->output,
                                 .terms = stage->terms,
                                 .label_scale = 1,
                                 .auxiliary_scale = 1};

    for (uint32_t i = 0; i < count; i++) {
        HD_TRY(stage_lent_of(stage)->ops->forward(stage->instance, &pass));
    }
    return HD_OK;
}
