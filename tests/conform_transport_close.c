/*
 * tests/conform_transport_close.c - instances of a transport, and what they leave behind: in this
 * process, in a survivor's, and after any number of them.
 */
#include "support/check.h"
#include "support/transport_traffic.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const struct hd_channel both_ways[] = {{0, HD_FORWARD, 0, 1, 3, 1, 40},
                                              {0, HD_BACKWARD, 1, 0, 3, 1, 40}};

static int two_instances(struct hd_testbed_rank *rank)
{
    struct hd_transport *first = rank->transport;
    struct hd_transport *second = NULL;

    rank->transport = NULL;
    HD_REQUIRE(rank, hd_testbed_open(rank, 20000) == HD_OK);
    second = rank->transport;
    HD_REQUIRE(rank, second != first);
    for (uint64_t step = 0; step < 3; step++) {
        rank->transport = first;
        HD_REQUIRE(rank, hd_traffic_mix(rank, step * 20, 20) == 0);
        rank->transport = second;
        HD_REQUIRE(rank, hd_traffic_mix(rank, step * 30, 30) == 0);
    }
    HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
    rank->transport = first;
    HD_REQUIRE(rank, hd_traffic_mix(rank, 60, 20) == 0);
    return 0;
}

static void test_two_instances(void)
{
    hd_testbed_run_where(
        0, &(struct hd_testbed_job){
               .rank_count = 2, .channel_count = 2, .channels = both_ways, .body = two_instances});
}

/* Lines of /proc/self/maps and descriptors that belong to a channel's memory. */
static uint32_t mapping_count(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t count = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, "heddle-channel") != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return count;
}

static int leave_nothing(struct hd_testbed_rank *rank)
{
    HD_REQUIRE(rank, mapping_count() == 2);
    HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 10) == 0);
    HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
    HD_REQUIRE(rank, mapping_count() == 0);
    rank->ops->close(NULL, 0);
    HD_REQUIRE(rank, hd_testbed_open(rank, 20000) == HD_OK); /* and it can be had again */
    return hd_traffic_mix(rank, 0, 10);
}

static void test_close_leaves_nothing(void)
{
    hd_testbed_run_where(HD_TRANSPORT_IN_PLACE, &(struct hd_testbed_job){.rank_count = 2,
                                                                         .channel_count = 2,
                                                                         .channels = both_ways,
                                                                         .body = leave_nothing});
}

/* Descriptors, and mappings of memory that processes share. */
struct held {
    uint32_t descriptor_count, mapping_count;
};

static struct held count_held(void)
{
    struct held held = {0};
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    DIR *directory = opendir("/proc/self/fd");

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        held.mapping_count += strstr(line, "/memfd:") != NULL || strstr(line, "/SYSV") != NULL ||
                              strstr(line, "/dev/shm/") != NULL;
    }
    while (directory != NULL && readdir(directory) != NULL) {
        held.descriptor_count++;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return held;
}

static int is_as_before(struct held before)
{
    const struct held now = count_held();

    if (now.descriptor_count != before.descriptor_count ||
        now.mapping_count != before.mapping_count) {
        fprintf(stderr, "%u descriptors and %u mappings, before %u and %u\n", now.descriptor_count,
                now.mapping_count, before.descriptor_count, before.mapping_count);
        return 0;
    }
    return 1;
}

/* What a library keeps for itself it has after the first time. */
static int open_thrice(struct hd_testbed_rank *rank)
{
    HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
    const struct held before = count_held();
    for (uint32_t turn = 0; turn < 3; turn++) {
        HD_REQUIRE(rank, hd_testbed_open(rank, 20000) == HD_OK);
        HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 10) == 0);
        HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
    }
    HD_REQUIRE(rank, is_as_before(before));
    return 0;
}

static void test_open_and_close_again(void)
{
    hd_testbed_run_where(
        0, &(struct hd_testbed_job){
               .rank_count = 2, .channel_count = 2, .channels = both_ways, .body = open_thrice});
}

/* Rank 1 dies with messages under way; rank 0 closes alone. */
static int survive(struct hd_testbed_rank *rank)
{
    HD_REQUIRE(rank, hd_testbed_close(rank) == HD_OK);
    const struct held before = count_held();
    HD_REQUIRE(rank, hd_testbed_open(rank, 20000) == HD_OK);
    HD_REQUIRE(rank, hd_traffic_mix(rank, 0, 10) == 0);
    if (rank->rank == 1) {
        kill(getpid(), SIGKILL);
    }
    const struct hd_message lost = {.sequence = 10, .channel = both_ways[0].target == 0 ? 0 : 1};
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &lost) >= 0);
    HD_REQUIRE(rank, rank->ops->wait(rank->transport, &lost, NULL, hd_testbed_deadline_ns(30000)) ==
                         HD_PEER_LOST);
    HD_REQUIRE(rank, rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(10000)) == HD_OK);
    rank->ops->close(rank->transport, hd_testbed_deadline_ns(1000));
    rank->transport = NULL;
    HD_REQUIRE(rank, is_as_before(before));
    return 0;
}

static void test_survivor_keeps_nothing(void)
{
    static const int codes[] = {0, HD_TESTBED_KILLED};

    hd_testbed_run_where(HD_TRANSPORT_PEER_DEATH, &(struct hd_testbed_job){.rank_count = 2,
                                                                           .channel_count = 2,
                                                                           .channels = both_ways,
                                                                           .body = survive,
                                                                           .exit_codes = codes});
}

enum { MANY_CHANNELS = HD_TESTBED_CHANNEL_MAX, SPARE_DESCRIPTORS = 24 };

/* The lowest free descriptor; those that the harness holds lie below. */
static rlim_t descriptor_begin(void)
{
    const int descriptor = dup(0);

    close(descriptor);
    return (rlim_t)descriptor;
}

static int open_with_few_descriptors(struct hd_testbed_rank *rank)
{
    struct rlimit limit;

    HD_REQUIRE(rank, getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = descriptor_begin() + SPARE_DESCRIPTORS;
    HD_REQUIRE(rank, setrlimit(RLIMIT_NOFILE, &limit) == 0);
    HD_REQUIRE(rank, hd_testbed_open(rank, 20000) == HD_OK);
    return hd_traffic_mix(rank, 0, 10);
}

static void test_many_channels_few_descriptors(void)
{
    static struct hd_channel channels[MANY_CHANNELS];

    for (uint32_t i = 0; i < MANY_CHANNELS; i++) {
        channels[i] = (struct hd_channel){i / 2, i % 2, i % 2, 1 - i % 2, 1 + i % 3, 1, 40};
    }
    hd_testbed_run_where(HD_TRANSPORT_IN_PLACE,
                         &(struct hd_testbed_job){.rank_count = 2,
                                                  .channel_count = MANY_CHANNELS,
                                                  .channels = channels,
                                                  .unopened = 1,
                                                  .body = open_with_few_descriptors});
}

/* --- a target that has given up ------------------------------------------------------------ */

enum { GIVEN_UP, IS_OVER, GIVE_UP_MS = 3000 };

static struct hd_testbed_rank *late_rank; /* of this process */
static hd_status (*get_at_once)(void *context, const char *key, void *value, uint64_t bytes,
                                uint64_t deadline_ns);

static void await_word(const struct hd_testbed_rank *rank, uint32_t word)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(30000);
    const struct timespec nap = {.tv_nsec = 1000000};

    while (atomic_load(&rank->words[word]) == 0 && hd_testbed_deadline_ns(0) < deadline_ns) {
        nanosleep(&nap, NULL);
    }
}

/* The cards are read only once the target is no more there. */
static hd_status get_late(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    await_word(late_rank, GIVEN_UP);
    return get_at_once(context, key, value, bytes, deadline_ns);
}

static int come_late(struct hd_testbed_rank *rank)
{
    if (rank->rank == 1) {
        const hd_status status = hd_testbed_open(rank, GIVE_UP_MS);
        atomic_store(&rank->words[GIVEN_UP], 1);
        await_word(rank, IS_OVER);
        HD_REQUIRE(rank, status == HD_TIMEOUT);
        return 0;
    }
    late_rank = rank;
    get_at_once = rank->host.get;
    rank->host.get = get_late;
    const hd_status status = hd_testbed_open(rank, 20000);
    atomic_store(&rank->words[IS_OVER], 1);
    HD_REQUIRE(rank, status == HD_PEER_LOST && rank->report.rank == 1);
    HD_REQUIRE(rank, rank->report.count == 1 && strstr(rank->report.text, "given up") != NULL);
    return 0;
}

static void test_a_target_that_gave_up_is_lost(void)
{
    static const struct hd_channel channel = {0, HD_FORWARD, 0, 1, 2, 1, 64};

    hd_testbed_run_where(HD_TRANSPORT_IN_PLACE | HD_TESTBED_PLAIN,
                         &(struct hd_testbed_job){.rank_count = 2,
                                                  .channel_count = 1,
                                                  .channels = &channel,
                                                  .body = come_late,
                                                  .unopened = 1});
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"two instances in one process", test_two_instances},
        {"close gives everything back, and open works again", test_close_leaves_nothing},
        {"opened and closed again and again, no descriptor and no mapping stays",
         test_open_and_close_again},
        {"whose peer has died keeps none either", test_survivor_keeps_nothing},
        {"many channels take few descriptors", test_many_channels_few_descriptors},
        {"a source that comes late to a target that gave up has lost it",
         test_a_target_that_gave_up_is_lost},
    };
    return hd_check_main("conform_transport_close", checks, HD_CHECK_COUNT(checks));
}
