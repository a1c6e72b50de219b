/* engine/step.c - the program of one rank, once. */
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* What the functions of one action hand on. */
struct turn {
    struct hd_engine *engine;
    const struct hd_step_input *input;
    const struct hd_instruction *instruction;
    struct hd_record *record;
    struct hd_problem *problem;
};

static const char *turn_name(const struct turn *turn, const char *verb, char text[96])
{
    char action[32];
    snprintf(text, 96, "%s %s of step %u", verb, hd_action_text(&turn->instruction->action, action),
             turn->input->step);
    return text;
}

static hd_status transport_failed(const struct turn *turn, hd_status status, const char *verb)
{
    char text[96];
    return hd_engine_fail(turn->engine, status, turn->engine->setup.transport,
                          turn_name(turn, verb, text), turn->problem);
}

static struct hd_lane *lane_of(const struct turn *turn, struct hd_program_message message)
{
    assert(message.lane < turn->engine->lane_count);
    return &turn->engine->lanes[message.lane];
}

static uint64_t sequence_of(const struct turn *turn, struct hd_program_message message)
{
    return lane_of(turn, message)->base + message.sequence;
}

static void publish_wait(const struct turn *turn, uint32_t phase, struct hd_program_message message)
{
    struct hd_engine *engine = turn->engine;
    const struct hd_lane *lane = lane_of(turn, message);
    const struct hd_pipeline_channel *channel = lane->channel;

    engine->state.peer = phase == HD_PHASE_RECEIVE ? channel->source : channel->target;
    engine->state.channel = lane->index;
    engine->state.sequence = sequence_of(turn, message);
    engine->state.message_bytes = lane->bytes;
    hd_engine_enter(engine, phase);
}

static void publish_run(const struct turn *turn)
{
    struct hd_engine *engine = turn->engine;
    const struct hd_action *action = &turn->instruction->action;

    engine->state.stage = action->stage;
    engine->state.microbatch = action->microbatch;
    engine->state.kind = action->kind;
    engine->state.peer = UINT32_MAX;
    engine->state.channel = UINT32_MAX;
    hd_engine_enter(engine, HD_PHASE_RUN);
}

/* Sleeps, or spins for a moment, until the transport says that the message has moved. */
static hd_status wait_for(const struct turn *turn, uint32_t phase,
                          struct hd_program_message message)
{
    struct hd_engine *engine = turn->engine;
    const uint32_t counts = engine->setup.counts_wait_cpu;

    publish_wait(turn, phase, message);
    const uint64_t cpu_ns = counts ? hd_thread_cpu_ns() : 0;
    const hd_status status = hd_lane_wait(lane_of(turn, message), sequence_of(turn, message));
    if (counts) {
        engine->recorder.times.wait_cpu_ns += hd_thread_cpu_ns() - cpu_ns;
    }
    if (status == HD_OK) {
        publish_run(turn); /* else the board goes on saying what it waits for */
    }
    return status;
}

/* Until the message that this action consumes is readable; it must be what the plan says. */
static hd_status receive(const struct turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = lane_of(turn, message);
    const uint64_t sequence = sequence_of(turn, message);
    char text[96];
    hd_status status = HD_OK;

    if (lane->index != HD_LANE_LOCAL) {
        status = hd_lane_post_until(lane, sequence);
    }
    if (status == HD_OK) {
        status = hd_lane_test(lane, sequence);
    }
    if (status == HD_IN_PROGRESS) {
        status = wait_for(turn, HD_PHASE_RECEIVE, message);
    }
    if (status != HD_OK) {
        publish_wait(turn, HD_PHASE_RECEIVE, message);
        return transport_failed(turn, status, "receiving for");
    }
    status = hd_lane_check(lane, sequence, turn->input->step, turn->instruction->action.microbatch,
                           turn->problem);
    if (status != HD_OK) {
        return hd_engine_blame(turn->engine, status, turn_name(turn, "receiving for", text),
                               turn->problem);
    }
    return HD_OK;
}

static hd_status claim(const struct turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = lane_of(turn, message);
    const uint64_t sequence = sequence_of(turn, message);
    hd_status status = hd_lane_reserve(lane, sequence);

    while (status == HD_BUSY) {
        status = wait_for(turn, HD_PHASE_CREDIT, message);
        if (status == HD_OK) {
            status = hd_lane_reserve(lane, sequence);
        }
    }
    if (status != HD_OK) {
        publish_wait(turn, HD_PHASE_CREDIT, message);
        return transport_failed(turn, status, "claiming a slot for");
    }
    return HD_OK;
}

static void count_slot(struct hd_engine *engine)
{
    engine->held_slots++;
    if (engine->held_slots > engine->peak_slots) {
        engine->peak_slots = engine->held_slots;
    }
}

/* Leases, or looks up, the payload of this microbatch. */
static hd_status bind_payload(const struct turn *turn, struct hd_pass *pass)
{
    struct hd_local_stage *local = &turn->engine->stages[turn->instruction->local_stage];
    const struct hd_action *action = &turn->instruction->action;
    hd_status status = HD_OK;

    if (turn->engine->setup.pipeline->is_forward_only) {
        return HD_OK;
    }
    for (uint32_t i = 0; status == HD_OK && i < local->acquisitions; i++) {
        struct hd_lease_pool *pool = &local->pools[i];
        if (action->kind == HD_FORWARD) {
            status = hd_lease_acquire(pool, action->microbatch, turn->problem);
            if (status == HD_OK) {
                count_slot(turn->engine);
            }
        }
        if (status == HD_OK) {
            status = hd_lease_find(pool, action->microbatch, &pass->payload[i], &pass->generation,
                                   turn->problem);
        }
    }
    return status;
}

static void bind_tensors(const struct turn *turn, struct hd_pass *pass)
{
    const struct hd_instruction *instruction = turn->instruction;
    const struct hd_local_stage *local = &turn->engine->stages[instruction->local_stage];
    const struct hd_stage_spec *spec = &turn->engine->setup.model->specs[local->stage];
    const uint32_t microbatch = instruction->action.microbatch;
    const uint32_t is_forward = instruction->action.kind == HD_FORWARD;

    if (instruction->activation.lane != HD_NO_LANE) {
        pass->input = hd_lane_slot(lane_of(turn, instruction->activation),
                                   sequence_of(turn, instruction->activation));
    }
    if (instruction->gradient.lane != HD_NO_LANE) {
        pass->output_gradient = hd_lane_slot(lane_of(turn, instruction->gradient),
                                             sequence_of(turn, instruction->gradient));
    }
    if (instruction->output.lane != HD_NO_LANE) {
        void *slot = hd_lane_slot(lane_of(turn, instruction->output),
                                  sequence_of(turn, instruction->output));
        pass->output = is_forward ? slot : NULL;
        pass->input_gradient = is_forward ? NULL : slot;
    }
    pass->tokens =
        spec->has_embedding && turn->input->tokens ? turn->input->tokens[microbatch] : NULL;
    pass->targets =
        spec->has_head && turn->input->targets ? turn->input->targets[microbatch] : NULL;
    pass->terms =
        is_forward ? local->terms + (uint64_t)microbatch * local->needs->term_count : NULL;
}

static hd_status call_kernel(const struct turn *turn, const struct hd_pass *pass)
{
    const struct hd_kernel_ops *ops = turn->engine->kernel_ops;
    struct hd_stage *stage = turn->engine->stages[turn->instruction->local_stage].instance;

    switch (turn->instruction->action.kind) {
    case HD_FORWARD:
        return ops->forward(stage, pass);
    case HD_BACKWARD:
        return ops->backward(stage, pass);
    case HD_BACKWARD_INPUT:
        return ops->backward_input(stage, pass);
    default:
        assert(turn->instruction->action.kind == HD_BACKWARD_WEIGHT);
        return ops->backward_weight(stage, pass);
    }
}

/* A kernel that refuses a payload knows no slot, so its sentence is given one. */
static hd_status kernel_failed(const struct turn *turn, hd_status status)
{
    const struct hd_local_stage *local = &turn->engine->stages[turn->instruction->local_stage];
    const struct hd_action *action = &turn->instruction->action;
    char name[96], text[160];

    turn_name(turn, "running", name);
    snprintf(text, sizeof text, "%s", name);
    if (status == HD_PROTOCOL && action->kind != HD_FORWARD) { /* so it holds a lease */
        snprintf(text, sizeof text, "%s, payload slot %u", name,
                 local->pools[0].slot_of[action->microbatch]);
    }
    return hd_engine_fail(turn->engine, status, turn->engine->setup.kernel, text, turn->problem);
}

static hd_status end_forward(const struct turn *turn)
{
    struct hd_local_stage *local = &turn->engine->stages[turn->instruction->local_stage];
    const struct hd_action *action = &turn->instruction->action;
    hd_status status = HD_OK;

    if (action->kind != HD_FORWARD || turn->engine->setup.pipeline->is_forward_only) {
        return HD_OK;
    }
    for (uint32_t i = 0; status == HD_OK && i < local->acquisitions; i++) {
        status = hd_lease_end_forward(&local->pools[i], action->microbatch);
    }
    return status;
}

static hd_status run_pass(const struct turn *turn)
{
    struct hd_engine *engine = turn->engine;
    struct hd_pass pass = {
        .size = sizeof pass,
        .microbatch = turn->instruction->action.microbatch,
        .label_scale = turn->input->label_scale,
        .auxiliary_scale = turn->input->auxiliary_scale,
    };
    char text[96];

    hd_status status = bind_payload(turn, &pass);
    if (status != HD_OK) {
        return hd_engine_blame(engine, status, turn_name(turn, "running", text), turn->problem);
    }
    bind_tensors(turn, &pass);
    turn->record->run_ns = hd_now_ns();
    status = call_kernel(turn, &pass);
    turn->record->end_ns = hd_now_ns();
    turn->record->sent_ns = turn->record->end_ns;
    if (status == HD_OK) {
        status = end_forward(turn);
    }
    if (status != HD_OK) {
        return kernel_failed(turn, status);
    }
    if (!hd_engine_rounding_is_kept()) {
        hd_problem_set(turn->problem, HD_DEVICE, HD_EXIT_PLUGIN,
                       "kernel %s changed the processor's rounding or flush-to-zero mode (MXCSR); "
                       "results would depend on it",
                       engine->setup.kernel->name);
        return hd_engine_blame(engine, HD_DEVICE, turn_name(turn, "running", text), turn->problem);
    }
    return HD_OK;
}

static hd_status release_message(const struct turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = lane_of(turn, message);
    hd_status status = hd_lane_release(lane, sequence_of(turn, message));

    if (status == HD_OK && lane->index != HD_LANE_LOCAL && turn->engine->setup.overlap) {
        status = hd_lane_post_all(lane);
    }
    return status != HD_OK ? transport_failed(turn, status, "releasing after") : HD_OK;
}

/* Everything that ends with this action: the gradient's slot, the activation's, the payload's
 * lease. */
static hd_status give_back(const struct turn *turn)
{
    const struct hd_instruction *instruction = turn->instruction;
    struct hd_local_stage *local = &turn->engine->stages[instruction->local_stage];
    char text[96];
    hd_status status = HD_OK;

    if (instruction->releases_gradient) {
        status = release_message(turn, instruction->gradient);
    }
    if (status == HD_OK && instruction->releases_activation) {
        status = release_message(turn, instruction->activation);
    }
    for (uint32_t i = 0;
         status == HD_OK && instruction->releases_payload && i < local->acquisitions; i++) {
        status = hd_lease_release(&local->pools[i], instruction->action.microbatch, turn->problem);
        turn->engine->held_slots--;
        if (status != HD_OK) {
            turn_name(turn, "ending", text);
            return turn->problem->exit_code == 0
                       ? hd_engine_fail(turn->engine, status, turn->engine->setup.kernel, text,
                                        turn->problem)
                       : hd_engine_blame(turn->engine, status, text, turn->problem);
        }
    }
    return status;
}

static hd_status run_action(const struct turn *turn)
{
    const struct hd_instruction *instruction = turn->instruction;
    const uint32_t is_forward = instruction->action.kind == HD_FORWARD;
    const struct hd_program_message input =
        is_forward ? instruction->activation : instruction->gradient;
    hd_status status = HD_OK;

    turn->record->begin_ns = hd_now_ns();
    publish_run(turn);
    if (input.lane != HD_NO_LANE) {
        status = receive(turn, input);
    }
    turn->record->ready_ns = input.lane != HD_NO_LANE ? hd_now_ns() : turn->record->begin_ns;
    turn->record->claim_ns = turn->record->ready_ns;
    if (status == HD_OK && instruction->output.lane != HD_NO_LANE) {
        status = claim(turn, instruction->output);
        turn->record->claim_ns = hd_now_ns();
    }
    if (status == HD_OK) {
        status = run_pass(turn);
    }
    if (status == HD_OK && instruction->output.lane != HD_NO_LANE) {
        status =
            hd_lane_send(lane_of(turn, instruction->output), sequence_of(turn, instruction->output),
                         turn->input->step, instruction->action.microbatch);
        status = status != HD_OK ? transport_failed(turn, status, "sending after") : HD_OK;
        turn->record->sent_ns = hd_now_ns();
    }
    return status != HD_OK ? status : give_back(turn);
}

static hd_status begin_lanes(const struct turn *turn)
{
    struct hd_engine *engine = turn->engine;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < engine->lane_count; i++) {
        struct hd_lane *lane = &engine->lanes[i];
        hd_lane_begin(lane, engine->step_count);
        if (engine->setup.overlap && lane->is_target && lane->index != HD_LANE_LOCAL) {
            status = hd_lane_post_all(lane);
        }
    }
    return status != HD_OK ? transport_failed(turn, status, "posting before") : HD_OK;
}

static hd_status begin_stages(const struct turn *turn)
{
    struct hd_engine *engine = turn->engine;
    const uint32_t row_count =
        engine->setup.pipeline->is_forward_only ? 0 : engine->stage_count * HD_GROUP_COUNT;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < row_count; i++) {
        const struct hd_local_stage *local = &engine->stages[i / HD_GROUP_COUNT];
        const uint32_t group = i % HD_GROUP_COUNT;
        status = hd_regions_fill(&engine->regions, local->memory.gradients[group],
                                 local->needs->gradient_bytes[group], 0);
    }
    return status != HD_OK ? hd_engine_fail(engine, status, engine->setup.kernel,
                                            "zeroing the gradients", turn->problem)
                           : HD_OK;
}

hd_status hd_engine_step(struct hd_engine *engine, const struct hd_step_input *input,
                         struct hd_problem *problem)
{
    const struct hd_program *program = &engine->program;
    const struct hd_transport_ops *transport = engine->transport_ops;
    struct turn turn = {.engine = engine, .input = input, .problem = problem};
    hd_status status = HD_OK;

    assert(input->step > 0 && program->instruction_count > 0);
    engine->step_count++;
    engine->state.step = input->step;
    engine->state.action_count = 0;
    turn.instruction = &program->instructions[0];
    status = begin_stages(&turn);
    hd_recorder_begin(&engine->recorder, input->step);
    if (status == HD_OK) {
        status = begin_lanes(&turn);
    }
    for (uint32_t i = 0; status == HD_OK && i < program->instruction_count; i++) {
        turn.instruction = &program->instructions[i];
        turn.record = hd_recorder_row(&engine->recorder, i);
        status = run_action(&turn);
        if (status == HD_OK) {
            hd_recorder_add(&engine->recorder, turn.record);
            engine->state.action_count++;
        }
        if (status == HD_OK && transport->progress != NULL) {
            const hd_status moved = transport->progress(atomic_load(&engine->transport));
            status = moved < 0 ? transport_failed(&turn, moved, "moving transfers after") : HD_OK;
        }
    }
    hd_recorder_end(&engine->recorder);
    if (status == HD_OK) {
        hd_engine_phase(engine, HD_PHASE_RUN);
    }
    return status;
}
