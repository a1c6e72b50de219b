/*
 * registry/load.c - from a file to a checked plugin: dlopen, the symbol, the descriptor, the table
 * of options, the members of the ops table that every plugin of its kind needs.
 */
#include "base/number.h"
#include "base/option.h"
#include "base/text.h"
#include "registry/internal.h"

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A function pointer in an ops table. */
struct member {
    const char *name;
    size_t offset;
};

#define MEMBER(table, member)                   \
    {                                           \
#member, offsetof(struct table, member) \
    }

static const struct member load_schedule_members[] = {
    MEMBER(hd_schedule_ops, rank_of),
    MEMBER(hd_schedule_ops, plan),
    {NULL, 0},
};

static const struct member load_transport_members[] = {
    MEMBER(hd_transport_ops, open),      MEMBER(hd_transport_ops, slot),
    MEMBER(hd_transport_ops, reserve),   MEMBER(hd_transport_ops, post_send),
    MEMBER(hd_transport_ops, post_recv), MEMBER(hd_transport_ops, test),
    MEMBER(hd_transport_ops, release),   MEMBER(hd_transport_ops, abort),
    MEMBER(hd_transport_ops, close),     {NULL, 0},
};

static const struct member load_kernel_members[] = {
    MEMBER(hd_kernel_ops, open),          MEMBER(hd_kernel_ops, close),
    MEMBER(hd_kernel_ops, stage_needs),   MEMBER(hd_kernel_ops, stage_create),
    MEMBER(hd_kernel_ops, stage_destroy), MEMBER(hd_kernel_ops, tensor),
    MEMBER(hd_kernel_ops, tensor_copy),   MEMBER(hd_kernel_ops, forward),
    MEMBER(hd_kernel_ops, backward),      MEMBER(hd_kernel_ops, norms),
    MEMBER(hd_kernel_ops, update),        {NULL, 0},
};

/* A kernel with a stream has all five; without one the core does their work itself. */
static const struct member load_stream_members[] = {
    MEMBER(hd_kernel_ops, abort), MEMBER(hd_kernel_ops, allocate), MEMBER(hd_kernel_ops, copy),
    MEMBER(hd_kernel_ops, mark),  MEMBER(hd_kernel_ops, reached),  {NULL, 0},
};

static const struct member load_half_members[] = {
    MEMBER(hd_kernel_ops, backward_input),
    MEMBER(hd_kernel_ops, backward_weight),
    {NULL, 0},
};

static const struct {
    size_t ops_bytes;
    const struct member *required;
} load_kinds[] = {
    [HD_KIND_SCHEDULE] = {sizeof(struct hd_schedule_ops), load_schedule_members},
    [HD_KIND_TRANSPORT] = {sizeof(struct hd_transport_ops), load_transport_members},
    [HD_KIND_KERNEL] = {sizeof(struct hd_kernel_ops), load_kernel_members},
};

/* The descriptor of version 1.0; later members may be missing. */
enum { DESCRIPTOR_BYTES_MIN = offsetof(struct hd_plugin, ops) + sizeof(void *) };

__attribute__((format(printf, 2, 3))) static bool load_refuse(struct hd_candidate *candidate,
                                                              const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(candidate->reason, sizeof candidate->reason, format, arguments);
    va_end(arguments);
    memset(&candidate->plugin, 0, sizeof candidate->plugin);
    return false;
}

static bool load_has_member(const void *ops, const struct member *member)
{
    void (*function)(void);
    memcpy(&function, (const char *)ops + member->offset, sizeof function);
    return function != NULL;
}

/* False: some of the members are set, but not all. */
static bool load_is_all_or_none(const void *ops, const struct member *members, bool *is_all)
{
    uint32_t present = 0;
    uint32_t total = 0;

    for (; members[total].name != NULL; total++) {
        present += (uint32_t)load_has_member(ops, &members[total]);
    }
    *is_all = present == total;
    return present == 0 || present == total;
}

static bool load_check_kernel(struct hd_candidate *candidate, const void *ops)
{
    const bool has_stream = (candidate->plugin.capabilities & HD_KERNEL_STREAM) != 0;
    bool is_all;

    if (!load_is_all_or_none(ops, load_half_members, &is_all)) {
        return load_refuse(candidate,
                           "its table has only one of backward_input and backward_weight");
    }
    if (!load_is_all_or_none(ops, load_stream_members, &is_all)) {
        return load_refuse(candidate,
                           "its table has only some of abort, allocate, copy, mark and reached");
    }
    if (has_stream && !is_all) {
        return load_refuse(candidate,
                           "it has a stream, but its table lacks abort, allocate, copy, mark "
                           "and reached");
    }
    return true;
}

/* Copies the table over zeros, so that the core may read every member that it knows. */
static bool load_take_ops(struct hd_candidate *candidate, const void *ops)
{
    const size_t own_bytes = load_kinds[candidate->plugin.kind].ops_bytes;
    const struct member *required = load_kinds[candidate->plugin.kind].required;
    uint32_t bytes;

    if (ops == NULL) {
        return load_refuse(candidate, "it has no table of operations");
    }
    memcpy(&bytes, ops, sizeof bytes);
    if (bytes < sizeof bytes || bytes > 65536) {
        return load_refuse(candidate, "its table gives its size as %u bytes", bytes);
    }
    void *copy = calloc(1, own_bytes);
    if (copy == NULL) {
        return load_refuse(candidate, "cannot allocate memory for its table");
    }
    memcpy(copy, ops, hd_min_u64(bytes, own_bytes));
    for (; required->name != NULL; required++) {
        if (!load_has_member(copy, required)) {
            load_refuse(candidate, "its table of %u bytes lacks %s, which every %s needs", bytes,
                        required->name, hd_kind_name(candidate->plugin.kind));
            free(copy);
            return false;
        }
    }
    if (candidate->plugin.kind == HD_KIND_KERNEL && !load_check_kernel(candidate, copy)) {
        free(copy);
        return false;
    }
    candidate->plugin.ops = copy;
    return true;
}

static bool load_check_names(struct hd_candidate *candidate)
{
    const struct hd_plugin *plugin = &candidate->plugin;

    if (plugin->kind < HD_KIND_SCHEDULE || plugin->kind > HD_KIND_KERNEL) {
        return load_refuse(candidate, "its kind is %u, which this heddle does not know",
                           plugin->kind);
    }
    if (plugin->name == NULL || !hd_text_is_name(plugin->name)) {
        return load_refuse(candidate, "its name must have only a-z, 0-9 and _, at most 48 bytes");
    }
    if (candidate->kind != 0 && candidate->kind != plugin->kind) {
        return load_refuse(candidate, "it is a %s, but its file name says %s",
                           hd_kind_name(plugin->kind), hd_kind_name(candidate->kind));
    }
    if (candidate->name[0] != '\0' && strcmp(candidate->name, plugin->name) != 0) {
        return load_refuse(candidate, "its name is %s, but its file name says %s", plugin->name,
                           candidate->name);
    }
    return true;
}

/* A text that the plugin leaves out becomes empty. */
static void load_fill_texts(struct hd_plugin *plugin)
{
    const char **const texts[] = {&plugin->summary, &plugin->vendor, &plugin->version,
                                  &plugin->licence, &plugin->source};
    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (*texts[i] == NULL) {
            *texts[i] = "";
        }
    }
}

static bool load_check_descriptor(struct hd_candidate *candidate, const void *symbol,
                                  uint64_t readable_bytes)
{
    struct hd_plugin head = {.magic = 0};
    char reason[HD_REASON_BYTES];
    const size_t head_bytes = offsetof(struct hd_plugin, kind);

    if (readable_bytes != 0 && readable_bytes < head_bytes) {
        return load_refuse(candidate, "its symbol hd_plugin has only %llu bytes",
                           (unsigned long long)readable_bytes);
    }
    memcpy(&head, symbol, head_bytes);
    if (head.magic != HD_PLUGIN_MAGIC) {
        return load_refuse(candidate, "wrong magic: 0x%llx is not a heddle plugin",
                           (unsigned long long)head.magic);
    }
    if (head.abi_major != HD_ABI_MAJOR) {
        return load_refuse(candidate, "built for ABI %u, this heddle has %u: build it again",
                           head.abi_major, HD_ABI_MAJOR);
    }
    if (head.size < DESCRIPTOR_BYTES_MIN || (readable_bytes != 0 && head.size > readable_bytes)) {
        return load_refuse(
            candidate,
            "its descriptor gives its size as %u bytes: it has %llu, and needs at least %d",
            head.size, (unsigned long long)readable_bytes, DESCRIPTOR_BYTES_MIN);
    }
    memset(&candidate->plugin, 0, sizeof candidate->plugin);
    memcpy(&candidate->plugin, symbol, hd_min_u64(head.size, sizeof candidate->plugin));
    if (!load_check_names(candidate)) {
        return false;
    }
    if (!hd_option_table_is_sound(candidate->plugin.options, candidate->plugin.option_count,
                                  reason)) {
        return load_refuse(candidate, "%s", reason);
    }
    load_fill_texts(&candidate->plugin);
    if (!load_take_ops(candidate, candidate->plugin.ops)) {
        return false;
    }
    candidate->kind = candidate->plugin.kind; /* of a file that is named otherwise */
    snprintf(candidate->name, sizeof candidate->name, "%s", candidate->plugin.name);
    return true;
}

/* Finds the symbol and its size; a symbol of a library that the file needs does not count. */
static const void *load_find_symbol(struct hd_candidate *candidate, void *library, uint64_t *bytes)
{
    const void *symbol = dlsym(library, "hd_plugin");
    struct link_map *own = NULL;
    struct link_map *holder = NULL;
    const Elf64_Sym *entry = NULL;
    Dl_info about;

    if (symbol == NULL || dlinfo(library, RTLD_DI_LINKMAP, &own) != 0 ||
        dladdr1(symbol, &about, (void **)&holder, RTLD_DL_LINKMAP) == 0 || holder != own) {
        load_refuse(candidate, "it does not export hd_plugin");
        return NULL;
    }
    dladdr1(symbol, &about, (void **)&entry, RTLD_DL_SYMENT);
    if (entry != NULL && ELF64_ST_TYPE(entry->st_info) == STT_FUNC) {
        load_refuse(candidate, "its hd_plugin is a function, not a constant");
        return NULL;
    }
    *bytes = entry != NULL ? entry->st_size : 0;
    return symbol;
}

void *hd_candidate_open(struct hd_candidate *candidate)
{
    char path[sizeof candidate->path + 2];
    uint64_t readable_bytes;

    /* For a name without a slash the loader would search its own directories. */
    snprintf(path, sizeof path, "%s%s", strchr(candidate->path, '/') != NULL ? "" : "./",
             candidate->path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *why = dlerror();
        load_refuse(candidate, "the loader rejects it: %s", why != NULL ? why : "unknown reason");
        return NULL;
    }
    const void *symbol = load_find_symbol(candidate, library, &readable_bytes);
    if (symbol != NULL) {
        load_check_descriptor(candidate, symbol, readable_bytes);
    }
    return library;
}
