/*
 * What hook_fault does to one message, and that every fault ends in its status, on every transport
 * that it may wrap.  Rank 1 sends four messages on channel 1; message 2 is struck.
 */
#include "support/check.h"
#include "support/transport_traffic.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SENT_COUNT = 4, STRUCK = 2, LONG_MS = 30000, SHORT_MS = 150 };

static const struct hd_channel channels[] = {{3, HD_FORWARD, 0, 1, 4, 2, 64},
                                             {3, HD_BACKWARD, 1, 0, 4, 4, 64}};

struct fault_row {
    const char *name; /* of the fault */
    const char *source;
    uint64_t wrong;   /* the first message that does not come as it should */
    hd_status wanted; /* of it, at rank 0; or at rank 1, where rank 0 is the one that ends */
    int exit_codes[2];
    uint32_t sleeper; /* the rank that stops, and is killed in the end; else 2 */
};

static const struct fault_row rows[] = {
    {"drop", "a lost message", 2, HD_TIMEOUT, {0, 0}, 2},
    {"duplicate", "a message twice", 3, HD_PROTOCOL, {0, 0}, 2},
    {"flip", "a bit of the payload", 2, HD_PROTOCOL, {0, 0}, 2},
    {"flip_seal", "a bit of the seal", 2, HD_PROTOCOL, {0, 0}, 2},
    {"partial", "half a message, then death", 2, HD_PEER_LOST, {0, HD_TESTBED_KILLED}, 2},
    {"kill_self", "a death of the source", 2, HD_PEER_LOST, {0, HD_TESTBED_KILLED}, 2},
    {"kill_peer", "a death of the target", 0, HD_PEER_LOST, {HD_TESTBED_KILLED, 0}, 2},
    {"stop_self", "a source that stops", 2, HD_TIMEOUT, {0, HD_TESTBED_KILLED}, 1},
    {"stop_peer", "a target that stops", 0, HD_TIMEOUT, {HD_TESTBED_KILLED, 0}, 0},
};

static uint64_t limit_of(const struct fault_row *row)
{
    return hd_testbed_deadline_ns(row->wanted == HD_TIMEOUT ? SHORT_MS : LONG_MS);
}

static int has_death(const struct fault_row *row)
{
    return row->exit_codes[0] != 0 || row->exit_codes[1] != 0;
}

/* The status came from the transport itself: rests, whatever that says, and closes. */
static int leave(struct hd_testbed_rank *rank, const struct fault_row *row)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(SHORT_MS);

    if (row->wanted == HD_PROTOCOL) {
        return 0; /* nothing of the transport has failed */
    }
    HD_REQUIRE(rank, rank->report.count == 1 && rank->report.status == row->wanted);
    HD_REQUIRE(rank, rank->report.rank == 1 - rank->rank);
    const hd_status rest = rank->ops->quiesce(rank->transport, deadline_ns);
    HD_REQUIRE(rank, rest == HD_OK || rest == HD_TIMEOUT);
    rank->leaks = rest == HD_TIMEOUT;
    if (!has_death(row)) {
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    }
    rank->ops->close(rank->transport, deadline_ns);
    rank->transport = NULL;
    if (row->sleeper < 2) {
        HD_REQUIRE(rank, kill(atomic_load(&rank->pids[row->sleeper]), SIGKILL) == 0);
    }
    return 0;
}

/* Rank 0 receives what comes. */
static int receive_all(struct hd_testbed_rank *rank, const struct fault_row *row)
{
    struct hd_message message = {.channel = 1};

    for (; message.sequence < SENT_COUNT; message.sequence++) {
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_OK);
        hd_status status = hd_traffic_wait(rank, message, limit_of(row));
        if (status == HD_OK && !hd_traffic_is_whole(rank, message)) {
            status = HD_PROTOCOL;
        }
        if (row->exit_codes[0] == 0) {
            HD_REQUIRE(rank, status == (message.sequence == row->wrong ? row->wanted : HD_OK));
        }
        if (message.sequence == row->wrong && row->exit_codes[0] == 0) {
            break;
        }
    }
    if (row->exit_codes[0] != 0) { /* it is struck by its peer, now or soon */
        pause();
    }
    return leave(rank, row);
}

/* Rank 1 sends all, and waits for an answer where its peer is the one that ends. */
static int send_all(struct hd_testbed_rank *rank, const struct fault_row *row)
{
    const struct hd_message answer = {.channel = 0};
    struct hd_message message = {.channel = 1};

    for (; message.sequence < SENT_COUNT; message.sequence++) {
        HD_REQUIRE(rank, hd_traffic_send(rank, message) == HD_OK);
    }
    if (row->exit_codes[0] == 0) {
        return 0;
    }
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &answer) == HD_OK);
    HD_REQUIRE(rank, hd_traffic_wait(rank, answer, limit_of(row)) == row->wanted);
    return leave(rank, row);
}

static int be_struck(struct hd_testbed_rank *rank)
{
    const struct fault_row *row = rank->job->argument;
    return rank->rank == 0 ? receive_all(rank, row) : send_all(rank, row);
}

static void run_row(const struct fault_row *row, const struct hd_testbed_variant *inner)
{
    const struct hd_option_value options[] = {
        {.text = row->name}, {.integer = 1}, {.integer = STRUCK}, {.integer = 0},
        {.integer = 0},      {.integer = 0}, {.integer = 0},      {.integer = 5}};
    const struct hd_testbed_job job = {.name = "hook_fault",
                                       .inner = inner->name,
                                       .rank_count = 2,
                                       .channel_count = 2,
                                       .channels = channels,
                                       .options = options,
                                       .option_count = HD_CHECK_COUNT(options),
                                       .inner_options = inner->options,
                                       .inner_option_count = inner->option_count,
                                       .body = be_struck,
                                       .argument = row,
                                       .exit_codes = row->exit_codes};
    const uint32_t wrong_count = hd_testbed_run(&job);

    CU_ASSERT_EQUAL(wrong_count, 0);
    if (wrong_count > 0) {
        printf("%s: %s, %s\n", inner->label, row->name, row->source);
    }
}

static void test_every_fault(void)
{
    for (const struct hd_testbed_variant *inner = hd_testbed_variants; inner->name != NULL;
         inner++) {
        const int is_real = strcmp(inner->name, "null") != 0 && inner->inner == NULL;
        for (uint32_t i = 0; is_real && i < HD_CHECK_COUNT(rows); i++) {
            const int is_ended = has_death(&rows[i]);
            if (hd_testbed_is_built(inner) && !(is_ended && inner->is_mortal) &&
                !(is_ended && inner->needs_source)) {
                run_row(&rows[i], inner);
            }
        }
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"every fault ends in its status, and the peer at fault is named", test_every_fault},
    };
    return hd_check_main("conform_hook_fault", checks, HD_CHECK_COUNT(checks));
}
