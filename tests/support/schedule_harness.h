/*
 * tests/support/schedule_harness.h - a schedule plugin, asked as the core asks it.
 *
 * Loads heddle_schedule_NAME.so from HD_PLUGIN_DIR with dlopen (the registry has tests of its own),
 * fills a shape and the options, and gives the plan.  Libraries stay loaded.
 */
#ifndef HD_TESTS_SUPPORT_SCHEDULE_HARNESS_H
#define HD_TESTS_SUPPORT_SCHEDULE_HARNESS_H

#include "plan/pipeline.h"

struct hd_schedule_case {
    const char *schedule; /* "1f1b" */
    uint32_t rank_count, stages_per_rank, microbatch_count;
    uint32_t flags;      /* enum hd_shape_flag */
    const char *options; /* "key=value key=value", or NULL: the defaults */
};

/* The descriptor; ends the program with a sentence when there is none.  Borrowed, static. */
const struct hd_plugin *hd_schedule_load(const char *name);

/* HD_OK and a plan, or a problem. */
hd_status hd_schedule_plan(const struct hd_schedule_case *wanted, struct hd_pipeline **pipeline,
                           struct hd_problem *problem);

/* The same, where a refusal would be a fault of the test: ends the program with the problem. */
struct hd_pipeline *hd_schedule_must_plan(const struct hd_schedule_case *wanted);

/* The actions of a plan, idle ticks left out, as hd_pipeline_from_actions takes them: to be
   mutated.  Fills `source`, which then owns its arrays. */
void hd_schedule_copy(const struct hd_pipeline *pipeline, struct hd_pipeline_source *source);

/* A plan written by hand: rank rows parted by ';', cells by spaces: "0F0 0B0; 1F0 1B0"; "." is an
   idle tick.  `homes` [stage_count] gives the rank of each stage. */
void hd_schedule_parse(const char *text, uint32_t stage_count, uint32_t microbatch_count,
                       const uint32_t *homes, struct hd_pipeline_source *source);

/* Makes room for one action of `rank` before its action `place`, or takes that one out. */
void hd_schedule_insert(struct hd_pipeline_source *source, uint32_t rank, uint64_t place,
                        struct hd_action action);
void hd_schedule_remove(struct hd_pipeline_source *source, uint32_t rank, uint64_t place);

#endif /* HD_TESTS_SUPPORT_SCHEDULE_HARNESS_H */
