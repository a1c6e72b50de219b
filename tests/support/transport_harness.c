#include "support/transport_region.h"

#include "base/clock.h"
#include "base/memory.h"
#include "support/check.h"

#include <assert.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* And element_bytes, puts: UCX's emulation of them, whose handler aborts where the answer finds no
   peer. */
static const struct hd_option_value emulated[] = {{.text = "tcp,self"}, {.integer = -1},
                                                  {.integer = 100},     {.integer = 8192},
                                                  {.integer = 8448},    {.text = "always"}};

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
     .needs_source = 1},
    {.label = "ucx_put over tcp, emulated by UCX",
     .name = "ucx_put",
     OPTIONS(emulated),
     .holds_back = 1,
     .has_late_write = 1,
     .needs_source = 1,
     .is_mortal = 1},
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
    return rank->host.fence(rank, hd_testbed_deadline_ns(10000));
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
    hd_testbed_host_init(rank, job);
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
    const uint64_t held_before = held_bytes(); /* the parent's, if it is a process */

    atomic_store(&rank->region->pids[rank->rank], (int32_t)getpid());
    if (!rank->job->unopened) {
        HD_REQUIRE(rank, hd_testbed_open(rank, 30000) == HD_OK);
    }
    const int code = rank->job->body(rank);
    if (code == 0) {
        HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
        HD_REQUIRE(rank, rank->leaks || rank->job->as_threads || held_bytes() == held_before);
    }
    return code;
}

/* --- the parent -------------------------------------------------------------------------- */

const struct hd_plugin *hd_testbed_load(const char *name)
{
    char file[128], fault[160];

    snprintf(file, sizeof file, "heddle_transport_%s.so", name);
    snprintf(fault, sizeof fault, "tests/fault/%s", file);
    const char *path = is_there(name) ? hd_check_plugin(file) : hd_check_build(fault);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
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

static uint32_t run_processes(const struct hd_testbed_job *job, const struct hd_plugin *plugin,
                              struct hd_testbed_region *region, uint64_t deadline_ns)
{
    pid_t pids[HD_TESTBED_RANK_MAX];
    uint32_t wrong_count = 0;

    fflush(NULL);
    for (uint32_t rank = 0; rank < job->rank_count; rank++) {
        pids[rank] = start(job, plugin, region, rank);
        assert(pids[rank] > 0);
    }
    for (uint32_t rank = 0; rank < job->rank_count; rank++) {
        wrong_count += judge(job, rank, pids[rank], deadline_ns);
    }
    return wrong_count;
}

static void *run_thread(void *argument)
{
    struct hd_testbed_rank *rank = argument;

    rank->code = run_rank(rank);
    return NULL;
}

/* A thread cannot be killed: one that is overdue ends the whole program. */
static void join(pthread_t thread, const struct hd_testbed_rank *rank, uint64_t deadline_ns)
{
    const uint64_t now_ns = hd_now_ns();
    const uint64_t left_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 0;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until); /* the thread sanitizer knows no other join */
    until.tv_sec += (time_t)(left_ns / HD_S_NS) + 1;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
        fprintf(stderr, "%s: rank %u is not over at the deadline\n", rank->job->name, rank->rank);
        abort();
    }
}

static uint32_t run_threads(const struct hd_testbed_job *job, const struct hd_plugin *plugin,
                            struct hd_testbed_region *region, uint64_t deadline_ns)
{
    struct hd_testbed_rank *ranks = calloc(job->rank_count, sizeof *ranks);
    const uint64_t held_before = held_bytes();
    pthread_t threads[HD_TESTBED_RANK_MAX];
    uint32_t wrong_count = 0;
    uint32_t leaks = 0;

    assert(ranks != NULL);
    for (uint32_t i = 0; i < job->rank_count; i++) {
        ranks[i].rank = i;
        ranks[i].plugin = plugin;
        set_up(&ranks[i], job, region);
    }
    for (uint32_t i = 0; i < job->rank_count; i++) {
        const int error = pthread_create(&threads[i], NULL, run_thread, &ranks[i]);
        assert(error == 0);
    }
    for (uint32_t i = 0; i < job->rank_count; i++) {
        join(threads[i], &ranks[i], deadline_ns);
        wrong_count += ranks[i].code != (job->exit_codes == NULL ? 0 : job->exit_codes[i]);
        leaks += ranks[i].leaks;
    }
    if (wrong_count == 0 && leaks == 0 && held_bytes() != held_before) {
        fprintf(stderr, "%s: the ranks leave %llu bytes of the host's\n", job->name,
                (unsigned long long)(held_bytes() - held_before));
        wrong_count = job->rank_count;
    }
    free(ranks);
    return wrong_count;
}

uint32_t hd_testbed_run(const struct hd_testbed_job *job)
{
    const struct hd_plugin *plugin = hd_testbed_load(job->name);
    const uint64_t deadline_ns = hd_testbed_deadline_ns(job->limit_ms > 0 ? job->limit_ms : 60000);

    assert(job->rank_count <= HD_TESTBED_RANK_MAX && job->channel_count <= HD_TESTBED_CHANNEL_MAX);
    struct hd_testbed_region *region =
        mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plugin == NULL || region == MAP_FAILED) {
        return job->rank_count;
    }
    const uint32_t wrong_count = job->as_threads ? run_threads(job, plugin, region, deadline_ns)
                                                 : run_processes(job, plugin, region, deadline_ns);
    munmap(region, sizeof *region);
    return wrong_count;
}
