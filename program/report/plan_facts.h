/*
 * report/plan_facts.h - the facts that a plan's text, grid and JSON print.
 *
 * output/planning fills them; the printers only print.
 */
#ifndef HEDDLE_REPORT_PLAN_FACTS_H
#define HEDDLE_REPORT_PLAN_FACTS_H

#include "plan/footprint.h"
#include "plan/pipeline.h"
#include "report/timeline.h"

#include <heddle/kernel.h>

#define HD_PLAN_NOTE_MAX 4u

struct hd_plan_facts {
    const struct hd_pipeline *pipeline;
    const struct hd_timeline *timeline;
    const struct hd_footprint *footprints; /* [rank_count]; NULL if bytes are unknown */
    const struct hd_stage_needs *needs;    /* [stage_count]; NULL if unknown */
    uint64_t budget_bytes;                 /* 0 if there is none */
    const char *memory_source;             /* where the bytes come from, or why they are unknown */
    const char *hash;                      /* hex */
    const char *layers;                    /* "8,8,7,7"; NULL if unknown */
    uint64_t transfer_count;               /* messages of a step that cross between ranks */
    uint64_t transfer_bytes;               /* of a step */
    /* From this number of microbatches on, in whole rounds, more of them add no copies.  0: copies
       grow with every microbatch; UINT32_MAX: not computed. */
    uint32_t steady_from;
    const char *issue_order;   /* of a serial transport; static; NULL if it is not serial */
    double side_by_side_ticks; /* of the step if it were not serial; 0 without costs */
    double plan_seconds;
    uint32_t note_count;
    const char *notes[HD_PLAN_NOTE_MAX];
};

/* "loop", "v", "bidirectional" or "custom"; static. */
const char *hd_plan_placement(const struct hd_pipeline *pipeline);

/* "asap", "drawn" or "costed"; static. */
const char *hd_plan_timeline_name(uint32_t kind);

/* True if the plan has an action of that kind, a letter of enum hd_action_kind. */
bool hd_plan_has_kind(const struct hd_pipeline *pipeline, char kind);

#endif /* HEDDLE_REPORT_PLAN_FACTS_H */
