/* plugins/kernels/transformer/payload.c - see payload.h. */
#include "payload.h"

#include "address.h"
#include "remote_stage.h"

#include <string.h>

static struct hd_stamp payload_stamp(const struct hd_stage *stage, const struct hd_pass *pass,
                                     uint32_t half)
{
    return (struct hd_stamp){.magic = HD_STAMP_MAGIC,
                             .generation = pass->generation,
                             .microbatch = pass->microbatch,
                             .spec_hash = stage->spec_hash,
                             .half = half};
}

hd_status hd_payload_stamp(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half,
                           uint64_t row_count)
{
    struct hd_stamp_args args = {pass->payload[0], payload_stamp(stage, pass, half)};
    if (hd_is_remote()) {
        return hd_transformer_backend.remote->write_stamp(stage->kernel->device, &args);
    }
    args.stamp.row_count = row_count;
    memcpy(pass->payload[0], &args.stamp, sizeof args.stamp);
    return HD_OK;
}

static hd_status payload_check_stamp(const struct hd_stage *stage, const struct hd_pass *pass,
                                     uint32_t half)
{
    struct hd_stamp stamp;
    struct hd_fault fault = {
        .stage = stage->spec.stage, .microbatch = pass->microbatch, .generation = pass->generation};
    if (!stage->kernel->checks_stamps) {
        return HD_OK;
    }
    memcpy(&stamp, pass->payload[0], sizeof stamp);
    fault.found_magic = stamp.magic;
    fault.found_generation = stamp.generation;
    fault.found_microbatch = stamp.microbatch;
    if (stamp.magic != HD_STAMP_MAGIC || stamp.spec_hash != stage->spec_hash ||
        stamp.half != half) {
        fault.code = HD_FAULT_OTHER_STAGE;
    } else if (stamp.generation != pass->generation || stamp.microbatch != pass->microbatch) {
        fault.code = HD_FAULT_STALE;
    }
    return fault.code ? hd_fault_refuse(stage->kernel->host, &fault) : HD_OK;
}

static bool payload_in_range(const int32_t *index, uint64_t count, int64_t least, int64_t limit)
{
    for (uint64_t i = 0; i < count; i++) {
        if (index[i] < least || index[i] >= limit) {
            return false;
        }
    }
    return true;
}

/* Whether every index that the ops will follow stays within its tensor (K8). */
static bool payload_maps_hold(const struct hd_block *block)
{
    const struct hd_layout *layout = &block->stage->layout;
    const struct hd_saved *saved = &block->saved;
    const uint32_t experts = block->stage->spec.experts;
    const uint64_t chosen = layout->tokens * block->stage->spec.experts_per_token;
    const int64_t row_max = (int64_t)layout->row_max;
    const int32_t *offsets = saved->offsets;
    bool holds = offsets[0] == 0 && payload_in_range(offsets, experts + 1u, 0, row_max + 1);
    for (uint32_t expert = 0; expert < experts; expert++) {
        holds = holds && offsets[expert] <= offsets[expert + 1] &&
                offsets[expert + 1] % (int32_t)HD_ROW_BLOCK == 0;
    }
    return holds && payload_in_range(saved->selected, chosen, 0, experts) &&
           payload_in_range(saved->row_of, chosen, 0, offsets[experts]) &&
           payload_in_range(saved->source, layout->row_max, -1, (int64_t)chosen);
}

/* A kernel of the plugin makes the same checks; `reached` reports what it finds. */
static hd_status payload_check_remote(const struct hd_stage *stage, const struct hd_pass *pass,
                                      uint32_t half, bool keeps_routing)
{
    const struct hd_layout *layout = &stage->layout;
    struct hd_check_args args = {.payload = pass->payload[0],
                                 .expected = payload_stamp(stage, pass, half),
                                 .block_stride = layout->kept_stride,
                                 .row_max = layout->row_max,
                                 .chosen = layout->tokens * stage->spec.experts_per_token,
                                 .experts = stage->spec.experts,
                                 .stage = stage->spec.stage,
                                 .first_block = stage->spec.first_block,
                                 .checks_stamp = stage->kernel->checks_stamps};
    if (keeps_routing) {
        const struct hd_saved saved = hd_block_at(stage, pass, 0).saved;
        args.block_count = stage->spec.block_count;
        args.maps = (struct hd_routing){.offsets = saved.offsets,
                                        .selected = saved.selected,
                                        .row_of = saved.row_of,
                                        .source = saved.source};
    }
    return hd_transformer_backend.remote->check_payload(stage->kernel->device, &args);
}

hd_status hd_payload_check(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half)
{
    const bool keeps_routing =
        stage->spec.experts > 0 && stage->layout.kept[HD_SAVED(offsets)] != HD_NOT_KEPT;
    if (hd_is_remote()) {
        return payload_check_remote(stage, pass, half, keeps_routing);
    }
    HD_TRY(payload_check_stamp(stage, pass, half));
    for (uint32_t index = 0; keeps_routing && index < stage->spec.block_count; index++) {
        const struct hd_block block = hd_block_at(stage, pass, index);
        if (!payload_maps_hold(&block)) {
            const struct hd_fault fault = {.code = HD_FAULT_ROUTING,
                                           .stage = stage->spec.stage,
                                           .block = stage->spec.first_block + index,
                                           .microbatch = pass->microbatch,
                                           .generation = pass->generation};
            return hd_fault_refuse(stage->kernel->host, &fault);
        }
    }
    return HD_OK;
}
