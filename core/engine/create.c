/* engine/create.c - builds an engine before the first step, and takes it apart after the last. */
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "engine/internal.h"
#include "engine/order.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A device copies terms to here.  Whole pages, so that a kernel can pin them. */
enum { TERMS_ALIGNMENT = 4096 };

static void engine_abort_waits(void *context, const char *reason)
{
    struct hd_engine *engine = context;
    struct hd_transport *transport = atomic_load(&engine->transport);
    struct hd_kernel *kernel = atomic_load(&engine->kernel);

    engine->setup.bootstrap.abort(engine->setup.bootstrap.context);
    if (kernel != NULL && engine->kernel_ops->abort != NULL) {
        engine->kernel_ops->abort(kernel);
    }
    if (transport != NULL) {
        engine->transport_ops->abort(transport, reason);
    }
}

static hd_status engine_open_kernel(struct hd_engine *engine, struct hd_problem *problem)
{
    struct hd_device *device = &engine->device;
    struct hd_kernel *kernel = NULL;

    device->size = sizeof *device;
    const hd_status status =
        engine->kernel_ops->open(&engine->kernel_host.host, engine->setup.ordinal, device, &kernel);
    HD_TRY(
        hd_engine_check_call(engine, status, engine->setup.kernel, "opening the kernel", problem));
    atomic_store(&engine->kernel, kernel);
    engine->regions = (struct hd_regions){
        .ops = device->stream != NULL ? engine->kernel_ops : NULL,
        .kernel = kernel,
        .alignment = hd_max_u64(device->alignment, HD_SEAL_BYTES),
        .is_device = device->memory == HD_MEMORY_CUDA,
    };
    return hd_device_check(engine, problem);
}

static hd_status engine_take_region(struct hd_engine *engine, uint64_t bytes, const char *tag,
                                    void **out, struct hd_problem *problem)
{
    return hd_regions_take(&engine->regions, bytes, tag, out) == HD_OK
               ? HD_OK
               : hd_engine_no_memory(engine, bytes, tag, problem);
}

/* Host memory is zero already. */
static hd_status engine_zero_state(struct hd_engine *engine, const struct hd_local_stage *local,
                                   struct hd_problem *problem)
{
    const struct hd_stage_memory *memory = &local->memory;
    const struct hd_stage_needs *needs = local->needs;
    hd_status status = HD_OK;

    if (engine->regions.ops == NULL) {
        return HD_OK;
    }
    status = hd_regions_fill(&engine->regions, memory->optimizer, needs->optimizer_bytes, 0);
    for (uint32_t group = 0; status == HD_OK && group < HD_GROUP_COUNT; group++) {
        status = hd_regions_fill(&engine->regions, memory->gradients[group],
                                 needs->gradient_bytes[group], 0);
    }
    return hd_engine_check_call(engine, status, engine->setup.kernel,
                                "zeroing the optimizer's state", problem);
}

static hd_status engine_take_regions(struct hd_engine *engine, struct hd_local_stage *local,
                                     struct hd_problem *problem)
{
    const struct hd_stage_needs *needs = local->needs;
    struct hd_stage_memory *memory = &local->memory;
    const struct {
        uint64_t bytes;
        const char *tag;
        void **out;
    } rows[] = {
        {needs->parameter_bytes, "parameters", &memory->parameters},
        {needs->optimizer_bytes, "optimizer", &memory->optimizer},
        {needs->gradient_bytes[HD_DENSE], "gradients", &memory->gradients[HD_DENSE]},
        {needs->gradient_bytes[HD_EXPERT], "gradients", &memory->gradients[HD_EXPERT]},
    };

    memory->size = sizeof *memory;
    memory->scratch = engine->scratch;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HD_TRY(engine_take_region(engine, rows[i].bytes, rows[i].tag, rows[i].out, problem));
    }
    return engine_zero_state(engine, local, problem);
}

static hd_status engine_create_pools(struct hd_engine *engine, struct hd_local_stage *local,
                                     struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = engine->setup.pipeline;
    const uint32_t fault = engine->setup.fault, planned = pipeline->payload_slots[local->stage];
    /* The slots that the plan counts are enough for any reuse in order, so a fault needs fewer. */
    const bool is_short = fault == HD_LEASE_OFF || fault == HD_LEASE_FORWARD_ORDER;
    const uint32_t slots = is_short && planned > 1 ? planned - 1 : planned;

    local->acquisitions = local->needs->acquisitions;
    assert(local->acquisitions >= 1 && local->acquisitions <= HD_ACQUISITION_MAX);
    for (uint32_t i = 0; !pipeline->is_forward_only && i < local->acquisitions; i++) {
        struct hd_lease_pool *pool = &local->pools[i];
        pool->regions = &engine->regions;
        pool->stage = local->stage;
        pool->microbatch_count = pipeline->microbatch_count;
        pool->poison = engine->setup.poison;
        pool->fault = fault;
        const hd_status status =
            hd_lease_pool_create(pool, slots, local->needs->payload_bytes, problem);
        HD_TRY(hd_engine_check_own(engine, status, "allocating", problem));
        hd_log(HD_LOG_DEBUG, "stage %u, pool %u: %u payload slots of %llu bytes", local->stage, i,
               slots, (unsigned long long)pool->slot_bytes);
    }
    return HD_OK;
}

static hd_status engine_create_stage(struct hd_engine *engine, uint32_t index,
                                     struct hd_problem *problem)
{
    struct hd_local_stage *local = &engine->stages[index];
    const uint64_t microbatches = engine->setup.pipeline->microbatch_count;

    local->stage = engine->program.stages[index];
    local->needs = &engine->setup.needs[local->stage];
    const uint64_t bytes = (microbatches * local->needs->term_count + 1) * sizeof(double);
    local->terms = hd_memory_take(bytes, TERMS_ALIGNMENT, "terms");
    if (local->terms == NULL) {
        return hd_engine_no_memory(engine, bytes, "the terms", problem);
    }
    HD_TRY(engine_take_regions(engine, local, problem));
    HD_TRY(engine_create_pools(engine, local, problem));
    const hd_status status = engine->kernel_ops->stage_create(atomic_load(&engine->kernel),
                                                              &engine->setup.specs[local->stage],
                                                              &local->memory, &local->instance);
    return hd_engine_check_call(engine, status, engine->setup.kernel, "creating a stage", problem);
}

static hd_status engine_create_stages(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_program *program = &engine->program;
    uint64_t scratch_bytes = 0;

    engine->stages = hd_memory_take(program->stage_count * sizeof engine->stages[0], 64, "stages");
    if (engine->stages == NULL) {
        return hd_engine_no_memory(engine, 0, "the stages", problem);
    }
    engine->stage_count = program->stage_count;
    for (uint32_t i = 0; i < program->stage_count; i++) {
        scratch_bytes =
            hd_max_u64(scratch_bytes, engine->setup.needs[program->stages[i]].scratch_bytes);
    }
    HD_TRY(engine_take_region(engine, scratch_bytes, "scratch", &engine->scratch, problem));
    for (uint32_t i = 0; i < program->stage_count; i++) {
        HD_TRY(engine_create_stage(engine, i, problem));
    }
    return HD_OK;
}

/* Both ends of a boundary come from one model, so if their bytes differ the plugin has a bug. */
static hd_status engine_check_boundary(struct hd_engine *engine, uint32_t boundary,
                                       struct hd_problem *problem)
{
    const struct hd_stage_needs *before = &engine->setup.needs[boundary];
    const struct hd_stage_needs *after = &engine->setup.needs[boundary + 1];

    if (before->boundary_bytes == after->boundary_bytes &&
        before->boundary_dtype == after->boundary_dtype && before->boundary_bytes > 0) {
        return HD_OK;
    }
    hd_problem_set(
        problem, HD_PROTOCOL, HD_EXIT_PLUGIN,
        "boundary %u to %u: stage %u sends %llu bytes of type %u, stage %u expects %llu of "
        "type %u",
        boundary, boundary + 1, boundary, (unsigned long long)before->boundary_bytes,
        before->boundary_dtype, boundary + 1, (unsigned long long)after->boundary_bytes,
        after->boundary_dtype);
    return hd_engine_check_own(engine, HD_PROTOCOL, "making the lanes", problem);
}

/* The channels of the transport are the remote ones, in the order of the pipeline: the same on all
   ranks. */
static hd_status engine_list_channels(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = engine->setup.pipeline;
    const uint64_t count = pipeline->channel_count;
    const bool needs_all = hd_pipeline_needs_all_sends(pipeline, engine->setup.overlap);

    engine->channels = hd_memory_take((count + 1) * sizeof engine->channels[0], 64, "lanes");
    engine->channel_list =
        hd_memory_take((count + 1) * sizeof engine->channel_list[0], 64, "lanes");
    if (engine->channels == NULL || engine->channel_list == NULL) {
        return hd_engine_no_memory(engine, 0, "the channels", problem);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        HD_TRY(engine_check_boundary(engine, channel->boundary, problem));
        engine->channels[i] = (struct hd_channel){
            .boundary = channel->boundary,
            .direction = channel->direction,
            .source = channel->source,
            .target = channel->target,
            .depth = channel->slots,
            .send_depth = hd_pipeline_send_slots(channel, needs_all),
            .bytes = engine->setup.needs[channel->boundary].boundary_bytes,
        };
        if (hd_pipeline_is_remote(channel)) {
            engine->channel_list[engine->remote_count++] = &engine->channels[i];
        }
    }
    return HD_OK;
}

static hd_status engine_create_lanes(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_program *program = &engine->program;
    const uint32_t rank = engine->setup.rank;
    const bool carries_seal = (engine->transport_capabilities & HD_TRANSPORT_SEALED) != 0;

    engine->lanes =
        hd_memory_take((program->lane_count + 1) * sizeof engine->lanes[0], 64, "lanes");
    if (engine->lanes == NULL) {
        return hd_engine_no_memory(engine, 0, "the lanes", problem);
    }
    for (uint32_t i = 0; i < program->lane_count; i++) {
        struct hd_lane *lane = &engine->lanes[i];
        const struct hd_pipeline_channel *planned =
            &engine->setup.pipeline->channels[program->lanes[i]];
        *lane = hd_lane_of(&engine->channels[program->lanes[i]], planned->remote_index, rank);
        lane->message_count = planned->message_count;
        lane->regions = &engine->regions;
        lane->is_sealed = !engine->regions.is_device && (hd_lane_is_local(lane) || carries_seal);
        lane->has_checksum = engine->setup.checksum;
        lane->poison = engine->setup.poison;
        lane->dtype = engine->setup.needs[planned->boundary].boundary_dtype;
        lane->ops = engine->transport_ops;
        engine->lane_count++;
        const hd_status status = hd_lane_create(lane, problem);
        HD_TRY(hd_engine_check_own(engine, status, "making the lanes", problem));
    }
    return HD_OK;
}

static hd_status engine_start_watchdog(struct hd_engine *engine, struct hd_problem *problem)
{
    engine->watchdog = (struct hd_watchdog){
        .board = engine->setup.board,
        .rank = engine->setup.rank,
        .abort = engine_abort_waits,
        .context = engine,
    };
    const int error = hd_watchdog_start(&engine->watchdog);
    if (error == 0) {
        return HD_OK;
    }
    hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED, "cannot start the watchdog thread: %s",
                   strerror(error));
    return hd_engine_check_own(engine, HD_SYSTEM, "starting", problem);
}

static hd_status engine_build(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_engine_setup *setup = &engine->setup;
    hd_status (*const steps[])(struct hd_engine *, struct hd_problem *) = {
        engine_start_watchdog,   engine_open_kernel,       engine_create_stages,
        hd_device_prepare,       engine_list_channels,     engine_create_lanes,
        hd_engine_map_transfers, hd_engine_open_transport,
    };

    hd_engine_enter(engine, HD_PHASE_OPEN);
    hd_status status = hd_program_create(setup->pipeline, setup->rank, &engine->program, problem);
    if (status == HD_OK) {
        status = hd_order_create(setup->pipeline, &engine->program, &engine->order, problem);
    }
    if (status == HD_OK) {
        status = hd_recorder_create(&engine->recorder, engine->program.instruction_count,
                                    setup->trace_steps, problem);
    }
    HD_TRY(hd_engine_check_own(engine, status, "starting", problem));
    engine->recorder.step = setup->steps_before;
    engine->recorder.alternates = setup->trace_alternates;
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        HD_TRY(steps[i](engine, problem));
    }
    return HD_OK;
}

static void engine_init_host(struct hd_engine *engine, const struct hd_plugin *plugin,
                             const struct hd_option_value *options, struct hd_plugin_host *host)
{
    *host = (struct hd_plugin_host){.plugin = plugin,
                                    .options = options,
                                    .rank = engine->setup.rank,
                                    .rank_count = engine->setup.pipeline->rank_count,
                                    .is_untraced = engine->setup.trace_steps == 0,
                                    .bootstrap = engine->setup.bootstrap,
                                    .context = engine,
                                    .on_fail = hd_engine_note_failure,
                                    .on_transfer = hd_engine_note_transfer};
    hd_plugin_host_init(host);
}

hd_status hd_engine_create(const struct hd_engine_setup *setup, struct hd_engine **out,
                           struct hd_problem *problem)
{
    struct hd_engine *engine = hd_memory_take(sizeof *engine, 64, "engine");

    if (engine == NULL) {
        return hd_problem_no_memory(problem, sizeof *engine, "the engine");
    }
    engine->setup = *setup;
    engine->kernel_ops = setup->kernel->ops;
    engine->transport_ops = setup->transport->ops;
    /* The planner refuses a hook without an inner transport, and the reverse. */
    assert(((setup->transport->capabilities & HD_TRANSPORT_HOOK) != 0) == (setup->inner != NULL));
    engine->transport_capabilities =
        setup->inner != NULL ? setup->inner->capabilities : setup->transport->capabilities;
    engine->state.peer = UINT32_MAX;
    engine->state.channel = UINT32_MAX;
    pthread_mutex_init(&engine->failure_lock, NULL);
    engine_init_host(engine, setup->kernel, setup->kernel_options, &engine->kernel_host);
    engine_init_host(engine, setup->transport, setup->transport_options, &engine->transport_host);
    if (setup->inner != NULL) {
        engine_init_host(engine, setup->inner, setup->inner_options, &engine->inner_host);
    }
    hd_engine_set_rounding();
    const hd_status status = engine_build(engine, problem);
    if (status != HD_OK) {
        engine->has_failed = true;
        hd_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return HD_OK;
}

/* Comes before the engine frees memory that the stream may reach or that the kernel has pinned. */
static void engine_close_kernel(struct hd_engine *engine)
{
    for (uint32_t i = 0; i < engine->stage_count; i++) {
        engine->kernel_ops->stage_destroy(engine->stages[i].instance);
    }
    engine->kernel_ops->close(atomic_load(&engine->kernel));
    atomic_store(&engine->kernel, NULL);
}

static void engine_finish_stages(struct hd_engine *engine)
{
    for (uint32_t i = 0; i < engine->stage_count; i++) {
        struct hd_local_stage *local = &engine->stages[i];
        for (uint32_t pool = 0; pool < HD_ACQUISITION_MAX; pool++) {
            hd_lease_pool_finish(&local->pools[pool]);
        }
        hd_regions_give(&engine->regions, local->memory.parameters);
        hd_regions_give(&engine->regions, local->memory.optimizer);
        hd_regions_give(&engine->regions, local->memory.gradients[HD_DENSE]);
        hd_regions_give(&engine->regions, local->memory.gradients[HD_EXPERT]);
        hd_memory_give(local->terms);
    }
    hd_memory_give(engine->stages);
    hd_regions_give(&engine->regions, engine->scratch);
}

void hd_engine_destroy(struct hd_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    const bool is_clean = !engine->has_failed && hd_engine_is_sound(engine);
    if (is_clean && atomic_load(&engine->transport) != NULL) {
        hd_engine_close_transport(engine);
    }
    hd_watchdog_stop(&engine->watchdog);
    if (!is_clean) {
        return; /* the process ends soon: memory that a peer may still write stays mapped */
    }
    engine_close_kernel(engine);
    hd_device_finish(engine); /* reads the stages */
    engine_finish_stages(engine);
    for (uint32_t i = 0; i < engine->lane_count; i++) {
        hd_lane_finish(&engine->lanes[i]);
    }
    hd_memory_give(engine->lanes);
    hd_memory_give(engine->lane_of);
    hd_memory_give(engine->channels);
    hd_memory_give(engine->channel_list);
    hd_recorder_finish(&engine->recorder);
    hd_order_finish(&engine->order);
    hd_program_finish(&engine->program);
    pthread_mutex_destroy(&engine->failure_lock);
    hd_memory_give(engine);
}
