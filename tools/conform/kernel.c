#include "conform/kernel.h"
#include "conform/mirror.h"

#include <string.h>

const struct hd_conform_check hd_conform_kernels[] = {
    {"descriptor", HD_CONFORM_LOAD, 10, "plugin.h", "it says who it is", hd_conform_descriptor},
    {"options", HD_CONFORM_LOAD, 10, "plugin.h", "every option has type, range, default and help",
     hd_conform_options},
    {"device", HD_CONFORM_API, 30, "open, close",
     "it opens, says what it opened, and leaves nothing", hd_conform_kernel_device},
    {"needs", HD_CONFORM_API, 30, "stage_needs", "what a stage needs is arithmetic, and adds up",
     hd_conform_kernel_needs},
    {"refusal", HD_CONFORM_API, 30, "stage_needs",
     "a model it cannot serve is refused with a sentence", hd_conform_kernel_refusal},
    {"tensors", HD_CONFORM_API, 30, "tensor", "tensors have names and places of their own",
     hd_conform_kernel_tensors},
    {"copies", HD_CONFORM_API, 30, "tensor_copy", "what is written into a tensor is read back",
     hd_conform_kernel_copies},
    {"regions", HD_CONFORM_SEMANTICS, 60, "stage_needs",
     "no pass touches a byte beside what was asked for", hd_conform_kernel_regions},
    {"ordered", HD_CONFORM_SEMANTICS, 60, "K1", "what a call does is done when it returns",
     hd_conform_kernel_ordered},
    {"stream", HD_CONFORM_SEMANTICS, 60, "K1, mark, reached",
     "a stream keeps the order of the calls, and marks say when", hd_conform_kernel_stream},
    {"frugal", HD_CONFORM_SEMANTICS, 60, "K2", "nothing is allocated once a stage is there",
     hd_conform_kernel_frugal},
    {"repeatable", HD_CONFORM_SEMANTICS, 60, "K3",
     "no address, slot, rubbish or other microbatch changes a bit", hd_conform_kernel_repeatable},
    {"splittable", HD_CONFORM_SEMANTICS, 60, "K4", "no cut of the model changes a bit",
     hd_conform_kernel_splittable},
    {"additive", HD_CONFORM_SEMANTICS, 60, "K5", "a backward adds, and nothing else writes",
     hd_conform_kernel_additive},
    {"halves", HD_CONFORM_SEMANTICS, 60, "K5", "I then W give the bits of B",
     hd_conform_kernel_halves},
    {"write_once", HD_CONFORM_SEMANTICS, 60, "K6",
     "outputs are written to the last byte and never read", hd_conform_kernel_write_once},
    {"read_only", HD_CONFORM_SEMANTICS, 60, "K6", "inputs are never written",
     hd_conform_kernel_read_only},
    {"evaluation", HD_CONFORM_SEMANTICS, 60, "hd_pass", "an evaluation gives the bits of a forward",
     hd_conform_kernel_evaluation},
    {"gradient", HD_CONFORM_SEMANTICS, 90, "backward", "gradients are the slopes of the loss",
     hd_conform_kernel_gradient},
    {"norms", HD_CONFORM_SEMANTICS, 30, "norms", "norms are the sums of squared gradients",
     hd_conform_kernel_norms},
    {"update", HD_CONFORM_SEMANTICS, 60, "update", "an update is AdamW, and leaves the gradients",
     hd_conform_kernel_update},
    {"stamp", HD_CONFORM_FAULT, 60, "K7", "a stale, foreign or poisoned payload is refused",
     hd_conform_kernel_stamp},
    {"garbage", HD_CONFORM_FAULT, 60, "K8", "no index read from a spoilt payload leaves its range",
     hd_conform_kernel_garbage},
    {"nan", HD_CONFORM_FAULT, 90, "K8", "a NaN in any tensor reaches the loss or a norm",
     hd_conform_kernel_nan},
    {"passes", HD_CONFORM_SPEED, 90, "-", "how long a pass takes", hd_conform_kernel_speed},
    {0},
};

const struct hd_cut hd_cut_whole = {{HD_BENCH_BLOCKS}, 1};
const struct hd_cut hd_cut_in_two = {{2, 2}, 2};
const struct hd_cut hd_cut_of_two = {{1, 1}, 2};

/* The ways to compute in that the laws are asked of. */
static const struct {
    const char *name;
    uint32_t precision, recompute, half_batches;
} kernel_variants[] = {
    {"f32", HD_PRECISION_F32, HD_RECOMPUTE_NONE, 1},
    {"bf16", HD_PRECISION_BF16, HD_RECOMPUTE_NONE, 1},
    {"bf16 recomputed", HD_PRECISION_BF16, HD_RECOMPUTE_FULL, 1},
    {"bf16 experts recomputed", HD_PRECISION_BF16, HD_RECOMPUTE_EXPERTS, 1},
    {"bf16 by half batches", HD_PRECISION_BF16, HD_RECOMPUTE_NONE, 2},
    {"mxfp8", HD_PRECISION_MXFP8, HD_RECOMPUTE_NONE, 1},
};

enum { VARIANT_COUNT = sizeof kernel_variants / sizeof kernel_variants[0] };

const char *hd_model_name(const struct hd_stage_spec *model)
{
    for (uint32_t i = 0; i < VARIANT_COUNT; i++) {
        if (kernel_variants[i].precision == model->precision &&
            kernel_variants[i].recompute == model->recompute &&
            kernel_variants[i].half_batches == model->half_batches) {
            return kernel_variants[i].name;
        }
    }
    return "another model";
}

struct hd_stage_spec hd_conform_model(uint32_t precision)
{
    return (struct hd_stage_spec){.size = sizeof(struct hd_stage_spec),
                                  .layers = HD_BENCH_BLOCKS,
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

hd_status hd_bench_open_device(struct hd_bench *bench, struct hd_conform_case *check)
{
    struct hd_harness *harness = &bench->harness;

    memset(bench, 0, sizeof *bench);
    bench->check = check;
    harness->plugin = check->plugin;
    harness->ops = check->plugin->ops;
    harness->host = check->host;
    harness->device.size = sizeof harness->device;
    harness->moved = &check->page->moved;
    const hd_status status =
        harness->ops->open(&harness->host, 0, &harness->device, &harness->kernel);
    if (status == HD_UNSUPPORTED || status == HD_DEVICE) {
        hd_conform_skip(check, "cannot be opened here: %s", check->report.text);
    } else if (status != HD_OK) {
        hd_conform_fail(check, "open returns %s: %s", hd_status_name(status), check->report.text);
    }
    return status;
}

int hd_bench_open(struct hd_bench *bench, struct hd_conform_case *check,
                  const struct hd_stage_spec *model, const struct hd_cut *cut)
{
    if (hd_bench_open_device(bench, check) != HD_OK) {
        return 0;
    }
    bench->harness.fill = 0xff;
    bench->precision = hd_model_name(model);
    if (bench->harness.device.memory == HD_MEMORY_CUDA || bench->harness.device.stream != NULL) {
        const hd_status mirrored = hd_mirror_open(&bench->harness, check->subject->limit_ms);
        if (mirrored != HD_OK) {
            hd_conform_fail(check, "its memory cannot be mirrored: %s", hd_status_name(mirrored));
            hd_bench_close(bench);
            return 0;
        }
    }
    const hd_status status =
        hd_chain_open(&bench->chain, &bench->harness, model, cut->blocks, cut->stage_count);
    if (status != HD_OK) {
        if (status != HD_UNSUPPORTED) {
            hd_conform_fail(check, "%s: a stage cannot be had: %s: %s", bench->precision,
                            hd_status_name(status), check->report.text);
        }
        hd_bench_close(bench);
        return 0;
    }
    hd_chain_draw(&bench->chain, check->subject->seed);
    return 1;
}

void hd_bench_close(struct hd_bench *bench)
{
    hd_chain_close(&bench->chain);
    bench->harness.ops->close(bench->harness.kernel);
}

void hd_conform_each_variant(struct hd_conform_case *check,
                             void (*judge)(struct hd_conform_case *check,
                                           const struct hd_stage_spec *model))
{
    const struct hd_kernel_ops *ops = check->plugin->ops;
    uint32_t served_count = 0;

    for (uint32_t i = 0; i < VARIANT_COUNT && !hd_conform_is_decided(check); i++) {
        struct hd_stage_spec model = hd_conform_model(kernel_variants[i].precision);
        struct hd_stage_needs needs = {.size = sizeof needs};
        model.recompute = kernel_variants[i].recompute;
        model.half_batches = kernel_variants[i].half_batches;
        struct hd_stage_spec asked = model;
        asked.block_count = HD_BENCH_BLOCKS;
        asked.has_embedding = asked.has_head = 1;
        check->report.count = 0;
        if (ops->stage_needs(&check->host, &asked, &needs) != HD_OK) {
            continue;
        }
        served_count++;
        hd_conform_at(check, "%s", kernel_variants[i].name);
        judge(check, &model);
    }
    if (served_count == 0) {
        hd_conform_skip(check, "serves no model of the suite: %s", check->report.text);
    }
    hd_conform_remark(check, "in %u of %u ways to compute", served_count, VARIANT_COUNT);
}

int hd_bench_has_tensors(struct hd_bench *bench)
{
    if (bench->chain.tensor_count == 0) {
        hd_conform_skip(bench->check, "has no tensors");
    }
    return bench->chain.tensor_count > 0;
}

int hd_bench_is_whole(const struct hd_bench *bench)
{
    const struct hd_chain *chain = &bench->chain;
    int holds = hd_guard_is_whole(chain->tokens) && hd_guard_is_whole(chain->targets);

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        const struct hd_chain_stage *at = &chain->stages[stage];
        const void *const blocks[] = {at->memory.parameters,   at->memory.optimizer,
                                      at->memory.scratch,      at->memory.gradients[0],
                                      at->memory.gradients[1], at->payload,
                                      at->second_payload,      at->input,
                                      at->input_gradient};
        for (unsigned i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            holds = holds && (blocks[i] == NULL || hd_guard_is_whole(blocks[i]));
        }
    }
    return holds;
}
