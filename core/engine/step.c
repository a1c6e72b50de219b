/* engine/step.c - the program of one rank, once. */
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/range.h"
#include "engine/turn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { LOOK_NS = 50000 };

const char *hd_turn_name(const struct hd_turn *turn, const char *verb, char text[96])
{
    char action[32];
    snprintf(text, 96, "%s %s of step %u", verb, hd_action_text(&turn->instruction->action, action),
             turn->input->step);
    return text;
}

static hd_status step_transport_failed(const struct hd_turn *turn, hd_status status,
                                       const char *verb)
{
    char text[96];
    return hd_engine_fail(turn->engine, status, turn->engine->setup.transport,
                          hd_turn_name(turn, verb, text), turn->problem);
}

static void step_publish_wait(const struct hd_turn *turn, uint32_t phase,
                              struct hd_program_message message)
{
    struct hd_engine *engine = turn->engine;
    const struct hd_lane *lane = hd_turn_lane(turn, message);

    engine->state.peer = lane->is_source ? lane->channel->target : lane->channel->source;
    engine->state.channel = lane->index;
    engine->state.sequence = hd_turn_sequence(turn, message);
    engine->state.message_bytes = lane->bytes;
    hd_engine_enter(engine, phase);
}

static void step_publish_run(const struct hd_turn *turn)
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
static hd_status step_wait_for(const struct hd_turn *turn, uint32_t phase,
                               struct hd_program_message message)
{
    struct hd_engine *engine = turn->engine;
    const uint32_t counts = engine->setup.counts_wait_cpu;

    step_publish_wait(turn, phase, message);
    hd_range_push(phase == HD_PHASE_RECEIVE ? "wait " : "credit ", &turn->instruction->action);
    const uint64_t cpu_ns = counts ? hd_thread_cpu_ns() : 0;
    const hd_status status =
        hd_lane_wait(hd_turn_lane(turn, message), hd_turn_sequence(turn, message));
    hd_range_pop();
    if (counts) {
        engine->recorder.times.wait_cpu_ns += hd_thread_cpu_ns() - cpu_ns;
    }
    if (status == HD_OK) {
        step_publish_run(turn); /* else the board goes on saying what it waits for */
    }
    return status;
}

/* A serial transport serves this rank's remote lanes in one order. */
static uint32_t step_is_ordered(const struct hd_turn *turn, const struct hd_lane *lane)
{
    return turn->engine->order.post_count > 0 && lane->index != HD_LANE_LOCAL;
}

/* All that stands before it goes with it, which law 7 has proved to be possible by now. */
static hd_status step_post_in_turn(const struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_order *order = &turn->engine->order;

    hd_order_want(order, message);
    return hd_order_post(order, turn->engine->lanes);
}

static hd_status step_wait_moved(const struct hd_turn *turn, const struct hd_order_post *post)
{
    const struct hd_engine *engine = turn->engine;
    struct hd_lane *lane = hd_turn_lane(turn, post->message);
    const uint64_t sequence = hd_turn_sequence(turn, post->message);
    const uint32_t is_in_place = (engine->transport_capabilities & HD_TRANSPORT_IN_PLACE) != 0;

    /* What has been released may not be asked for; in place a sent slot is free only later. */
    if (lane->stream != NULL || (post->is_send ? is_in_place : sequence < lane->released_count)) {
        return HD_OK;
    }
    const hd_status status = hd_lane_test(lane, sequence);
    return status == HD_IN_PROGRESS ? step_wait_for(turn, HD_PHASE_TURN, post->message) : status;
}

/*
 * What stands before place `end` of the order has to move first.  So a host that waits, waits for
 * that, one after another: the board then names whom the rank really waits for.
 */
static hd_status step_wait_turn(const struct hd_turn *turn, uint32_t end)
{
    struct hd_order *order = &turn->engine->order;
    hd_status status = HD_OK;

    while (status == HD_OK && order->moved_count < end) {
        status = step_wait_moved(turn, &order->posts[order->moved_count]);
        order->moved_count += status == HD_OK;
    }
    return status;
}

static hd_status step_wait_for_input(const struct hd_turn *turn, struct hd_program_message message)
{
    hd_status status = HD_OK;

    if (step_is_ordered(turn, hd_turn_lane(turn, message))) {
        status = step_wait_turn(turn, hd_order_group(&turn->engine->order, message));
    }
    return status == HD_OK ? step_wait_for(turn, HD_PHASE_RECEIVE, message) : status;
}

/* The device waits, and a mark says until when. */
static hd_status step_receive_on_stream(struct hd_turn *turn, struct hd_program_message message)
{
    const hd_status status =
        hd_lane_wait_on_stream(hd_turn_lane(turn, message), hd_turn_sequence(turn, message));

    return status != HD_OK ? step_transport_failed(turn, status, "receiving for")
                           : hd_flights_mark(turn->engine, &turn->flight.ready_mark, turn->problem);
}

/* Until the message that this action consumes is readable; it must be what the plan says. */
static hd_status step_receive(struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = hd_turn_lane(turn, message);
    const uint64_t sequence = hd_turn_sequence(turn, message);
    char text[96];
    hd_status status = HD_OK;

    if (step_is_ordered(turn, lane)) {
        status = step_post_in_turn(turn, message);
    } else if (lane->index != HD_LANE_LOCAL) {
        status = hd_lane_post_until(lane, sequence);
    }
    if (status == HD_OK && hd_lane_waits_on_stream(lane)) {
        return step_receive_on_stream(turn, message);
    }
    if (status == HD_OK) {
        status = hd_lane_test(lane, sequence);
    }
    if (status == HD_IN_PROGRESS) {
        status = step_wait_for_input(turn, message);
    }
    if (status != HD_OK) {
        step_publish_wait(turn, HD_PHASE_RECEIVE, message);
        return step_transport_failed(turn, status, "receiving for");
    }
    status = hd_lane_check(lane, sequence, turn->input->step, turn->instruction->action.microbatch,
                           turn->problem);
    if (status != HD_OK) {
        return hd_engine_blame(turn->engine, status, hd_turn_name(turn, "receiving for", text),
                               turn->problem);
    }
    return HD_OK;
}

/* The slot is free once the message that lies in it has moved. */
static hd_status step_wait_for_slot(const struct hd_turn *turn, struct hd_program_message message)
{
    const struct hd_lane *lane = hd_turn_lane(turn, message);
    struct hd_program_message before = message;
    hd_status status = HD_OK;

    if (step_is_ordered(turn, lane)) {
        const uint32_t slots = turn->engine->channels[lane->index].send_depth;
        before.sequence -= slots;
        if (message.sequence >= slots) { /* a step leaves nothing under way */
            status = step_wait_turn(turn, hd_order_group(&turn->engine->order, before));
        }
    }
    return status == HD_OK ? step_wait_for(turn, HD_PHASE_CREDIT, message) : status;
}

/* The credit comes when a peer's device gets there; meanwhile ours goes on, and is looked after. */
static hd_status step_wait_for_credit(const struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_engine *engine = turn->engine;
    const struct hd_transport_ops *transport = engine->transport_ops;

    if (engine->flights.count == 0) {
        return step_wait_for_slot(turn, message);
    }
    const hd_status status = hd_flights_look(engine, LOOK_NS, turn->problem);
    if (status != HD_OK || transport->progress == NULL) {
        return status;
    }
    const hd_status moved = transport->progress(atomic_load(&engine->transport));
    return moved < 0 ? moved : HD_OK;
}

static hd_status step_claim(const struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = hd_turn_lane(turn, message);
    const uint64_t sequence = hd_turn_sequence(turn, message);
    hd_status status = hd_lane_reserve(lane, sequence);

    while (status == HD_BUSY) {
        status = step_wait_for_credit(turn, message);
        if (status == HD_OK) {
            status = hd_lane_reserve(lane, sequence);
            turn->record->claim_ns = hd_now_ns();
        }
    }
    if (status != HD_OK && turn->problem->exit_code == 0) {
        step_publish_wait(turn, HD_PHASE_CREDIT, message);
        return step_transport_failed(turn, status, "claiming a slot for");
    }
    return status;
}

static hd_status step_send(const struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = hd_turn_lane(turn, message);
    const uint64_t sequence = hd_turn_sequence(turn, message);
    const uint32_t microbatch = turn->instruction->action.microbatch;
    hd_status status = HD_OK;

    if (step_is_ordered(turn, lane)) {
        hd_lane_end_write(lane, sequence, turn->input->step, microbatch);
        status = step_post_in_turn(turn, message);
    } else {
        status = hd_lane_send(lane, sequence, turn->input->step, microbatch);
    }
    turn->record->sent_ns = hd_now_ns();
    return status != HD_OK ? step_transport_failed(turn, status, "sending after") : HD_OK;
}

static hd_status step_release_message(const struct hd_turn *turn, struct hd_program_message message)
{
    struct hd_lane *lane = hd_turn_lane(turn, message);
    hd_status status = hd_lane_release(lane, hd_turn_sequence(turn, message));

    if (status == HD_OK && step_is_ordered(turn, lane)) {
        status = hd_order_post(&turn->engine->order, turn->engine->lanes);
    } else if (status == HD_OK && lane->index != HD_LANE_LOCAL && turn->engine->setup.overlap) {
        status = hd_lane_post_all(lane);
    }
    return status != HD_OK ? step_transport_failed(turn, status, "releasing after") : HD_OK;
}

/* Everything that ends with this action: the gradient's slot, the activation's, the payload's
 * lease. */
static hd_status step_give_back(const struct hd_turn *turn)
{
    const struct hd_instruction *instruction = turn->instruction;
    struct hd_local_stage *local = &turn->engine->stages[instruction->local_stage];
    char text[96];
    hd_status status = HD_OK;

    if (instruction->releases_gradient) {
        status = step_release_message(turn, instruction->gradient);
    }
    if (status == HD_OK && instruction->releases_activation) {
        status = step_release_message(turn, instruction->activation);
    }
    for (uint32_t i = 0;
         status == HD_OK && instruction->releases_payload && i < local->acquisitions; i++) {
        status = hd_lease_release(&local->pools[i], instruction->action.microbatch, turn->problem);
        turn->engine->held_slots--;
        if (status != HD_OK) {
            hd_turn_name(turn, "ending", text);
            return turn->problem->exit_code == 0
                       ? hd_engine_fail(turn->engine, status, turn->engine->setup.kernel, text,
                                        turn->problem)
                       : hd_engine_blame(turn->engine, status, text, turn->problem);
        }
    }
    return status;
}

static uint32_t step_host_waits(const struct hd_turn *turn, struct hd_program_message input)
{
    return input.lane != HD_NO_LANE &&
           !(turn->engine->regions.is_device &&
             hd_turn_lane(turn, input)->index == HD_LANE_LOCAL) &&
           !hd_lane_waits_on_stream(hd_turn_lane(turn, input));
}

static hd_status step_run_action(struct hd_turn *turn)
{
    const struct hd_instruction *instruction = turn->instruction;
    const struct hd_program_message input = hd_instruction_input(instruction);
    hd_status status = HD_OK;

    turn->record->begin_ns = hd_now_ns();
    if (hd_turn_is_ahead(turn)) {
        status = hd_flights_look(turn->engine, 0, turn->problem);
    }
    if (turn->engine->flights.count == 0) {
        step_publish_run(turn);
    }
    if (status == HD_OK && input.lane != HD_NO_LANE) {
        status = step_receive(turn, input);
    }
    turn->record->ready_ns = step_host_waits(turn, input) ? hd_now_ns() : turn->record->begin_ns;
    turn->record->claim_ns = turn->record->ready_ns;
    if (status == HD_OK && instruction->output.lane != HD_NO_LANE) {
        status = step_claim(turn, instruction->output);
    }
    if (status == HD_OK) {
        status = hd_turn_pass(turn);
    }
    if (status == HD_OK && instruction->output.lane != HD_NO_LANE) {
        status = step_send(turn, instruction->output);
    }
    return status != HD_OK ? status : step_give_back(turn);
}

static hd_status step_begin_lanes(const struct hd_turn *turn)
{
    struct hd_engine *engine = turn->engine;
    hd_status status = HD_OK;

    hd_order_begin(&engine->order, engine->setup.overlap);
    for (uint32_t i = 0; status == HD_OK && i < engine->lane_count; i++) {
        struct hd_lane *lane = &engine->lanes[i];
        hd_lane_begin(lane, engine->step_count);
        if (engine->setup.overlap && lane->is_target && lane->index != HD_LANE_LOCAL &&
            !step_is_ordered(turn, lane)) {
            status = hd_lane_post_all(lane);
        }
    }
    if (status == HD_OK) {
        status = hd_order_post(&engine->order, engine->lanes);
    }
    return status != HD_OK ? step_transport_failed(turn, status, "posting before") : HD_OK;
}

/* In order, a step leaves nothing under way: whoever is at its end keeps no other rank waiting. */
static hd_status step_end_order(const struct hd_turn *turn)
{
    struct hd_engine *engine = turn->engine;
    const uint64_t begin_ns = hd_now_ns();

    assert(engine->order.gone_count == engine->order.post_count);
    const hd_status status = step_wait_turn(turn, engine->order.post_count);
    engine->recorder.times.wait_ns += hd_now_ns() - begin_ns;
    return status != HD_OK ? step_transport_failed(turn, status, "moving the last transfers after")
                           : HD_OK;
}

static hd_status step_begin_stages(const struct hd_turn *turn)
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
    struct hd_turn turn = {.engine = engine, .input = input, .problem = problem};
    hd_status status = HD_OK;

    assert(input->step > 0 && program->instruction_count > 0);
    engine->step_count++;
    engine->state.step = input->step;
    engine->state.action_count = 0;
    turn.instruction = &program->instructions[0];
    status = step_begin_stages(&turn);
    hd_recorder_begin(&engine->recorder, input->step);
    hd_range_push_step(input->step);
    if (status == HD_OK) {
        status = hd_device_begin(engine, input, problem);
    }
    if (status == HD_OK) {
        status = step_begin_lanes(&turn);
    }
    for (uint32_t i = 0; status == HD_OK && i < program->instruction_count; i++) {
        turn.instruction = &program->instructions[i];
        turn.flight = (struct hd_flight){.instruction = i};
        turn.record =
            hd_turn_is_ahead(&turn) ? &turn.flight.times : hd_recorder_row(&engine->recorder, i);
        status = step_run_action(&turn);
        if (status == HD_OK && !hd_turn_is_ahead(&turn)) {
            hd_recorder_add(&engine->recorder, turn.record);
            engine->state.action_count++;
        }
        if (status == HD_OK && transport->progress != NULL) {
            const hd_status moved = transport->progress(atomic_load(&engine->transport));
            status =
                moved < 0 ? step_transport_failed(&turn, moved, "moving transfers after") : HD_OK;
        }
    }
    if (status == HD_OK && engine->order.post_count > 0) {
        status = step_end_order(&turn);
    }
    if (status == HD_OK && hd_turn_is_ahead(&turn)) {
        status = hd_device_end(engine, problem);
    }
    hd_range_pop();
    hd_recorder_end(&engine->recorder, hd_turn_is_ahead(&turn) && status == HD_OK
                                           ? engine->actions_end_ns
                                           : hd_now_ns());
    if (status == HD_OK) {
        hd_engine_phase(engine, HD_PHASE_RUN);
    }
    return status;
}
