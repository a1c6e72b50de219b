#include "conform/rig.h"
#include "conform/transport_checks.h"

#include "base/clock.h"
#include "launch/launch.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 400, OPEN_MS = 1000, LATE_MS = 3500, FENCE_MS = 8000, SLOTS_MOST = 6 };

static const struct hd_channel transport_faults_both_ways[] = {{3, HD_FORWARD, 0, 1, 2, 2, 64},
                                                               {3, HD_BACKWARD, 1, 0, 2, 2, 64}};

static struct hd_rig_job transport_faults_pair_job(void (*body)(struct hd_rig *rig),
                                                   const void *argument)
{
    return (struct hd_rig_job){.rank_count = 2,
                               .channel_count = 2,
                               .channels = transport_faults_both_ways,
                               .body = body,
                               .argument = argument,
                               .needs_peer = true};
}

/* --- out of order --------------------------------------------------------------------------- */

/* Rank 0 sends on channel 0 and receives on channel 1.  The last call of a script must be refused.
   R reserve, S post_send, p post_recv, w wait, t test, r release; the digit is the sequence. */
struct script {
    const char *name;
    const char *calls;
};

static const struct script transport_faults_turn_scripts[] = {
    {"the second receive first", "p1"},         {"the same receive twice", "p0p0"},
    {"a receive past the window", "p0p1p2"},    {"a release before its receive", "r0"},
    {"a release that overtakes", "p0p1w0w1r1"}, {"the same release twice", "p0w0r0r0"},
    {"the second post first", "R0R1S1"},        {"the same post twice", "R0S0S0"},
};

static const struct script transport_faults_lease_scripts[] = {
    {"a release before its wait", "p0r0"}, {"a wait for a receive that is not posted", "w0"},
    {"a wait that overtakes", "p0p1w1"},   {"a test after the release", "p0w0r0t0"},
    {"the second reserve first", "R1"},    {"a post without its reserve", "S0"},
};

static hd_status transport_faults_call(struct hd_rig *rig, const char *at)
{
    const struct hd_transport_ops *ops = rig->ops;
    const struct hd_message message = {.sequence = (uint64_t)(at[1] - '0'),
                                       .channel = at[0] == 'R' || at[0] == 'S' ? 0 : 1};
    switch (at[0]) {
    case 'R':
        return ops->reserve(rig->transport, &message);
    case 'S':
        return hd_drive_post(hd_rig_drive(rig), message);
    case 'p':
        return ops->post_recv(rig->transport, &message);
    case 'w':
        return hd_drive_wait(hd_rig_drive(rig), message);
    case 't':
        return ops->test(rig->transport, &message);
    default:
        return hd_drive_give(hd_rig_drive(rig), message);
    }
}

/* The first send slot of a channel is free; a second may be busy for a moment. */
static hd_status transport_faults_call_patiently(struct hd_rig *rig, const char *at)
{
    const uint64_t deadline_ns = hd_rig_deadline_ns(hd_rig_limit_ms(rig));
    hd_status status = transport_faults_call(rig, at);

    while (status == HD_BUSY && hd_now_ns() < deadline_ns) {
        sched_yield();
        status = transport_faults_call(rig, at);
    }
    return status;
}

static void transport_faults_play(struct hd_rig *rig, const struct script *script)
{
    const size_t length = strlen(script->calls);
    const char *last = script->calls + length - 2;

    for (const char *at = script->calls; at < last; at += 2) {
        const hd_status status = transport_faults_call_patiently(rig, at);
        HD_RIG_HOLD(rig, status == HD_OK, "%s: call %.2s returns %s", script->name, at,
                    hd_status_name(status));
    }
    hd_status status = transport_faults_call(rig, last);
    HD_RIG_HOLD(rig, status == HD_INVALID, "%s: call %.2s returns %s, not HD_INVALID", script->name,
                last, hd_status_name(status));
    static const char *const others[] = {"p0", "t0", "R0", "r0"};
    for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
        status = transport_faults_call(rig, others[i]);
        HD_RIG_HOLD(
            rig, status == HD_INVALID,
            "%s was refused, but then call %s returns %s: the first failure must be permanent",
            script->name, others[i], hd_status_name(status));
    }
    rig->ops->abort(rig->transport, "after the first failure");
    status = transport_faults_call(rig, "R0");
    HD_RIG_HOLD(rig, status == HD_INVALID, "%s: after an abort the first failure becomes %s",
                script->name, hd_status_name(status));
}

/* Rank 1 sends two messages and keeps the rules; rank 0 breaks one. */
static void transport_faults_break_order(struct hd_rig *rig)
{
    for (uint64_t sequence = 0; rig->rank == 1 && sequence < 2; sequence++) {
        const struct hd_message message = {.sequence = sequence, .channel = 1};
        HD_RIG_EXPECT(rig, "sending", message, hd_drive_send(hd_rig_drive(rig), message), HD_OK);
    }
    if (rig->rank == 0) {
        transport_faults_play(rig, rig->job->argument);
    }
    hd_rig_leave(rig);
}

static void transport_faults_play_all(struct hd_conform_case *check, const struct script *scripts,
                                      unsigned count)
{
    for (unsigned i = 0; i < count && !hd_conform_is_decided(check); i++) {
        struct hd_rig_job job =
            transport_faults_pair_job(transport_faults_break_order, &scripts[i]);
        job.needs_peer = scripts == transport_faults_lease_scripts;
        hd_conform_at(check, "%s", scripts[i].name);
        hd_rig_run(check, &job);
    }
    hd_conform_remark(check, "%u scripts", count);
}

void hd_conform_transport_turn(struct hd_conform_case *check)
{
    transport_faults_play_all(check, transport_faults_turn_scripts,
                              sizeof transport_faults_turn_scripts /
                                  sizeof transport_faults_turn_scripts[0]);
}

void hd_conform_transport_unleased(struct hd_conform_case *check)
{
    transport_faults_play_all(check, transport_faults_lease_scripts,
                              sizeof transport_faults_lease_scripts /
                                  sizeof transport_faults_lease_scripts[0]);
}

/* --- abort ---------------------------------------------------------------------------------- */

struct aborter {
    struct hd_rig *rig;
    uint64_t pause_us;
    atomic_int is_waiting;
};

/* Aborts once, some time after the wait has begun. */
static void *transport_faults_abort_once(void *argument)
{
    struct aborter *aborter = argument;

    const uint64_t end_ns = hd_now_ns() + aborter->pause_us * 1000;
    while (atomic_load(&aborter->is_waiting) == 0 || hd_now_ns() < end_ns) {
        sched_yield();
    }
    aborter->rig->ops->abort(aborter->rig->transport, "abort of the check");
    return NULL;
}

static void transport_faults_abort_a_wait(struct hd_rig *rig)
{
    const struct hd_message message = {.channel = 1};
    struct aborter aborter = {.rig = rig, .pause_us = *(const uint64_t *)rig->job->argument};
    pthread_t thread;

    if (rig->rank == 1) { /* it is not aborted */
        hd_rig_leave(rig);
        return;
    }
    HD_RIG_EXPECT(rig, "post_recv", message, rig->ops->post_recv(rig->transport, &message), HD_OK);
    HD_RIG_HOLD(rig, pthread_create(&thread, NULL, transport_faults_abort_once, &aborter) == 0,
                "cannot start a thread");
    atomic_store(&aborter.is_waiting, 1);
    const hd_status status = hd_drive_wait(hd_rig_drive(rig), message);
    pthread_join(thread, NULL);
    HD_RIG_EXPECT(rig, "wait", message, status, HD_ABORTED);
    rig->ops->abort(rig->transport, "again, as the core does every 10 ms");
    HD_RIG_EXPECT(rig, "a later test", message, rig->ops->test(rig->transport, &message),
                  HD_ABORTED);
    HD_RIG_EXPECT(rig, "a later reserve", message, transport_faults_call(rig, "R0"), HD_ABORTED);
    hd_rig_leave(rig);
}

void hd_conform_transport_abort(struct hd_conform_case *check)
{
    static const uint64_t pauses[] = {0, 10, 500, 10000};

    for (unsigned i = 0; i < 4 && !hd_conform_is_decided(check); i++) {
        const struct hd_rig_job job =
            transport_faults_pair_job(transport_faults_abort_a_wait, &pauses[i]);
        hd_rig_run(check, &job);
    }
}

/* --- quiesce --------------------------------------------------------------------------------- */

/* Rank 0 calls quiesce alone, and must learn by its deadline whether a peer may still write into
   its memory; then both call it.  In place a peer may write until rank 1 has called quiesce. */
static void transport_faults_quiesce_alone(struct hd_rig *rig)
{
    const bool in_place = (rig->drive.capabilities & HD_TRANSPORT_IN_PLACE) != 0;
    struct hd_drive_mix some = {.count = 10};

    hd_status status = hd_drive_mix(hd_rig_drive(rig), &some);
    HD_RIG_HOLD(rig, status == HD_OK && hd_rig_fence(rig) == HD_OK, "moving messages returns %s",
                hd_status_name(status));
    if (rig->rank == 0) {
        const uint64_t begin_ns = hd_now_ns();
        status = rig->ops->quiesce(rig->transport, hd_rig_deadline_ns(SHORT_MS));
        const uint64_t took_ms = (hd_now_ns() - begin_ns) / HD_MS_NS;
        HD_RIG_HOLD(rig, status == HD_TIMEOUT || (status == HD_OK && !in_place),
                    "before the peer calls quiesce, quiesce returns %s", hd_status_name(status));
        HD_RIG_HOLD(rig, took_ms < SHORT_MS + LATE_MS,
                    "quiesce took %llu ms with a deadline of %d ms", (unsigned long long)took_ms,
                    SHORT_MS);
    }
    HD_RIG_HOLD(rig, hd_bootstrap_fence(rig->bootstrap, hd_rig_deadline_ns(FENCE_MS)) == HD_OK,
                "a rank does not reach the fence");
    status = rig->ops->quiesce(rig->transport, hd_rig_deadline_ns(hd_rig_limit_ms(rig)));
    HD_RIG_HOLD(rig, status == HD_OK || (rig->rank == 0 && status == HD_TIMEOUT),
                "after both ranks called quiesce, quiesce returns %s", hd_status_name(status));
    rig->ops->close(rig->transport, hd_rig_deadline_ns(SHORT_MS));
    rig->transport = NULL;
    rig->may_leak = true;
}

void hd_conform_transport_quiesce(struct hd_conform_case *check)
{
    const struct hd_rig_job job = transport_faults_pair_job(transport_faults_quiesce_alone, NULL);

    if (((const struct hd_transport_ops *)check->plugin->ops)->quiesce == NULL) {
        hd_conform_skip(check, "has no quiesce: no peer writes into this memory");
        return;
    }
    hd_rig_run(check, &job);
}

/* --- lost peers ----------------------------------------------------------------------------- */

/* Rank 0 waits for rank 1, which ends by `signal`: for its message, or for its release. */
struct loss {
    const char *name;
    int signal;
    uint32_t waits_credit;
};

/* The status of a wait that the peer does not end, and its message.  A wait for a receive is
   such a wait at once; one for a slot is when no slot is left, which may never happen with a
   transport that has buffers of its own (HD_OK). */
static hd_status transport_faults_wait_in_vain(struct hd_rig *rig, const struct loss *loss,
                                               uint64_t limit_ms, struct hd_message *message)
{
    const struct hd_drive *drive = hd_rig_drive(rig);
    hd_status status = HD_OK;

    *message = (struct hd_message){.channel = loss->waits_credit ? 0 : 1};
    if (!loss->waits_credit) {
        status = rig->ops->post_recv(rig->transport, message);
        return status != HD_OK ? status
                               : hd_drive_wait_by(drive, *message, hd_rig_deadline_ns(limit_ms));
    }
    for (uint32_t i = 0; status == HD_OK && i < SLOTS_MOST; i++, message->sequence++) {
        status = hd_drive_wait_by(drive, *message, hd_rig_deadline_ns(limit_ms));
        if (status == HD_OK) {
            status = hd_drive_send(drive, *message);
        }
        if (status != HD_OK) {
            break;
        }
    }
    return status;
}

static void transport_faults_judge_report(struct hd_rig *rig, const struct loss *loss,
                                          hd_status status, struct hd_message message)
{
    const struct hd_conform_report *report = &rig->check->report;

    if (rig->ops->wait == NULL && status == HD_TIMEOUT) {
        return; /* the deadline was that of the core */
    }
    HD_RIG_HOLD(rig, report->count == 1, "%s: the loss is reported %u times", loss->name,
                report->count);
    HD_RIG_HOLD(rig, report->rank == 1 && report->text[0] != '\0',
                "%s: the report does not name rank 1", loss->name);
    HD_RIG_HOLD(rig, rig->ops->test(rig->transport, &message) == status,
                "%s: the next call returns another status", loss->name);
}

static void transport_faults_lose_peer(struct hd_rig *rig, const struct loss *loss)
{
    const bool sees_death = (rig->drive.capabilities & HD_TRANSPORT_PEER_DEATH) != 0;
    const uint64_t limit_ms =
        loss->signal == SIGKILL && sees_death ? hd_rig_limit_ms(rig) : SHORT_MS;
    struct hd_message message;

    const uint64_t begin_ns = hd_now_ns();
    const hd_status status = transport_faults_wait_in_vain(rig, loss, limit_ms, &message);
    const uint64_t took_ms = (hd_now_ns() - begin_ns) / HD_MS_NS;
    if (status == HD_OK && loss->waits_credit &&
        (rig->drive.capabilities & HD_TRANSPORT_IN_PLACE) == 0) {
        return;
    }
    const bool is_right = status == HD_PEER_LOST || (status == HD_TIMEOUT && limit_ms == SHORT_MS);
    HD_RIG_HOLD(rig, is_right, "%s: the wait returns %s", loss->name, hd_status_name(status));
    HD_RIG_HOLD(rig, took_ms < SLOTS_MOST * limit_ms + LATE_MS, "%s: waits of %llu ms took %llu ms",
                loss->name, (unsigned long long)limit_ms, (unsigned long long)took_ms);
    transport_faults_judge_report(rig, loss, status, message);
}

static void transport_faults_end_peer(struct hd_rig *rig)
{
    const struct loss *loss = rig->job->argument;

    if (rig->rank == 1) {
        raise(loss->signal);
        for (;;) { /* stopped, until it is killed */
            pause();
        }
    }
    transport_faults_lose_peer(rig, loss);
    hd_rig_leave_alone(rig);
    kill(atomic_load(&rig->shared->pids[1]), SIGKILL);
}

static void transport_faults_lose_all(struct hd_conform_case *check, int signal_number)
{
    const struct loss losses[] = {
        {"rank 1 ended before its message", signal_number, 0},
        {"rank 1 ended before its release", signal_number, 1},
    };

    for (unsigned i = 0; i < 2 && !hd_conform_is_decided(check); i++) {
        struct hd_rig_job job = transport_faults_pair_job(transport_faults_end_peer, &losses[i]);
        job.dying_rank = 2;
        hd_rig_run(check, &job);
    }
}

void hd_conform_transport_dead(struct hd_conform_case *check)
{
    transport_faults_lose_all(check, SIGKILL);
}

void hd_conform_transport_stopped(struct hd_conform_case *check)
{
    transport_faults_lose_all(check, SIGSTOP);
}

/* --- open ----------------------------------------------------------------------------------- */

static void transport_faults_judge_refused(struct hd_rig *rig, const char *what, hd_status status)
{
    const struct hd_conform_report *report = &rig->check->report;

    HD_RIG_HOLD(rig, status < 0, "%s: open returns %s", what, hd_status_name(status));
    HD_RIG_HOLD(rig, rig->transport == NULL, "%s: open fails but returns an instance", what);
    HD_RIG_HOLD(rig, report->count == 1 && report->status == status && report->text[0] != '\0',
                "%s: open returns %s but reports %u times", what, hd_status_name(status),
                report->count);
    HD_RIG_HOLD(rig, hd_rig_held_bytes(rig) == 0, "%s: open does not free %llu bytes of the host",
                what, (unsigned long long)hd_rig_held_bytes(rig));
}

static void transport_faults_open_alone(struct hd_rig *rig)
{
    if (rig->rank == 1) {
        raise(SIGKILL);
    }
    const uint64_t begin_ns = hd_now_ns();
    const hd_status status = hd_rig_open(rig, SHORT_MS);
    const uint64_t took_ms = (hd_now_ns() - begin_ns) / HD_MS_NS;
    transport_faults_judge_refused(rig, "without rank 1", status);
    HD_RIG_HOLD(rig, took_ms < SHORT_MS + LATE_MS, "open took %llu ms with a deadline of %d ms",
                (unsigned long long)took_ms, SHORT_MS);
}

void hd_conform_transport_alone(struct hd_conform_case *check)
{
    struct hd_rig_job job = transport_faults_pair_job(transport_faults_open_alone, NULL);
    job.is_unopened = true;
    job.dying_rank = 2;
    hd_rig_run(check, &job);
}

/* Both ranks ask for memory that no rank can have. */
static void transport_faults_open_impossible(struct hd_rig *rig)
{
    const struct hd_channel huge = {0, HD_FORWARD, 0, 1, UINT32_MAX, 1, 1ull << 62};
    const struct hd_channel *one = &huge;
    const struct hd_transport_setup sound = rig->setup;
    hd_status status = HD_INVALID;

    if ((rig->drive.capabilities & HD_TRANSPORT_CUDA) == 0) {
        rig->setup.memory = HD_MEMORY_CUDA;
        status = hd_rig_open(rig, OPEN_MS);
        transport_faults_judge_refused(rig, "device memory", status);
    } else if ((rig->drive.capabilities & HD_TRANSPORT_HOST) == 0) {
        rig->setup.memory = HD_MEMORY_HOST;
        status = hd_rig_open(rig, OPEN_MS);
        transport_faults_judge_refused(rig, "host memory", status);
    }
    HD_RIG_MEET(rig);
    rig->check->report.count = 0;
    rig->setup = sound;
    rig->setup.channels = &one;
    rig->setup.channel_count = 1;
    status = hd_rig_open(rig, OPEN_MS);
    transport_faults_judge_refused(rig, "more memory than exists", status);
}

void hd_conform_transport_refused(struct hd_conform_case *check)
{
    struct hd_rig_job job = transport_faults_pair_job(transport_faults_open_impossible, NULL);
    job.is_unopened = true;
    job.needs_peer = false;
    hd_rig_run(check, &job);
}
