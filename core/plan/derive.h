/*
 * plan/derive.h - the stages in which a pipeline comes to be; internal to core/plan.
 *
 * Each function fills members of the pipeline that the later ones read:
 *
 *   hd_laws_home      3: reads actions and stage_rank
 *   hd_laws_complete  1: fills index_of, is_split
 *   hd_laws_causal    2
 *   hd_derive_channels   channels but depth and slots, sequence, messages
 *   hd_laws_matched   5: sequence on both ends
 *   hd_derive_asap    4: asap_start, asap_ticks; refuses a cycle
 *   hd_laws_ascending 8: is_ascending, never fails
 *   hd_derive_depths, hd_derive_retention, hd_derive_handoffs
 */
#ifndef HEDDLE_PLAN_DERIVE_H
#define HEDDLE_PLAN_DERIVE_H

#include "plan/pipeline.h"
#include "plan/timeline.h"

hd_status hd_laws_home(const struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_complete(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_causal(const struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_matched(const struct hd_pipeline *pipeline, struct hd_problem *problem);
void hd_laws_ascending(struct hd_pipeline *pipeline);

hd_status hd_derive_channels(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_derive_asap(struct hd_pipeline *pipeline, struct hd_problem *problem);
void hd_derive_depths(struct hd_pipeline *pipeline);
hd_status hd_derive_retention(struct hd_pipeline *pipeline, struct hd_problem *problem);

/* Adds the classes of all handoffs under a timeline whose actions start at `start`, in ticks. */
void hd_derive_handoffs(const struct hd_pipeline *pipeline, const uint32_t *start,
                        struct hd_pipeline_handoffs *handoffs);

/* Zero-filled memory of the plan, or NULL after filling `problem` with HD_EXIT_FAILED. */
void *hd_plan_take(uint64_t count, uint64_t element_bytes, struct hd_problem *problem);

/* An operating error of `law`, at `rank`: fills law and place; the message is printf's. */
hd_status hd_law_refuse(struct hd_problem *problem, uint32_t law, uint32_t rank, const char *format,
                        ...) __attribute__((format(printf, 4, 5)));

#endif /* HEDDLE_PLAN_DERIVE_H */
