#include "engine/program.h"
#include "base/memory.h"
#include "plan/flow.h"

#include <assert.h>
#include <string.h>

/* What program_resolve looks up. */
struct scan {
    const struct hd_pipeline *pipeline;
    struct hd_program *program;
    uint32_t *lane_of;  /* [channel_count] -> lane or HD_NO_LANE */
    uint32_t *local_of; /* [replica_count, stage_count] -> local stage */
};

/* The message that the action at `producer` sends, as this rank's lane sees it. */
static struct hd_program_message program_message_of(const struct scan *scan, uint32_t producer)
{
    if (producer == HD_NO_ACTION) {
        return (struct hd_program_message){HD_NO_LANE, 0};
    }
    const struct hd_pipeline *pipeline = scan->pipeline;
    const uint32_t channel = hd_flow_out_channel(pipeline, &pipeline->actions[producer]);
    if (channel == HD_NO_CHANNEL) {
        return (struct hd_program_message){HD_NO_LANE, 0};
    }
    assert(scan->lane_of[channel] != HD_NO_LANE);
    return (struct hd_program_message){scan->lane_of[channel], pipeline->sequence[producer]};
}

/* A plan may mix B with I and W, as DualPipeV does, so the last reader depends on the
   microbatch. */
static bool program_is_last_reader(const struct hd_pipeline *pipeline,
                                   const struct hd_action *action)
{
    if (pipeline->is_forward_only) {
        return action->kind == HD_FORWARD;
    }
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_WEIGHT;
}

static void program_resolve(const struct scan *scan, uint32_t index,
                            struct hd_instruction *instruction)
{
    const struct hd_pipeline *pipeline = scan->pipeline;
    const struct hd_action *action = &pipeline->actions[index];
    const uint32_t replica = pipeline->replica_of[action->microbatch];
    const uint32_t local = scan->local_of[replica * pipeline->stage_count + action->stage];
    const bool is_last = program_is_last_reader(pipeline, action);
    const uint32_t forward =
        hd_pipeline_find(pipeline, HD_PASS_FORWARD, action->stage, action->microbatch);
    uint32_t gradient_producer = HD_NO_ACTION;

    assert(local != HD_NO_LANE);
    if (hd_flow_is_backward(action)) {
        gradient_producer = hd_flow_producer(pipeline, action);
    }
    *instruction = (struct hd_instruction){
        .action = *action,
        .action_index = index,
        .local_stage = local,
        .activation =
            program_message_of(scan, hd_flow_producer(pipeline, &pipeline->actions[forward])),
        .gradient = program_message_of(scan, gradient_producer),
        .output = action->kind == HD_BACKWARD_WEIGHT ? program_message_of(scan, HD_NO_ACTION)
                                                     : program_message_of(scan, index),
        .releases_payload = !pipeline->is_forward_only && is_last,
    };
    instruction->releases_activation = instruction->activation.lane != HD_NO_LANE && is_last;
    instruction->releases_gradient = instruction->gradient.lane != HD_NO_LANE;
}

static void program_find_stages(struct scan *scan)
{
    const struct hd_pipeline *pipeline = scan->pipeline;
    struct hd_program *program = scan->program;

    for (uint32_t i = 0; i < pipeline->replica_count * pipeline->stage_count; i++) {
        scan->local_of[i] = HD_NO_LANE;
        if (pipeline->stage_rank[i] == program->rank) {
            scan->local_of[i] = program->stage_count;
            program->stages[program->stage_count] = i % pipeline->stage_count;
            program->replicas[program->stage_count] = i / pipeline->stage_count;
            program->stage_count++;
        }
    }
}

static void program_find_lanes(struct scan *scan)
{
    const struct hd_pipeline *pipeline = scan->pipeline;
    struct hd_program *program = scan->program;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        scan->lane_of[i] = HD_NO_LANE;
        if (channel->source == program->rank || channel->target == program->rank) {
            scan->lane_of[i] = program->lane_count;
            program->lanes[program->lane_count++] = i;
        }
    }
}

static void *program_take(uint64_t count)
{
    return hd_memory_take((count + 1) * sizeof(uint32_t), 64, "program");
}

hd_status hd_program_create(const struct hd_pipeline *pipeline, uint32_t rank,
                            struct hd_program *program, struct hd_problem *problem)
{
    const uint64_t begin = pipeline->rank_begin[rank];
    const uint64_t count = pipeline->rank_begin[rank + 1] - begin;
    const uint64_t stage_max = (uint64_t)pipeline->replica_count * pipeline->stage_count;
    struct scan scan = {.pipeline = pipeline, .program = program};
    hd_status status = HD_OK;

    *program = (struct hd_program){
        .rank = rank,
        .stages = program_take(stage_max),
        .replicas = program_take(stage_max),
        .lanes = program_take(pipeline->channel_count),
        .instruction_count = (uint32_t)count,
        .instructions = hd_memory_take((count + 1) * sizeof(struct hd_instruction), 64, "program"),
    };
    scan.local_of = program_take(stage_max);
    scan.lane_of = program_take(pipeline->channel_count);
    if (!program->stages || !program->replicas || !program->lanes || !program->instructions ||
        !scan.local_of || !scan.lane_of) {
        status = HD_NO_MEMORY;
    } else {
        program_find_stages(&scan);
        program_find_lanes(&scan);
    }
    for (uint64_t i = 0; status == HD_OK && i < count; i++) {
        program_resolve(&scan, (uint32_t)(begin + i), &program->instructions[i]);
    }
    hd_memory_give(scan.local_of);
    hd_memory_give(scan.lane_of);
    if (status != HD_OK) {
        hd_program_finish(program);
        return hd_problem_no_memory(problem, 0, "the program of rank %u", rank);
    }
    return HD_OK;
}

void hd_program_finish(struct hd_program *program)
{
    hd_memory_give(program->stages);
    hd_memory_give(program->replicas);
    hd_memory_give(program->lanes);
    hd_memory_give(program->instructions);
    *program = (struct hd_program){0};
}
