/*
 * What every transport promises on a good day (transport.h, G1 to G4), between processes.
 * conform_transport_faults.c has the bad days.  A check runs on every plugin of the table whose
 * capabilities promise what it checks.
 */
#include "support/check.h"
#include "support/transport_traffic.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- whole, ordered, exactly once -------------------------------------------------------- */

static int mix(struct hd_testbed_rank *rank)
{
    const uint64_t *counts = rank->job->argument;

    for (uint64_t step = 0; step < counts[0]; step++) {
        HD_REQUIRE(rank, hd_traffic_mix(rank, step * counts[1], counts[1]) == 0);
    }
    return 0;
}

static void test_every_size_and_depth(void)
{
    static const uint64_t sizes[] = {1,  2,   7,    8,    9,     63,     64,
                                     65, 127, 1000, 4096, 65537, 262144, 1048573};
    enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0], DEPTH_COUNT = 3 };
    static struct hd_channel channels[SIZE_COUNT * DEPTH_COUNT];
    const uint64_t counts[2] = {2, 5};

    for (uint32_t i = 0; i < SIZE_COUNT * DEPTH_COUNT; i++) {
        channels[i] = (struct hd_channel){.boundary = i,
                                          .source = i % 2,
                                          .target = 1 - i % 2,
                                          .depth = i / SIZE_COUNT + 1,
                                          .send_depth = 1,
                                          .bytes = sizes[i % SIZE_COUNT]};
    }
    hd_testbed_run_where(0, &(struct hd_testbed_job){.rank_count = 2,
                                                     .channel_count = SIZE_COUNT * DEPTH_COUNT,
                                                     .channels = channels,
                                                     .body = mix,
                                                     .argument = counts});
}

/* Two ranks, two stages each: three boundaries between the same pair, both ways. */
static void test_same_pair_shares_nothing(void)
{
    static const struct hd_channel channels[] = {
        {0, HD_FORWARD, 0, 1, 3, 1, 520},  {1, HD_FORWARD, 1, 0, 2, 1, 520},
        {2, HD_FORWARD, 0, 1, 1, 1, 520},  {0, HD_BACKWARD, 1, 0, 1, 1, 520},
        {1, HD_BACKWARD, 0, 1, 2, 1, 520}, {2, HD_BACKWARD, 1, 0, 1, 1, 520}};
    const uint64_t counts[2] = {3, 150};

    hd_testbed_run_where(0, &(struct hd_testbed_job){.rank_count = 2,
                                                     .channel_count = 6,
                                                     .channels = channels,
                                                     .body = mix,
                                                     .argument = counts});
}

static void fill_ring(struct hd_channel *channels, uint32_t rank_count, uint32_t depth,
                      uint64_t bytes)
{
    for (uint32_t i = 0; i < 2 * rank_count; i++) {
        const uint32_t from = i % rank_count;
        const uint32_t to = (from + 1) % rank_count;
        const uint32_t backward = i >= rank_count;
        channels[i] = (struct hd_channel){.boundary = from,
                                          .direction = backward ? HD_BACKWARD : HD_FORWARD,
                                          .source = backward ? to : from,
                                          .target = backward ? from : to,
                                          .depth = depth,
                                          .send_depth = 1,
                                          .bytes = bytes};
    }
}

static void test_ring_of_four(void)
{
    static struct hd_channel channels[8];
    const uint64_t counts[2] = {3, 40};

    fill_ring(channels, 4, 4, 10000);
    hd_testbed_run_where(0, &(struct hd_testbed_job){.rank_count = 4,
                                                     .channel_count = 8,
                                                     .channels = channels,
                                                     .body = mix,
                                                     .argument = counts});
}

/* A token goes round; everybody else waits, and must not keep the few cores from it. */
static int pass_token(struct hd_testbed_rank *rank)
{
    const uint32_t rank_count = rank->job->rank_count;
    const uint32_t before = (rank->rank + rank_count - 1) % rank_count;

    for (uint64_t round = 0; round < 40; round++) {
        const struct hd_message out = {.sequence = round, .channel = rank->rank};
        const struct hd_message in = {.sequence = round, .channel = before};
        if (rank->rank == 0) {
            HD_REQUIRE(rank, hd_traffic_send(rank, out) == HD_OK);
        }
        HD_REQUIRE(rank, hd_traffic_receive(rank, in) == HD_OK);
        HD_REQUIRE(rank, hd_traffic_release(rank, in) == HD_OK);
        if (rank->rank != 0) {
            HD_REQUIRE(rank, hd_traffic_send(rank, out) == HD_OK);
        }
    }
    return 0;
}

static void test_more_ranks_than_cores(void)
{
    static struct hd_channel channels[48];

    fill_ring(channels, 24, 1, 64);
    hd_testbed_run_where(HD_TESTBED_PLAIN, &(struct hd_testbed_job){.rank_count = 24,
                                                                    .channel_count = 48,
                                                                    .channels = channels,
                                                                    .body = pass_token});
}

/* --- many messages, over many steps ------------------------------------------------------ */

static int ping_pong(struct hd_testbed_rank *rank)
{
    const uint64_t count = *(const uint64_t *)rank->job->argument;

    for (uint64_t sequence = 0; sequence < count; sequence++) {
        const struct hd_message out = {.sequence = sequence, .channel = rank->rank};
        const struct hd_message in = {.sequence = sequence, .channel = 1 - rank->rank};
        if (rank->rank == 0) {
            HD_REQUIRE(rank, hd_traffic_send(rank, out) == HD_OK);
        }
        HD_REQUIRE(rank, hd_traffic_receive(rank, in) == HD_OK);
        HD_REQUIRE(rank, hd_traffic_release(rank, in) == HD_OK);
        if (rank->rank == 1) {
            HD_REQUIRE(rank, hd_traffic_send(rank, out) == HD_OK);
        }
    }
    if (rank->ops->stats != NULL) {
        struct hd_channel_stats stats = {.size = sizeof stats};
        rank->ops->stats(rank->transport, 1 - rank->rank, &stats);
        HD_REQUIRE(rank, stats.finished_count == count);
        HD_REQUIRE(rank, strlen(stats.lane) > 0);
    }
    return 0;
}

static const struct hd_channel both_ways[] = {{0, HD_FORWARD, 0, 1, 3, 1, 40},
                                              {0, HD_BACKWARD, 1, 0, 3, 1, 40}};

static void test_ten_thousand_small_messages(void)
{
    const uint64_t count = 10000;

    hd_testbed_run_where(HD_TESTBED_PLAIN, &(struct hd_testbed_job){.rank_count = 2,
                                                                    .channel_count = 2,
                                                                    .channels = both_ways,
                                                                    .body = ping_pong,
                                                                    .argument = &count});
}

/*
 * Without any spinning every wait goes to sleep, so that every wake-up is needed.  A lost one
 * only costs a slice (8 ms and more) in shm, so there are enough of them to pass the limit.
 */
static void test_every_wait_sleeps(void)
{
    const uint64_t count = 4000;
    const struct hd_option_value options[] = {{.integer = 0}};

    hd_testbed_run_where(HD_TRANSPORT_IN_PLACE, &(struct hd_testbed_job){.rank_count = 2,
                                                                         .channel_count = 2,
                                                                         .channels = both_ways,
                                                                         .options = options,
                                                                         .limit_ms = 40000,
                                                                         .option_count = 1,
                                                                         .body = ping_pong,
                                                                         .argument = &count});
}

/* --- leases ------------------------------------------------------------------------------ */

/* The source sends whatever it may; the target holds all leases and looks at them again. */
static int hold_leases(struct hd_testbed_rank *rank)
{
    const uint64_t depth = rank->job->channels[0].depth;
    struct hd_message message = {.sequence = 0, .channel = 0};

    for (; message.sequence < depth; message.sequence++) {
        if (rank->rank == 0) {
            HD_REQUIRE(rank, hd_traffic_send(rank, message) == HD_OK);
        } else {
            HD_REQUIRE(rank, hd_traffic_receive(rank, message) == HD_OK);
        }
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    if (rank->rank == 0) { /* asked twice, because a refusal must have taken nothing */
        HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &message) == HD_BUSY);
        HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &message) == HD_BUSY);
        HD_REQUIRE(rank, rank->ops->test(rank->transport, &message) == HD_IN_PROGRESS);
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    for (message.sequence = 0; rank->rank == 1 && message.sequence < depth; message.sequence++) {
        HD_REQUIRE(rank, hd_traffic_is_whole(rank, message));
    }
    message.sequence = 0;
    if (rank->rank == 1) {
        HD_REQUIRE(rank, hd_traffic_release(rank, message) == HD_OK);
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    message.sequence = depth;
    if (rank->rank == 0) {
        HD_REQUIRE(rank, hd_traffic_send(rank, message) == HD_OK);
        message.sequence++;
        HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &message) == HD_BUSY);
        return 0;
    }
    HD_REQUIRE(rank, hd_traffic_receive(rank, message) == HD_OK);
    for (message.sequence = 1; message.sequence < depth; message.sequence++) {
        HD_REQUIRE(rank, hd_traffic_is_whole(rank, message));
    }
    return 0;
}

static void test_leased_slots_stay(void)
{
    for (uint32_t depth = 1; depth <= 4; depth++) {
        const struct hd_channel channel = {0, HD_FORWARD, 0, 1, depth, 1, 3000};
        hd_testbed_run_where(HD_TRANSPORT_IN_PLACE, &(struct hd_testbed_job){.rank_count = 2,
                                                                             .channel_count = 1,
                                                                             .channels = &channel,
                                                                             .body = hold_leases});
    }
}

/* What the source writes is in the target's slot before anything is posted: nothing is copied. */
static int look_in_place(struct hd_testbed_rank *rank)
{
    const struct hd_message message = {.sequence = 0, .channel = 0};
    volatile uint64_t *word = rank->ops->slot(rank->transport, &message);

    HD_REQUIRE(rank, (uintptr_t)word % rank->setup.alignment_bytes == 0);
    if (rank->rank == 0) {
        HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &message) == HD_OK);
        *word = 0x5107;
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    HD_REQUIRE(rank, *word == 0x5107);
    return 0;
}

static void test_in_place(void)
{
    const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 2, 1, 64};

    hd_testbed_run_where(HD_TRANSPORT_IN_PLACE, &(struct hd_testbed_job){.rank_count = 2,
                                                                         .channel_count = 1,
                                                                         .channels = &channel,
                                                                         .body = look_in_place});
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"1 B to 1 MiB at depth 1 to 3 arrive whole, in order, once (G1, G2)",
         test_every_size_and_depth},
        {"P=2, V=2: channels of one pair share nothing (Megatron 1451)",
         test_same_pair_shares_nothing},
        {"four ranks in a ring, both ways, over three steps", test_ring_of_four},
        {"24 ranks on few cores come to an end", test_more_ranks_than_cores},
        {"10000 small messages keep their sequence", test_ten_thousand_small_messages},
        {"waits that always sleep are always woken", test_every_wait_sleeps},
        {"a leased slot stays, however eager the source; BUSY takes nothing (G3)",
         test_leased_slots_stay},
        {"in place: the source writes the target's slot", test_in_place},
    };
    return hd_check_main("conform_transport", checks, HD_CHECK_COUNT(checks));
}
