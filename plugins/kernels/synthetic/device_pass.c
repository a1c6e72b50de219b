/*
 * plugins/kernels/synthetic/device_pass.c - a pass in the stream: copies to the host, the host
 * function, copies back.  See device.c.
 */
#ifdef SYNTHETIC_HAS_CUDA

#include "device.h"

#include <heddle/schedule.h>

#include <sys/prctl.h>
#include <time.h>

/* Host memory of the passes of a stage: one pinned block. */
struct synthetic_bounce {
    void *block;
    uint64_t block_bytes, boundary_bytes, token_bytes, target_bytes, tensor_bytes, square_bytes;
    void *input, *output_gradient, *output, *payload[HD_ACQUISITION_MAX], *tokens, *targets;
    double *term, *squares;
    struct synthetic_memory images;
};

/* One range that is copied: from the device before the host function, to it afterwards, or both. */
struct crossing {
    void *host, *device; /* either NULL: not copied */
    uint64_t bytes;
    bool goes_in, goes_out;
};

enum { CROSSING_MAX = 10 };

static void *synthetic_carve(uintptr_t *at, uint64_t bytes)
{
    const uintptr_t here = *at;

    *at += (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    return (void *)here; /* an offset, until there is a block */
}

/* Places everything from `block` on, and computes the size. */
static void synthetic_lay_out(const struct hd_stage_spec *spec, uint64_t boundary_bytes,
                              bool has_model, struct synthetic_bounce *bounce)
{
    const uint64_t count_bytes = (uint64_t)spec->batch * spec->sequence * sizeof(int32_t);
    const uint64_t blocks = has_model ? spec->block_count : 0;
    uintptr_t at = (uintptr_t)bounce->block;

    bounce->boundary_bytes = boundary_bytes;
    bounce->token_bytes = spec->has_embedding ? count_bytes : 0;
    bounce->target_bytes = spec->has_head && has_model ? count_bytes : 0;
    bounce->tensor_bytes = blocks * SYNTHETIC_TENSOR_VALUES * sizeof(float);
    bounce->square_bytes = blocks * sizeof(double);
    bounce->input = synthetic_carve(&at, boundary_bytes);
    bounce->output_gradient = synthetic_carve(&at, boundary_bytes);
    bounce->output = synthetic_carve(&at, boundary_bytes);
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX; half++) {
        bounce->payload[half] = synthetic_carve(&at, sizeof(struct synthetic_payload));
    }
    bounce->tokens = synthetic_carve(&at, bounce->token_bytes);
    bounce->targets = synthetic_carve(&at, bounce->target_bytes);
    bounce->term = synthetic_carve(&at, sizeof *bounce->term);
    bounce->squares = synthetic_carve(&at, bounce->square_bytes);
    bounce->images.parameters = synthetic_carve(&at, bounce->tensor_bytes);
    bounce->images.moments = synthetic_carve(&at, 2 * bounce->tensor_bytes);
    bounce->images.gradients = synthetic_carve(&at, bounce->tensor_bytes);
    bounce->block_bytes = at - (uintptr_t)bounce->block;
}

uint64_t synthetic_device_stage_bytes(const struct hd_stage_spec *spec, uint64_t boundary_bytes,
                                      bool has_model)
{
    struct synthetic_bounce bounce = {0};

    synthetic_lay_out(spec, boundary_bytes, has_model, &bounce);
    return bounce.block_bytes;
}

hd_status synthetic_device_stage_create(struct hd_stage *stage)
{
    struct synthetic_device *device = stage->kernel->device;
    const struct hd_host *host = stage->host;
    const uint64_t boundary_bytes = stage->boundary_words * sizeof(uint64_t);
    struct synthetic_bounce *bounce = host->alloc(host->context, sizeof *bounce, 64, "synthetic");

    if (bounce == NULL) {
        return synthetic_report(host, HD_NO_MEMORY, "cannot allocate the buffer of a stage");
    }
    synthetic_lay_out(&stage->spec, boundary_bytes, stage->has_model, bounce);
    const hd_status status = synthetic_settle(
        device, "cudaHostAlloc",
        device->cuda.cudaHostAlloc(&bounce->block, bounce->block_bytes, cudaHostAllocDefault));
    if (status != HD_OK) {
        host->free(host->context, bounce);
        return status;
    }
    synthetic_lay_out(&stage->spec, boundary_bytes, stage->has_model, bounce);
    synthetic_account(device, (int64_t)bounce->block_bytes, "synthetic");
    stage->bounce = bounce;
    stage->touch = bounce->images;
    stage->is_aborted = &device->is_aborted;
    return HD_OK;
}

bool synthetic_device_stage_destroy(struct hd_stage *stage)
{
    struct synthetic_device *device = stage->kernel->device;

    if (device == NULL || stage->bounce == NULL) {
        return true;
    }
    if (atomic_load(&device->is_aborted)) {
        return false;
    }
    device->cuda.cudaStreamSynchronize(device->stream);
    device->cuda.cudaFreeHost(stage->bounce->block);
    synthetic_account(device, -(int64_t)stage->bounce->block_bytes, "synthetic");
    stage->host->free(stage->host->context, stage->bounce);
    return true;
}

/* --- in the stream ---------------------------------------------------------------------------- */

static hd_status synthetic_perform(const struct order *order)
{
    switch (order->kind) {
    case ORDER_NORMS:
        synthetic_model_norms(order->stage, order->stage->bounce->squares);
        return HD_OK;
    case ORDER_UPDATE:
        synthetic_model_update(order->stage, &order->update);
        return HD_OK;
    default:
        return synthetic_pass(order->stage, order->kind, &order->pass);
    }
}

static void CUDART_CB synthetic_run_order(void *argument)
{
    struct order *order = argument;
    int none = HD_OK;

    /* The default slack of 50 us would lengthen every stage.  CUDA does not say which thread runs
       host functions. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    const hd_status status = synthetic_perform(order);
    if (status < 0) {
        atomic_compare_exchange_strong(&order->device->failed, &none, status);
    }
    atomic_fetch_add(&order->device->done_count, 1);
}

/* Waits for the oldest order if the ring is full.  The core is never so far ahead. */
static hd_status synthetic_await_room(struct synthetic_device *device)
{
    const struct timespec pause = {0, 100000};
    hd_status status = HD_OK;

    while (status == HD_OK && device->order_count - atomic_load(&device->done_count) >= ORDER_MAX) {
        status = atomic_load(&device->is_aborted) ? HD_ABORTED : synthetic_check_stream(device);
        nanosleep(&pause, NULL);
    }
    return status;
}

static hd_status synthetic_cross(struct synthetic_device *device, const struct crossing *rows,
                                 bool out)
{
    for (uint32_t i = 0; i < CROSSING_MAX; i++) {
        const struct crossing *row = &rows[i];
        if ((out ? row->goes_out : row->goes_in) && row->host != NULL && row->device != NULL &&
            row->bytes > 0) {
            SYNTHETIC_TRY(synthetic_settle(
                device, "cudaMemcpyAsync",
                device->cuda.cudaMemcpyAsync(out ? row->device : row->host,
                                             out ? row->host : row->device, row->bytes,
                                             cudaMemcpyDefault, device->stream)));
        }
    }
    return HD_OK;
}

static hd_status synthetic_enqueue(const struct order *order, const struct crossing *rows)
{
    struct synthetic_device *device = order->device;

    SYNTHETIC_TRY(synthetic_await_room(device));
    SYNTHETIC_TRY(synthetic_cross(device, rows, false));
    struct order *row = &device->orders[device->order_count % ORDER_MAX];
    *row = *order;
    SYNTHETIC_TRY(synthetic_settle(
        device, "cudaLaunchHostFunc",
        device->cuda.cudaLaunchHostFunc(device->stream, synthetic_run_order, row)));
    device->order_count++;
    return synthetic_cross(device, rows, true);
}

/* --- what is copied --------------------------------------------------------------------------- */

static void *synthetic_writable(const void *address)
{
    return (void *)(uintptr_t)address; /* it is only read */
}

/* The pass as the host function sees it. */
static struct hd_pass synthetic_bounced(const struct synthetic_bounce *bounce,
                                        const struct hd_pass *pass)
{
    struct hd_pass copy = {.size = sizeof copy,
                           .microbatch = pass->microbatch,
                           .generation = pass->generation,
                           .label_scale = pass->label_scale,
                           .auxiliary_scale = pass->auxiliary_scale};

    copy.input = pass->input != NULL ? bounce->input : NULL;
    copy.tokens = pass->tokens != NULL ? bounce->tokens : NULL;
    copy.targets = pass->targets != NULL ? bounce->targets : NULL;
    copy.output = pass->output != NULL ? bounce->output : NULL;
    copy.terms = pass->terms != NULL ? bounce->term : NULL;
    copy.output_gradient = pass->output_gradient != NULL ? bounce->output_gradient : NULL;
    copy.input_gradient = pass->input_gradient != NULL ? bounce->output : NULL;
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX; half++) {
        copy.payload[half] = pass->payload[half] != NULL ? bounce->payload[half] : NULL;
    }
    return copy;
}

hd_status synthetic_device_pass(struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
    const struct synthetic_bounce *b = stage->bounce;
    const bool is_forward = kind == HD_FORWARD, has_model = stage->has_model;
    const bool adds = has_model && (kind == HD_BACKWARD || kind == HD_BACKWARD_WEIGHT);
    const bool writes_payload = kind != HD_BACKWARD_WEIGHT;
    const uint64_t seen = stage->is_checked ? b->boundary_bytes : sizeof(uint64_t);
    const struct crossing rows[CROSSING_MAX] = {
        {b->input, synthetic_writable(pass->input), seen, true, false},
        {b->output_gradient, synthetic_writable(pass->output_gradient), seen, true, false},
        {b->tokens, synthetic_writable(pass->tokens), b->token_bytes, true, false},
        {b->targets, synthetic_writable(pass->targets), b->target_bytes, true, false},
        {b->payload[0], pass->payload[0], sizeof(struct synthetic_payload), !is_forward,
         writes_payload},
        {b->payload[1], pass->payload[1], sizeof(struct synthetic_payload), !is_forward,
         writes_payload},
        {b->output, is_forward ? pass->output : pass->input_gradient, seen, false,
         stage->is_checked},
        {b->term, pass->terms, sizeof *b->term, false,
         has_model && is_forward && stage->spec.has_head},
        {b->images.parameters, stage->memory.parameters, b->tensor_bytes, has_model, false},
        {b->images.gradients, stage->memory.gradients, b->tensor_bytes, adds, adds},
    };
    const struct order order = {.device = stage->kernel->device,
                                .stage = stage,
                                .kind = kind,
                                .pass = synthetic_bounced(b, pass)};

    return synthetic_enqueue(&order, rows);
}

hd_status synthetic_device_norms(struct hd_stage *stage, double *squared)
{
    const struct synthetic_bounce *b = stage->bounce;
    const struct crossing rows[CROSSING_MAX] = {
        {b->images.gradients, stage->memory.gradients, b->tensor_bytes, true, false},
        {b->squares, squared, b->square_bytes, false, true},
    };
    const struct order order = {
        .device = stage->kernel->device, .stage = stage, .kind = ORDER_NORMS};

    return synthetic_enqueue(&order, rows);
}

hd_status synthetic_device_update(struct hd_stage *stage, const struct hd_update *update)
{
    const struct synthetic_bounce *b = stage->bounce;
    const struct crossing rows[CROSSING_MAX] = {
        {b->images.gradients, stage->memory.gradients, b->tensor_bytes, true, false},
        {b->images.moments, stage->memory.moments, 2 * b->tensor_bytes, true, true},
        {b->images.parameters, stage->memory.parameters, b->tensor_bytes, true, true},
    };
    const struct order order = {
        .device = stage->kernel->device, .stage = stage, .kind = ORDER_UPDATE, .update = *update};

    return synthetic_enqueue(&order, rows);
}

hd_status synthetic_device_values(struct hd_stage *stage, float *values, void *host, bool into)
{
    struct synthetic_device *device = stage->kernel->device;

    SYNTHETIC_TRY(synthetic_settle(
        device, "cudaMemcpyAsync",
        device->cuda.cudaMemcpyAsync(into ? (void *)values : host, into ? host : (void *)values,
                                     SYNTHETIC_TENSOR_VALUES * sizeof(float), cudaMemcpyDefault,
                                     device->stream)));
    return synthetic_settle(device, "cudaStreamSynchronize",
                            device->cuda.cudaStreamSynchronize(device->stream));
}

#else

/* A C file needs at least one declaration. */
typedef int synthetic_without_passes;

#endif
