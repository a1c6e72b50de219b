/* drive/line.c - a transport between two ranks: its host, its opening and its end. */
#include "drive/line.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/pulse.h"
#include "run/launched.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 128, TURN_COUNT = 64, WAIT_NS = 50000, ALIGNMENT_BYTES = 64 };

/* --- the host -------------------------------------------------------------------------------- */

static void line_host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_line_host *host = context;
    hd_log(level, "%s: %s", host->plugin->name, text);
}

static hd_status line_host_fail(void *context, const struct hd_error *error)
{
    const struct hd_line_host *host = context;

    assert(error->status < 0);
    return hd_problem_set(&host->line->failure, error->status, hd_exit_of(error->status), "%s: %s",
                          host->plugin->name, error->text);
}

/* Keys of several instances must not meet, nor those of a hook and of what it wraps. */
static void line_scoped(const struct hd_line_host *host, const char *key, char text[KEY_BYTES])
{
    snprintf(text, KEY_BYTES, "%u/%s/%s", host->line->instance, host->plugin->name, key);
}

static hd_status line_host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_line_host *host = context;
    char text[KEY_BYTES];

    line_scoped(host, key, text);
    return hd_bootstrap_put(host->line->rank->bootstrap, text, value, bytes);
}

static hd_status line_host_get(void *context, const char *key, void *value, uint64_t bytes,
                               uint64_t deadline_ns)
{
    const struct hd_line_host *host = context;
    char text[KEY_BYTES];

    line_scoped(host, key, text);
    return hd_bootstrap_get(host->line->rank->bootstrap, text, value, bytes, deadline_ns);
}

static hd_status line_host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_line_host *host = context;
    return hd_bootstrap_fence(host->line->rank->bootstrap, deadline_ns);
}

static void line_host_trace(void *context, const struct hd_transfer *transfer)
{
    const struct hd_line_host *host = context;

    if (transfer->channel < 2) {
        host->line->transfer = *transfer;
    }
}

static void line_init_host(struct hd_line *line, struct hd_line_host *host,
                           const struct hd_plugin *plugin, const struct hd_option_value *options)
{
    *host = (struct hd_line_host){.line = line, .plugin = plugin, .host = hd_host_basics()};
    host->host.rank = line->rank->rank;
    host->host.rank_count = HD_BENCH_RANK_COUNT;
    host->host.option_count = plugin->option_count;
    host->host.options = options;
    host->host.context = host;
    host->host.log = line_host_log;
    host->host.fail = line_host_fail;
    host->host.put = line_host_put;
    host->host.get = line_host_get;
    host->host.fence = line_host_fence;
    host->host.trace_transfer = line_host_trace;
    host->host.is_untraced = line->shape.is_untraced;
}

/* --- open and close -------------------------------------------------------------------------- */

hd_status hd_line_bodies(uint64_t bytes, const unsigned char *bodies[2])
{
    const uint64_t stride_bytes = (bytes + 63) / 64 * 64;
    unsigned char *memory = hd_memory_take(2 * stride_bytes, 64, "bench");

    if (memory == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t body = 0; body < 2; body++) {
        bodies[body] = memory + body * stride_bytes;
        for (uint64_t word = 0; word < stride_bytes / 8; word++) {
            const uint64_t value = hd_pattern_word(2, body, word);
            memcpy(memory + body * stride_bytes + word * 8, &value, 8);
        }
    }
    return HD_OK;
}

static const struct hd_plugin *line_carrier_of(const struct hd_line_plugin *plugin)
{
    return plugin->inner != NULL ? plugin->inner : plugin->plugin;
}

hd_status hd_line_check_hosts(const struct hd_line_plugin *plugin, const struct hd_link *link,
                              struct hd_problem *problem)
{
    if (link == NULL || hd_link_rank(link) != 0) {
        return HD_OK;
    }
    return hd_launched_check_hosts(link, line_carrier_of(plugin), problem);
}

/* The hook's own needs are those of what it wraps. */
static hd_status line_start_pulse(struct hd_line *line, struct hd_problem *problem)
{
    const struct hd_plugin *carrier = line_carrier_of(&line->plugin);
    const struct hd_pulse_need need = {
        .ops = line->ops,
        .capabilities = line->shape.has_engine_pulse ? carrier->capabilities : 0,
        .is_hooked = line->shape.has_engine_pulse && line->plugin.inner != NULL,
        .is_device = line->shape.has_engine_pulse && line->shape.device != NULL,
        .is_asked = line->shape.has_thread,
    };

    line->period_ns = hd_pulse_period_ns(&need);
    if (line->period_ns == 0) {
        return HD_OK;
    }
    const int error = hd_pulse_start(need.ops, line->period_ns, &line->ops, &line->transport);
    return error == 0 ? HD_OK
                      : hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                                       "no thread that moves transport %s: %s",
                                       line->plugin.plugin->name, strerror(error));
}

static void line_init_channels(struct hd_line *line)
{
    for (uint32_t i = 0; i < HD_LINE_CHANNEL_COUNT; i++) {
        const uint32_t is_bell = i >= 2;
        line->channels[i] = (struct hd_channel){
            .boundary = is_bell,
            .direction = i % 2 == 0 ? HD_FORWARD : HD_BACKWARD,
            .source = i % 2,
            .target = 1 - i % 2,
            .depth = is_bell ? 2 : line->shape.depth,
            .send_depth = is_bell ? 2 : line->shape.depth,
            .bytes = is_bell ? HD_LINE_STAMP_BYTES : line->shape.bytes,
        };
        line->list[i] = &line->channels[i];
    }
    line->out = line->rank->rank;
    line->in = 1 - line->rank->rank;
}

hd_status hd_line_open(struct hd_line *line, const struct hd_bench_rank *rank, uint32_t instance,
                       struct hd_problem *problem)
{
    const struct hd_line_plugin plugin = line->plugin;
    const struct hd_line_shape shape = line->shape;

    assert(shape.bytes > 0 && shape.depth > 1);
    *line = (struct hd_line){.rank = rank, .plugin = plugin, .shape = shape, .instance = instance};
    line_init_channels(line);
    line_init_host(line, &line->outer, plugin.plugin, plugin.options);
    if (plugin.inner != NULL) {
        line_init_host(line, &line->inner, plugin.inner, plugin.inner_options);
    }
    line->setup = (struct hd_transport_setup){
        .size = sizeof line->setup,
        .channel_count = HD_LINE_CHANNEL_COUNT,
        .channels = line->list,
        .host = &line->outer.host,
        .inner = plugin.inner,
        .inner_host = plugin.inner != NULL ? &line->inner.host : NULL,
        .deadline_ns = hd_now_ns() + rank->timeout_ns,
        .memory = HD_MEMORY_HOST,
        .alignment_bytes = ALIGNMENT_BYTES,
    };
    if (shape.device != NULL) {
        const struct hd_lent *lent = &shape.device->lent;
        line->setup.memory = lent->about.memory;
        line->setup.device = rank->ordinal;
        line->setup.alignment_bytes = hd_lent_alignment(lent);
    }
    line->is_serial = (line_carrier_of(&plugin)->capabilities & HD_TRANSPORT_SERIAL) != 0;
    line->ops = plugin.plugin->ops;
    const hd_status status = line->ops->open(&line->setup, &line->transport);
    if (status != HD_OK) {
        return hd_line_blame(line, status, problem);
    }
    hd_line_renew(line);
    if (hd_line_take_stamps(line) != HD_OK) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for stamps");
    }
    return line_start_pulse(line, problem);
}

hd_status hd_line_close(struct hd_line *line, struct hd_problem *problem)
{
    if (line->transport == NULL) {
        return HD_OK;
    }
    hd_line_renew(line);
    hd_status status = hd_line_settle(line); /* all rests before anybody says so */
    if (status == HD_OK) {
        status = hd_line_fence(line);
    }
    if (status == HD_OK && line->ops->quiesce != NULL) {
        status = line->ops->quiesce(line->transport, line->deadline_ns);
    }
    if (status == HD_OK) {
        status = hd_bootstrap_fence(line->rank->bootstrap, line->deadline_ns);
    }
    line->ops->close(line->transport, line->deadline_ns);
    line->transport = NULL;
    hd_memory_give(line->stamps_out);
    line->stamps_out = NULL;
    return status == HD_OK ? HD_OK : hd_line_blame(line, status, problem);
}

hd_status hd_line_blame(struct hd_line *line, hd_status status, struct hd_problem *problem)
{
    assert(status < 0);
    if (line->failure.exit_code != 0 && problem->exit_code == 0) {
        *problem = line->failure;
    }
    if (line->shape.device != NULL && problem->exit_code == 0 &&
        line->shape.device->failure.exit_code != 0) {
        *problem = line->shape.device->failure;
    }
    return hd_problem_set(problem, status, hd_exit_of(status), "%s returned %s",
                          line->plugin.plugin->name, hd_status_name(status));
}

/* --- meeting --------------------------------------------------------------------------------- */

void hd_line_renew(struct hd_line *line)
{
    line->deadline_ns = hd_now_ns() + line->rank->timeout_ns;
}

/* 1: a call failed, which whoever waits for a message learns as well. */
static int line_has_broken_moving(struct hd_line *line)
{
    hd_status moved = HD_OK;

    for (uint32_t turn = 0; moved >= 0 && turn < TURN_COUNT; turn++) {
        moved = line->ops->progress(line->transport);
    }
    return moved < 0;
}

/* A rank that waits here still moves what the other waits for. */
hd_status hd_line_fence(struct hd_line *line)
{
    const int moves = line->ops->progress != NULL;
    hd_status status = HD_TIMEOUT;

    while (status == HD_TIMEOUT && hd_now_ns() < line->deadline_ns) {
        if (moves && line_has_broken_moving(line)) {
            break;
        }
        status = hd_bootstrap_fence(line->rank->bootstrap,
                                    moves ? hd_now_ns() + WAIT_NS : line->deadline_ns);
    }
    return status;
}

hd_status hd_line_swap(struct hd_line *line, const void *mine, void *theirs, uint64_t bytes)
{
    const hd_status status = hd_line_fence(line);
    return status == HD_OK ? hd_bench_swap(line->rank, mine, theirs, bytes) : status;
}
