/*
 * plan/derive.h - the steps that make a pipeline; internal to core/plan.
 *
 * Each function reads members of the pipeline that the ones before it have filled:
 *
 *   hd_laws_home          checks law 3: actions and stage_rank
 *   hd_laws_complete      checks law 1, fills index_of and is_split
 *   hd_laws_causal        checks law 2
 *   hd_derive_channels    fills channels (without depth and slots), sequence, messages
 *   hd_laws_matched       checks law 5: the sequence at both ends
 *   hd_derive_asap        checks law 4, fills asap_start and asap_ticks; a cycle is refused
 *   hd_derive_retention   fills retention, payload_slots, peak_copies
 *   hd_laws_ascending     checks law 8, fills is_ascending; never fails
 *   hd_derive_depths      fills depth and slots of each channel
 */
#ifndef HEDDLE_PLAN_DERIVE_H
#define HEDDLE_PLAN_DERIVE_H

#include "plan/pipeline.h"

hd_status hd_laws_home(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_complete(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_causal(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_laws_matched(struct hd_pipeline *pipeline, struct hd_problem *problem);
void hd_laws_ascending(struct hd_pipeline *pipeline);

hd_status hd_derive_channels(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_derive_asap(struct hd_pipeline *pipeline, struct hd_problem *problem);
hd_status hd_derive_retention(struct hd_pipeline *pipeline, struct hd_problem *problem);
void hd_derive_depths(struct hd_pipeline *pipeline);

#endif /* HEDDLE_PLAN_DERIVE_H */
