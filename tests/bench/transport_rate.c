/*
 * tests/bench/transport_rate.c - what a message costs, on every transport that is built.
 *
 *   transport_rate [ROUNDS]
 *
 * Two ranks.  Latency: one message there and one back, half of it, median over the rounds.  Rate:
 * messages one way, as deep as the channel is, of 1e9 bytes a second.  The target reads every byte
 * and the source writes every byte, as a pipeline does.  It judges nothing, and is no test.
 */
#include "base/clock.h"
#include "support/transport_traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_COUNT = 4, DEPTH = 4, ROUND_MAX = 2000 };

static const uint64_t sizes[SIZE_COUNT] = {1024, 65536, 1048576, 8388608};

static hd_status wait_and_read(struct hd_testbed_rank *rank, struct hd_message message)
{
    const uint64_t bytes = rank->job->channels[message.channel].bytes;
    const uint64_t *words = rank->ops->slot(rank->transport, &message);
    static volatile uint64_t sink;
    uint64_t sum = 0;

    hd_status status = rank->ops->post_recv(rank->transport, &message);
    if (status == HD_OK) {
        status = hd_traffic_wait(rank, message, hd_testbed_deadline_ns(60000));
    }
    for (uint64_t i = 0; status == HD_OK && i < bytes / 8; i++) {
        sum += words[i];
    }
    sink = sum;
    (void)sink;
    return status == HD_OK ? rank->ops->release(rank->transport, &message, NULL) : status;
}

static hd_status write_and_send(struct hd_testbed_rank *rank, struct hd_message message)
{
    hd_status status = rank->ops->reserve(rank->transport, &message);

    while (status == HD_BUSY) { /* the wait has a deadline */
        status = hd_traffic_wait(rank, message, hd_testbed_deadline_ns(60000));
        status = status == HD_OK ? rank->ops->reserve(rank->transport, &message) : status;
    }
    if (status == HD_OK) {
        const uint64_t bytes = rank->job->channels[message.channel].bytes;
        memset(rank->ops->slot(rank->transport, &message), (int)(message.sequence % 251), bytes);
        status = rank->ops->post_send(rank->transport, &message, NULL);
    }
    return status;
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static int measure(struct hd_testbed_rank *rank)
{
    static uint64_t halves_ns[ROUND_MAX];
    const uint64_t round_count = *(const uint64_t *)rank->job->argument;

    for (uint64_t round = 0; round < round_count; round++) {
        const struct hd_message out = {.sequence = round, .channel = rank->rank};
        const struct hd_message in = {.sequence = round, .channel = 1 - rank->rank};
        const uint64_t begin_ns = hd_now_ns();
        for (uint32_t turn = 0; turn < 2; turn++) {
            const hd_status status =
                turn == rank->rank ? write_and_send(rank, out) : wait_and_read(rank, in);
            HD_REQUIRE(rank, status == HD_OK);
        }
        halves_ns[round] = (hd_now_ns() - begin_ns) / 2;
    }
    const struct hd_message mine = {.sequence = round_count - 1, .channel = rank->rank};
    HD_REQUIRE(rank, hd_traffic_wait(rank, mine, hd_testbed_deadline_ns(60000)) == HD_OK);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK); /* in a fence nothing moves */
    const uint64_t begin_ns = hd_now_ns();
    for (uint64_t sequence = round_count; sequence < 2 * round_count; sequence++) {
        const struct hd_message message = {.sequence = sequence};
        const hd_status status =
            rank->rank == 0 ? write_and_send(rank, message) : wait_and_read(rank, message);
        HD_REQUIRE(rank, status == HD_OK);
    }
    if (rank->rank == 0) { /* until the last has left */
        const struct hd_message last = {.sequence = 2 * round_count - 1};
        return hd_traffic_wait(rank, last, hd_testbed_deadline_ns(60000)) != HD_OK;
    }
    qsort(halves_ns, round_count, sizeof halves_ns[0], compare);
    const double seconds = (double)(hd_now_ns() - begin_ns) / 1e9;
    const double bytes = (double)round_count * (double)rank->job->channels[0].bytes;
    struct hd_channel_stats stats = {.size = sizeof stats};
    rank->ops->stats(rank->transport, 0, &stats);
    printf("  %8.0f bytes  %9.1f us  %6.2f GB/s  %s\n", bytes / (double)round_count,
           (double)halves_ns[round_count / 2] / 1e3, bytes / 1e9 / seconds, stats.lane);
    return 0;
}

int main(int argument_count, char **arguments)
{
    const uint64_t asked = argument_count > 1 ? strtoull(arguments[1], NULL, 10) : 200;

    for (const struct hd_testbed_variant *variant = hd_testbed_variants; variant->name != NULL;
         variant++) {
        if (strcmp(variant->name, "null") == 0 || variant->inner != NULL ||
            !hd_testbed_is_built(variant)) {
            continue;
        }
        printf("%s\n", variant->label);
        for (uint32_t i = 0; i < SIZE_COUNT; i++) {
            const uint64_t most = sizes[i] > 1000000 ? 50 : ROUND_MAX;
            const uint64_t round_count = asked < most ? asked : most;
            const struct hd_channel channels[] = {{0, HD_FORWARD, 0, 1, DEPTH, 2, sizes[i]},
                                                  {0, HD_BACKWARD, 1, 0, DEPTH, 2, sizes[i]}};
            struct hd_testbed_job job = {.rank_count = 2,
                                         .channel_count = 2,
                                         .channels = channels,
                                         .limit_ms = 120000,
                                         .body = measure,
                                         .argument = &round_count};
            hd_testbed_choose(&job, variant);
            if (hd_testbed_run(&job) != 0) {
                return 1;
            }
        }
    }
    return 0;
}
