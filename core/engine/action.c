#include "engine/action.h"
#include "base/clock.h"
#include "engine/range.h"

hd_status hd_act_check_transport(const struct hd_act *act, hd_status status, const char *verb)
{
    struct hd_engine *engine = act->engine;
    char text[96];

    if (status == HD_OK) {
        return HD_OK;
    }
    hd_engine_name_action(engine, act->instruction, verb, text);
    return hd_engine_check_call(engine, status, engine->setup.transport, text, act->problem);
}

void hd_act_show_run(const struct hd_act *act)
{
    struct hd_engine *engine = act->engine;
    const struct hd_action *action = &act->instruction->action;

    engine->state.stage = action->stage;
    engine->state.microbatch = action->microbatch;
    engine->state.kind = action->kind;
    engine->state.peer = UINT32_MAX;
    engine->state.channel = UINT32_MAX;
    hd_engine_enter(engine, HD_PHASE_RUN);
}

void hd_act_show_wait(const struct hd_act *act, uint32_t phase, struct hd_program_message message)
{
    struct hd_engine *engine = act->engine;
    const struct hd_lane *lane = hd_act_lane(act, message);

    engine->state.peer = lane->is_source ? lane->channel->target : lane->channel->source;
    engine->state.channel = lane->index;
    engine->state.sequence = hd_act_sequence(act, message);
    engine->state.message_bytes = lane->channel->bytes;
    hd_engine_enter(engine, phase);
}

hd_status hd_act_wait(const struct hd_act *act, uint32_t phase, struct hd_program_message message)
{
    struct hd_engine *engine = act->engine;
    const bool counts = engine->setup.counts_wait_cpu;

    hd_act_show_wait(act, phase, message);
    hd_range_push(phase == HD_PHASE_RECEIVE ? "wait " : "credit ", &act->instruction->action);
    const uint64_t cpu_ns = counts ? hd_thread_cpu_ns() : 0;
    const hd_status status =
        hd_lane_wait(hd_act_lane(act, message), hd_act_sequence(act, message), HD_LANE_NO_DEADLINE);
    hd_range_pop();
    if (counts) {
        engine->recorder.times.wait_cpu_ns += hd_thread_cpu_ns() - cpu_ns;
    }
    if (status == HD_OK) {
        hd_act_show_run(act);
    }
    return status;
}
