/*
 * output/planning.h - everything that `heddle plan`, dry runs and pages show about a job.
 *
 * Adds to a job (run/job.h) the timeline, the bytes of [memory], the transfers of a step, and the
 * number of microbatches from which the copies stay the same.  Without a kernel the bytes are
 * unknown, unless [memory] gives them.
 */
#ifndef HEDDLE_OUTPUT_PLANNING_H
#define HEDDLE_OUTPUT_PLANNING_H

#include "report/plan_facts.h"
#include "run/job.h"

#define HD_PLANNING_TEXT_BYTES 512u

struct hd_planning_request {
    const char *missing_reason; /* one sentence: why the job has no kernel; unused if it has one */
    uint32_t timeline;          /* enum hd_timeline_kind */
};

struct hd_planning {
    const struct hd_job *job;
    struct hd_timeline *timeline;
    struct hd_footprint *footprints; /* [rank_count]; owned; NULL: the job's, or unknown */
    struct hd_plan_facts facts;      /* borrows from the planning and the job */
    char memory_source[HD_PLANNING_TEXT_BYTES];
    char notes[HD_PLAN_NOTE_MAX][HD_PLANNING_TEXT_BYTES];
    char *layers; /* owned; NULL: unknown */
};

/* `job` is borrowed until finish.  On failure the planning is finished already. */
hd_status hd_planning_create(struct hd_planning *planning, const struct hd_job *job,
                             const struct hd_planning_request *request, struct hd_problem *problem);
void hd_planning_finish(struct hd_planning *planning);

#endif /* HEDDLE_OUTPUT_PLANNING_H */
