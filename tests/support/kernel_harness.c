/* tests/support/kernel_harness.c - a core of one thread for one kernel plugin. */
#include "support/kernel_harness.h"
#include "support/check.h"

#include "base/host.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the host that a plugin sees ---------------------------------------------------------- */

static void host_log(void *context, uint32_t level, const char *text)
{
    (void)context;
    (void)level;
    (void)text;
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    struct hd_harness *harness = context;
    snprintf(harness->failure, sizeof harness->failure, "%s", error->text);
    return error->status;
}

static void set_option(struct hd_option_value *value, uint32_t type, const char *text)
{
    value->text = text;
    value->number = strtod(text, NULL);
    value->integer = strtoll(text, NULL, 10);
    if (type == HD_OPTION_FLAG) {
        value->integer = strcmp(text, "on") == 0;
    }
}

/* The value of `key` in "key=value,key=value"; storage of the harness lives as long as the test. */
static const char *find_option(const char *options, const char *key)
{
    static char values[HD_HARNESS_OPTION_MAX][1024];
    static unsigned next;
    const size_t length = strlen(key);
    for (const char *at = options; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            char *value = values[next++ % HD_HARNESS_OPTION_MAX];
            const size_t span = strcspn(at + length + 1, ",");
            snprintf(value, sizeof values[0], "%.*s", (int)span, at + length + 1);
            return value;
        }
    }
    return NULL;
}

void hd_harness_fill(struct hd_harness *harness, const struct hd_plugin *plugin,
                     const char *options)
{
    memset(harness, 0, sizeof *harness);
    harness->plugin = plugin;
    harness->ops = plugin->ops;
    harness->device.size = sizeof harness->device;
    assert(plugin->option_count <= HD_HARNESS_OPTION_MAX);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const char *text = options ? find_option(options, plugin->options[i].name) : NULL;
        set_option(&harness->options[i], plugin->options[i].type,
                   text != NULL ? text : plugin->options[i].initial);
    }
    harness->host = hd_host_basics();
    harness->host.rank_count = 1;
    harness->host.option_count = plugin->option_count;
    harness->host.options = harness->options;
    harness->host.context = harness;
    harness->host.log = host_log;
    harness->host.fail = host_fail;
}

const char *hd_harness_cuda(int is_standin, const char *option)
{
    static char plugin[2048];
    const char *comma = option != NULL ? "," : "";
    if (is_standin) {
        snprintf(plugin, sizeof plugin, "cuda:cuda_runtime=%s,cublaslt=%s%s%s",
                 hd_check_build("tests/standin/libheddle_standin_cuda.so"),
                 hd_check_build("tests/standin/libheddle_standin_cublaslt.so"), comma,
                 option != NULL ? option : "");
    } else {
        snprintf(plugin, sizeof plugin, "cuda:%s", option != NULL ? option : "");
    }
    return plugin;
}

int hd_harness_open(struct hd_harness *harness, const char *name, const char *options)
{
    char file[256];
    memset(harness, 0, sizeof *harness);
    snprintf(file, sizeof file, "heddle_kernel_%s.so", name);
    void *library = dlopen(hd_check_plugin(file), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("%s\n", dlerror());
        return -1;
    }
    const struct hd_plugin *plugin = dlsym(library, "hd_plugin");
    assert(plugin != NULL && plugin->kind == HD_KIND_KERNEL);
    hd_harness_fill(harness, plugin, options);
    harness->library = library;
    const hd_status status =
        harness->ops->open(&harness->host, 0, &harness->device, &harness->kernel);
    if (status != HD_OK) {
        printf("%s: open: %d %s\n", name, status, harness->failure);
        return -1;
    }
    return 0;
}

void hd_harness_close(struct hd_harness *harness)
{
    if (harness->ops != NULL) {
        harness->ops->close(harness->kernel);
    }
    memset(harness, 0, sizeof *harness);
}
