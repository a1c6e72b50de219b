/*
 * output/planning.h - a plan and everything that is said of it, for `heddle plan` and dry runs.
 *
 * Adds to a job (run/job.h) the timeline that was asked for, bytes by [memory], transfers of a
 * step, and from how many microbatches on the copies stay.  Without a kernel it plans all the
 * same; bytes are then unknown unless [memory] says them.
 */
#ifndef HEDDLE_OUTPUT_PLANNING_H
#define HEDDLE_OUTPUT_PLANNING_H

#include "report/plan_facts.h"
#include "run/job.h"

#define HD_PLANNING_TEXT_BYTES 512u

struct hd_planning_request {
    struct hd_plugins plugins;  /* transport and kernel may be NULL */
    const char *missing_reason; /* why they are, one sentence; used when kernel is NULL */
    uint32_t timeline;          /* enum hd_timeline_kind */
};

struct hd_planning {
    struct hd_job job; /* without a kernel only its pipeline is there */
    struct hd_timeline *timeline;
    struct hd_footprint *footprints; /* [rank_count]; owned; NULL: the job's, or unknown */
    struct hd_plan_facts facts;      /* borrows from all of this */
    char hash[HD_HASH_TEXT_BYTES];
    char memory_source[HD_PLANNING_TEXT_BYTES];
    char notes[HD_PLAN_NOTE_MAX][HD_PLANNING_TEXT_BYTES];
    char *layers; /* owned; NULL: unknown */
};

/* `config` and the request's plugins are borrowed until finish.  On failure it is finished
   already. */
hd_status hd_planning_create(struct hd_planning *planning, struct hd_config *config,
                             const struct hd_planning_request *request, struct hd_problem *problem);
void hd_planning_finish(struct hd_planning *planning);

#endif /* HEDDLE_OUTPUT_PLANNING_H */
