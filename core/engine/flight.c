/*
 * engine/flight.c - the passes that the device has and that the host has not seen the end of.
 *
 * A kernel with a stream takes a pass and returns before it has run, so the host walks its program
 * ahead of the device.  Each action that it enqueues is a flight, with a mark behind the wait for
 * its input and one behind its pass:
 *
 *   stream    .. | wait for 1F2 | mark | pass 1F2 | mark | wait for 2B0 | mark | pass 2B0 | mark
 *   flights      |<------------- 1F2 ----------->|<------------- 2B0 ------------>|
 *
 * The times of the marks are the action's times in the trace.  The board shows the first flight:
 * which rank the device waits for, or which pass it runs.  Flights end in their order.  At most
 * HD_FLIGHT_MAX are under way, which limits how far the host runs ahead.
 */
#include "base/number.h"
#include "base/try.h"
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>

/* How long the host waits for a mark at once: MOVE_WAIT_NS where the transport moves only while the
   host calls it. */
enum { MARK_WAIT_NS = 1000000, MOVE_WAIT_NS = 50000 };

static struct hd_flight *flight_first_of(struct hd_flights *flights)
{
    assert(flights->count > 0);
    return &flights->rows[flights->first];
}

static const struct hd_instruction *flight_instruction_of(const struct hd_engine *engine,
                                                          const struct hd_flight *flight)
{
    return flight->instruction == HD_FLIGHT_OF_STEP
               ? NULL
               : &engine->program.instructions[flight->instruction];
}

/* Names the rank that the device waits for before this action. */
static void flight_name_input(struct hd_engine *engine, const struct hd_instruction *instruction)
{
    const struct hd_program_message message = hd_instruction_input(instruction);
    const struct hd_lane *lane = &engine->lanes[message.lane];

    engine->state.peer = lane->channel->source;
    engine->state.channel = lane->index;
    engine->state.sequence = lane->base + message.sequence;
    engine->state.message_bytes = lane->channel->bytes;
}

static void flight_show_first(struct hd_engine *engine)
{
    struct hd_flights *flights = &engine->flights;

    if (flights->count == 0) {
        return;
    }
    const struct hd_flight *flight = flight_first_of(flights);
    const struct hd_instruction *instruction = flight_instruction_of(engine, flight);
    struct hd_rank_state *state = &engine->state;
    const bool is_waiting = flight->ready_mark != 0 && !flight->is_ready;

    state->kind = instruction != NULL ? instruction->action.kind : 0;
    state->stage = instruction != NULL ? instruction->action.stage : 0;
    state->microbatch = instruction != NULL ? instruction->action.microbatch : 0;
    state->phase = is_waiting ? HD_PHASE_RECEIVE : HD_PHASE_DEVICE;
    state->peer = UINT32_MAX;
    state->channel = UINT32_MAX;
    state->since_ns = hd_max_u64(flights->free_ns, flight->times.begin_ns);
    if (is_waiting) {
        flight_name_input(engine, instruction);
    } else {
        state->since_ns = hd_max_u64(state->since_ns, flight->times.run_ns);
        state->since_ns =
            hd_max_u64(state->since_ns, flight->is_ready ? flight->times.ready_ns : 0);
    }
    hd_board_publish(engine->setup.board, engine->setup.rank, state);
}

/* The device failed, or an abort ended its waits, while it was at the first flight. */
static hd_status flight_check(struct hd_engine *engine, hd_status status,
                              struct hd_problem *problem)
{
    const struct hd_instruction *instruction =
        engine->flights.count > 0 ? flight_instruction_of(engine, flight_first_of(&engine->flights))
                                  : NULL;
    char what[96];

    if (status == HD_OK) {
        return HD_OK;
    }
    flight_show_first(engine);
    if (instruction != NULL) {
        return hd_engine_check_pass(engine, status, instruction, problem);
    }
    snprintf(what, sizeof what, "in step %u", engine->state.step);
    return hd_engine_check_call(engine, status, engine->setup.kernel, what, problem);
}

/* Records when the device was free, had the input, and ran the pass. */
static void flight_record(struct hd_engine *engine, struct hd_flight *flight, uint64_t end_ns)
{
    const uint64_t free_ns = engine->flights.free_ns;
    struct hd_record *row = hd_recorder_row(&engine->recorder, flight->instruction);
    const struct hd_record *host = &flight->times;

    row->begin_ns = hd_max_u64(free_ns, host->begin_ns);
    row->ready_ns = hd_max_u64(row->begin_ns, host->ready_ns);
    row->claim_ns = hd_max_u64(row->ready_ns, host->claim_ns);
    row->run_ns = hd_max_u64(row->claim_ns, host->run_ns);
    row->end_ns = hd_max_u64(row->run_ns, end_ns);
    row->sent_ns = hd_max_u64(row->end_ns, host->sent_ns);
    hd_recorder_add(&engine->recorder, row);
}

/* Looks at the first flight, for at most timeout_ns.  HD_OK: the flight has ended. */
static hd_status flight_end_first(struct hd_engine *engine, uint64_t timeout_ns)
{
    const struct hd_kernel_ops *ops = engine->kernel_ops;
    struct hd_kernel *kernel = atomic_load(&engine->kernel);
    struct hd_flights *flights = &engine->flights;
    struct hd_flight *flight = flight_first_of(flights);
    uint64_t passed_ns = 0;
    hd_status status = HD_OK;

    if (flight->ready_mark != 0 && !flight->is_ready) {
        status = ops->reached(kernel, flight->ready_mark, timeout_ns, &passed_ns);
        flight->is_ready = status == HD_OK;
        flight->times.ready_ns = status == HD_OK ? passed_ns : flight->times.ready_ns;
    }
    if (status == HD_OK) {
        status = ops->reached(kernel, flight->end_mark, timeout_ns, &passed_ns);
    }
    if (status != HD_OK) {
        return status;
    }
    if (flight->instruction != HD_FLIGHT_OF_STEP) {
        flight_record(engine, flight, passed_ns);
        engine->state.action_count++;
    } else if (engine->state.action_count == 0) {
        struct hd_step_times *times = &engine->recorder.times;
        times->begin_ns = hd_max_u64(times->begin_ns, passed_ns);
    }
    flights->free_ns = hd_max_u64(flights->free_ns, passed_ns);
    flights->first = (flights->first + 1) % HD_FLIGHT_MAX;
    flights->count--;
    return HD_OK;
}

hd_status hd_flights_look(struct hd_engine *engine, uint64_t timeout_ns, struct hd_problem *problem)
{
    hd_status status = HD_OK;

    while (status == HD_OK && engine->flights.count > 0) {
        status = flight_end_first(engine, timeout_ns);
        timeout_ns = status == HD_OK ? 0 : timeout_ns;
    }
    flight_show_first(engine);
    return flight_check(engine, status < 0 ? status : HD_OK, problem);
}

hd_status hd_flights_wait(struct hd_engine *engine, uint32_t left, struct hd_problem *problem)
{
    const uint64_t wait_ns = engine->transport_ops->progress != NULL ? MOVE_WAIT_NS : MARK_WAIT_NS;

    while (engine->flights.count > left) {
        HD_TRY(hd_flights_look(engine, wait_ns, problem));
        if (engine->flights.count > left) {
            HD_TRY(hd_engine_check_call(engine, hd_engine_move_transfers(engine),
                                        engine->setup.transport,
                                        "moving transfers beside the device", problem));
        }
    }
    return HD_OK;
}

hd_status hd_flights_mark(struct hd_engine *engine, uint64_t *mark, struct hd_problem *problem)
{
    struct hd_kernel *kernel = atomic_load(&engine->kernel);
    hd_status status = engine->kernel_ops->mark(kernel, mark);

    while (status == HD_BUSY && engine->flights.count > 0) {
        HD_TRY(hd_flights_wait(engine, engine->flights.count - 1, problem));
        status = engine->kernel_ops->mark(kernel, mark);
    }
    return flight_check(engine, status == HD_BUSY ? HD_DEVICE : status, problem);
}

hd_status hd_flights_add(struct hd_engine *engine, const struct hd_flight *flight,
                         struct hd_problem *problem)
{
    struct hd_flights *flights = &engine->flights;
    struct hd_flight row = *flight;

    HD_TRY(hd_flights_mark(engine, &row.end_mark, problem));
    HD_TRY(hd_flights_wait(engine, HD_FLIGHT_MAX - 1, problem));
    flights->rows[(flights->first + flights->count) % HD_FLIGHT_MAX] = row;
    flights->count++;
    return HD_OK;
}
