#include "launch/launch.h"

#include "base/clock.h"
#include "base/log.h"
#include "launch/relay.h"
#include "launch/segments.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TICK_MS = 20, NO_FD = -1 };

struct child {
    pid_t pid;
    bool is_alive;
    bool is_killed; /* by this parent */
};

struct supervisor {
    const struct hd_launch *launch;
    struct hd_launch_outcome *outcome;
    struct hd_region *region;
    void *shared;
    uint64_t shared_bytes;
    int signal_fd;
    uint32_t first_rank; /* of the ranks that this parent forks */
    uint32_t started_count;
    uint32_t alive_count;
    bool is_aborted;
    uint64_t kill_at_ns; /* if aborted */
    uint64_t tick_at_ns;
    int64_t started_s; /* time of day */
    sigset_t mask_before;
    struct sigaction child_before;
    struct child children[HD_LAUNCH_RANK_MAX];
};

/* One more than the last rank that this parent has started. */
static uint32_t launch_end_of(const struct supervisor *supervisor)
{
    return supervisor->first_rank + supervisor->started_count;
}

/* --- signals -------------------------------------------------------------------------------- */

static hd_status launch_signals_take(struct supervisor *supervisor)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction hangup;
    sigset_t watched;

    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGUSR1);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
        sigaddset(&watched, SIGHUP); /* else nohup wants the run to outlive its terminal */
    }
    supervisor->signal_fd = signalfd(NO_FD, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->signal_fd < 0) {
        return HD_SYSTEM;
    }
    /* With an ignored SIGCHLD, which a launcher may pass on, the kernel would reap the ranks. */
    sigaction(SIGCHLD, &plain, &supervisor->child_before);
    pthread_sigmask(SIG_BLOCK, &watched, &supervisor->mask_before);
    return HD_OK;
}

static void launch_signals_give_back(struct supervisor *supervisor)
{
    close(supervisor->signal_fd);
    sigaction(SIGCHLD, &supervisor->child_before, NULL);
    pthread_sigmask(SIG_SETMASK, &supervisor->mask_before, NULL);
}

/* A rank ignores the signals that a terminal sends to all processes: the parent relays them, so no
   rank ends in the middle of a step.  Those that ask for the end of the run stay pending, for the
   rank's watchdog to read.  Faults keep their actions, which a sanitizer may have set. */
static void launch_signals_reset_in_rank(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
    static const int plain[] = {SIGQUIT, SIGUSR2, SIGALRM, SIGCHLD, SIGTSTP,
                                SIGCONT, SIGTTIN, SIGTTOU, SIGWINCH};
    sigset_t pending;

    for (unsigned i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        signal(ignored[i], SIG_IGN);
    }
    for (unsigned i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        signal(plain[i], SIG_DFL);
    }
    sigemptyset(&pending);
    sigaddset(&pending, SIGTERM);
    sigaddset(&pending, SIGINT);
    sigaddset(&pending, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &pending, NULL);
}

/* --- ending a run --------------------------------------------------------------------------- */

static void launch_abort_ranks(struct supervisor *supervisor)
{
    if (!supervisor->is_aborted) {
        supervisor->is_aborted = true;
        supervisor->kill_at_ns = hd_now_ns() + supervisor->launch->grace_ms * HD_MS_NS;
        hd_region_abort(supervisor->region);
        hd_log(HD_LOG_DEBUG, "launch: aborted; ranks that still run in %u ms are killed",
               supervisor->launch->grace_ms);
    }
}

/* SIGKILL also ends a stopped process.  A pid is not used again until its process is reaped, so no
   other process is killed. */
static void launch_kill_ranks(struct supervisor *supervisor)
{
    for (uint32_t rank = supervisor->first_rank; rank < launch_end_of(supervisor); rank++) {
        struct child *const child = &supervisor->children[rank];
        if (child->is_alive && !child->is_killed) {
            child->is_killed = true;
            kill(child->pid, SIGKILL);
        }
    }
}

static void launch_tell(struct supervisor *supervisor, struct hd_launch_event event)
{
    event.at_ns = hd_now_ns();
    if (supervisor->launch->on_event(supervisor->launch->context, supervisor->shared, &event)) {
        launch_abort_ranks(supervisor);
    }
}

/* --- watching the ranks --------------------------------------------------------------------- */

static uint32_t launch_event_kind_of(int code)
{
    switch (code) {
    case CLD_EXITED:
        return HD_LAUNCH_EXITED;
    case CLD_STOPPED:
    case CLD_TRAPPED:
        return HD_LAUNCH_STOPPED;
    case CLD_CONTINUED:
        return HD_LAUNCH_CONTINUED;
    default:
        return HD_LAUNCH_KILLED;
    }
}

static void launch_note_end(struct supervisor *supervisor, const struct hd_launch_event *event)
{
    struct child *const child = &supervisor->children[event->rank];
    const bool died = event->kind == HD_LAUNCH_KILLED;

    child->is_alive = false;
    supervisor->alive_count--;
    if (died) {
        hd_segments_remove(child->pid, supervisor->started_s);
    }
    hd_log(HD_LOG_DEBUG, "launch: rank %u, process %d, %s %d", event->rank, child->pid,
           died ? "was killed by signal" : "exited with code",
           died ? event->signal : event->exit_code);
    supervisor->outcome->exit_codes[event->rank] = died ? 128 + event->signal : event->exit_code;
    supervisor->outcome->killed_count += died && event->signal == SIGKILL && child->is_killed;
}

/* How many changes of one rank are read at once: the kernel keeps only the latest state anyway. */
enum { NEWS_MAX = 4 };

static bool launch_read_news(const struct child *child, siginfo_t *news)
{
    const id_t pid = (id_t)child->pid;

    /* An ended rank is not reaped here but when all have ended.  To reap a process can take the
       kernel seconds on a loaded machine, in which the other ranks would miss their deadlines
       before they are told of the death. */
    if (waitid(P_PID, pid, news, WEXITED | WNOHANG | WNOWAIT) == 0 && news->si_pid != 0) {
        return true;
    }
    return waitid(P_PID, pid, news, WSTOPPED | WCONTINUED | WNOHANG) == 0 && news->si_pid != 0;
}

static void launch_look_at_rank(struct supervisor *supervisor, uint32_t rank)
{
    struct child *const child = &supervisor->children[rank];

    for (unsigned i = 0; i < NEWS_MAX && child->is_alive; i++) {
        siginfo_t news = {.si_pid = 0};
        if (!launch_read_news(child, &news)) {
            return;
        }
        struct hd_launch_event event = {
            .kind = launch_event_kind_of(news.si_code), .rank = rank, .pid = child->pid};
        if (event.kind == HD_LAUNCH_EXITED) {
            event.exit_code = news.si_status;
        } else {
            event.signal = news.si_status;
        }
        if (event.kind == HD_LAUNCH_EXITED || event.kind == HD_LAUNCH_KILLED) {
            launch_note_end(supervisor, &event);
        }
        launch_tell(supervisor, event);
    }
}

static void launch_relay_signal(struct supervisor *supervisor, int32_t number)
{
    if (supervisor->outcome->signal != 0) {
        launch_kill_ranks(supervisor); /* first, so that no rank reports the abort as its reason */
        launch_abort_ranks(supervisor);
        return;
    }
    supervisor->outcome->signal = number;
    launch_tell(supervisor, (struct hd_launch_event){
                                .kind = HD_LAUNCH_SIGNALLED, .rank = UINT32_MAX, .signal = number});
}

/* Returns the process of the first SIGCHLD; 0: there was none.  The kernel keeps one SIGCHLD at a
   time, the oldest. */
static pid_t launch_read_signals(struct supervisor *supervisor)
{
    struct signalfd_siginfo signals[8];
    const ssize_t read_bytes = read(supervisor->signal_fd, signals, sizeof signals);
    const size_t signal_count = read_bytes > 0 ? (size_t)read_bytes / sizeof signals[0] : 0;
    pid_t first = 0;

    for (size_t i = 0; i < signal_count; i++) {
        if (signals[i].ssi_signo != SIGCHLD) {
            launch_relay_signal(supervisor, (int32_t)signals[i].ssi_signo);
        } else if (first == 0) {
            first = (pid_t)signals[i].ssi_pid;
        }
    }
    return first;
}

/* `first` before the others: a rank that ended because of another must not be named. */
static void launch_look_at_ranks(struct supervisor *supervisor, pid_t first)
{
    const uint32_t end = launch_end_of(supervisor);

    for (uint32_t rank = supervisor->first_rank; rank < end && first != 0; rank++) {
        if (supervisor->children[rank].pid == first) {
            launch_look_at_rank(supervisor, rank);
        }
    }
    for (uint32_t rank = supervisor->first_rank; rank < end; rank++) {
        launch_look_at_rank(supervisor, rank);
    }
}

/* A launched run is over when the ranks of the other processes have ended as well. */
static bool launch_is_over(const struct supervisor *supervisor)
{
    const struct hd_launch *const launch = supervisor->launch;

    return supervisor->alive_count == 0 &&
           (launch->link == NULL || launch->is_settled(launch->context, supervisor->shared));
}

/* Waits for the end of every rank that was started. */
static void launch_reap(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->started_count; i++) {
        const pid_t pid = supervisor->children[supervisor->first_rank + i].pid;
        siginfo_t end;
        while (waitid(P_PID, (id_t)pid, &end, WEXITED) != 0 && errno == EINTR) {
        }
    }
    supervisor->alive_count = 0;
}

static void launch_supervise(struct supervisor *supervisor)
{
    struct hd_link *const link = supervisor->launch->link;
    struct pollfd awaited[] = {
        {.fd = supervisor->signal_fd, .events = POLLIN},
        {.fd = link != NULL ? hd_link_descriptor(link) : NO_FD, .events = POLLIN},
    };

    while (!launch_is_over(supervisor)) {
        poll(awaited, 2, TICK_MS);
        launch_look_at_ranks(supervisor, launch_read_signals(supervisor));
        if (link != NULL) {
            hd_link_poll(link);
        }
        const uint64_t now_ns = hd_now_ns();
        if (now_ns >= supervisor->tick_at_ns) {
            supervisor->tick_at_ns = now_ns + TICK_MS * HD_MS_NS;
            launch_tell(supervisor,
                        (struct hd_launch_event){.kind = HD_LAUNCH_TICK, .rank = UINT32_MAX});
        }
        if (hd_region_is_aborted(supervisor->region)) {
            launch_abort_ranks(supervisor);
        }
        if (supervisor->is_aborted && now_ns >= supervisor->kill_at_ns) {
            launch_kill_ranks(supervisor);
        }
    }
    launch_reap(supervisor);
    /* A signal that arrived at the very end is read too, or it would kill the caller. */
    (void)launch_read_signals(supervisor);
    launch_tell(supervisor, (struct hd_launch_event){.kind = HD_LAUNCH_ENDED, .rank = UINT32_MAX});
}

/* --- starting ------------------------------------------------------------------------------- */

_Noreturn static void launch_run_rank(struct supervisor *supervisor, uint32_t rank, pid_t parent)
{
    const struct hd_launch *const launch = supervisor->launch;
    struct hd_bootstrap bootstrap;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(128 + SIGKILL); /* the parent died between the fork and the line above */
    }
    close(supervisor->signal_fd);
    if (launch->link != NULL) {
        hd_link_forget(launch->link);
    }
    launch_signals_reset_in_rank();
    hd_bootstrap_init(&bootstrap, supervisor->region, rank);
    const int32_t exit_code = launch->rank_main(launch->context, &bootstrap, supervisor->shared);
    fflush(NULL);
    _exit(exit_code);
}

static hd_status launch_start_ranks(struct supervisor *supervisor, struct hd_problem *problem)
{
    const pid_t parent = getpid();

    supervisor->started_s = (int64_t)time(NULL);
    fflush(NULL); /* or every rank would write the parent's buffers as well */
    const uint32_t own_count =
        supervisor->launch->link != NULL ? 1 : supervisor->launch->rank_count;
    for (uint32_t rank = supervisor->first_rank; rank < supervisor->first_rank + own_count;
         rank++) {
        const pid_t pid = fork();
        if (pid == 0) {
            launch_run_rank(supervisor, rank, parent);
        }
        if (pid < 0) {
            hd_problem_remedy(problem, "allow more processes (ulimit -u) or use fewer ranks");
            return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                                  "cannot start rank %u of %u: %s", rank,
                                  supervisor->launch->rank_count, strerror(errno));
        }
        supervisor->children[rank] = (struct child){.pid = pid, .is_alive = true};
        supervisor->started_count++;
        supervisor->alive_count++;
        hd_log(HD_LOG_DEBUG, "launch: forked rank %u as process %d", rank, pid);
    }
    return HD_OK;
}

static hd_status launch_take_memory(struct supervisor *supervisor)
{
    const struct hd_launch *const launch = supervisor->launch;

    supervisor->shared_bytes = launch->shared_bytes > 0 ? launch->shared_bytes : 1;
    supervisor->shared = mmap(NULL, supervisor->shared_bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (supervisor->shared == MAP_FAILED) {
        return HD_NO_MEMORY;
    }
    supervisor->region = hd_region_create(launch->rank_count, launch->gather_bytes);
    if (supervisor->region == NULL ||
        (launch->link != NULL && hd_relay_attach(launch->link, supervisor->region) != HD_OK)) {
        hd_region_destroy(supervisor->region);
        munmap(supervisor->shared, supervisor->shared_bytes);
        return HD_NO_MEMORY;
    }
    if (launch->link != NULL) {
        supervisor->first_rank = hd_link_rank(launch->link);
    }
    return HD_OK;
}

hd_status hd_launch_run(const struct hd_launch *launch, struct hd_launch_outcome *outcome,
                        struct hd_problem *problem)
{
    struct supervisor supervisor = {.launch = launch, .outcome = outcome};

    assert(launch->rank_count > 0 && launch->rank_count <= HD_LAUNCH_RANK_MAX);
    assert(launch->rank_main != NULL && launch->on_event != NULL);
    *outcome = (struct hd_launch_outcome){.signal = 0};
    hd_status status = launch_take_memory(&supervisor);
    if (status != HD_OK) {
        return hd_problem_no_memory(problem, launch->shared_bytes,
                                    "the memory that ranks share: %s", strerror(errno));
    }
    status = launch_signals_take(&supervisor);
    if (status != HD_OK) {
        hd_problem_set(problem, status, HD_EXIT_FAILED, "cannot watch signals: %s",
                       strerror(errno));
        goto give_memory;
    }
    if (launch->prepare != NULL) {
        launch->prepare(launch->context, supervisor.shared);
    }
    status = launch_start_ranks(&supervisor, problem);
    if (status == HD_OK) {
        launch_supervise(&supervisor);
    } else { /* no event has told the caller of these ranks, so none tells of their end */
        launch_kill_ranks(&supervisor);
        launch_reap(&supervisor);
    }
    launch_signals_give_back(&supervisor);
give_memory:
    hd_region_destroy(supervisor.region);
    munmap(supervisor.shared, supervisor.shared_bytes);
    return status;
}
