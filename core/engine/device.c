/*
 * engine/device.c - what a kernel with a stream needs beside its passes.
 *
 * In device memory the host does not wait between the first action of a step and the last.  Tokens
 * and targets are copied to the device before them, terms and squared norms are copied back after
 * them, and the host waits once, for the mark after the copies.  By that wait the stream is drained
 * before the ranks vote (transport.h, G8) and before the staging memory is written again.
 *
 * A transport of host memory takes no stream.  So if a kernel with a stream computes in host
 * memory, the host waits for every pass before it sends the output.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "engine/internal.h"

#include <assert.h>
#include <string.h>

/* The host side of a copy begins at a page, so that a kernel can pin it. */
enum { PAGE_BYTES = 4096 };

static const char *device_memory_name(uint64_t memory)
{
    return memory == HD_MEMORY_CUDA ? "device memory" : "host memory";
}

static bool device_is_device(uint64_t memory)
{
    return memory == HD_MEMORY_CUDA;
}

hd_status hd_device_check(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_kernel_ops *ops = engine->kernel_ops;
    const struct hd_device *device = &engine->device;
    const char *name = engine->setup.kernel->name;
    const uint64_t declared = engine->setup.needs[0].memory;
    const bool has_calls = ops->abort != NULL && ops->allocate != NULL && ops->copy != NULL &&
                           ops->mark != NULL && ops->reached != NULL;

    if (device_is_device(declared) != device_is_device(device->memory)) {
        hd_problem_set(
            problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
            "%s computes in %s, but its stage_needs returns %s: the plugin is older than "
            "ABI 1.2, or it has a bug",
            name, device_memory_name(device->memory), device_memory_name(declared));
        return hd_engine_check_own(engine, HD_UNSUPPORTED, "opening the kernel", problem);
    }
    if ((device->stream != NULL && !has_calls) ||
        (device->stream == NULL && device_is_device(device->memory))) {
        hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN, "%s %s: the plugin has a bug", name,
                       has_calls ? "computes in device memory without a stream"
                                 : "has a stream, but lacks one of abort, allocate, copy, mark and "
                                   "reached");
        return hd_engine_check_own(engine, HD_UNSUPPORTED, "opening the kernel", problem);
    }
    return HD_OK;
}

static uint64_t device_terms_bytes(const struct hd_engine *engine,
                                   const struct hd_local_stage *local)
{
    return (uint64_t)engine->setup.pipeline->microbatch_count * local->needs->term_count *
           sizeof(double);
}

/* The tokens, or the targets, of one microbatch. */
static uint64_t device_row_bytes(const struct hd_engine *engine)
{
    const struct hd_stage_spec *spec = &engine->setup.specs[0];
    return (uint64_t)spec->batch * spec->sequence * sizeof(int32_t);
}

/* Allocates both sides of what is copied back at the end of a step. */
static hd_status device_prepare_results(struct hd_engine *engine, struct hd_local_stage *local,
                                        struct hd_problem *problem)
{
    const struct hd_regions *regions = &engine->regions;
    const uint64_t squares_bytes = local->needs->tensor_count * sizeof(double);
    const uint64_t terms_bytes = device_terms_bytes(engine, local);

    local->squares = hd_memory_take(squares_bytes, PAGE_BYTES, "terms");
    if (local->squares == NULL) {
        return hd_engine_no_memory(engine, squares_bytes, "the norms", problem);
    }
    hd_status status = hd_regions_take(regions, squares_bytes, "terms", &local->device_squares);
    if (status == HD_OK) {
        status = hd_regions_take(regions, terms_bytes, "terms", &local->device_terms);
    }
    if (status == HD_OK) {
        status = hd_regions_fill(regions, local->device_terms, terms_bytes, 0);
    }
    return hd_engine_check_call(engine, status, engine->setup.kernel, "allocating", problem);
}

static hd_status device_prepare_staging(struct hd_engine *engine, uint32_t which,
                                        struct hd_problem *problem)
{
    const uint64_t stride_bytes = hd_round_up(device_row_bytes(engine), engine->regions.alignment);
    const uint64_t bytes = engine->setup.pipeline->microbatch_count * stride_bytes;
    struct hd_staging *staging = &engine->staging[which];

    staging->stride = stride_bytes / sizeof(int32_t);
    staging->host = hd_memory_take(bytes, PAGE_BYTES, "tokens");
    if (staging->host == NULL) {
        return hd_engine_no_memory(engine, bytes, "tokens and targets", problem);
    }
    const hd_status status = hd_regions_take(&engine->regions, bytes, "tokens", &staging->device);
    return hd_engine_check_call(engine, status, engine->setup.kernel, "allocating", problem);
}

hd_status hd_device_prepare(struct hd_engine *engine, struct hd_problem *problem)
{
    const uint64_t flight_bytes = HD_FLIGHT_MAX * sizeof engine->flights.rows[0];
    bool reads[2] = {false, false};

    if (engine->device.stream == NULL) {
        return HD_OK;
    }
    engine->flights.rows = hd_memory_take(flight_bytes, 64, "recorder");
    if (engine->flights.rows == NULL) {
        return hd_engine_no_memory(engine, flight_bytes, "the actions under way", problem);
    }
    for (uint32_t i = 0; engine->regions.is_device && i < engine->stage_count; i++) {
        const struct hd_stage_spec *spec = &engine->setup.specs[engine->stages[i].stage];
        reads[HD_STAGED_TOKENS] |= spec->has_embedding != 0;
        reads[HD_STAGED_TARGETS] |= spec->has_head != 0;
        HD_TRY(device_prepare_results(engine, &engine->stages[i], problem));
    }
    for (uint32_t which = 0; which < 2; which++) {
        if (reads[which]) {
            HD_TRY(device_prepare_staging(engine, which, problem));
        }
    }
    return HD_OK;
}

void hd_device_finish(struct hd_engine *engine)
{
    for (uint32_t i = 0; i < engine->stage_count; i++) {
        hd_memory_give(engine->stages[i].squares);
    }
    hd_memory_give(engine->staging[HD_STAGED_TOKENS].host);
    hd_memory_give(engine->staging[HD_STAGED_TARGETS].host);
    hd_memory_give(engine->flights.rows);
}

static hd_status device_upload(struct hd_engine *engine, uint32_t which, const int32_t *const *rows)
{
    const struct hd_staging *staging = &engine->staging[which];
    const uint64_t count = engine->setup.pipeline->microbatch_count;

    if (staging->host == NULL || rows == NULL) {
        return HD_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        memcpy(staging->host + i * staging->stride, rows[i], device_row_bytes(engine));
    }
    return engine->kernel_ops->copy(atomic_load(&engine->kernel), staging->device, staging->host,
                                    count * staging->stride * sizeof(int32_t), 0);
}

static hd_status device_add_step_flight(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_flight flight = {.instruction = HD_FLIGHT_OF_STEP,
                                     .times.begin_ns = hd_now_ns()};
    return hd_flights_add(engine, &flight, problem);
}

hd_status hd_device_begin(struct hd_engine *engine, const struct hd_step_input *input,
                          struct hd_problem *problem)
{
    if (engine->flights.rows == NULL) {
        return HD_OK;
    }
    hd_status status = device_upload(engine, HD_STAGED_TOKENS, input->tokens);
    if (status == HD_OK) {
        status = device_upload(engine, HD_STAGED_TARGETS, input->targets);
    }
    status = hd_engine_check_call(engine, status, engine->setup.kernel, "copying tokens", problem);
    /* The optimizer of the step before may still run: the first pass begins behind this mark. */
    return status == HD_OK ? device_add_step_flight(engine, problem) : status;
}

static hd_status device_copy_back(struct hd_engine *engine, const struct hd_local_stage *local)
{
    const struct hd_kernel_ops *ops = engine->kernel_ops;
    struct hd_kernel *kernel = atomic_load(&engine->kernel);
    const uint64_t squares_bytes = local->needs->tensor_count * sizeof(double);
    const uint64_t terms_bytes = device_terms_bytes(engine, local);

    if (terms_bytes > 0) {
        HD_TRY(ops->copy(kernel, local->terms, local->device_terms, terms_bytes, 0));
    }
    if (squares_bytes == 0 || engine->setup.pipeline->is_forward_only) {
        return HD_OK;
    }
    HD_TRY(ops->norms(local->instance, local->device_squares));
    return ops->copy(kernel, local->squares, local->device_squares, squares_bytes, 0);
}

hd_status hd_device_end(struct hd_engine *engine, struct hd_problem *problem)
{
    const bool counts = engine->setup.counts_wait_cpu;
    const uint64_t cpu_ns = counts ? hd_thread_cpu_ns() : 0;
    hd_status status = HD_OK;

    for (uint32_t i = 0; engine->regions.is_device && status == HD_OK && i < engine->stage_count;
         i++) {
        status = device_copy_back(engine, &engine->stages[i]);
    }
    status = hd_engine_check_call(engine, status, engine->setup.kernel,
                                  "copying back terms and norms", problem);
    if (status == HD_OK) {
        status = device_add_step_flight(engine, problem);
    }
    if (status == HD_OK) {
        status = hd_flights_wait(engine, 1, problem);
    }
    engine->actions_end_ns = engine->flights.free_ns;
    if (status == HD_OK) {
        status = hd_flights_wait(engine, 0, problem);
    }
    engine->recorder.times.wait_cpu_ns += counts ? hd_thread_cpu_ns() - cpu_ns : 0;
    return status;
}

hd_status hd_device_settle(struct hd_engine *engine, struct hd_problem *problem)
{
    const uint32_t phase = engine->state.phase;

    if (engine->flights.rows == NULL) {
        return HD_OK;
    }
    HD_TRY(device_add_step_flight(engine, problem));
    HD_TRY(hd_flights_wait(engine, 0, problem));
    hd_engine_phase(engine, phase); /* the flights had published theirs */
    return HD_OK;
}
