/* hook_fault/open.c - exchanges process numbers, and opens inner with a copy of the setup. */
#include "hook.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 48, GENERATION_MAX = 1000 };

void hook_free(struct hd_transport *hook)
{
    const struct hd_host *host = hook->host;

    for (uint32_t i = 0; i < hook->setup.channel_count; i++) {
        host->free(host->context, hook->channels[i].held);
        host->free(host->context, hook->channels[i].copy);
    }
    host->free(host->context, hook->pids);
    host->free(host->context, hook);
}

/* --- open -------------------------------------------------------------------------------- */

static hd_status hook_fault_refuse(const struct hd_host *host, hd_status status, const char *text)
{
    const struct hd_error error = {sizeof error, status, UINT32_MAX, UINT32_MAX, 0, text};
    return host->fail(host->context, &error);
}

/* kill_peer and stop_peer need the process numbers of all ranks. */
static hd_status hook_fault_exchange_pids(struct hd_transport *hook, uint64_t deadline_ns)
{
    const struct hd_host *host = hook->host;
    const int32_t pid = (int32_t)getpid();
    uint32_t generation = 0;
    hd_status status = HD_INVALID; /* the bootstrap refuses a key that an older instance has put */
    char key[KEY_BYTES];

    for (; status == HD_INVALID && generation < GENERATION_MAX; generation++) {
        snprintf(key, sizeof key, "hook_fault.%u.%u", host->rank, generation);
        status = host->put(host->context, key, &pid, sizeof pid);
    }
    if (status == HD_OK) {
        status = host->fence(host->context, deadline_ns);
    }
    for (uint32_t rank = 0; status == HD_OK && rank < host->rank_count; rank++) {
        snprintf(key, sizeof key, "hook_fault.%u.%u", rank, generation - 1);
        status = host->get(host->context, key, &hook->pids[rank], sizeof pid, deadline_ns);
    }
    return status == HD_OK ? HD_OK
                           : hook_fault_refuse(host, status,
                                               "cannot exchange the process numbers of all ranks");
}

static hd_status hook_fault_take_channel(struct hd_transport *hook, uint32_t number)
{
    const struct hd_host *host = hook->host;
    const struct hd_channel *shape = hook_shape(hook, number);
    struct hook_channel *channel = &hook->channels[number];
    const uint64_t bytes = shape->depth * sizeof *channel->held;

    if (shape->source != host->rank) {
        return HD_OK;
    }
    channel->held = host->alloc(host->context, bytes, 64, "hook_fault");
    if (strcmp(hook->fault, "duplicate") == 0) {
        channel->copy = host->alloc(host->context, shape->bytes + HD_SEAL_BYTES, 64, "hook_fault");
    }
    const bool has_all =
        channel->held != NULL && (channel->copy != NULL) == (strcmp(hook->fault, "duplicate") == 0);
    return has_all ? HD_OK
                   : hook_fault_refuse(host, HD_NO_MEMORY, "cannot allocate the held messages");
}

static void hook_fault_read_options(struct hd_transport *hook)
{
    const struct hd_host *host = hook->host;

    hook->fault = "none";
    hook->values[CHANNEL] = -1;
    hook->values[SEQUENCE] = -1;
    hook->values[SEED] = 1;
    for (uint32_t i = 0; i < host->option_count && i < OPTION_COUNT; i++) {
        if (i == FAULT) {
            hook->fault = host->options[i].text;
        } else {
            hook->values[i] = host->options[i].integer;
        }
    }
}

/* A held message goes later than those posted after it, which a serial transport must not see. */
static bool hook_fault_breaks_order(const struct hd_transport *hook, const struct hd_plugin *inner)
{
    const bool holds_back = hook->values[DELAY_US] > 0 || hook->values[BANDWIDTH_MB] > 0 ||
                            hook->values[REORDER_PERCENT] > 0;
    return holds_back && (inner->capabilities & HD_TRANSPORT_SERIAL) != 0;
}

static hd_status open_inner(struct hd_transport *hook, const struct hd_transport_setup *setup)
{
    hd_status status =
        hook_fault_breaks_order(hook, setup->inner)
            ? hook_fault_refuse(
                  setup->host, HD_UNSUPPORTED,
                  "inner is serial and needs its messages in one order: set delay_us, bandwidth_mb "
                  "and reorder_percent to 0")
            : HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < setup->channel_count; i++) {
        status = hook_fault_take_channel(hook, i);
    }
    if (status == HD_OK) {
        status = hook_fault_exchange_pids(hook, setup->deadline_ns);
    }
    if (status == HD_OK) {
        status = hook->inner_ops->open(&hook->setup, &hook->inner);
    }
    if (status == HD_OK && hook_start_wire(hook) != 0) {
        status =
            hook_fault_refuse(hook->host, HD_SYSTEM, "cannot create the thread of the slow wire");
        hook_stop_wire(hook);
        hook->inner_ops->close(hook->inner, setup->deadline_ns);
    }
    return status;
}

hd_status hook_open(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    const struct hd_host *host = setup->host;

    if (setup->inner == NULL || setup->inner_host == NULL || setup->memory != HD_MEMORY_HOST) {
        return hook_fault_refuse(host, HD_UNSUPPORTED,
                                 "hook_fault needs transport.inner, and host memory");
    }
    struct hd_transport *hook = host->alloc(
        host->context, sizeof *hook + setup->channel_count * sizeof(struct hook_channel), 64,
        "hook_fault");
    int32_t *pids = host->alloc(host->context, host->rank_count * sizeof *pids, 64, "hook_fault");
    if (hook == NULL || pids == NULL) {
        host->free(host->context, hook);
        host->free(host->context, pids);
        return hook_fault_refuse(host, HD_NO_MEMORY, "cannot allocate the state of the channels");
    }
    hook->host = host;
    hook->pids = pids;
    hook->inner_ops = setup->inner->ops;
    hook->setup = *setup;
    hook->setup.host = setup->inner_host;
    hook->setup.inner = NULL;
    hook->setup.inner_host = NULL;
    hook_fault_read_options(hook);
    const hd_status status = open_inner(hook, setup);
    if (status != HD_OK) {
        hook_free(hook);
        return status;
    }
    *out = hook;
    return HD_OK;
}
