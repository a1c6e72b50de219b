/* engine/transport.c - opens and closes the transport: a plugin, perhaps wrapped by a hook, perhaps
   moved by a pulse. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"
#include "engine/pulse.h"

#include <assert.h>
#include <string.h>

/* A transport that needs this rank's progress gets it during long actions, and between steps. */
static hd_status transport_start_pulse(struct hd_engine *engine, struct hd_transport **transport,
                                       struct hd_problem *problem)
{
    const struct hd_pulse_need need = {
        .ops = engine->transport_ops,
        .capabilities = engine->transport_capabilities,
        .is_hooked = engine->setup.inner != NULL,
        .is_asked = engine->setup.progress_thread,
        .is_device = engine->regions.is_device,
    };
    const uint64_t period_ns = hd_pulse_period_ns(&need);

    if (period_ns == 0) {
        hd_log(HD_LOG_DEBUG, "transport %s has no progress thread", engine->setup.transport->name);
        return HD_OK;
    }
    hd_log(HD_LOG_DEBUG, "rank %u: a thread calls the progress of transport %s every %llu us",
           engine->setup.rank, engine->setup.transport->name, (unsigned long long)period_ns / 1000);
    const int error = hd_pulse_start(need.ops, period_ns, &engine->transport_ops, transport);
    if (error == 0) {
        return HD_OK;
    }
    hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                   "cannot start the progress thread of transport %s: %s",
                   engine->setup.transport->name, strerror(error));
    return hd_engine_check_own(engine, HD_SYSTEM, "opening the transport", problem);
}

/* That of the kernel; where no message crosses, whatever the transport has. */
static uint32_t transport_slot_memory(const struct hd_engine *engine)
{
    const uint64_t has = engine->transport_capabilities;
    const bool is_device = engine->regions.is_device;
    const bool is_possible = (has & (is_device ? HD_TRANSPORT_CUDA : HD_TRANSPORT_HOST)) != 0;

    assert(is_possible || engine->remote_count == 0); /* the planner has refused the rest */
    return is_device == is_possible ? HD_MEMORY_CUDA : HD_MEMORY_HOST;
}

static void transport_attach(struct hd_engine *engine, struct hd_lane *lane)
{
    lane->transport = atomic_load(&engine->transport);
    lane->ops = engine->transport_ops;
    lane->stream = engine->regions.is_device ? engine->device.stream : NULL;
}

hd_status hd_engine_open_transport(struct hd_engine *engine, struct hd_problem *problem)
{
    struct hd_transport *transport = NULL;

    engine->transport_setup = (struct hd_transport_setup){
        .size = sizeof engine->transport_setup,
        .channel_count = engine->remote_count,
        .channels = engine->channel_list,
        .host = &engine->transport_host.host,
        .inner = engine->setup.inner,
        .inner_host = engine->setup.inner != NULL ? &engine->inner_host.host : NULL,
        .deadline_ns = hd_now_ns() + engine->setup.board->first_step_timeout_ns,
        .memory = transport_slot_memory(engine),
        .device = engine->setup.ordinal,
        .alignment_bytes = (uint32_t)engine->regions.alignment,
    };
    hd_status status = engine->transport_ops->open(&engine->transport_setup, &transport);
    status = hd_engine_check_call(engine, status, engine->setup.transport, "opening the transport",
                                  problem);
    if (status == HD_OK) {
        status = transport_start_pulse(engine, &transport, problem);
    }
    if (status != HD_OK) {
        return status;
    }
    atomic_store(&engine->transport, transport);
    for (uint32_t i = 0; i < engine->lane_count; i++) {
        transport_attach(engine, &engine->lanes[i]);
    }
    return HD_OK;
}

/* The arenas are freed only when no peer can write to them any more. */
void hd_engine_close_transport(struct hd_engine *engine)
{
    const struct hd_transport_ops *ops = engine->transport_ops;
    const struct hd_engine_bootstrap *bootstrap = &engine->setup.bootstrap;
    struct hd_transport *transport = atomic_load(&engine->transport);
    const uint64_t deadline_ns = hd_now_ns() + engine->setup.board->timeout_ns;

    if (ops->quiesce != NULL && ops->quiesce(transport, deadline_ns) != HD_OK) {
        return; /* leaked: a peer might still write */
    }
    if (bootstrap->fence(bootstrap->context, deadline_ns) == HD_OK) {
        /* The watchdog may be about to abort this instance. */
        hd_watchdog_stop(&engine->watchdog);
        atomic_store(&engine->transport, NULL);
        ops->close(transport, deadline_ns);
    }
}
