/* engine/transport.c - opens and closes the transport: a plugin, a hook around one, a pulse. */
#include "base/clock.h"
#include "engine/internal.h"
#include "engine/pulse.h"

#include <assert.h>
#include <string.h>

/* A hook has what its inner has, promises and needs. */
hd_status hd_engine_check_transport(struct hd_engine *engine, struct hd_problem *problem)
{
    (void)problem;
    const struct hd_plugin *plugin = engine->setup.transport;
    const struct hd_plugin *inner = engine->setup.inner;
    /* What may wrap what is refused before a rank starts (run/job.c). */
    assert(((plugin->capabilities & HD_TRANSPORT_HOOK) != 0) == (inner != NULL));
    engine->transport_capabilities = inner != NULL ? inner->capabilities : plugin->capabilities;
    return HD_OK;
}

/* What needs this rank's progress gets it during long actions, and between steps. */
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
        return HD_OK;
    }
    const int error = hd_pulse_start(need.ops, period_ns, &engine->transport_ops, transport);
    if (error != 0) {
        hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED, "no thread that moves transport %s: %s",
                       engine->setup.transport->name, strerror(error));
        return hd_engine_blame(engine, HD_SYSTEM, "opening the transport", problem);
    }
    return HD_OK;
}

/* The kernel's; where nothing crosses, whatever the transport has. */
static uint32_t transport_slot_memory(const struct hd_engine *engine)
{
    const uint64_t has = engine->transport_capabilities;
    const uint32_t is_device = engine->regions.is_device;
    const uint32_t is_possible = (has & (is_device ? HD_TRANSPORT_CUDA : HD_TRANSPORT_HOST)) != 0;

    assert(is_possible || engine->remote_count == 0); /* run/job.c has refused it */
    return is_device == is_possible ? HD_MEMORY_CUDA : HD_MEMORY_HOST;
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
    if (status != HD_OK) {
        return hd_engine_fail(engine, status, engine->setup.transport, "opening the transport",
                              problem);
    }
    status = transport_start_pulse(engine, &transport, problem);
    if (status != HD_OK) {
        return status;
    }
    atomic_store(&engine->transport, transport);
    for (uint32_t i = 0; i < engine->lane_count; i++) {
        engine->lanes[i].transport = transport;
        engine->lanes[i].ops = engine->transport_ops;
        engine->lanes[i].stream = engine->regions.is_device ? engine->device.stream : NULL;
    }
    return HD_OK;
}

/* Nobody may write here any more before the arenas go. */
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
        /* It may hold the instance at this moment, to abort it. */
        hd_watchdog_stop(&engine->watchdog);
        atomic_store(&engine->transport, NULL);
        ops->close(transport, deadline_ns);
    }
}
