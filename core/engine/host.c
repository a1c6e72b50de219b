/* engine/host.c - the table of functions that a plugin may call. */
#include "base/host.h"
#include "base/log.h"
#include "engine/internal.h"

#include <assert.h>
#include <stdio.h>

enum { KEY_BYTES = 128 };

static void host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_engine_host *host = context;
    hd_log(level, "%s: %s", host->plugin->name, text);
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    const struct hd_engine_host *host = context;
    struct hd_engine *engine = host->engine;
    struct hd_board *board = engine->setup.board;

    assert(error->status < 0);
    pthread_mutex_lock(&engine->failure_lock);
    hd_problem_set(&engine->failure, error->status, hd_exit_of(error->status), "%s: %s",
                   host->plugin->name, error->text);
    pthread_mutex_unlock(&engine->failure_lock);
    if (error->status == HD_PEER_LOST && error->rank < board->rank_count) {
        atomic_store(&board->rows[error->rank].is_dead, 1u);
    }
    return error->status;
}

/* A key of one plugin must differ from the keys of every other. */
static void host_scoped(const struct hd_engine_host *host, const char *key, char text[KEY_BYTES])
{
    snprintf(text, KEY_BYTES, "%s/%s", host->plugin->name, key);
}

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return bootstrap->put(bootstrap->context, text, value, bytes);
}

static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    char text[KEY_BYTES];

    host_scoped(host, key, text);
    return bootstrap->get(bootstrap->context, text, value, bytes, deadline_ns);
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_engine_host *host = context;
    const struct hd_engine_bootstrap *bootstrap = &host->engine->setup.bootstrap;
    return bootstrap->fence(bootstrap->context, deadline_ns);
}

static void host_trace(void *context, const struct hd_transfer *transfer)
{
    const struct hd_engine_host *host = context;
    hd_engine_note_transfer(host->engine, transfer);
}

void hd_engine_host_init(struct hd_engine_host *host, struct hd_engine *engine,
                         const struct hd_plugin *plugin, const struct hd_option_value *options)
{
    *host = (struct hd_engine_host){.engine = engine, .plugin = plugin, .host = hd_host_basics()};
    host->host.rank = engine->setup.rank;
    host->host.rank_count = engine->setup.pipeline->rank_count;
    host->host.option_count = plugin->option_count;
    host->host.options = options;
    host->host.context = host;
    host->host.log = host_log;
    host->host.fail = host_fail;
    host->host.put = host_put;
    host->host.get = host_get;
    host->host.fence = host_fence;
    host->host.trace_transfer = host_trace;
    host->host.is_untraced = engine->setup.trace_steps == 0;
}
