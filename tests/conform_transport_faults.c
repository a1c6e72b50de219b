/*
 * What every transport promises on a bad day (transport.h, G4 to G7), between processes: calls
 * out of turn, peers that die or stop, aborts, and an open that cannot be.
 */
#include "base/clock.h"
#include "support/check.h"
#include "support/transport_traffic.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONG_MS = 30000, SHORT_MS = 150, POST_MAX = 16 };

static const struct hd_channel both_ways[] = {{3, HD_FORWARD, 0, 1, 2, 2, 64},
                                              {3, HD_BACKWARD, 1, 0, 2, 2, 64}};

/* What a body is told. */
struct story {
    const struct hd_testbed_variant *variant;
    const void *row;
};

/* Runs a pair on every variant that `applies`, and says which row of which variant failed. */
struct trial {
    const char *name; /* of the row */
    const void *row;
    int (*body)(struct hd_testbed_rank *);
    const int *exit_codes;
    int (*applies)(const struct hd_testbed_variant *variant, const void *row);
    uint32_t unopened;
};

static void run_trial(const struct trial *trial)
{
    uint32_t run_count = 0;

    for (const struct hd_testbed_variant *variant = hd_testbed_variants; variant->name != NULL;
         variant++) {
        const struct story story = {variant, trial->row};
        const struct hd_testbed_job job = {.name = variant->name,
                                           .rank_count = 2,
                                           .channel_count = 2,
                                           .channels = both_ways,
                                           .options = variant->options,
                                           .option_count = variant->option_count,
                                           .unopened = trial->unopened,
                                           .body = trial->body,
                                           .argument = &story,
                                           .exit_codes = trial->exit_codes};
        if (!hd_testbed_is_built(variant) || !trial->applies(variant, trial->row)) {
            continue;
        }
        const uint32_t wrong_count = hd_testbed_run(&job);
        CU_ASSERT_EQUAL(wrong_count, 0);
        if (wrong_count > 0) {
            printf("%s: %s\n", variant->label, trial->name);
        }
        run_count++;
    }
    CU_ASSERT(run_count > 0);
}

static const void *row_of(const struct hd_testbed_rank *rank)
{
    return ((const struct story *)rank->job->argument)->row;
}

static const struct hd_testbed_variant *variant_of(const struct hd_testbed_rank *rank)
{
    return ((const struct story *)rank->job->argument)->variant;
}

/* One that moves something, and by itself. */
static int is_real(const struct hd_testbed_variant *variant, const void *row)
{
    (void)row;
    return strcmp(variant->name, "null") != 0 && variant->inner == NULL;
}

/* --- out of turn ------------------------------------------------------------------------- */

enum call { RESERVE, SEND, RECV, WAIT, TEST, RELEASE, SEND_STREAM, WAIT_STREAM, RELEASE_STREAM };

struct step {
    enum call call;
    uint32_t channel;
    uint64_t sequence;
};

/* Calls of rank 0, which sends on channel 0 and receives on channel 1; the last is refused. */
struct turn_row {
    const char *name;
    const char *source;  /* which rule says so */
    uint32_t everywhere; /* also a transport that looks at no peer refuses it */
    uint32_t step_count;
    struct step steps[8];
};

static const struct turn_row turn_rows[] = {
    {"the second receive first", "Order", 1, 1, {{RECV, 1, 1}}},
    {"a receive twice", "Order", 1, 2, {{RECV, 1, 0}, {RECV, 1, 0}}},
    {"a receive past the window", "post_recv", 1, 3, {{RECV, 1, 0}, {RECV, 1, 1}, {RECV, 1, 2}}},
    {"a release before its receive", "lease", 1, 1, {{RELEASE, 1, 0}}},
    {"a release before its wait", "lease", 0, 2, {{RECV, 1, 0}, {RELEASE, 1, 0}}},
    {"a release that overtakes",
     "Order",
     1,
     5,
     {{RECV, 1, 0}, {RECV, 1, 1}, {WAIT, 1, 0}, {WAIT, 1, 1}, {RELEASE, 1, 1}}},
    {"a release twice",
     "Order",
     1,
     4,
     {{RECV, 1, 0}, {WAIT, 1, 0}, {RELEASE, 1, 0}, {RELEASE, 1, 0}}},
    {"a wait for what is not posted", "wait", 0, 1, {{WAIT, 1, 0}}},
    {"a wait that overtakes", "Order", 0, 3, {{RECV, 1, 0}, {RECV, 1, 1}, {WAIT, 1, 1}}},
    {"a test after the release",
     "lease",
     0,
     4,
     {{RECV, 1, 0}, {WAIT, 1, 0}, {RELEASE, 1, 0}, {TEST, 1, 0}}},
    {"the second reserve first", "Order", 0, 1, {{RESERVE, 0, 1}}},
    {"a post without its reserve", "reserve", 0, 1, {{SEND, 0, 0}}},
    {"the second post first", "Order", 1, 3, {{RESERVE, 0, 0}, {RESERVE, 0, 1}, {SEND, 0, 1}}},
    {"a post twice", "Order", 1, 3, {{RESERVE, 0, 0}, {SEND, 0, 0}, {SEND, 0, 0}}},
    {"a reserve at the target", "reserve", 0, 1, {{RESERVE, 1, 0}}},
    {"a release at the source", "release", 0, 3, {{RESERVE, 0, 0}, {SEND, 0, 0}, {RELEASE, 0, 0}}},
    {"a post on a stream of nobody", "HOST", 1, 2, {{RESERVE, 0, 0}, {SEND_STREAM, 0, 0}}},
    {"a wait on a stream of nobody", "HOST", 0, 2, {{RECV, 1, 0}, {WAIT_STREAM, 1, 0}}},
    {"a release on a stream of nobody",
     "HOST",
     1,
     3,
     {{RECV, 1, 0}, {WAIT, 1, 0}, {RELEASE_STREAM, 1, 0}}},
};

static hd_status do_step(struct hd_testbed_rank *rank, const struct step *step)
{
    const struct hd_message message = {.sequence = step->sequence, .channel = step->channel};
    const struct hd_transport_ops *ops = rank->ops;
    int nobody = 0;

    switch (step->call) {
    case RESERVE:
        return ops->reserve(rank->transport, &message);
    case SEND:
        return ops->post_send(rank->transport, &message, NULL);
    case SEND_STREAM:
        return ops->post_send(rank->transport, &message, &nobody);
    case RECV:
        return ops->post_recv(rank->transport, &message);
    case TEST:
        return ops->test(rank->transport, &message);
    case WAIT:
        return hd_traffic_wait(rank, message, hd_testbed_deadline_ns(LONG_MS));
    case WAIT_STREAM:
        return ops->wait(rank->transport, &message, &nobody, hd_testbed_deadline_ns(LONG_MS));
    case RELEASE:
        return ops->release(rank->transport, &message, NULL);
    case RELEASE_STREAM:
        return ops->release(rank->transport, &message, &nobody);
    }
    return HD_SYSTEM;
}

/* Rank 1 sends two messages; rank 0 breaks the rule. */
static int break_turn(struct hd_testbed_rank *rank)
{
    const struct turn_row *row = row_of(rank);

    for (uint64_t sequence = 0; rank->rank == 1 && sequence < 2; sequence++) {
        const struct hd_message message = {.sequence = sequence, .channel = 1};
        HD_REQUIRE(rank, hd_traffic_send(rank, message) == HD_OK);
    }
    if (rank->rank == 1) {
        return 0;
    }
    for (uint32_t i = 0; i + 1 < row->step_count; i++) {
        HD_REQUIRE(rank, do_step(rank, &row->steps[i]) == HD_OK);
    }
    const struct step *last = &row->steps[row->step_count - 1];
    HD_REQUIRE(rank, do_step(rank, last) == HD_INVALID);
    /* G7: it stays, for every call, and is said once. */
    HD_REQUIRE(rank, do_step(rank, last) == HD_INVALID);
    HD_REQUIRE(rank, do_step(rank, &(struct step){TEST, 0, 0}) == HD_INVALID);
    HD_REQUIRE(rank, do_step(rank, &(struct step){RECV, 1, 0}) == HD_INVALID);
    rank->ops->abort(rank->transport, "too late to matter");
    HD_REQUIRE(rank, do_step(rank, &(struct step){RESERVE, 0, 0}) == HD_INVALID);
    if (row->everywhere == 0) {
        HD_REQUIRE(rank, rank->report.count == 1 && rank->report.status == HD_INVALID);
        HD_REQUIRE(rank, rank->report.channel == last->channel);
        HD_REQUIRE(rank, rank->report.sequence == last->sequence);
    }
    return 0;
}

/* By rendezvous the good peer never gets rid of its second message; null looks at no peer. */
static int keeps_turns(const struct hd_testbed_variant *variant, const void *row)
{
    const struct turn_row *turns = row;
    return is_real(variant, NULL) ? strstr(variant->label, "rendezvous") == NULL
                                  : turns->everywhere && variant->inner == NULL;
}

static void test_out_of_turn(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(turn_rows); i++) {
        run_trial(&(struct trial){.name = turn_rows[i].name,
                                  .row = &turn_rows[i],
                                  .body = break_turn,
                                  .applies = keeps_turns});
    }
}

/* --- dead and stopped peers -------------------------------------------------------------- */

/* Rank 0 waits for rank 1, which ends by `signal`: for its message, or for its release. */
struct peer_row {
    const char *name;
    int signal;
    uint32_t sent_count;   /* by rank 1 before its end, on channel 1 */
    uint32_t waits_credit; /* rank 0 waits for a slot of channel 0, else for channel 1 */
    hd_status wanted;
};

static const struct peer_row peer_rows[] = {
    {"killed before its message", SIGKILL, 0, 0, HD_PEER_LOST},
    {"killed after two messages, which are still read", SIGKILL, 2, 0, HD_PEER_LOST},
    {"killed before its release", SIGKILL, 0, 1, HD_PEER_LOST},
    {"stopped before its message", SIGSTOP, 0, 0, HD_TIMEOUT},
    {"stopped after a message", SIGSTOP, 1, 0, HD_TIMEOUT},
    {"stopped before its release", SIGSTOP, 0, 1, HD_TIMEOUT},
};

static int end_early(struct hd_testbed_rank *rank, const struct peer_row *row)
{
    for (uint64_t sequence = 0; sequence < row->sent_count; sequence++) {
        const struct hd_message message = {.sequence = sequence, .channel = 1};
        HD_REQUIRE(rank, hd_traffic_send(rank, message) == HD_OK);
    }
    atomic_store(&rank->words[0], 1);
    kill(getpid(), row->signal);
    return 1; /* nobody wakes it */
}

/* Sends until nothing more goes, and how much that was; or takes what the peer has sent. */
static int use_up(struct hd_testbed_rank *rank, struct hd_message *message)
{
    const struct peer_row *row = row_of(rank);

    for (; !row->waits_credit && message->sequence < row->sent_count; message->sequence++) {
        HD_REQUIRE(rank, hd_traffic_receive(rank, *message) == HD_OK);
        HD_REQUIRE(rank, hd_traffic_release(rank, *message) == HD_OK);
    }
    hd_status status = row->waits_credit ? HD_OK : HD_BUSY;
    for (; status == HD_OK && message->sequence < POST_MAX; message->sequence++) {
        status = rank->ops->reserve(rank->transport, message);
        if (status != HD_OK) {
            break;
        }
        hd_traffic_fill(rank, *message);
        status = rank->ops->post_send(rank->transport, message, NULL);
    }
    HD_REQUIRE(rank, status == HD_BUSY || status == row->wanted);
    return 0;
}

static int lose_peer(struct hd_testbed_rank *rank)
{
    const struct peer_row *row = row_of(rank);
    struct hd_message message = {.channel = row->waits_credit ? 0 : 1};

    if (rank->rank == 1) {
        return end_early(rank, row);
    }
    HD_REQUIRE(rank, use_up(rank, &message) == 0);
    if (!row->waits_credit) {
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_OK);
    }
    /* A death is seen long before this deadline; only the deadline ends a wait for a stopped
       peer. */
    const uint64_t limit_ms = row->signal == SIGKILL ? LONG_MS : SHORT_MS;
    const uint64_t deadline_ns = hd_testbed_deadline_ns(limit_ms);
    HD_REQUIRE(rank, hd_traffic_wait(rank, message, deadline_ns) == row->wanted);
    HD_REQUIRE(rank, rank->report.count == 1 && rank->report.status == row->wanted);
    HD_REQUIRE(rank, rank->report.rank == 1 && rank->report.channel == message.channel);
    HD_REQUIRE(rank, rank->report.sequence == message.sequence);
    HD_REQUIRE(rank, strstr(rank->report.text, "rank 1") != NULL);
    HD_REQUIRE(rank, rank->ops->test(rank->transport, &message) == row->wanted);

    /* A stopped peer may wake, and write. */
    const int may_wake = row->signal == SIGSTOP && variant_of(rank)->has_late_write;
    const hd_status rest = rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(SHORT_MS));
    HD_REQUIRE(rank, rest == (may_wake ? HD_TIMEOUT : HD_OK));
    HD_REQUIRE(rank, rank->report.count == 1);
    rank->ops->close(rank->transport, hd_testbed_deadline_ns(SHORT_MS));
    rank->transport = NULL;
    rank->leaks = (uint32_t)may_wake;
    return kill(atomic_load(&rank->pids[1]), SIGKILL) != 0 && row->signal == SIGSTOP;
}

static int can_lose(const struct hd_testbed_variant *variant, const void *row)
{
    const struct peer_row *peer = row;
    return is_real(variant, NULL) && (!peer->waits_credit || variant->holds_back) &&
           (peer->sent_count == 0 || !variant->needs_source) &&
           (peer->signal != SIGKILL || !variant->is_mortal);
}

static void test_lost_peers(void)
{
    static const int exit_codes[2] = {0, HD_TESTBED_KILLED};

    for (uint32_t i = 0; i < HD_CHECK_COUNT(peer_rows); i++) {
        run_trial(&(struct trial){.name = peer_rows[i].name,
                                  .row = &peer_rows[i],
                                  .body = lose_peer,
                                  .exit_codes = exit_codes,
                                  .applies = can_lose});
    }
}

/* --- abort ------------------------------------------------------------------------------- */

struct aborter {
    struct hd_testbed_rank *rank;
    uint64_t pause_us;
    atomic_int is_waiting;
};

/* Once, from another thread, sooner or later after the wait has begun. */
static void *abort_once(void *argument)
{
    struct aborter *aborter = argument;

    const uint64_t end_ns = hd_now_ns() + aborter->pause_us * 1000;
    while (atomic_load(&aborter->is_waiting) == 0 || hd_now_ns() < end_ns) {
        sched_yield();
    }
    aborter->rank->ops->abort(aborter->rank->transport, "a test");
    return NULL;
}

static int abort_a_wait(struct hd_testbed_rank *rank)
{
    const struct hd_message message = {.sequence = 0, .channel = 1};
    struct aborter aborter = {.rank = rank, .pause_us = *(const uint64_t *)row_of(rank)};
    pthread_t thread;

    if (rank->rank == 1) { /* rests at once: nobody has told it of an abort */
        return 0;
    }
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_OK);
    HD_REQUIRE(rank, pthread_create(&thread, NULL, abort_once, &aborter) == 0);
    atomic_store(&aborter.is_waiting, 1);
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LONG_MS);
    HD_REQUIRE(rank, hd_traffic_wait(rank, message, deadline_ns) == HD_ABORTED);
    HD_REQUIRE(rank, pthread_join(thread, NULL) == 0);
    HD_REQUIRE(rank, rank->report.count == 0); /* the core knows */
    rank->ops->abort(rank->transport, "again, as the core does each 10 ms");
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_ABORTED);
    HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &message) == HD_ABORTED);
    return 0;
}

static void test_abort_ends_a_wait(void)
{
    for (uint64_t pause_us = 0; pause_us < 50000; pause_us = pause_us * 8 + 1) {
        run_trial(&(struct trial){
            .name = "abort", .row = &pause_us, .body = abort_a_wait, .applies = is_real});
    }
}

/* --- open -------------------------------------------------------------------------------- */

struct open_row {
    const char *name;
    struct hd_channel channels[2]; /* as rank 0 and rank 1 are told */
    uint32_t alignment_bytes;
    uint32_t memory;
    hd_status wanted; /* at rank 0, which is the source */
    const char *text; /* in its report */
    const char *own;  /* or this, where the source needs memory too; NULL */
};

static const struct open_row open_rows[] = {
    {"more memory than there is",
     {{0, 0, 0, 1, 4, 1, 1ull << 42}, {0, 0, 0, 1, 4, 1, 1ull << 42}},
     64,
     HD_MEMORY_HOST,
     HD_NO_MEMORY,
     "rank 1",
     "memory"},
    {"more memory than can be counted",
     {{0, 0, 0, 1, UINT32_MAX, 1, 1ull << 62}, {0, 0, 0, 1, UINT32_MAX, 1, 1ull << 62}},
     64,
     HD_MEMORY_HOST,
     HD_NO_MEMORY,
     "4611686018427387904",
     NULL},
    {"two plans",
     {{0, 0, 0, 1, 2, 1, 32768}, {0, 0, 0, 1, 2, 1, 16384}},
     64,
     HD_MEMORY_HOST,
     HD_PROTOCOL,
     "one plan",
     NULL},
    {"device memory",
     {{0, 0, 0, 1, 2, 1, 64}, {0, 0, 0, 1, 2, 1, 64}},
     64,
     HD_MEMORY_CUDA,
     HD_UNSUPPORTED,
     "host memory",
     NULL},
    {"slots aligned past a page",
     {{0, 0, 0, 1, 2, 1, 64}, {0, 0, 0, 1, 2, 1, 64}},
     1u << 20,
     HD_MEMORY_HOST,
     HD_UNSUPPORTED,
     "page",
     NULL},
    {"a channel to itself",
     {{0, 0, 0, 0, 2, 1, 64}, {0, 0, 0, 0, 2, 1, 64}},
     64,
     HD_MEMORY_HOST,
     HD_INVALID,
     "from one rank to another",
     NULL},
};

static int fail_to_open(struct hd_testbed_rank *rank)
{
    const struct open_row *row = row_of(rank);
    const struct hd_channel *channel = &row->channels[rank->rank];

    rank->setup.channels = &channel;
    rank->setup.channel_count = 1;
    rank->setup.alignment_bytes = row->alignment_bytes;
    rank->setup.memory = row->memory;
    const hd_status status = hd_testbed_open(rank, LONG_MS);
    HD_REQUIRE(rank, status < 0 && rank->transport == NULL);
    HD_REQUIRE(rank, rank->report.count == 1 && rank->report.status == status);
    if (rank->rank == 0) {
        HD_REQUIRE(rank, status == row->wanted);
        HD_REQUIRE(rank, strstr(rank->report.text, row->text) != NULL ||
                             (row->own != NULL && strstr(rank->report.text, row->own) != NULL));
    }
    return 0;
}

static void test_refused_opens(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(open_rows); i++) {
        run_trial(&(struct trial){.name = open_rows[i].name,
                                  .row = &open_rows[i],
                                  .body = fail_to_open,
                                  .applies = is_real,
                                  .unopened = 1});
    }
}

/* Rank 1 is killed before it has put its card: open ends at its deadline. */
static int open_alone(struct hd_testbed_rank *rank)
{
    if (rank->rank == 1) {
        kill(getpid(), SIGKILL);
    }
    const hd_status status = hd_testbed_open(rank, SHORT_MS);
    HD_REQUIRE(rank, status == HD_TIMEOUT && rank->transport == NULL);
    HD_REQUIRE(rank, rank->report.count == 1 && strstr(rank->report.text, "cards") != NULL);
    return 0;
}

static void test_open_has_a_deadline(void)
{
    static const int exit_codes[2] = {0, HD_TESTBED_KILLED};

    run_trial(&(struct trial){.name = "alone",
                              .body = open_alone,
                              .exit_codes = exit_codes,
                              .applies = is_real,
                              .unopened = 1});
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"a call out of turn is refused, for good, and said once (G7)", test_out_of_turn},
        {"a killed peer is named at once, a stopped one by the deadline (G6)", test_lost_peers},
        {"abort from another thread ends a wait (G4)", test_abort_ends_a_wait},
        {"open says why it cannot be", test_refused_opens},
        {"open ends at its deadline", test_open_has_a_deadline},
    };
    return hd_check_main("conform_transport_faults", checks, HD_CHECK_COUNT(checks));
}
