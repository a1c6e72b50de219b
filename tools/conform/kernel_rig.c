#include "conform/kernel_rig.h"
#include "conform/mirror.h"

#include <string.h>

const struct hd_cut hd_cut_whole = {{HD_KERNEL_RIG_BLOCKS}, 1};
const struct hd_cut hd_cut_in_two = {{2, 2}, 2};

static const struct {
    const char *name;
    uint32_t precision, recompute, half_batches;
} kernel_rig_variants[] = {
    {"f32", HD_PRECISION_F32, HD_RECOMPUTE_NONE, 1},
    {"bf16", HD_PRECISION_BF16, HD_RECOMPUTE_NONE, 1},
    {"bf16 recomputed", HD_PRECISION_BF16, HD_RECOMPUTE_FULL, 1},
    {"bf16 experts recomputed", HD_PRECISION_BF16, HD_RECOMPUTE_EXPERTS, 1},
    {"bf16 by half batches", HD_PRECISION_BF16, HD_RECOMPUTE_NONE, 2},
    {"mxfp8", HD_PRECISION_MXFP8, HD_RECOMPUTE_NONE, 1},
};

enum { VARIANT_COUNT = sizeof kernel_rig_variants / sizeof kernel_rig_variants[0] };

const char *hd_variant_name(const struct hd_stage_spec *model)
{
    for (uint32_t i = 0; i < VARIANT_COUNT; i++) {
        if (kernel_rig_variants[i].precision == model->precision &&
            kernel_rig_variants[i].recompute == model->recompute &&
            kernel_rig_variants[i].half_batches == model->half_batches) {
            return kernel_rig_variants[i].name;
        }
    }
    return "another model";
}

struct hd_stage_spec hd_conform_model(uint32_t precision)
{
    return (struct hd_stage_spec){.size = sizeof(struct hd_stage_spec),
                                  .layers = HD_KERNEL_RIG_BLOCKS,
                                  .width = 32,
                                  .heads = 2,
                                  .experts = 4,
                                  .experts_per_token = 2,
                                  .expert_width = 64,
                                  .vocabulary = 64,
                                  .sequence = 16,
                                  .batch = 2,
                                  .rope_theta = 1e4,
                                  .norm_epsilon = 1e-5,
                                  .init_std = 0.02,
                                  .balance_weight = 0.01,
                                  .z_weight = 0.001,
                                  .precision = precision,
                                  .expert_count = 4,
                                  .half_batches = 1};
}

/* --- opening ------------------------------------------------------------------------------- */

hd_status hd_kernel_rig_open_device(struct hd_kernel_rig *rig, struct hd_conform_case *check)
{
    struct hd_harness *harness = &rig->harness;

    memset(rig, 0, sizeof *rig);
    rig->check = check;
    harness->plugin = check->plugin;
    harness->ops = check->plugin->ops;
    harness->host = check->host;
    harness->device.size = sizeof harness->device;
    harness->moved = &check->page->moved;
    const hd_status status =
        harness->ops->open(&harness->host, 0, &harness->device, &harness->kernel);
    if (status == HD_UNSUPPORTED || status == HD_DEVICE) {
        hd_conform_skip(check, "cannot open the kernel here: %s", check->report.text);
    } else if (status != HD_OK) {
        hd_conform_fail(check, "open returns %s: %s", hd_status_name(status), check->report.text);
    }
    return status;
}

bool hd_kernel_rig_open(struct hd_kernel_rig *rig, struct hd_conform_case *check,
                        const struct hd_stage_spec *model, const struct hd_cut *cut)
{
    if (hd_kernel_rig_open_device(rig, check) != HD_OK) {
        return false;
    }
    rig->harness.fill = 0xff;
    rig->variant = hd_variant_name(model);
    if (rig->harness.device.memory == HD_MEMORY_CUDA || rig->harness.device.stream != NULL) {
        const hd_status mirrored = hd_mirror_open(&rig->harness, check->subject->limit_ms);
        if (mirrored != HD_OK) {
            hd_conform_fail(check, "cannot mirror the device's memory: %s",
                            hd_status_name(mirrored));
            hd_kernel_rig_close(rig);
            return false;
        }
    }
    const hd_status status =
        hd_chain_open(&rig->chain, &rig->harness, model, cut->blocks, cut->stage_count);
    if (status != HD_OK) {
        if (status != HD_UNSUPPORTED) {
            hd_conform_fail(check, "%s: cannot create a stage: %s: %s", rig->variant,
                            hd_status_name(status), check->report.text);
        }
        hd_kernel_rig_close(rig);
        return false;
    }
    hd_chain_draw(&rig->chain, check->subject->seed);
    return true;
}

void hd_kernel_rig_close(struct hd_kernel_rig *rig)
{
    hd_chain_close(&rig->chain);
    rig->harness.ops->close(rig->harness.kernel);
}

/* --- judging ------------------------------------------------------------------------------- */

static bool kernel_rig_serves(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    const struct hd_kernel_ops *ops = check->plugin->ops;
    struct hd_stage_needs needs = {.size = sizeof needs};
    struct hd_stage_spec whole = *model;

    whole.block_count = whole.layers;
    whole.has_embedding = whole.has_head = 1;
    check->report.count = 0;
    return ops->stage_needs(&check->host, &whole, &needs) == HD_OK;
}

bool hd_conform_is_served(struct hd_conform_case *check, struct hd_stage_spec *model)
{
    if (kernel_rig_serves(check, model)) {
        return true;
    }
    model->experts = model->experts_per_token = model->expert_count = 0;
    return kernel_rig_serves(check, model);
}

void hd_conform_each_variant(struct hd_conform_case *check,
                             void (*judge)(struct hd_conform_case *check,
                                           const struct hd_stage_spec *model))
{
    uint32_t supported_count = 0;

    for (uint32_t i = 0; i < VARIANT_COUNT && !hd_conform_is_decided(check); i++) {
        struct hd_stage_spec model = hd_conform_model(kernel_rig_variants[i].precision);
        model.recompute = kernel_rig_variants[i].recompute;
        model.half_batches = kernel_rig_variants[i].half_batches;
        if (!hd_conform_is_served(check, &model)) {
            continue;
        }
        supported_count++;
        hd_conform_at(check, "%s", kernel_rig_variants[i].name);
        judge(check, &model);
    }
    if (supported_count == 0) {
        hd_conform_skip(check, "supports no model of the suite: %s", check->report.text);
    }
    hd_conform_remark(check, "%u of %u variants", supported_count, VARIANT_COUNT);
}

static void kernel_rig_judge_variant(struct hd_conform_case *check,
                                     const struct hd_stage_spec *given)
{
    const struct hd_kernel_law *law = check->row->argument;
    struct hd_stage_spec model = *given;
    struct hd_kernel_rig rig;

    model.layers = 0;
    for (uint32_t stage = 0; stage < law->cut->stage_count; stage++) {
        model.layers += law->cut->blocks[stage];
    }
    for (uint32_t i = 0; i < 2 && law->judges[i] != NULL && !hd_conform_is_decided(check); i++) {
        if (!hd_kernel_rig_open(&rig, check, &model, law->cut) ||
            (law->needs_tensors && !hd_kernel_rig_has_tensors(&rig))) {
            return;
        }
        law->judges[i](&rig);
        if (!hd_conform_is_decided(check)) {
            hd_kernel_rig_close(&rig);
        }
    }
}

void hd_kernel_rig_judge(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_rig_judge_variant);
}

bool hd_kernel_rig_pass(struct hd_kernel_rig *rig)
{
    hd_status status = hd_chain_forward(&rig->chain, 0);

    status = status == HD_OK ? hd_chain_backward(&rig->chain) : status;
    if (status != HD_OK) {
        hd_conform_fail(rig->check, "%s: a pass returns %s: %s", rig->variant,
                        hd_status_name(status), rig->check->report.text);
    }
    return status == HD_OK;
}

bool hd_kernel_rig_has_tensors(struct hd_kernel_rig *rig)
{
    if (rig->chain.tensor_count == 0) {
        hd_conform_skip(rig->check, "has no tensors");
    }
    return rig->chain.tensor_count > 0;
}

bool hd_kernel_rig_is_whole(const struct hd_kernel_rig *rig)
{
    const struct hd_chain *chain = &rig->chain;
    bool holds = hd_guard_is_whole(chain->tokens) && hd_guard_is_whole(chain->targets);
    void *blocks[HD_CHAIN_BLOCK_COUNT];

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        hd_chain_blocks(&chain->stages[stage], blocks);
        for (unsigned i = 0; i < HD_CHAIN_BLOCK_COUNT; i++) {
            holds = holds && (blocks[i] == NULL || hd_guard_is_whole(blocks[i]));
        }
    }
    return holds;
}
