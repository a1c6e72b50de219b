/*
 * registry/trial.c - a first load in a process of its own.
 *
 * The loader believes what a file says: one wrong byte in a program header or in the dynamic
 * section, and ld.so dies inside dlopen; a constructor may do anything at all.  So a child loads
 * each wanted file first and looks at every text of its descriptor.  What the child finds wrong
 * comes back as one message; that it dies, or that it does not come back, is a reason too.
 */
#include "base/clock.h"
#include "registry/internal.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* One message of the child, small enough for one write into a pipe. */
struct verdict {
    char reason[HD_CANDIDATE_REASON_BYTES]; /* empty: it may be loaded */
};

struct trial {
    pid_t child;
    int pipe; /* our end */
    uint64_t deadline_ns;
};

static int trial_refuse(struct hd_candidate *candidate, const char *text)
{
    snprintf(candidate->reason, sizeof candidate->reason, "%s", text);
    return 0;
}

/* Runs before every handler that the parent has registered, so that none of them runs here. */
static void trial_end_here(void)
{
    _exit(1);
}

/* Neither the constructors' words nor a sanitizer's are for our output; a death leaves no core. */
static void trial_make_quiet(void)
{
    static const int deaths[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    const struct rlimit no_core = {0, 0};
    const int nowhere = open("/dev/null", O_RDWR);

    for (unsigned i = 0; i < sizeof deaths / sizeof deaths[0]; i++) {
        signal(deaths[i], SIG_DFL);
    }
    setrlimit(RLIMIT_CORE, &no_core);
    atexit(trial_end_here);
    if (nowhere >= 0) {
        dup2(nowhere, STDIN_FILENO);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
    }
}

/* The texts that the checks do not read, but `heddle inspect` does. */
static void trial_read_texts(const struct hd_plugin *plugin)
{
    const char *const texts[] = {plugin->summary, plugin->vendor, plugin->version, plugin->licence,
                                 plugin->source};
    volatile size_t total = 0; /* or the compiler would not read them */

    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        total += strlen(texts[i]);
    }
    (void)total;
}

/* As the loader does it at exit, but only those of the plugin itself: others' state is shared with
   the parent.  Nothing is unmapped, for its threads may live on. */
static void trial_run_destructors(void *library)
{
    struct link_map *own = NULL;
    ElfW(Addr) array = 0, array_bytes = 0, last = 0;
    void (*function)(void);

    if (dlinfo(library, RTLD_DI_LINKMAP, &own) != 0) {
        return;
    }
    for (const ElfW(Dyn) *entry = own->l_ld; entry->d_tag != DT_NULL; entry++) {
        array = entry->d_tag == DT_FINI_ARRAY ? own->l_addr + entry->d_un.d_ptr : array;
        array_bytes = entry->d_tag == DT_FINI_ARRAYSZ ? entry->d_un.d_val : array_bytes;
        last = entry->d_tag == DT_FINI ? own->l_addr + entry->d_un.d_ptr : last;
    }
    for (size_t i = array != 0 ? array_bytes / sizeof function : 0; i-- > 0;) {
        memcpy(&function, (const void *)(array + i * sizeof function), sizeof function);
        function();
    }
    if (last != 0) {
        memcpy(&function, &last, sizeof function);
        function();
    }
}

_Noreturn static void trial_try_it(struct hd_candidate *candidate, int end)
{
    struct verdict verdict = {""};
    /* Whoever started us without a stdout has given its number to the pipe. */
    const int pipe = fcntl(end, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    trial_make_quiet();
    void *const library = hd_candidate_open(candidate);
    if (candidate->reason[0] == '\0') {
        trial_read_texts(&candidate->plugin);
        trial_run_destructors(library);
    }
    memcpy(verdict.reason, candidate->reason, sizeof verdict.reason);
    const ssize_t written = write(pipe, &verdict, sizeof verdict);
    _exit(written == (ssize_t)sizeof verdict ? 0 : 1);
}

static int trial_milliseconds_left(const struct trial *trial)
{
    const uint64_t now_ns = hd_now_ns();
    return now_ns < trial->deadline_ns ? (int)((trial->deadline_ns - now_ns) / HD_MS_NS) + 1 : 0;
}

/* 1: a whole message; 0: the child has gone without one; -1: the deadline. */
static int trial_await_verdict(const struct trial *trial, struct verdict *verdict)
{
    struct pollfd end = {.fd = trial->pipe, .events = POLLIN};

    for (int left; (left = trial_milliseconds_left(trial)) > 0;) {
        const int ready = poll(&end, 1, left);
        if (ready > 0) {
            return read(trial->pipe, verdict, sizeof *verdict) == (ssize_t)sizeof *verdict;
        }
        if (ready < 0 && errno != EINTR) {
            return 0;
        }
    }
    return -1;
}

/* How the child ended.  It may have closed its end and live on: the deadline holds here too. */
static int trial_await_end(const struct trial *trial)
{
    const struct timespec pause = {.tv_nsec = HD_MS_NS};
    int status = 0;

    while (waitpid(trial->child, &status, WNOHANG) == 0) {
        if (trial_milliseconds_left(trial) == 0) {
            kill(trial->child, SIGKILL);
        }
        nanosleep(&pause, NULL);
    }
    return status;
}

static int trial_judge(struct hd_candidate *candidate, struct trial *trial)
{
    struct verdict verdict = {""};
    const int answer = trial_await_verdict(trial, &verdict);

    if (answer != 0) { /* what there is to know is known */
        kill(trial->child, SIGKILL);
    }
    const int status = trial_await_end(trial);
    if (answer > 0) {
        verdict.reason[sizeof verdict.reason - 1] = '\0';
        return verdict.reason[0] == '\0' || trial_refuse(candidate, verdict.reason);
    }
    if (answer < 0) {
        return trial_refuse(candidate, "its constructors or destructors do not return in time");
    }
    if (WIFSIGNALED(status)) {
        snprintf(candidate->reason, sizeof candidate->reason, "the loader dies of it (signal %d)",
                 WTERMSIG(status));
        return 0;
    }
    /* A constructor's exit, or an assertion of ld.so's own, which is one too. */
    return trial_refuse(candidate, "loading it ends the process");
}

int hd_trial_passes(struct hd_candidate *candidate, uint64_t limit_ns)
{
    struct trial trial = {.deadline_ns = hd_now_ns() + limit_ns};
    int ends[2];

    assert(candidate->reason[0] == '\0');
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(candidate->reason, sizeof candidate->reason, "no pipe for a first load: %s",
                 strerror(errno));
        return 0;
    }
    trial.pipe = ends[0];
    trial.child = fork();
    if (trial.child == 0) {
        close(ends[0]);
        trial_try_it(candidate, ends[1]);
    }
    const int error = errno;
    close(ends[1]);
    if (trial.child < 0) {
        snprintf(candidate->reason, sizeof candidate->reason, "no process for a first load: %s",
                 strerror(error));
        close(ends[0]);
        return 0;
    }
    const int passes = trial_judge(candidate, &trial);
    close(ends[0]);
    return passes;
}
