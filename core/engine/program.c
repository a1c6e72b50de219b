#include "engine/program.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

/* What is counted while the instructions are made. */
struct scan {
    const struct hd_pipeline *pipeline;
    struct hd_program *program;
    uint32_t *lane_of;     /* [channel_count] -> lane or HD_NO_LANE */
    uint32_t *sent;        /* [lane_count]: messages written so far */
    uint32_t *received;    /* [lane_count]: messages read first so far */
    uint32_t *sequence_of; /* [local stage, microbatch]: of the activation that its forward read */
    uint32_t *local_of;    /* [replica_count, stage_count] -> local stage */
};

static uint32_t lane_at(const struct scan *scan, uint32_t boundary, uint32_t direction,
                        uint32_t replica)
{
    const uint32_t channel = hd_pipeline_channel(scan->pipeline, boundary, direction, replica);
    assert(scan->lane_of[channel] != HD_NO_LANE);
    return scan->lane_of[channel];
}

/* A plan may mix B with I and W (DualPipeV does): each microbatch has its own last reader. */
static uint32_t is_last_reader(const struct hd_pipeline *pipeline, const struct hd_action *action)
{
    if (pipeline->is_forward_only) {
        return action->kind == HD_FORWARD;
    }
    return action->kind == HD_BACKWARD || action->kind == HD_BACKWARD_WEIGHT;
}

static void resolve(struct scan *scan, uint32_t index, struct hd_instruction *instruction)
{
    const struct hd_pipeline *pipeline = scan->pipeline;
    const struct hd_action action = pipeline->actions[index];
    const uint32_t is_first = action.stage == 0;
    const uint32_t is_last = action.stage == pipeline->stage_count - 1;
    const uint32_t replica = pipeline->replica_of[action.microbatch];
    const uint32_t local = scan->local_of[replica * pipeline->stage_count + action.stage];
    uint32_t *sequence =
        &scan->sequence_of[(uint64_t)local * pipeline->microbatch_count + action.microbatch];
    const uint32_t is_forward = action.kind == HD_FORWARD;
    const uint32_t is_gradient = action.kind == HD_BACKWARD || action.kind == HD_BACKWARD_INPUT;

    assert(local != HD_NO_LANE);
    *instruction = (struct hd_instruction){
        .action = action,
        .action_index = index,
        .local_stage = local,
        .activation = {HD_NO_LANE, 0},
        .gradient = {HD_NO_LANE, 0},
        .output = {HD_NO_LANE, 0},
    };
    if (!is_first) {
        const uint32_t lane = lane_at(scan, action.stage - 1, HD_FORWARD, replica);
        if (is_forward) {
            *sequence = scan->received[lane]++;
        }
        instruction->activation = (struct hd_program_message){lane, *sequence};
        instruction->releases_activation = is_last_reader(pipeline, &action);
    }
    if (is_gradient && !is_last) {
        const uint32_t lane = lane_at(scan, action.stage, HD_BACKWARD, replica);
        instruction->gradient = (struct hd_program_message){lane, scan->received[lane]++};
        instruction->releases_gradient = 1;
    }
    if (is_forward && !is_last) {
        const uint32_t lane = lane_at(scan, action.stage, HD_FORWARD, replica);
        instruction->output = (struct hd_program_message){lane, scan->sent[lane]++};
    } else if (is_gradient && !is_first) {
        const uint32_t lane = lane_at(scan, action.stage - 1, HD_BACKWARD, replica);
        instruction->output = (struct hd_program_message){lane, scan->sent[lane]++};
    }
    instruction->releases_payload = !pipeline->is_forward_only && is_last_reader(pipeline, &action);
}

static void find_stages(struct scan *scan)
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

static void find_lanes(struct scan *scan)
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

static void *take(uint64_t count)
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
        .stages = take(stage_max),
        .replicas = take(stage_max),
        .lanes = take(pipeline->channel_count),
        .instruction_count = (uint32_t)count,
        .instructions = hd_memory_take((count + 1) * sizeof(struct hd_instruction), 64, "program"),
    };
    scan.local_of = take(stage_max);
    scan.lane_of = take(pipeline->channel_count);
    scan.sent = take(pipeline->channel_count);
    scan.received = take(pipeline->channel_count);
    if (!program->stages || !program->replicas || !program->lanes || !program->instructions ||
        !scan.local_of || !scan.lane_of || !scan.sent || !scan.received) {
        status = HD_NO_MEMORY;
    } else {
        find_stages(&scan);
        find_lanes(&scan);
        scan.sequence_of = take((uint64_t)program->stage_count * pipeline->microbatch_count);
        status = scan.sequence_of != NULL ? HD_OK : HD_NO_MEMORY;
    }
    for (uint64_t i = 0; status == HD_OK && i < count; i++) {
        resolve(&scan, (uint32_t)(begin + i), &program->instructions[i]);
    }
    hd_memory_give(scan.local_of);
    hd_memory_give(scan.lane_of);
    hd_memory_give(scan.sent);
    hd_memory_give(scan.received);
    hd_memory_give(scan.sequence_of);
    if (status != HD_OK) {
        hd_program_finish(program);
        return hd_problem_set(problem, status, HD_EXIT_FAILED,
                              "no memory for the program of rank %u", rank);
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
