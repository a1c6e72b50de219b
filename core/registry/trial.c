/*
 * registry/trial.c - a first load in a child process.
 *
 * The loader trusts the file: one wrong byte in a program header or in the dynamic section crashes
 * ld.so inside dlopen, and a constructor may do anything.  So a child loads each wanted file first
 * and reads every text of its descriptor.  The child's verdict comes back in shared memory; a child
 * that crashes, or does not end in time, is a reason to reject the file as well.
 */
#include "base/child.h"
#include "base/clock.h"
#include "registry/internal.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child writes and the parent reads. */
struct verdict {
    _Atomic uint32_t is_over;
    char reason[HD_CANDIDATE_REASON_BYTES]; /* empty: the file may be loaded */
};

/* atexit runs the newest handler first, so none of the parent's handlers runs in the child. */
static void trial_end_here(void)
{
    _exit(1);
}

/* A constructor's output is dropped, and a sanitizer's handlers are removed. */
static void trial_make_quiet(void)
{
    static const int deaths[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    const int nowhere = open("/dev/null", O_RDWR);

    for (unsigned i = 0; i < sizeof deaths / sizeof deaths[0]; i++) {
        signal(deaths[i], SIG_DFL);
    }
    atexit(trial_end_here);
    if (nowhere >= 0) {
        dup2(nowhere, STDIN_FILENO);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
    }
}

/* Reads the texts that the checks do not read, but `heddle inspect` does. */
static void trial_read_texts(const struct hd_plugin *plugin)
{
    const char *const texts[] = {plugin->summary, plugin->vendor, plugin->version, plugin->licence,
                                 plugin->source};
    volatile size_t total = 0; /* so that the compiler keeps the reads */

    for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        total += strlen(texts[i]);
    }
    (void)total;
}

/* Runs the destructors of the plugin as the loader does at exit, but not those of other libraries,
   whose state the parent shares.  Unmaps nothing, because threads of the plugin may still run. */
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

static void trial_load(void *context, void *answer)
{
    struct hd_candidate *const candidate = context;
    struct verdict *const verdict = answer;

    trial_make_quiet();
    void *const library = hd_candidate_open(candidate);
    if (candidate->reason[0] == '\0') {
        trial_read_texts(&candidate->plugin);
        trial_run_destructors(library);
    }
    memcpy(verdict->reason, candidate->reason, sizeof verdict->reason);
    atomic_store(&verdict->is_over, 1);
}

static bool trial_judge(struct hd_candidate *candidate, struct verdict *verdict, bool is_late,
                        int status)
{
    char *const reason = candidate->reason;

    if (atomic_load(&verdict->is_over)) {
        snprintf(reason, HD_CANDIDATE_REASON_BYTES, "%.*s", (int)sizeof verdict->reason - 1,
                 verdict->reason);
    } else if (is_late) {
        snprintf(reason, HD_CANDIDATE_REASON_BYTES,
                 "its constructors or destructors do not return in time");
    } else if (WIFSIGNALED(status)) {
        snprintf(reason, HD_CANDIDATE_REASON_BYTES, "the loader crashes on it (signal %d)",
                 WTERMSIG(status));
    } else { /* a constructor called exit, or an assertion of ld.so failed, which exits too */
        snprintf(reason, HD_CANDIDATE_REASON_BYTES, "loading it ends the process");
    }
    return reason[0] == '\0';
}

bool hd_trial_passes(struct hd_candidate *candidate, uint64_t limit_ns)
{
    const struct hd_child_request request = {
        .work = trial_load, .context = candidate, .answer_bytes = sizeof(struct verdict)};
    struct hd_child child;

    assert(candidate->reason[0] == '\0');
    if (hd_child_start(&child, &request) != HD_OK) {
        snprintf(candidate->reason, sizeof candidate->reason,
                 "cannot start a child process for a first load: %s", strerror(errno));
        return false;
    }
    const bool is_late = !hd_child_wait(&child, hd_now_ns() + limit_ns);
    const int status = hd_child_stop(&child);
    const bool passes = trial_judge(candidate, child.answer, is_late, status);
    hd_child_free(&child);
    return passes;
}
