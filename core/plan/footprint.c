#include "plan/footprint.h"

#include "base/number.h"
#include "plan/flow.h"

#include <string.h>

enum { SLOT_ALIGNMENT_BYTES = 64, SEAL_BYTES = 64 };

static uint64_t footprint_slot_bytes(uint64_t boundary_bytes)
{
    return hd_round_up(boundary_bytes, SLOT_ALIGNMENT_BYTES) + SEAL_BYTES;
}

static void footprint_add_stages(const struct hd_pipeline *pipeline,
                                 const struct hd_stage_bytes *stages, const uint32_t *payload_slots,
                                 struct hd_footprint *ranks)
{
    for (uint32_t replica = 0; replica < pipeline->replica_count; replica++) {
        for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
            struct hd_footprint *const rank = &ranks[hd_flow_home(pipeline, replica, stage)];
            rank->state_bytes += stages[stage].state;
            rank->payload_bytes += payload_slots[stage] * stages[stage].payload;
            rank->scratch_bytes = hd_max_u64(rank->scratch_bytes, stages[stage].scratch);
        }
    }
}

void hd_footprint_fill(const struct hd_pipeline *pipeline, const struct hd_stage_bytes *stages,
                       const uint32_t *payload_slots, uint64_t budget_bytes,
                       struct hd_footprint *ranks)
{
    const bool needs_all = hd_pipeline_needs_all_sends(pipeline, pipeline->has_overlap);

    memset(ranks, 0, pipeline->rank_count * sizeof *ranks);
    footprint_add_stages(pipeline, stages,
                         payload_slots != NULL ? payload_slots : pipeline->retention, ranks);
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        const uint64_t slot_bytes = footprint_slot_bytes(stages[channel->boundary].boundary);
        ranks[channel->target].transfer_bytes += channel->slots * slot_bytes;
        if (pipeline->is_copied && hd_pipeline_is_remote(channel)) {
            ranks[channel->source].transfer_bytes +=
                hd_pipeline_send_slots(channel, needs_all) * slot_bytes;
        }
    }
    for (uint32_t i = 0; i < pipeline->rank_count; i++) {
        struct hd_footprint *const rank = &ranks[i];
        rank->total_bytes =
            rank->state_bytes + rank->payload_bytes + rank->transfer_bytes + rank->scratch_bytes;
        rank->fits = budget_bytes == 0 || rank->total_bytes <= budget_bytes;
    }
}
