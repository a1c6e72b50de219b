#include "engine/host.h"
#include "base/host.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>

enum { KEY_BYTES = 128 };

static void host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_plugin_host *host = context;
    hd_log(level, "%s: %s", host->plugin->name, text);
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    const struct hd_plugin_host *host = context;

    assert(error->status < 0);
    host->on_fail(host->context, host->plugin, error);
    return error->status;
}

static void host_scoped(const struct hd_plugin_host *host, const char *key, char text[KEY_BYTES])
{
    snprintf(text, KEY_BYTES, "%u/%s/%s", host->instance, host->plugin->name, key);
}

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_plugin_host *host = context;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return host->bootstrap.put(host->bootstrap.context, text, value, bytes);
}

static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    const struct hd_plugin_host *host = context;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return host->bootstrap.get(host->bootstrap.context, text, value, bytes, deadline_ns);
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_plugin_host *host = context;
    return host->bootstrap.fence(host->bootstrap.context, deadline_ns);
}

static void host_trace(void *context, const struct hd_transfer *transfer)
{
    const struct hd_plugin_host *host = context;
    host->on_transfer(host->context, transfer);
}

void hd_plugin_host_init(struct hd_plugin_host *host)
{
    host->host = hd_host_basics();
    host->host.rank = host->rank;
    host->host.rank_count = host->rank_count;
    host->host.option_count = host->plugin->option_count;
    host->host.options = host->options;
    host->host.context = host;
    host->host.log = host_log;
    host->host.fail = host_fail;
    host->host.is_untraced = host->is_untraced;
    if (host->bootstrap.put != NULL) {
        host->host.put = host_put;
        host->host.get = host_get;
        host->host.fence = host_fence;
    }
    if (host->on_transfer != NULL) {
        host->host.trace_transfer = host_trace;
    }
}

void hd_plugin_host_note(struct hd_problem *failure, const struct hd_plugin *plugin,
                         const struct hd_error *error)
{
    hd_problem_set(failure, error->status, hd_exit_of(error->status), "%s: %s", plugin->name,
                   error->text);
}
