#include "conform/rig.h"

#include "base/clock.h"
#include "conform/host.h"
#include "launch/launch.h"

#include <assert.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GRACE_MS = 300, OPEN_MS = 20000, LEAVE_MS = 300 };

/* What the launcher hands to every rank. */
struct run {
    struct hd_conform_case *check;
    const struct hd_rig_job *job;
};

uint64_t hd_rig_capabilities(const struct hd_conform_case *check)
{
    const struct hd_plugin *inner = check->subject->inner;
    /* A hook may have send slots of its own, so it need not be in place. */
    return inner == NULL ? check->plugin->capabilities
                         : (inner->capabilities & ~(uint64_t)HD_TRANSPORT_IN_PLACE) |
                               check->plugin->capabilities;
}

uint64_t hd_rig_held_bytes(const struct hd_rig *rig)
{
    return hd_conform_held_bytes() - rig->lent_bytes;
}

uint64_t hd_rig_limit_ms(const struct hd_rig *rig)
{
    return rig->check->subject->limit_ms;
}

uint64_t hd_rig_deadline_ns(uint64_t from_now_ms)
{
    return hd_now_ns() + from_now_ms * HD_MS_NS;
}

void hd_rig_fail(struct hd_rig *rig, const char *format, ...)
{
    const struct hd_conform_report *report = &rig->check->report;
    char text[HD_CONFORM_TEXT_BYTES / 2];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (report->count > 0) {
        hd_conform_fail(rig->check, "rank %u: %s; the plugin reported: %s", rig->rank, text,
                        report->text);
    } else {
        hd_conform_fail(rig->check, "rank %u: %s", rig->rank, text);
    }
}

void hd_rig_expect(struct hd_rig *rig, const char *call, struct hd_message message, hd_status got,
                   hd_status wanted)
{
    if (got != wanted) {
        hd_rig_fail(rig, "%s of message %llu on channel %u returns %s, not %s", call,
                    (unsigned long long)message.sequence, message.channel, hd_status_name(got),
                    hd_status_name(wanted));
    }
}

const struct hd_drive *hd_rig_drive(struct hd_rig *rig)
{
    rig->drive.transport = rig->transport;
    return &rig->drive;
}

/* --- the host of a rank -------------------------------------------------------------------- */

/* There is one rank in a process. */
static struct hd_rig *rig_self;

static hd_status rig_host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    (void)context;
    return hd_bootstrap_put(rig_self->bootstrap, key, value, bytes);
}

static hd_status rig_host_get(void *context, const char *key, void *value, uint64_t bytes,
                              uint64_t deadline_ns)
{
    (void)context;
    return hd_bootstrap_get(rig_self->bootstrap, key, value, bytes, deadline_ns);
}

static hd_status rig_host_fence(void *context, uint64_t deadline_ns)
{
    (void)context;
    return hd_bootstrap_fence(rig_self->bootstrap, deadline_ns);
}

/* Transfers are reported with their times in order; 0 is an unknown time. */
static void rig_host_trace_transfer(void *context, const struct hd_transfer *transfer)
{
    struct hd_rig *const rig = rig_self;
    const uint64_t end_ns = transfer->end_ns > 0 ? transfer->end_ns : UINT64_MAX;

    (void)context;
    HD_RIG_HOLD(rig, transfer->channel < rig->job->channel_count,
                "a transfer of channel %u is traced, of %u channels", transfer->channel,
                rig->job->channel_count);
    HD_RIG_HOLD(rig, transfer->begin_ns <= end_ns,
                "the trace of message %llu of channel %u begins %llu ns after its end",
                (unsigned long long)transfer->sequence, transfer->channel,
                (unsigned long long)(transfer->begin_ns - end_ns));
}

static void rig_init_host(struct hd_rig *rig, struct hd_host *host)
{
    *host = rig->check->host;
    host->rank = rig->rank;
    host->rank_count = rig->job->rank_count;
    host->trace_transfer = rig_host_trace_transfer;
    host->put = rig_host_put;
    host->get = rig_host_get;
    host->fence = rig_host_fence;
}

static void rig_init_rig(struct hd_rig *rig, const struct run *run, struct hd_bootstrap *bootstrap,
                         void *shared)
{
    const struct hd_rig_job *job = run->job;
    const struct hd_conform_subject *subject = run->check->subject;

    rig_self = rig;
    *rig = (struct hd_rig){.check = run->check,
                           .job = job,
                           .rank = hd_bootstrap_rank(bootstrap),
                           .ops = run->check->plugin->ops,
                           .bootstrap = bootstrap,
                           .shared = shared};
    atomic_store(&rig->shared->pids[rig->rank], (int32_t)getpid());
    for (uint32_t i = 0; i < job->channel_count; i++) {
        rig->list[i] = &job->channels[i];
    }
    rig_init_host(rig, &rig->host);
    rig_init_host(rig, &rig->inner_host);
    if (subject->inner != NULL) {
        rig->inner_host.option_count = subject->inner->option_count;
        rig->inner_host.options = subject->inner_options;
    }
    rig->setup = (struct hd_transport_setup){
        .size = sizeof rig->setup,
        .channel_count = job->channel_count,
        .channels = rig->list,
        .host = &rig->host,
        .inner = subject->inner,
        .inner_host = &rig->inner_host,
        .memory = HD_MEMORY_HOST,
        .alignment_bytes = job->alignment_bytes > 0 ? job->alignment_bytes : 64};
    rig->drive = (struct hd_drive){.ops = rig->ops,
                                   .capabilities = hd_rig_capabilities(run->check),
                                   .channels = rig->list,
                                   .channel_count = job->channel_count,
                                   .rank = rig->rank,
                                   .limit_ms = hd_rig_limit_ms(rig)};
}

/* --- a rank -------------------------------------------------------------------------------- */

/* A transport that has failed makes no more progress, but its rank still meets the others. */
hd_status hd_rig_fence(struct hd_rig *rig)
{
    const uint64_t deadline_ns = hd_rig_deadline_ns(hd_rig_limit_ms(rig));
    const hd_status status = hd_drive_fence(hd_rig_drive(rig), rig->bootstrap, deadline_ns);

    return status == HD_TIMEOUT ? hd_bootstrap_fence(rig->bootstrap, deadline_ns) : status;
}

hd_status hd_rig_open(struct hd_rig *rig, uint64_t limit_ms)
{
    rig->setup.deadline_ns = hd_rig_deadline_ns(limit_ms);
    return rig->ops->open(&rig->setup, &rig->transport);
}

hd_status hd_rig_close(struct hd_rig *rig)
{
    const uint64_t deadline_ns = hd_rig_deadline_ns(2 * hd_rig_limit_ms(rig));
    struct hd_transport *transport = rig->transport;

    if (transport == NULL) {
        return HD_OK;
    }
    /* Work ends on all ranks before any of them quiesces. */
    hd_status status = hd_rig_fence(rig);
    if (status == HD_OK && rig->ops->quiesce != NULL) {
        status = rig->ops->quiesce(transport, deadline_ns);
    }
    if (status == HD_OK) {
        status = hd_bootstrap_fence(rig->bootstrap, deadline_ns);
    }
    rig->transport = NULL;
    rig->ops->close(transport, deadline_ns);
    return status;
}

void hd_rig_leave_alone(struct hd_rig *rig)
{
    struct hd_transport *transport = rig->transport;

    rig->transport = NULL;
    rig->may_leak = true;
    if (rig->ops->quiesce != NULL) {
        rig->ops->quiesce(transport, hd_rig_deadline_ns(LEAVE_MS));
    }
    rig->ops->close(transport, hd_rig_deadline_ns(LEAVE_MS));
}

void hd_rig_leave(struct hd_rig *rig)
{
    hd_rig_fence(rig);
    hd_rig_leave_alone(rig);
    hd_rig_fence(rig);
}

/* Tests for the message before it is sent.  Then the message is sent, because a posted receive may
   not be withdrawable. */
static void rig_look_at_first(struct hd_rig *rig, struct hd_message first)
{
    const struct hd_channel *channel = rig->list[first.channel];
    const struct hd_drive *drive = hd_rig_drive(rig);
    uint32_t is_posted = 0;

    if (channel->target == rig->rank) {
        is_posted = rig->ops->post_recv(rig->transport, &first) == HD_OK;
        if (is_posted && rig->ops->test(rig->transport, &first) == HD_OK &&
            hd_drive_is_whole(drive, first)) {
            atomic_store(&rig->shared->is_hollow, 1);
        }
    }
    hd_rig_fence(rig);
    if (channel->source == rig->rank) {
        (void)hd_drive_send(drive, first);
    } else if (is_posted && hd_drive_wait(drive, first) == HD_OK) {
        (void)hd_drive_release(drive, first);
    }
    hd_rig_fence(rig);
}

/* A transport without a seal may be one that moves no bytes: its first message is readable, with
   the right pattern, before it is sent. */
static bool rig_is_hollow(struct hd_rig *rig)
{
    const hd_status opened = (hd_rig_capabilities(rig->check) & HD_TRANSPORT_SEALED) != 0
                                 ? HD_UNSUPPORTED
                                 : hd_rig_open(rig, OPEN_MS);

    for (uint32_t i = 0; opened == HD_OK && i < rig->job->channel_count; i++) {
        rig_look_at_first(rig, (struct hd_message){.channel = i});
    }
    if (opened == HD_OK) {
        hd_rig_close(rig); /* which has a fence */
    }
    return atomic_load(&rig->shared->is_hollow) != 0;
}

static uint64_t rig_largest_message(const struct hd_rig_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < job->channel_count; i++) {
        bytes = job->channels[i].bytes > bytes ? job->channels[i].bytes : bytes;
    }
    return bytes;
}

/* A device for slots is opened before the transport. */
static hd_status rig_open_device(struct hd_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    const struct hd_lent_request request = {.kernel = check->subject->lender,
                                            .options = check->subject->lender_options,
                                            .host = &check->host,
                                            .ordinal = rig->rank,
                                            .staging_bytes = rig_largest_message(rig->job),
                                            .limit_ms = hd_rig_limit_ms(rig)};
    const char *reason;
    const hd_status status = hd_lent_open(&rig->device, &request, &reason);

    if (status == HD_OK) {
        rig->drive.device = &rig->device;
        rig->lent_bytes = hd_conform_held_bytes();
        rig->setup.memory = rig->device.about.memory;
        rig->setup.device = rig->rank;
        const uint32_t alignment_bytes = hd_lent_alignment(&rig->device);
        rig->setup.alignment_bytes = alignment_bytes > rig->setup.alignment_bytes
                                         ? alignment_bytes
                                         : rig->setup.alignment_bytes;
    } else if (reason != NULL) {
        snprintf(check->report.text, sizeof check->report.text, "%s", reason);
    }
    return status;
}

static void rig_run_with_memory(struct hd_rig *rig)
{
    if (rig->job->needs_peer && rig_is_hollow(rig)) {
        hd_conform_skip(rig->check,
                        "moves no bytes: its first message is readable before it is sent");
        return;
    }
    if (!rig->job->is_unopened) {
        const hd_status status = hd_rig_open(rig, OPEN_MS);
        HD_RIG_HOLD(rig, status == HD_OK && rig->transport != NULL, "open returns %s",
                    hd_status_name(status));
    }
    rig->job->body(rig);
    if (hd_conform_is_decided(rig->check)) {
        return;
    }
    const hd_status status = hd_rig_close(rig);
    HD_RIG_HOLD(rig, status == HD_OK, "quiesce and close return %s", hd_status_name(status));
    HD_RIG_HOLD(rig, rig->may_leak || hd_rig_held_bytes(rig) == 0,
                "close does not free %llu bytes of the host",
                (unsigned long long)hd_rig_held_bytes(rig));
    if (rig->drive.device != NULL && !rig->may_leak) {
        hd_lent_close(&rig->device);
    }
}

static void rig_run_body(struct hd_rig *rig)
{
    const hd_status opened = rig->check->subject->lender != NULL ? rig_open_device(rig) : HD_OK;

    if (opened != HD_OK) {
        hd_conform_skip(rig->check, "no device for the slots: %s", rig->check->report.text);
        return;
    }
    rig_run_with_memory(rig);
}

static bool rig_enter_host(struct hd_rig *rig)
{
    const char *host = rig->check->subject->hosts[rig->rank % 2];
    struct hd_problem problem = {0};

    if (host != NULL && hd_conform_enter_host(host, &problem) != HD_OK) {
        hd_conform_fail(rig->check, "rank %u: %s", rig->rank, problem.message);
        return false;
    }
    return true;
}

static int32_t rig_rank_main(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    static struct hd_rig rig;

    rig_init_rig(&rig, context, bootstrap, shared);
    if (rig_enter_host(&rig)) {
        rig_run_body(&rig);
    }
    atomic_fetch_add(&rig.shared->over_count, 1);
    return hd_conform_is_decided(rig.check) ? 1 : 0;
}

/* --- the parent of the ranks ---------------------------------------------------------------- */

static bool rig_on_event(void *context, void *shared, const struct hd_launch_event *event)
{
    const struct run *run = context;
    const struct hd_rig_shared *words = shared;
    const uint32_t survivor_count = run->job->rank_count - (run->job->dying_rank > 0);

    if (event->kind == HD_LAUNCH_KILLED && event->rank + 1 != run->job->dying_rank) {
        hd_conform_fail(run->check, "rank %u was killed by SIG%s", event->rank,
                        sigabbrev_np(event->signal));
    }
    if (event->kind == HD_LAUNCH_EXITED && event->exit_code != 0) {
        hd_conform_fail(run->check, "rank %u ended with exit code %d", event->rank,
                        event->exit_code);
    }
    if (event->kind == HD_LAUNCH_ENDED && atomic_load(&words->over_count) < survivor_count) {
        hd_conform_fail(run->check, "a rank ended its process");
    }
    return hd_conform_is_decided(run->check);
}

void hd_rig_run(struct hd_conform_case *check, const struct hd_rig_job *job)
{
    static struct hd_launch_outcome outcome;
    struct run run = {check, job};
    struct hd_problem problem = {0};
    const struct hd_launch launch = {.rank_count = job->rank_count,
                                     .shared_bytes = sizeof(struct hd_rig_shared),
                                     .gather_bytes = 64,
                                     .context = &run,
                                     .rank_main = rig_rank_main,
                                     .on_event = rig_on_event,
                                     .grace_ms = GRACE_MS};

    assert(job->rank_count <= HD_RIG_RANK_MAX && job->channel_count <= HD_DRIVE_CHANNEL_MAX);
    if (hd_launch_run(&launch, &outcome, &problem) != HD_OK) {
        hd_conform_fail(check, "%s", problem.message);
    }
}
