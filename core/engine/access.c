/* engine/access.c - what callers read from an engine, and write to it, between steps. */
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint32_t hd_engine_stage_count(const struct hd_engine *engine)
{
    return engine->stage_count;
}

uint32_t hd_engine_stage(const struct hd_engine *engine, uint32_t local)
{
    assert(local < engine->stage_count);
    return engine->stages[local].stage;
}

const double *hd_engine_terms(const struct hd_engine *engine, uint32_t local)
{
    assert(local < engine->stage_count);
    return engine->stages[local].terms;
}

/* A call of the kernel between steps returned `status`. */
static hd_status access_check(struct hd_engine *engine, hd_status status, const char *what,
                              struct hd_problem *problem)
{
    return hd_engine_check_call(engine, status, engine->setup.kernel, what, problem);
}

/* One copy of a tensor, out of its stage or into it. */
static hd_status access_copy(struct hd_engine *engine, struct hd_tensor_place place, bool is_write,
                             void *values)
{
    assert(place.local < engine->stage_count);
    return engine->kernel_ops->tensor_copy(engine->stages[place.local].instance, place.index,
                                           place.copy, is_write, values);
}

hd_status hd_engine_tensor(struct hd_engine *engine, struct hd_tensor_place place,
                           struct hd_tensor *tensor, struct hd_problem *problem)
{
    assert(place.local < engine->stage_count);
    assert(place.index < engine->stages[place.local].needs->tensor_count);
    memset(tensor, 0, sizeof *tensor);
    tensor->size = sizeof *tensor;
    const hd_status status =
        engine->kernel_ops->tensor(engine->stages[place.local].instance, place.index, tensor);
    return access_check(engine, status, "describing a tensor", problem);
}

hd_status hd_engine_read(struct hd_engine *engine, struct hd_tensor_place place, void *values,
                         struct hd_problem *problem)
{
    return access_check(engine, access_copy(engine, place, false, values), "reading a tensor",
                        problem);
}

hd_status hd_engine_write(struct hd_engine *engine, struct hd_tensor_place place,
                          const void *values, struct hd_problem *problem)
{
    return access_check(engine, access_copy(engine, place, true, (void *)(uintptr_t)values),
                        "writing a tensor", problem);
}

hd_status hd_engine_norms(struct hd_engine *engine, uint32_t local, double *squared,
                          struct hd_problem *problem)
{
    assert(local < engine->stage_count);
    if (engine->stages[local].needs->tensor_count == 0) {
        return HD_OK;
    }
    if (engine->stages[local].squares != NULL) { /* copied back with the terms of the step */
        memcpy(squared, engine->stages[local].squares,
               engine->stages[local].needs->tensor_count * sizeof *squared);
        return HD_OK;
    }
    const hd_status status =
        access_check(engine, engine->kernel_ops->norms(engine->stages[local].instance, squared),
                     "computing norms", problem);
    return status == HD_OK && !engine->regions.is_device ? hd_device_settle(engine, problem)
                                                         : status;
}

hd_status hd_engine_update(struct hd_engine *engine, const struct hd_update *update,
                           struct hd_problem *problem)
{
    hd_status status = HD_OK;

    for (uint32_t local = 0; status == HD_OK && local < engine->stage_count; local++) {
        if (engine->stages[local].needs->tensor_count > 0) {
            status = engine->kernel_ops->update(engine->stages[local].instance, update);
        }
    }
    status = access_check(engine, status, "running the optimizer", problem);
    return status == HD_OK && !engine->regions.is_device ? hd_device_settle(engine, problem)
                                                         : status;
}

struct hd_recorder *hd_engine_recorder(struct hd_engine *engine)
{
    return &engine->recorder;
}

const char *hd_engine_device(const struct hd_engine *engine)
{
    return engine->device.effective != NULL ? engine->device.effective : "";
}

uint64_t hd_engine_peak_slots(const struct hd_engine *engine)
{
    return engine->peak_slots;
}

void hd_engine_settle(struct hd_engine *engine)
{
    if (atomic_load(&engine->transport) != NULL) {
        (void)hd_engine_move_transfers(engine); /* returns once no other data call is inside */
    }
}

void hd_engine_channel(struct hd_engine *engine, uint32_t channel, struct hd_channel_stats *stats)
{
    struct hd_transport *transport = atomic_load(&engine->transport);

    *stats = (struct hd_channel_stats){.size = sizeof *stats};
    if (transport != NULL && engine->transport_ops->stats != NULL) {
        engine->transport_ops->stats(transport, channel, stats);
    }
    stats->lane[sizeof stats->lane - 1] = '\0';
}
