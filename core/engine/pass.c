/* engine/pass.c - one pass of one stage: what it is given, and what its failure is called. */
#include "base/clock.h"
#include "engine/range.h"
#include "engine/turn.h"

static void pass_count_slot(struct hd_engine *engine)
{
    engine->held_slots++;
    if (engine->held_slots > engine->peak_slots) {
        engine->peak_slots = engine->held_slots;
    }
}

/* Leases, or looks up, the payload of this microbatch. */
static hd_status pass_bind_payload(const struct hd_turn *turn, struct hd_pass *pass)
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
                pass_count_slot(turn->engine);
            }
        }
        if (status == HD_OK) {
            status = hd_lease_find(pool, action->microbatch, &pass->payload[i], &pass->generation,
                                   turn->problem);
        }
    }
    return status;
}

/* The microbatch's tokens or targets, where passes can read them. */
static const int32_t *pass_row_of(const struct hd_turn *turn, uint32_t which,
                                  const int32_t *const *rows)
{
    const struct hd_staging *staging = &turn->engine->staging[which];
    const uint32_t microbatch = turn->instruction->action.microbatch;

    if (rows == NULL || staging->device == NULL) {
        return rows != NULL ? rows[microbatch] : NULL;
    }
    return (const int32_t *)staging->device + microbatch * staging->stride;
}

static void pass_bind_tensors(const struct hd_turn *turn, struct hd_pass *pass)
{
    const struct hd_instruction *instruction = turn->instruction;
    const struct hd_local_stage *local = &turn->engine->stages[instruction->local_stage];
    const struct hd_stage_spec *spec = &turn->engine->setup.specs[local->stage];
    const uint32_t microbatch = instruction->action.microbatch;
    const uint32_t is_forward = instruction->action.kind == HD_FORWARD;

    if (instruction->activation.lane != HD_NO_LANE) {
        pass->input = hd_lane_slot(hd_turn_lane(turn, instruction->activation),
                                   hd_turn_sequence(turn, instruction->activation));
    }
    if (instruction->gradient.lane != HD_NO_LANE) {
        pass->output_gradient = hd_lane_slot(hd_turn_lane(turn, instruction->gradient),
                                             hd_turn_sequence(turn, instruction->gradient));
    }
    if (instruction->output.lane != HD_NO_LANE) {
        void *slot = hd_lane_slot(hd_turn_lane(turn, instruction->output),
                                  hd_turn_sequence(turn, instruction->output));
        pass->output = is_forward ? slot : NULL;
        pass->input_gradient = is_forward ? NULL : slot;
    }
    if (spec->has_embedding) {
        pass->tokens = pass_row_of(turn, HD_STAGED_TOKENS, turn->input->tokens);
    }
    if (spec->has_head) {
        pass->targets = pass_row_of(turn, HD_STAGED_TARGETS, turn->input->targets);
    }
    if (is_forward) {
        double *terms = turn->engine->regions.is_device ? local->device_terms : local->terms;
        pass->terms =
            terms != NULL ? terms + (uint64_t)microbatch * local->needs->term_count : NULL;
    }
}

static hd_status pass_call_kernel(const struct hd_turn *turn, const struct hd_pass *pass)
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

static hd_status pass_kernel_failed(const struct hd_turn *turn, hd_status status)
{
    char text[96];
    return hd_engine_kernel_failed(turn->engine, status, turn->instruction,
                                   hd_turn_name(turn, "running", text), turn->problem);
}

/* Elsewhere than on a device the host has to see that the pass is over before it sends. */
static hd_status pass_take_off(struct hd_turn *turn)
{
    struct hd_engine *engine = turn->engine;
    hd_status status = hd_flights_add(engine, &turn->flight, turn->problem);

    if (status == HD_OK && !engine->regions.is_device) {
        status = hd_flights_wait(engine, 0, turn->problem);
    }
    return status;
}

static hd_status pass_end_forward(const struct hd_turn *turn)
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

hd_status hd_turn_pass(struct hd_turn *turn)
{
    struct hd_engine *engine = turn->engine;
    struct hd_pass pass = {
        .size = sizeof pass,
        .microbatch = turn->instruction->action.microbatch,
        .label_scale = turn->input->label_scale,
        .auxiliary_scale = turn->input->auxiliary_scale,
    };
    char text[96];

    hd_status status = pass_bind_payload(turn, &pass);
    if (status != HD_OK) {
        return hd_engine_blame(engine, status, hd_turn_name(turn, "running", text), turn->problem);
    }
    pass_bind_tensors(turn, &pass);
    turn->record->run_ns = hd_now_ns();
    hd_range_push("", &turn->instruction->action);
    status = pass_call_kernel(turn, &pass);
    hd_range_pop();
    if (!hd_turn_is_ahead(turn)) {
        turn->record->end_ns = hd_now_ns();
        turn->record->sent_ns = turn->record->end_ns;
    } else if (status == HD_OK) {
        status = pass_take_off(turn);
        if (status != HD_OK) {
            return status;
        }
    }
    if (status == HD_OK) {
        status = pass_end_forward(turn);
    }
    if (status != HD_OK) {
        return pass_kernel_failed(turn, status);
    }
    if (!hd_engine_rounding_is_kept()) {
        hd_problem_set(turn->problem, HD_DEVICE, HD_EXIT_PLUGIN,
                       "kernel %s changed the processor's rounding or flush-to-zero mode (MXCSR); "
                       "results would depend on it",
                       engine->setup.kernel->name);
        return hd_engine_blame(engine, HD_DEVICE, hd_turn_name(turn, "running", text),
                               turn->problem);
    }
    return HD_OK;
}
