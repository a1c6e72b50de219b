/*
 * report/plan_facts.h - everything that a plan's text, table and JSON say, in one place.
 *
 * Filled by run/planning; borrowed by the printers of this floor, which decide nothing.
 */
#ifndef HEDDLE_REPORT_PLAN_FACTS_H
#define HEDDLE_REPORT_PLAN_FACTS_H

#include "plan/footprint.h"
#include "plan/pipeline.h"
#include "plan/timeline.h"

#include <heddle/kernel.h>

#define HD_PLAN_NOTE_MAX 4u

struct hd_plan_facts {
    const struct hd_pipeline *pipeline;
    const struct hd_timeline *timeline;
    const struct hd_footprint *footprints; /* [rank_count]; NULL: bytes are not known */
    const struct hd_stage_needs *needs;    /* [stage_count]; NULL: not known */
    uint64_t budget_bytes;                 /* 0: none */
    const char *memory_source;             /* whose bytes they are, or why they are unknown */
    const char *hash;                      /* hex */
    const char *layers;                    /* "8,8,7,7"; NULL: not known */
    uint64_t transfer_count;               /* messages of a step that cross between ranks */
    uint64_t transfer_bytes;               /* of a step */
    /* With this many microbatches, and more in whole rounds, the copies are what they stay at; 0:
       they grow with every microbatch, UINT32_MAX: not asked. */
    uint32_t steady_from;
    const char *issue_order;   /* of transfers that move one at a time; static; NULL: they do not */
    double side_by_side_ticks; /* of the step, if they did not have to; 0: no costs */
    double plan_seconds;
    uint32_t note_count;
    const char *notes[HD_PLAN_NOTE_MAX];
};

/* "loop", "v", "bidirectional" or "custom"; static. */
const char *hd_plan_placement(const struct hd_pipeline *pipeline);

/* "asap", "drawn" or "costed"; static. */
const char *hd_plan_timeline_name(uint32_t kind);

/* Some action is of that kind, a letter of enum hd_action_kind. */
int hd_plan_has_kind(const struct hd_pipeline *pipeline, char kind);

#endif /* HEDDLE_REPORT_PLAN_FACTS_H */
