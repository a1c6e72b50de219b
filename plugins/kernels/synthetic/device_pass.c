/*
 * plugins/kernels/synthetic/device_pass.c - a pass in the stream: copies to the host's side, the
 * host function, copies back.  See device.c.
 */
#ifdef SYNTHETIC_HAS_CUDA

#include "device.h"

#include <heddle/schedule.h>

#include <sys/prctl.h>
#include <time.h>

/* What a stage's passes have on the host's side. */
struct synthetic_bounce {
    unsigned char *block; /* pinned */
    uint64_t boundary_bytes, token_bytes;
    void *input, *output_gradient, *output, *payload[HD_ACQUISITION_MAX], *tokens;
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
}

static uint64_t token_bytes_of(const struct hd_stage_spec *spec)
{
    return spec->has_embedding ? (uint64_t)spec->batch * spec->sequence * sizeof(int32_t) : 0;
}

uint64_t synthetic_device_stage_bytes(const struct hd_stage_spec *spec, uint64_t boundary_bytes)
{
    return 3 * round_up(boundary_bytes) +
           HD_ACQUISITION_MAX * round_up(sizeof(struct synthetic_payload)) +
           round_up(token_bytes_of(spec));
}

hd_status synthetic_device_stage_create(struct hd_stage *stage)
{
    struct synthetic_device *device = stage->kernel->device;
    const struct hd_host *host = stage->host;
    const uint64_t boundary_bytes = stage->boundary_words * sizeof(uint64_t);
    const uint64_t bytes = synthetic_device_stage_bytes(&stage->spec, boundary_bytes);
    struct synthetic_bounce *bounce = host->alloc(host->context, sizeof *bounce, 64, "synthetic");
    void *block = NULL;

    if (bounce == NULL) {
        return synthetic_report(host, HD_NO_MEMORY, "no memory for a stage");
    }
    const hd_status status = synthetic_settle(
        device, "cudaHostAlloc", device->cuda.cudaHostAlloc(&block, bytes, cudaHostAllocDefault));
    if (status != HD_OK) {
        host->free(host->context, bounce);
        return status;
    }
    synthetic_account(device, (int64_t)bytes, "synthetic");
    unsigned char *at = block;
    *bounce = (struct synthetic_bounce){
        .block = block,
        .boundary_bytes = stage->is_checked ? boundary_bytes : sizeof(uint64_t),
        .token_bytes = token_bytes_of(&stage->spec),
        .input = at,
        .output_gradient = at + round_up(boundary_bytes),
        .output = at + 2 * round_up(boundary_bytes),
    };
    at += 3 * round_up(boundary_bytes);
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX; half++) {
        bounce->payload[half] = at;
        at += round_up(sizeof(struct synthetic_payload));
    }
    bounce->tokens = at;
    stage->bounce = bounce;
    stage->is_aborted = &device->is_aborted;
    return HD_OK;
}

uint32_t synthetic_device_stage_destroy(struct hd_stage *stage)
{
    struct synthetic_device *device = stage->kernel->device;

    if (device == NULL || stage->bounce == NULL) {
        return 1;
    }
    if (atomic_load(&device->is_aborted)) {
        return 0;
    }
    device->cuda.cudaStreamSynchronize(device->stream);
    device->cuda.cudaFreeHost(stage->bounce->block);
    synthetic_account(device,
                      -(int64_t)synthetic_device_stage_bytes(&stage->spec, stage->boundary_words *
                                                                               sizeof(uint64_t)),
                      "synthetic");
    stage->host->free(stage->host->context, stage->bounce);
    return 1;
}

static void CUDART_CB run_order(void *argument)
{
    struct order *order = argument;
    int none = HD_OK;

    /* The default slack of 50 us would be part of every stage; whose thread this is, nobody says.
     */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    const hd_status status = synthetic_pass(order->stage, order->kind, &order->pass);
    if (status < 0) {
        atomic_compare_exchange_strong(&order->device->failed, &none, status);
    }
    atomic_fetch_add(&order->device->done_count, 1);
}

/* One copy between a pass's own address and its bounce; of nothing, nothing. */
static hd_status bounce_copy(struct synthetic_device *device, void *target, const void *source,
                             uint64_t bytes)
{
    if (target == NULL || source == NULL || bytes == 0) {
        return HD_OK;
    }
    return synthetic_settle(
        device, "cudaMemcpyAsync",
        device->cuda.cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, device->stream));
}

static hd_status bring_in(const struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
    struct synthetic_device *device = stage->kernel->device;
    const struct synthetic_bounce *bounce = stage->bounce;

    hd_status status = bounce_copy(device, bounce->input, pass->input, bounce->boundary_bytes);
    if (status == HD_OK) {
        status = bounce_copy(device, bounce->tokens, pass->tokens, bounce->token_bytes);
    }
    if (status == HD_OK) {
        status = bounce_copy(device, bounce->output_gradient, pass->output_gradient,
                             bounce->boundary_bytes);
    }
    for (uint32_t half = 0; kind != HD_FORWARD && half < HD_ACQUISITION_MAX && status == HD_OK;
         half++) {
        status = bounce_copy(device, bounce->payload[half], pass->payload[half],
                             sizeof(struct synthetic_payload));
    }
    return status;
}

static hd_status bring_out(const struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
    struct synthetic_device *device = stage->kernel->device;
    const struct synthetic_bounce *bounce = stage->bounce;
    void *output = kind == HD_FORWARD ? pass->output : pass->input_gradient;
    hd_status status = HD_OK;

    if (kind == HD_BACKWARD_WEIGHT) {
        return HD_OK;
    }
    if (stage->is_checked) {
        status = bounce_copy(device, output, bounce->output, bounce->boundary_bytes);
    }
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX && status == HD_OK; half++) {
        status = bounce_copy(device, pass->payload[half], bounce->payload[half],
                             sizeof(struct synthetic_payload));
    }
    return status;
}

/* The pass as the host function sees it. */
static struct hd_pass bounced(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct synthetic_bounce *bounce = stage->bounce;
    struct hd_pass copy = {
        .size = sizeof copy, .microbatch = pass->microbatch, .generation = pass->generation};

    copy.input = pass->input != NULL ? bounce->input : NULL;
    copy.tokens = pass->tokens != NULL ? bounce->tokens : NULL;
    copy.output = pass->output != NULL ? bounce->output : NULL;
    copy.output_gradient = pass->output_gradient != NULL ? bounce->output_gradient : NULL;
    copy.input_gradient = pass->input_gradient != NULL ? bounce->output : NULL;
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX; half++) {
        copy.payload[half] = pass->payload[half] != NULL ? bounce->payload[half] : NULL;
    }
    return copy;
}

/* The core is never so far ahead; whoever is waits here for the oldest to be over. */
static hd_status await_room(struct synthetic_device *device)
{
    const struct timespec nap = {0, 100000};
    hd_status status = HD_OK;

    while (status == HD_OK && device->order_count - atomic_load(&device->done_count) >= ORDER_MAX) {
        status = atomic_load(&device->is_aborted) ? HD_ABORTED : synthetic_check_stream(device);
        nanosleep(&nap, NULL);
    }
    return status;
}

hd_status synthetic_device_pass(struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
    struct synthetic_device *device = stage->kernel->device;

    hd_status status = await_room(device);
    if (status == HD_OK) {
        status = bring_in(stage, kind, pass);
    }
    if (status != HD_OK) {
        return status;
    }
    struct order *order = &device->orders[device->order_count % ORDER_MAX];
    *order = (struct order){device, stage, kind, bounced(stage, pass)};
    status = synthetic_settle(device, "cudaLaunchHostFunc",
                              device->cuda.cudaLaunchHostFunc(device->stream, run_order, order));
    device->order_count += status == HD_OK;
    return status == HD_OK ? bring_out(stage, kind, pass) : status;
}

#else

/* A C file holds at least one declaration. */
typedef int synthetic_without_passes;

#endif
