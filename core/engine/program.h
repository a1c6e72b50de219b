/*
 * engine/program.h - the plan of one rank, resolved: what each action reads, writes and gives back.
 *
 * Made once, before the first step; a step walks it and looks nothing up.  Sequences here count
 * from 0 within a step.  The engine adds step x message_count, because a transport counts over the
 * whole job.
 */
#ifndef HEDDLE_ENGINE_PROGRAM_H
#define HEDDLE_ENGINE_PROGRAM_H

#include "base/problem.h"
#include "plan/pipeline.h"

#include <stdbool.h>

#define HD_NO_LANE UINT32_MAX

/* One message of a lane: this rank's view of one channel that it reads or writes. */
struct hd_program_message {
    uint32_t lane; /* HD_NO_LANE: none */
    uint32_t sequence;
};

struct hd_instruction {
    struct hd_action action;
    uint32_t action_index;                /* in the pipeline */
    uint32_t local_stage;                 /* index into the rank's stages */
    struct hd_program_message activation; /* what the forward reads, and the backward too */
    struct hd_program_message gradient;   /* what B and I read */
    struct hd_program_message output;     /* what this action writes */
    bool releases_activation, releases_gradient, releases_payload; /* when it ends */
};

/* The message that the action waits for. */
static inline struct hd_program_message hd_instruction_input(
    const struct hd_instruction *instruction)
{
    return instruction->action.kind == HD_FORWARD ? instruction->activation : instruction->gradient;
}

struct hd_program {
    uint32_t rank;
    uint32_t stage_count; /* local; with two replicas, a stage of each counts */
    uint32_t *stages;     /* [stage_count], ascending by replica, then stage */
    uint32_t *replicas;   /* [stage_count] */
    uint32_t lane_count;
    uint32_t *lanes; /* [lane_count]: index into pipeline->channels */
    uint32_t instruction_count;
    struct hd_instruction *instructions;
};

hd_status hd_program_create(const struct hd_pipeline *pipeline, uint32_t rank,
                            struct hd_program *program, struct hd_problem *problem);
void hd_program_finish(struct hd_program *program);

#endif /* HEDDLE_ENGINE_PROGRAM_H */
