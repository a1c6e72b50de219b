/*
 * plan/footprint.h - what each rank must hold, from the plan and the bytes of its stages.
 *
 * Arithmetic alone: `heddle run` allocates what `heddle plan` prints.
 */
#ifndef HEDDLE_PLAN_FOOTPRINT_H
#define HEDDLE_PLAN_FOOTPRINT_H

#include "plan/pipeline.h"

/* Bytes of one stage, from the kernel's stage_needs or from [memory] copy_gb and state_gb. */
struct hd_stage_bytes {
    uint64_t state;    /* parameters, optimizer, gradients */
    uint64_t payload;  /* of one payload slot */
    uint64_t scratch;  /* a rank takes the largest of its stages, once */
    uint64_t boundary; /* of one message */
};

struct hd_footprint {
    uint64_t state_bytes, payload_bytes, transfer_bytes, scratch_bytes, total_bytes;
    bool fits; /* in the budget; true if there is none */
};

/* Fills ranks[rank_count].  transfer_bytes counts the arenas of channels that end at the rank,
   local pools included, and the send slots of a transport that is not in place: slots x (boundary
   rounded up to 64, plus the seal's 64).  payload_slots is
   [stage_count], or NULL for H_s; budget_bytes 0 is no budget. */
void hd_footprint_fill(const struct hd_pipeline *pipeline, const struct hd_stage_bytes *stages,
                       const uint32_t *payload_slots, uint64_t budget_bytes,
                       struct hd_footprint *ranks);

#endif /* HEDDLE_PLAN_FOOTPRINT_H */
