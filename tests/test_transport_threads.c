/*
 * tests/test_transport_threads.c - ranks that are threads of one process, for the thread sanitizer.
 *
 * Between processes it sees no race; here both ends of a channel lie in one address space, and shm
 * maps a channel once for both, so every byte of a slot and every word is watched: a payload that
 * is read before its signal, a slot written under a lease, an abort beside a call.
 */
#include "support/check.h"
#include "support/transport_traffic.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_MS = 20000, LANE_COUNT = 8, RANK_COUNT = 4 };

/* What holds its ranks in one process: UCX is not built with the sanitizer. */
static int is_watched(const struct hd_testbed_variant *variant)
{
    return strcmp(variant->name, "shm") == 0 ||
           (variant->inner != NULL && strcmp(variant->inner, "shm") == 0);
}

static void run_all(struct hd_testbed_job job)
{
    uint32_t run_count = 0;

    job.as_threads = 1;
    for (const struct hd_testbed_variant *variant = hd_testbed_variants; variant->name != NULL;
         variant++) {
        if (is_watched(variant)) {
            hd_testbed_choose(&job, variant);
            const uint32_t wrong_count = hd_testbed_run(&job);
            CU_ASSERT_EQUAL(wrong_count, 0);
            if (wrong_count > 0) {
                printf("%s: %u ranks\n", variant->label, wrong_count);
            }
            run_count++;
        }
    }
    CU_ASSERT(run_count >= 2);
}

/* --- messages ---------------------------------------------------------------------------- */

/* Steps of so many messages on every channel, and stats beside them from another thread. */
struct traffic {
    uint64_t step_count, message_count;
};

struct onlooker {
    struct hd_testbed_rank *rank;
    atomic_int is_over;
};

static void *look_on(void *argument)
{
    struct onlooker *onlooker = argument;
    const struct hd_testbed_rank *rank = onlooker->rank;

    while (atomic_load(&onlooker->is_over) == 0) {
        for (uint32_t i = 0; i < rank->job->channel_count; i++) {
            struct hd_channel_stats stats = {.size = sizeof stats};
            const struct hd_message message = {.sequence = i, .channel = i};
            const struct hd_channel *channel = &rank->job->channels[i];
            rank->ops->stats(rank->transport, i, &stats);
            if (channel->source == rank->rank || channel->target == rank->rank) {
                (void)rank->ops->slot(rank->transport, &message);
            }
        }
        sched_yield();
    }
    return NULL;
}

static int mix(struct hd_testbed_rank *rank)
{
    const struct traffic *traffic = rank->job->argument;
    struct onlooker onlooker = {.rank = rank};
    pthread_t thread;
    int code = 0;

    HD_REQUIRE(rank, pthread_create(&thread, NULL, look_on, &onlooker) == 0);
    for (uint64_t step = 0; code == 0 && step < traffic->step_count; step++) {
        code = hd_traffic_mix(rank, step * traffic->message_count, traffic->message_count);
    }
    atomic_store(&onlooker.is_over, 1);
    pthread_join(thread, NULL);
    return code;
}

static void test_ring(void)
{
    const struct traffic traffic = {3, 30};
    struct hd_channel channels[LANE_COUNT];

    for (uint32_t i = 0; i < LANE_COUNT; i++) {
        const uint32_t from = i % RANK_COUNT, to = (i + 1) % RANK_COUNT;
        const uint32_t is_backward = i >= RANK_COUNT;
        channels[i] = (struct hd_channel){.boundary = from,
                                          .direction = is_backward ? HD_BACKWARD : HD_FORWARD,
                                          .source = is_backward ? to : from,
                                          .target = is_backward ? from : to,
                                          .depth = i % 4 + 1,
                                          .send_depth = 1,
                                          .bytes = 700};
    }
    run_all((struct hd_testbed_job){.rank_count = RANK_COUNT,
                                    .channel_count = LANE_COUNT,
                                    .channels = channels,
                                    .body = mix,
                                    .argument = &traffic});
}

/* Previous and next peer are the same rank: P = 2, V = 2. */
static const struct hd_channel same_pair[] = {
    {0, HD_FORWARD, 0, 1, 3, 1, 520},  {1, HD_FORWARD, 1, 0, 2, 1, 520},
    {2, HD_FORWARD, 0, 1, 1, 1, 520},  {0, HD_BACKWARD, 1, 0, 1, 1, 520},
    {1, HD_BACKWARD, 0, 1, 2, 1, 520}, {2, HD_BACKWARD, 1, 0, 1, 1, 520}};

static void test_same_pair(void)
{
    const struct traffic traffic = {2, 60};

    run_all((struct hd_testbed_job){.rank_count = 2,
                                    .channel_count = HD_CHECK_COUNT(same_pair),
                                    .channels = same_pair,
                                    .body = mix,
                                    .argument = &traffic});
}

/* One message at a time, so that every wait sleeps and is woken. */
static int pass_back_and_forth(struct hd_testbed_rank *rank)
{
    for (uint64_t sequence = 0; sequence < 200; sequence++) {
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
    return 0;
}

static void test_every_wait(void)
{
    run_all((struct hd_testbed_job){
        .rank_count = 2, .channel_count = 2, .channels = same_pair, .body = pass_back_and_forth});
}

/* --- abort, rest, close ------------------------------------------------------------------ */

struct aborter {
    struct hd_testbed_rank *rank;
    atomic_int is_over;
};

/* As the core does: again and again until the rank rests. */
static void *abort_often(void *argument)
{
    struct aborter *aborter = argument;

    while (atomic_load(&aborter->is_over) == 0) {
        aborter->rank->ops->abort(aborter->rank->transport, "the test asks for it");
        sched_yield();
    }
    return NULL;
}

/* In the middle of traffic; what was under way is thrown away, and the end is HD_ABORTED. */
static int be_aborted(struct hd_testbed_rank *rank)
{
    const struct hd_message last = {.sequence = 1000, .channel = 1 - rank->rank};
    struct aborter aborter = {.rank = rank};
    struct hd_message next = {.channel = 1 - rank->rank};
    hd_status status = HD_OK;
    pthread_t thread;

    HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 10) == 0);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    HD_REQUIRE(rank, pthread_create(&thread, NULL, abort_often, &aborter) == 0);
    for (next.sequence = 10; status == HD_OK && next.sequence < last.sequence; next.sequence++) {
        status = rank->ops->post_recv(rank->transport, &next);
        if (status == HD_OK) {
            status = hd_traffic_wait(rank, next, hd_testbed_deadline_ns(LIMIT_MS));
        }
    }
    HD_REQUIRE(rank, status == HD_ABORTED);
    HD_REQUIRE(rank, rank->ops->test(rank->transport, &next) == HD_ABORTED);
    const hd_status rest = rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(LIMIT_MS));
    HD_REQUIRE(rank, rest == HD_OK);
    atomic_store(&aborter.is_over, 1);
    pthread_join(thread, NULL);
    return 0;
}

static void test_abort(void)
{
    for (uint32_t round = 0; round < 10; round++) {
        run_all((struct hd_testbed_job){
            .rank_count = 2, .channel_count = 2, .channels = same_pair, .body = be_aborted});
    }
}

/* A source that closes first, and one that closes last, beside a second instance at work. */
static int close_in_turn(struct hd_testbed_rank *rank)
{
    struct hd_transport *first = rank->transport;

    rank->transport = NULL;
    HD_REQUIRE(rank, hd_testbed_open(rank, LIMIT_MS) == HD_OK);
    HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 20) == 0);
    struct hd_transport *second = rank->transport;
    rank->transport = first;
    HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 20) == 0);
    HD_REQUIRE(rank, rank->ops->quiesce(first, hd_testbed_deadline_ns(LIMIT_MS)) == HD_OK);
    if (rank->rank == 0) {
        rank->ops->close(first, hd_testbed_deadline_ns(LIMIT_MS));
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    if (rank->rank == 1) {
        rank->ops->close(first, hd_testbed_deadline_ns(LIMIT_MS));
    }
    rank->transport = second;
    return hd_traffic_mix(rank, 20, 20);
}

static void test_close(void)
{
    run_all((struct hd_testbed_job){.rank_count = 2,
                                    .channel_count = HD_CHECK_COUNT(same_pair),
                                    .channels = same_pair,
                                    .body = close_in_turn});
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"four ranks in a ring, depths 1 to 4, both ways, while others look on", test_ring},
        {"six channels between one pair of ranks", test_same_pair},
        {"every wait sleeps and is woken", test_every_wait},
        {"abort from another thread, again and again, in the middle of traffic", test_abort},
        {"two instances; a source closes before its target, and after it", test_close},
    };
    return hd_check_main("test_transport_threads", checks, HD_CHECK_COUNT(checks));
}
