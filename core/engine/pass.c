/* engine/pass.c - one pass of one stage: binds payload and tensors, and calls the kernel. */
#include "base/clock.h"
#include "base/number.h"
#include "base/try.h"
#include "engine/action.h"
#include "engine/range.h"

/* A forward leases the payload of its microbatch; every other pass looks it up. */
static hd_status pass_bind_payload(const struct hd_act *act, struct hd_pass *pass)
{
    struct hd_local_stage *local = &act->engine->stages[act->instruction->local_stage];
    const struct hd_action *action = &act->instruction->action;

    if (act->engine->setup.pipeline->is_forward_only) {
        return HD_OK;
    }
    for (uint32_t i = 0; i < local->acquisitions; i++) {
        struct hd_lease_pool *pool = &local->pools[i];
        if (action->kind == HD_FORWARD) {
            HD_TRY(hd_lease_acquire(pool, action->microbatch, act->problem));
            act->engine->held_slots++;
        }
        HD_TRY(hd_lease_find(pool, action->microbatch, &pass->payload[i], &pass->generation,
                             act->problem));
    }
    act->engine->peak_slots = hd_max_u64(act->engine->peak_slots, act->engine->held_slots);
    return HD_OK;
}

/* The microbatch's tokens or targets, where passes can read them. */
static const int32_t *pass_row_of(const struct hd_act *act, uint32_t which,
                                  const int32_t *const *rows)
{
    const struct hd_staging *staging = &act->engine->staging[which];
    const uint32_t microbatch = act->instruction->action.microbatch;

    if (rows == NULL || staging->device == NULL) {
        return rows != NULL ? rows[microbatch] : NULL;
    }
    return (const int32_t *)staging->device + microbatch * staging->stride;
}

static void pass_bind_tensors(const struct hd_act *act, struct hd_pass *pass)
{
    const struct hd_instruction *instruction = act->instruction;
    const struct hd_local_stage *local = &act->engine->stages[instruction->local_stage];
    const struct hd_stage_spec *spec = &act->engine->setup.specs[local->stage];
    const uint32_t microbatch = instruction->action.microbatch;
    const bool is_forward = instruction->action.kind == HD_FORWARD;

    if (instruction->activation.lane != HD_NO_LANE) {
        pass->input = hd_lane_slot(hd_act_lane(act, instruction->activation),
                                   hd_act_sequence(act, instruction->activation));
    }
    if (instruction->gradient.lane != HD_NO_LANE) {
        pass->output_gradient = hd_lane_slot(hd_act_lane(act, instruction->gradient),
                                             hd_act_sequence(act, instruction->gradient));
    }
    if (instruction->output.lane != HD_NO_LANE) {
        void *slot = hd_lane_slot(hd_act_lane(act, instruction->output),
                                  hd_act_sequence(act, instruction->output));
        pass->output = is_forward ? slot : NULL;
        pass->input_gradient = is_forward ? NULL : slot;
    }
    if (spec->has_embedding) {
        pass->tokens = pass_row_of(act, HD_STAGED_TOKENS, act->input->tokens);
    }
    if (spec->has_head) {
        pass->targets = pass_row_of(act, HD_STAGED_TARGETS, act->input->targets);
    }
    if (is_forward) {
        double *terms = act->engine->regions.is_device ? local->device_terms : local->terms;
        pass->terms =
            terms != NULL ? terms + (uint64_t)microbatch * local->needs->term_count : NULL;
    }
}

static hd_status pass_call_kernel(const struct hd_act *act, const struct hd_pass *pass)
{
    const struct hd_kernel_ops *ops = act->engine->kernel_ops;
    struct hd_stage *stage = act->engine->stages[act->instruction->local_stage].instance;

    switch (act->instruction->action.kind) {
    case HD_FORWARD:
        return ops->forward(stage, pass);
    case HD_BACKWARD:
        return ops->backward(stage, pass);
    case HD_BACKWARD_INPUT:
        return ops->backward_input(stage, pass);
    default:
        assert(act->instruction->action.kind == HD_BACKWARD_WEIGHT);
        return ops->backward_weight(stage, pass);
    }
}

/* In host memory the host must see the end of the pass before it sends the output. */
static hd_status pass_take_off(struct hd_act *act)
{
    HD_TRY(hd_flights_add(act->engine, &act->flight, act->problem));
    return act->engine->regions.is_device ? HD_OK : hd_flights_wait(act->engine, 0, act->problem);
}

static hd_status pass_end_forward(const struct hd_act *act)
{
    struct hd_local_stage *local = &act->engine->stages[act->instruction->local_stage];
    const struct hd_action *action = &act->instruction->action;

    if (action->kind != HD_FORWARD || act->engine->setup.pipeline->is_forward_only) {
        return HD_OK;
    }
    for (uint32_t i = 0; i < local->acquisitions; i++) {
        HD_TRY(hd_lease_end_forward(&local->pools[i], action->microbatch));
    }
    return HD_OK;
}

hd_status hd_act_pass(struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    struct hd_pass pass = {
        .size = sizeof pass,
        .microbatch = act->instruction->action.microbatch,
        .label_scale = act->input->label_scale,
        .auxiliary_scale = act->input->auxiliary_scale,
    };
    char text[96];

    hd_status status = pass_bind_payload(act, &pass);
    if (status != HD_OK) {
        hd_engine_name_action(engine, act->instruction, "running", text);
        return hd_engine_check_own(engine, status, text, act->problem);
    }
    pass_bind_tensors(act, &pass);
    act->record->run_ns = hd_now_ns();
    hd_range_push("", &act->instruction->action);
    status = pass_call_kernel(act, &pass);
    hd_range_pop();
    if (!hd_act_is_ahead(act)) {
        act->record->end_ns = hd_now_ns();
        act->record->sent_ns = act->record->end_ns;
    } else if (status == HD_OK) {
        HD_TRY(pass_take_off(act));
    }
    if (status == HD_OK) {
        status = pass_end_forward(act);
    }
    if (status == HD_OK && !hd_engine_rounding_is_kept()) {
        hd_problem_set(act->problem, HD_DEVICE, HD_EXIT_PLUGIN,
                       "kernel %s changed the processor's rounding or flush-to-zero mode (MXCSR); "
                       "results would depend on it",
                       engine->setup.kernel->name);
        hd_engine_name_action(engine, act->instruction, "running", text);
        return hd_engine_check_own(engine, HD_DEVICE, text, act->problem);
    }
    return hd_engine_check_pass(engine, status, act->instruction, act->problem);
}
