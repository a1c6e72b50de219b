#include "support/transport_harness.h"

#include "base/clock.h"
#include "base/memory.h"
#include "support/check.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRY_MAX = 256, KEY_BYTES = 64, VALUE_BYTES = 4096 };

struct entry {
    char key[KEY_BYTES];
    uint64_t bytes;
    unsigned char value[VALUE_BYTES];
};

/* What one rank has put; only that rank writes it, the others read behind a fence. */
struct table {
    _Atomic uint32_t count;
    struct entry entries[ENTRY_MAX];
};

struct hd_testbed_region {
    _Atomic uint32_t generation; /* the futex of the fence */
    _Atomic uint32_t arrived_count;
    _Atomic uint64_t words[HD_TESTBED_WORD_COUNT];
    _Atomic int32_t pids[HD_TESTBED_RANK_MAX];
    struct table tables[HD_TESTBED_RANK_MAX];
};

/* --- what is tested ---------------------------------------------------------------------- */

/* tls, spin_us, keepalive_ms, rendezvous_bytes of the transports over UCX. */
static const struct hd_option_value shared_memory[] = {
    {.text = "auto"}, {.integer = -1}, {.integer = 100}, {.integer = 8192}};
static const struct hd_option_value tcp[] = {
    {.text = "tcp,self"}, {.integer = -1}, {.integer = 100}, {.integer = 8192}};

static const struct hd_option_value rendezvous[] = {
    {.text = "auto"}, {.integer = -1}, {.integer = 100}, {.integer = 0}};

/* fault, channel, sequence, delay_us, bandwidth_mb, busy_percent, reorder_percent, seed: no bit of
   a message changes. */
static const struct hd_option_value harmless[] = {
    {.text = "none"}, {.integer = -1}, {.integer = -1}, {.integer = 60},
    {.integer = 0},   {.integer = 25}, {.integer = 10}, {.integer = 7}};

/* UCX 1.13 emulates puts over tcp: its handler answers each, and aborts where it cannot. */
#define PUT_ABORTS "UCX's put handler aborts the process when the answer finds no peer"

#define OPTIONS(values) .options = values, .option_count = sizeof values / sizeof values[0]
#define INNER(plugin, values) \
    .inner = plugin, .inner_options = values, .inner_option_count = sizeof values / sizeof values[0]

const struct hd_testbed_variant hd_testbed_variants[] = {
    {.label = "shm", .name = "shm", .holds_back = 1, .has_late_write = 1},
    {.label = "null", .name = "null"},
    {.label = "ucx_tag through shared memory", .name = "ucx_tag", OPTIONS(shared_memory)},
    {.label = "ucx_tag, all by rendezvous",
     .name = "ucx_tag",
     OPTIONS(rendezvous),
     .holds_back = 1,
     .needs_source = 1},
    {.label = "ucx_tag over tcp", .name = "ucx_tag", OPTIONS(tcp)},
    {.label = "ucx_put through shared memory",
     .name = "ucx_put",
     OPTIONS(shared_memory),
     .holds_back = 1,
     .has_late_write = 1},
    {.label = "ucx_put over tcp",
     .name = "ucx_put",
     OPTIONS(tcp),
     .holds_back = 1,
     .has_late_write = 1,
     .needs_source = 1,
     .unkillable = PUT_ABORTS},
    {.label = "shm under hook_fault", .name = "hook_fault", OPTIONS(harmless), .inner = "shm"},
    {.label = "ucx_tag under hook_fault",
     .name = "hook_fault",
     OPTIONS(harmless),
     INNER("ucx_tag", shared_memory)},
    {.label = "ucx_put over tcp under hook_fault",
     .name = "hook_fault",
     OPTIONS(harmless),
     INNER("ucx_put", tcp)},
    {.name = NULL},
};

static int is_there(const char *name)
{
    char file[128];

    snprintf(file, sizeof file, "heddle_transport_%s.so", name);
    return access(hd_check_plugin(file), R_OK) == 0;
}

int hd_testbed_is_built(const struct hd_testbed_variant *variant)
{
    return is_there(variant->name) && (variant->inner == NULL || is_there(variant->inner));
}

static uint64_t capabilities_of(const struct hd_plugin *plugin, const struct hd_plugin *inner)
{
    return inner == NULL ? plugin->capabilities
                         : inner->capabilities & ~(uint64_t)HD_TRANSPORT_IN_PLACE;
}

uint64_t hd_testbed_capabilities(const struct hd_testbed_variant *variant)
{
    const struct hd_plugin *plugin = hd_testbed_load(variant->name);
    const struct hd_plugin *inner = variant->inner != NULL ? hd_testbed_load(variant->inner) : NULL;

    assert(plugin != NULL && (variant->inner == NULL || inner != NULL));
    return capabilities_of(plugin, inner);
}

void hd_testbed_choose(struct hd_testbed_job *job, const struct hd_testbed_variant *variant)
{
    job->name = variant->name;
    job->options = variant->options;
    job->option_count = variant->option_count;
    job->inner = variant->inner;
    job->inner_options = variant->inner_options;
    job->inner_option_count = variant->inner_option_count;
}

/* --- struct hd_host, of a rank ----------------------------------------------------------- */

static void *host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag)
{
    (void)context;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void host_free(void *context, void *memory)
{
    (void)context;
    hd_memory_give(memory);
}

static uint64_t host_now_ns(void *context)
{
    (void)context;
    return hd_now_ns();
}

static void host_log(void *context, uint32_t level, const char *text)
{
    const struct hd_testbed_rank *rank = context;
    if (level == 0) {
        fprintf(stderr, "rank %u: log: %s\n", rank->rank, text);
    }
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    struct hd_testbed_rank *rank = context;
    struct hd_testbed_report *report = &rank->report;

    report->count++;
    report->status = error->status;
    report->rank = error->rank;
    report->channel = error->channel;
    report->sequence = error->sequence;
    snprintf(report->text, sizeof report->text, "%s", error->text);
    return error->status;
}

static const struct entry *find(const struct table *table, const char *key)
{
    const uint32_t count = atomic_load(&table->count);

    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(table->entries[i].key, key) == 0) {
            return &table->entries[i];
        }
    }
    return NULL;
}

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    const struct hd_testbed_rank *rank = context;
    struct table *table = &rank->region->tables[rank->rank];
    const uint32_t count = atomic_load(&table->count);
    struct entry *entry = &table->entries[count];

    if (find(table, key) != NULL) {
        return HD_INVALID;
    }
    assert(strlen(key) < KEY_BYTES && bytes <= VALUE_BYTES && count < ENTRY_MAX);
    snprintf(entry->key, sizeof entry->key, "%s", key);
    entry->bytes = bytes;
    memcpy(entry->value, value, bytes);
    atomic_store(&table->count, count + 1);
    return HD_OK;
}

/* Whoever asks for what nobody has put before the fence waits in vain. */
static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    const struct hd_testbed_rank *rank = context;

    (void)deadline_ns;
    for (uint32_t i = 0; i < rank->job->rank_count; i++) {
        const struct entry *entry = find(&rank->region->tables[i], key);
        if (entry != NULL) {
            const int fits = entry->bytes == bytes;
            memcpy(value, entry->value, fits ? bytes : 0);
            return fits ? HD_OK : HD_PROTOCOL;
        }
    }
    return HD_TIMEOUT;
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    const struct hd_testbed_rank *rank = context;
    struct hd_testbed_region *region = rank->region;
    const uint32_t generation = atomic_load(&region->generation);

    if (atomic_fetch_add(&region->arrived_count, 1) + 1 == rank->job->rank_count) {
        atomic_store(&region->arrived_count, 0);
        atomic_store(&region->generation, generation + 1);
        syscall(SYS_futex, (void *)&region->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return HD_OK;
    }
    while (atomic_load(&region->generation) == generation) {
        const uint64_t now_ns = hd_now_ns();
        if (now_ns >= deadline_ns) {
            return HD_TIMEOUT;
        }
        const uint64_t left_ns = deadline_ns - now_ns;
        const struct timespec left = {.tv_sec = (time_t)(left_ns / HD_S_NS),
                                      .tv_nsec = (long)(left_ns % HD_S_NS)};
        syscall(SYS_futex, (void *)&region->generation, FUTEX_WAIT, generation, &left, NULL, 0);
    }
    return HD_OK;
}

static void host_trace_transfer(void *context, const struct hd_transfer *transfer)
{
    (void)context;
    (void)transfer;
}

/* --- one rank ---------------------------------------------------------------------------- */

uint64_t hd_testbed_deadline_ns(uint64_t from_now_ms)
{
    return hd_now_ns() + from_now_ms * HD_MS_NS;
}

int hd_testbed_complain(const struct hd_testbed_rank *rank, const char *file, int line,
                        const char *what)
{
    fprintf(stderr, "rank %u: %s:%d: %s: does not hold; %u reports, the last: %s\n", rank->rank,
            file, line, what, rank->report.count, rank->report.text);
    return 1;
}

hd_status hd_testbed_fence(struct hd_testbed_rank *rank)
{
    return host_fence(rank, hd_testbed_deadline_ns(10000));
}

hd_status hd_testbed_open(struct hd_testbed_rank *rank, uint64_t limit_ms)
{
    rank->setup.deadline_ns = hd_testbed_deadline_ns(limit_ms);
    return rank->ops->open(&rank->setup, &rank->transport);
}

hd_status hd_testbed_close(struct hd_testbed_rank *rank)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(10000);
    hd_status status = HD_OK;

    if (rank->transport == NULL) {
        return HD_OK;
    }
    if (rank->ops->quiesce != NULL) {
        status = rank->ops->quiesce(rank->transport, deadline_ns);
    }
    const hd_status met = hd_testbed_fence(rank);
    rank->ops->close(rank->transport, deadline_ns);
    rank->transport = NULL;
    return status != HD_OK ? status : met;
}

static void set_up(struct hd_testbed_rank *rank, const struct hd_testbed_job *job,
                   struct hd_testbed_region *region)
{
    for (uint32_t i = 0; i < job->channel_count; i++) {
        rank->channel_list[i] = &job->channels[i];
    }
    rank->job = job;
    rank->region = region;
    rank->words = region->words;
    rank->pids = region->pids;
    rank->ops = rank->plugin->ops;
    rank->host = (struct hd_host){.size = sizeof rank->host,
                                  .rank = rank->rank,
                                  .rank_count = job->rank_count,
                                  .option_count = job->option_count,
                                  .options = job->options,
                                  .context = rank,
                                  .alloc = host_alloc,
                                  .free = host_free,
                                  .now_ns = host_now_ns,
                                  .log = host_log,
                                  .fail = host_fail,
                                  .put = host_put,
                                  .get = host_get,
                                  .fence = host_fence,
                                  .trace_transfer = host_trace_transfer};
    rank->setup = (struct hd_transport_setup){.size = sizeof rank->setup,
                                              .channel_count = job->channel_count,
                                              .channels = rank->channel_list,
                                              .host = &rank->host,
                                              .memory = HD_MEMORY_HOST,
                                              .alignment_bytes = 64};
    rank->capabilities = rank->plugin->capabilities;
    if (job->inner != NULL) {
        rank->setup.inner = hd_testbed_load(job->inner);
        rank->setup.inner_host = &rank->inner_host;
        rank->inner_host = rank->host;
        rank->inner_host.options = job->inner_options;
        rank->inner_host.option_count = job->inner_option_count;
        rank->capabilities = capabilities_of(rank->plugin, rank->setup.inner);
    }
}

/* What the plugin has taken from host->alloc and not given back. */
static uint64_t held_bytes(void)
{
    struct hd_memory_use rows[HD_MEMORY_TAG_MAX];
    const uint32_t count = hd_memory_report(rows, HD_MEMORY_TAG_MAX);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++) {
        bytes += rows[i].bytes;
    }
    return bytes;
}

static int run_rank(struct hd_testbed_rank *rank)
{
    atomic_store(&rank->region->pids[rank->rank], (int32_t)getpid());
    if (!rank->job->unopened) {
        HD_REQUIRE(rank, hd_testbed_open(rank, 30000) == HD_OK);
    }
    const int code = rank->job->body(rank);
    if (code == 0) {
        HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
        HD_REQUIRE(rank, rank->leaks || held_bytes() == 0);
    }
    return code;
}

/* --- the parent -------------------------------------------------------------------------- */

const struct hd_plugin *hd_testbed_load(const char *name)
{
    char file[128];

    snprintf(file, sizeof file, "heddle_transport_%s.so", name);
    void *object = dlopen(hd_check_plugin(file), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const struct hd_plugin *plugin = object == NULL ? NULL : dlsym(object, "hd_plugin");
    if (plugin == NULL || plugin->magic != HD_PLUGIN_MAGIC || plugin->kind != HD_KIND_TRANSPORT) {
        fprintf(stderr, "%s: not a transport: %s\n", file, object == NULL ? dlerror() : "no magic");
        return NULL;
    }
    return plugin;
}

static pid_t start(const struct hd_testbed_job *job, const struct hd_plugin *plugin,
                   struct hd_testbed_region *region, uint32_t rank)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();

    if (pid == 0) {
        static struct hd_testbed_rank self;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        self.rank = rank;
        self.plugin = plugin;
        set_up(&self, job, region);
        const int code = run_rank(&self);
        fflush(NULL);
        _exit(code);
    }
    return pid;
}

/* Waits for the end of `pid`, kills it at the deadline; its exit code, or 128 + signal. */
static int collect(pid_t pid, uint64_t deadline_ns, int *overdue)
{
    struct pollfd entry = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    int code = 0;

    assert(entry.fd >= 0);
    const uint64_t now_ns = hd_now_ns();
    const uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / HD_MS_NS + 1 : 0;
    *overdue = poll(&entry, 1, (int)left_ms) == 0;
    close(entry.fd);
    if (*overdue) {
        kill(pid, SIGKILL);
    }
    waitpid(pid, &code, 0);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}

static uint32_t judge(const struct hd_testbed_job *job, uint32_t rank, pid_t pid,
                      uint64_t deadline_ns)
{
    const int wanted = job->exit_codes == NULL ? 0 : job->exit_codes[rank];
    int overdue = 0;
    const int code = collect(pid, deadline_ns, &overdue);

    if (overdue || code != wanted) {
        fprintf(stderr, "%s: rank %u ended with %d%s instead of %d\n", job->name, rank, code,
                overdue ? ", killed at the deadline," : "", wanted);
        return 1;
    }
    return 0;
}

uint32_t hd_testbed_run(const struct hd_testbed_job *job)
{
    const struct hd_plugin *plugin = hd_testbed_load(job->name);
    const uint64_t deadline_ns = hd_testbed_deadline_ns(job->limit_ms > 0 ? job->limit_ms : 60000);
    pid_t pids[HD_TESTBED_RANK_MAX];
    uint32_t wrong_count = 0;

    assert(job->rank_count <= HD_TESTBED_RANK_MAX && job->channel_count <= HD_TESTBED_CHANNEL_MAX);
    struct hd_testbed_region *region =
        mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plugin == NULL || region == MAP_FAILED) {
        return job->rank_count;
    }
    fflush(NULL);
    for (uint32_t rank = 0; rank < job->rank_count; rank++) {
        pids[rank] = start(job, plugin, region, rank);
        assert(pids[rank] > 0);
    }
    for (uint32_t rank = 0; rank < job->rank_count; rank++) {
        wrong_count += judge(job, rank, pids[rank], deadline_ns);
    }
    munmap(region, sizeof *region);
    return wrong_count;
}
