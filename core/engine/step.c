/* engine/step.c - runs the program of one rank once.  An action is received, claimed, passed, sent
   and given back. */
#include "base/clock.h"
#include "base/try.h"
#include "engine/order.h"
#include "engine/range.h"

/* How long one look at the device may last while a slot is awaited. */
enum { LOOK_NS = 50000 };

/* The device waits for the message; a mark in its stream tells until when. */
static hd_status step_receive_on_stream(struct hd_act *act, struct hd_program_message message)
{
    const hd_status status =
        hd_lane_wait_on_stream(hd_act_lane(act, message), hd_act_sequence(act, message));

    return status != HD_OK ? hd_act_check_transport(act, status, "receiving for")
                           : hd_flights_mark(act->engine, &act->flight.ready_mark, act->problem);
}

/* Waits until the message that this action consumes is readable, and checks its seal. */
static hd_status step_receive(struct hd_act *act, struct hd_program_message message)
{
    struct hd_lane *lane = hd_act_lane(act, message);
    const uint64_t sequence = hd_act_sequence(act, message);
    char text[96];
    hd_status status = hd_order_receive(act, message);

    if (status == HD_OK && hd_lane_waits_on_stream(lane)) {
        return step_receive_on_stream(act, message);
    }
    if (status == HD_OK) {
        status = hd_lane_test(lane, sequence);
    }
    if (status == HD_IN_PROGRESS) {
        status = hd_order_wait(act, HD_PHASE_RECEIVE, message);
    }
    if (status != HD_OK) {
        hd_act_show_wait(act, HD_PHASE_RECEIVE, message);
        return hd_act_check_transport(act, status, "receiving for");
    }
    status = hd_lane_check(lane, sequence, act->input->step, act->instruction->action.microbatch,
                           act->problem);
    if (status == HD_OK) {
        return HD_OK;
    }
    hd_engine_name_action(act->engine, act->instruction, "receiving for", text);
    return hd_engine_check_own(act->engine, status, text, act->problem);
}

/* A credit comes when the device of a peer gets there.  Meanwhile this rank's device is looked
   after. */
static hd_status step_wait_for_slot(const struct hd_act *act, struct hd_program_message message)
{
    if (act->engine->flights.count == 0) {
        return hd_order_wait(act, HD_PHASE_CREDIT, message);
    }
    HD_TRY(hd_flights_look(act->engine, LOOK_NS, act->problem));
    return hd_engine_move_transfers(act->engine);
}

static hd_status step_claim(const struct hd_act *act, struct hd_program_message message)
{
    struct hd_lane *lane = hd_act_lane(act, message);
    const uint64_t sequence = hd_act_sequence(act, message);
    hd_status status = hd_lane_reserve(lane, sequence);

    while (status == HD_BUSY) {
        status = step_wait_for_slot(act, message);
        if (status == HD_OK) {
            status = hd_lane_reserve(lane, sequence);
            act->record->claim_ns = hd_now_ns();
        }
    }
    if (status != HD_OK && act->problem->exit_code == 0) {
        hd_act_show_wait(act, HD_PHASE_CREDIT, message);
        return hd_act_check_transport(act, status, "claiming a slot for");
    }
    return status;
}

static hd_status step_send(const struct hd_act *act, struct hd_program_message message)
{
    const hd_status status = hd_order_send(act, message);

    act->record->sent_ns = hd_now_ns();
    return hd_act_check_transport(act, status, "sending after");
}

static hd_status step_release_payload(const struct hd_act *act, struct hd_lease_pool *pool)
{
    struct hd_engine *engine = act->engine;
    const hd_status status =
        hd_lease_release(pool, act->instruction->action.microbatch, act->problem);
    char text[96];

    engine->held_slots--;
    if (status == HD_OK) {
        return HD_OK;
    }
    hd_engine_name_action(engine, act->instruction, "ending", text);
    return act->problem->exit_code == 0
               ? hd_engine_check_call(engine, status, engine->setup.kernel, text, act->problem)
               : hd_engine_check_own(engine, status, text, act->problem);
}

/* What ends with this action: the slots of the gradient and of the activation, and the lease of the
   payload. */
static hd_status step_give_back(const struct hd_act *act)
{
    const struct hd_instruction *instruction = act->instruction;
    struct hd_local_stage *local = &act->engine->stages[instruction->local_stage];
    hd_status status = HD_OK;

    if (instruction->releases_gradient) {
        status = hd_order_release(act, instruction->gradient);
    }
    if (status == HD_OK && instruction->releases_activation) {
        status = hd_order_release(act, instruction->activation);
    }
    if (status != HD_OK) {
        return hd_act_check_transport(act, status, "releasing after");
    }
    for (uint32_t i = 0;
         status == HD_OK && instruction->releases_payload && i < local->acquisitions; i++) {
        status = step_release_payload(act, &local->pools[i]);
    }
    return status;
}

/* The host, and not the device, waits for the input of this action. */
static bool step_host_waits(const struct hd_act *act, struct hd_program_message input)
{
    return input.lane != HD_NO_LANE &&
           !(act->engine->regions.is_device && hd_lane_is_local(hd_act_lane(act, input))) &&
           !hd_lane_waits_on_stream(hd_act_lane(act, input));
}

static hd_status step_run_action(struct hd_act *act)
{
    const struct hd_instruction *instruction = act->instruction;
    const struct hd_program_message input = hd_instruction_input(instruction);
    const struct hd_program_message output = instruction->output;

    act->record->begin_ns = hd_now_ns();
    if (hd_act_is_ahead(act)) {
        HD_TRY(hd_flights_look(act->engine, 0, act->problem));
    }
    if (act->engine->flights.count == 0) {
        hd_act_show_run(act);
    }
    if (input.lane != HD_NO_LANE) {
        HD_TRY(step_receive(act, input));
    }
    act->record->ready_ns = step_host_waits(act, input) ? hd_now_ns() : act->record->begin_ns;
    act->record->claim_ns = act->record->ready_ns;
    if (output.lane != HD_NO_LANE) {
        HD_TRY(step_claim(act, output));
    }
    HD_TRY(hd_act_pass(act));
    if (output.lane != HD_NO_LANE) {
        HD_TRY(step_send(act, output));
    }
    return step_give_back(act);
}

static hd_status step_zero_gradients(const struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    const uint32_t row_count =
        engine->setup.pipeline->is_forward_only ? 0 : engine->stage_count * HD_GROUP_COUNT;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < row_count; i++) {
        const struct hd_local_stage *local = &engine->stages[i / HD_GROUP_COUNT];
        const uint32_t group = i % HD_GROUP_COUNT;
        status = hd_regions_fill(&engine->regions, local->memory.gradients[group],
                                 local->needs->gradient_bytes[group], 0);
    }
    return hd_engine_check_call(engine, status, engine->setup.kernel, "zeroing the gradients",
                                act->problem);
}

static hd_status step_begin(struct hd_act *act)
{
    struct hd_engine *engine = act->engine;

    engine->step_count++;
    engine->state.step = act->input->step;
    engine->state.action_count = 0;
    act->instruction = &engine->program.instructions[0];
    const hd_status zeroed = step_zero_gradients(act);
    hd_recorder_begin(&engine->recorder, act->input->step);
    hd_range_push_step(act->input->step);
    HD_TRY(zeroed);
    HD_TRY(hd_device_begin(engine, act->input, act->problem));
    return hd_act_check_transport(act, hd_order_begin(act), "posting before");
}

static hd_status step_run_actions(struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    const struct hd_program *program = &engine->program;
    const bool is_ahead = hd_act_is_ahead(act);

    for (uint32_t i = 0; i < program->instruction_count; i++) {
        act->instruction = &program->instructions[i];
        act->flight = (struct hd_flight){.instruction = i};
        act->record = is_ahead ? &act->flight.times : hd_recorder_row(&engine->recorder, i);
        HD_TRY(step_run_action(act));
        if (!is_ahead) {
            hd_recorder_add(&engine->recorder, act->record);
            engine->state.action_count++;
        }
        HD_TRY(hd_act_check_transport(act, hd_engine_move_transfers(engine),
                                      "moving transfers after"));
    }
    HD_TRY(hd_act_check_transport(act, hd_order_end(act), "moving the last transfers after"));
    return is_ahead ? hd_device_end(engine, act->problem) : HD_OK;
}

hd_status hd_engine_step(struct hd_engine *engine, const struct hd_step_input *input,
                         struct hd_problem *problem)
{
    struct hd_act act = {.engine = engine, .input = input, .problem = problem};

    assert(input->step > 0 && engine->program.instruction_count > 0);
    hd_status status = step_begin(&act);
    if (status == HD_OK) {
        status = step_run_actions(&act);
    }
    hd_range_pop();
    hd_recorder_end(&engine->recorder, hd_act_is_ahead(&act) && status == HD_OK
                                           ? engine->actions_end_ns
                                           : hd_now_ns());
    if (status == HD_OK) {
        hd_engine_phase(engine, HD_PHASE_RUN);
    }
    return status;
}
