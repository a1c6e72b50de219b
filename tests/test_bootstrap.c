/* The bootstrap with threads as ranks, so that the thread sanitizer sees both ends. */
#include "base/clock.h"
#include "launch/bootstrap.h"
#include "support/check.h"

#include <stdio.h>
#include <string.h>

enum { RANK_MAX = 8, GATHER_BYTES = 4096, FAR_S = 120 };

static uint64_t far_ns(void)
{
    return hd_now_ns() + FAR_S * HD_S_NS;
}

struct seat {
    struct hd_bootstrap bootstrap;
    void *given; /* to all seats */
    hd_status status;
    uint32_t wrong_count; /* CUnit is not to be called from threads */
};

struct table {
    struct hd_region *region;
    struct seat seats[RANK_MAX];
    uint32_t rank_count;
};

static void table_init(struct table *table, uint32_t rank_count)
{
    *table = (struct table){.rank_count = rank_count};
    table->region = hd_region_create(rank_count, GATHER_BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(table->region);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        hd_bootstrap_init(&table->seats[rank].bootstrap, table->region, rank);
    }
}

static void table_finish(struct table *table)
{
    hd_region_destroy(table->region);
}

static void table_run(struct table *table, void *(*main_of_rank)(void *), void *given)
{
    pthread_t threads[RANK_MAX];

    for (uint32_t rank = 0; rank < table->rank_count; rank++) {
        table->seats[rank].given = given;
        CU_ASSERT_EQUAL_FATAL(
            pthread_create(&threads[rank], NULL, main_of_rank, &table->seats[rank]), 0);
    }
    for (uint32_t rank = 0; rank < table->rank_count; rank++) {
        pthread_join(threads[rank], NULL);
    }
}

/* --- put, get, fence ------------------------------------------------------------------------ */

static void *exchange_cards(void *argument)
{
    struct seat *const seat = argument;
    struct hd_bootstrap *const bootstrap = &seat->bootstrap;
    const uint32_t rank = hd_bootstrap_rank(bootstrap);
    unsigned char card[64 + RANK_MAX], read[sizeof card];
    char key[32];

    snprintf(key, sizeof key, "card/%u", rank);
    memset(card, (int)rank + 1, sizeof card);
    seat->wrong_count += hd_bootstrap_put(bootstrap, key, card, 64 + rank) != HD_OK;
    seat->wrong_count += hd_bootstrap_fence(bootstrap, far_ns()) != HD_OK;
    for (uint32_t peer = 0; peer < hd_bootstrap_rank_count(bootstrap); peer++) {
        snprintf(key, sizeof key, "card/%u", peer);
        memset(card, (int)peer + 1, sizeof card);
        /* Deadline 0: after the fence nothing is left to wait for. */
        seat->wrong_count += hd_bootstrap_get(bootstrap, key, read, 64 + peer, 0) != HD_OK;
        seat->wrong_count += memcmp(read, card, 64 + peer) != 0;
    }
    return NULL;
}

static void what_was_put_before_a_fence_is_visible_after_it(void)
{
    for (uint32_t rank_count = 1; rank_count <= RANK_MAX; rank_count++) {
        struct table table;
        table_init(&table, rank_count);
        table_run(&table, exchange_cards, NULL);
        for (uint32_t rank = 0; rank < rank_count; rank++) {
            CU_ASSERT_EQUAL(table.seats[rank].wrong_count, 0);
        }
        table_finish(&table);
    }
}

static void *pass_a_key_round(void *argument)
{
    struct seat *const seat = argument;
    const uint32_t rank = hd_bootstrap_rank(&seat->bootstrap);
    uint64_t value = 0;
    char key[32];

    if (rank > 0) {
        snprintf(key, sizeof key, "from/%u", rank - 1);
        seat->status = hd_bootstrap_get(&seat->bootstrap, key, &value, sizeof value, far_ns());
    }
    value++;
    snprintf(key, sizeof key, "from/%u", rank);
    hd_bootstrap_put(&seat->bootstrap, key, &value, sizeof value);
    seat->wrong_count = value != rank + 1;
    return NULL;
}

static void get_waits_until_the_key_is_put(void)
{
    struct table table;

    table_init(&table, RANK_MAX);
    table_run(&table, pass_a_key_round, NULL);
    for (uint32_t rank = 0; rank < RANK_MAX; rank++) {
        CU_ASSERT_EQUAL(table.seats[rank].status, HD_OK);
        CU_ASSERT_EQUAL(table.seats[rank].wrong_count, 0);
    }
    table_finish(&table);
}

static void a_missing_key_times_out(void)
{
    struct table table;
    uint32_t value = 7;

    table_init(&table, 2);
    struct hd_bootstrap *const bootstrap = &table.seats[1].bootstrap;
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "none", &value, 4, 0), HD_TIMEOUT);
    const uint64_t deadline_ns = hd_now_ns() + 20 * HD_MS_NS;
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "none", &value, 4, deadline_ns), HD_TIMEOUT);
    CU_ASSERT_TRUE(hd_now_ns() >= deadline_ns); /* never before its time */
    CU_ASSERT_EQUAL(value, 7);
    table_finish(&table);
}

static void a_value_of_another_size_is_a_protocol_error(void)
{
    struct table table;
    uint64_t value = 7;

    table_init(&table, 2);
    CU_ASSERT_EQUAL(hd_bootstrap_put(&table.seats[0].bootstrap, "key", &value, 4), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_get(&table.seats[1].bootstrap, "key", &value, 3, 0), HD_PROTOCOL);
    CU_ASSERT_EQUAL(hd_bootstrap_get(&table.seats[1].bootstrap, "key", &value, 8, 0), HD_PROTOCOL);
    CU_ASSERT_EQUAL(hd_bootstrap_get(&table.seats[1].bootstrap, "key", &value, 4, 0), HD_OK);
    table_finish(&table);
}

static void keys_have_a_length_and_are_put_once(void)
{
    struct table table;
    char key[HD_BOOTSTRAP_KEY_BYTES + 1];
    char value = 'v';

    memset(key, 'k', sizeof key);
    key[HD_BOOTSTRAP_KEY_BYTES] = '\0';
    table_init(&table, 1);
    struct hd_bootstrap *const bootstrap = &table.seats[0].bootstrap;
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, key, &value, 1), HD_INVALID);
    key[HD_BOOTSTRAP_KEY_BYTES - 1] = '\0'; /* 127 */
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, key, &value, 1), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, key, &value, 1), HD_INVALID);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "", &value, 1), HD_INVALID);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "empty", NULL, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "empty", NULL, 0, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, key, &value, 1, 0), HD_OK);
    table_finish(&table);
}

static void a_full_log_refuses_and_keeps_what_it_has(void)
{
    static unsigned char large[HD_BOOTSTRAP_LOG_BYTES_MAX / 2];
    struct table table;
    uint32_t small = 9;

    table_init(&table, 1);
    struct hd_bootstrap *const bootstrap = &table.seats[0].bootstrap;
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "a", large, sizeof large), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "b", large, sizeof large), HD_NO_MEMORY);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "c", large, UINT64_MAX), HD_NO_MEMORY);
    CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "d", &small, sizeof small), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "a", large, sizeof large, 0), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "b", large, sizeof large, 0), HD_TIMEOUT);
    CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "d", &small, sizeof small, 0), HD_OK);
    CU_ASSERT_EQUAL(small, 9);
    table_finish(&table);
}

/* The log of one rank, with the cards of a transport that puts one for each of its channels. */
static void a_log_holds_thousands_of_cards(void)
{
    enum { CARD_COUNT = 10000 };
    uint32_t wrong_count = 0;
    struct table table;
    char key[32];

    table_init(&table, 2);
    for (uint64_t i = 0; i < CARD_COUNT; i++) {
        snprintf(key, sizeof key, "channel.%u", (uint32_t)i);
        wrong_count += hd_bootstrap_put(&table.seats[1].bootstrap, key, &i, sizeof i) != HD_OK;
    }
    for (uint64_t i = 0; i < CARD_COUNT; i++) {
        uint64_t value = 0;
        snprintf(key, sizeof key, "channel.%u", (uint32_t)i);
        wrong_count +=
            hd_bootstrap_get(&table.seats[0].bootstrap, key, &value, sizeof value, 0) != HD_OK;
        wrong_count += value != i;
    }
    CU_ASSERT_EQUAL(wrong_count, 0);
    table_finish(&table);
}

/* Ranks that put one key do not disturb each other, and all ranks read the same. */
static void one_key_of_several_ranks_is_the_first_ones(void)
{
    struct table table;

    table_init(&table, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        const uint32_t writer = 2 - rank;
        CU_ASSERT_EQUAL(hd_bootstrap_put(&table.seats[writer].bootstrap, "key", &writer, 4), HD_OK);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        uint32_t value = 7;
        CU_ASSERT_EQUAL(hd_bootstrap_get(&table.seats[rank].bootstrap, "key", &value, 4, 0), HD_OK);
        CU_ASSERT_EQUAL(value, 0);
    }
    table_finish(&table);
}

/* What a link brings (launch/relay.c) is the bytes of another region's log. */
static void only_whole_entries_are_added(void)
{
    struct table from, to;
    uint32_t value = 5;

    table_init(&from, 2);
    table_init(&to, 2);
    CU_ASSERT_EQUAL(hd_bootstrap_put(&from.seats[1].bootstrap, "first", &value, 4), HD_OK);
    CU_ASSERT_EQUAL(hd_bootstrap_put(&from.seats[1].bootstrap, "second", &value, 4), HD_OK);
    struct hd_region_log *const log = hd_region_log(from.region, 1);
    const uint32_t used_bytes = atomic_load(&log->used_bytes);
    CU_ASSERT_EQUAL(hd_region_add(to.region, 1, log->entries, used_bytes - 8), HD_PROTOCOL);
    CU_ASSERT_EQUAL(hd_region_add(to.region, 1, log->entries, 8), HD_PROTOCOL);
    CU_ASSERT_EQUAL(hd_region_add(to.region, 0, log->entries, used_bytes), HD_OK);
    value = 0;
    CU_ASSERT_EQUAL(hd_bootstrap_get(&to.seats[1].bootstrap, "second", &value, 4, 0), HD_OK);
    CU_ASSERT_EQUAL(value, 5);
    table_finish(&to);
    table_finish(&from);
}

/* --- gather --------------------------------------------------------------------------------- */

static void *gather_often(void *argument)
{
    struct seat *const seat = argument;
    const uint32_t rank_count = hd_bootstrap_rank_count(&seat->bootstrap);
    const uint32_t round_count = *(const uint32_t *)seat->given;
    enum { WORDS = GATHER_BYTES / sizeof(uint32_t) };
    static _Thread_local uint32_t mine[WORDS], all[RANK_MAX * WORDS];

    for (uint32_t round = 0; round < round_count; round++) {
        for (uint32_t i = 0; i < WORDS; i++) {
            mine[i] = (round << 8) + hd_bootstrap_rank(&seat->bootstrap);
        }
        if (hd_bootstrap_gather(&seat->bootstrap, mine, sizeof mine, all, far_ns()) != HD_OK) {
            seat->wrong_count++;
            break;
        }
        for (uint32_t i = 0; i < rank_count * WORDS; i++) {
            seat->wrong_count += all[i] != (round << 8) + i / WORDS;
        }
    }
    return NULL;
}

static void gathers_return_every_block_of_this_round(void)
{
    for (uint32_t rank_count = 1; rank_count <= RANK_MAX; rank_count++) {
        uint32_t round_count = 500;
        struct table table;
        table_init(&table, rank_count);
        table_run(&table, gather_often, &round_count);
        for (uint32_t rank = 0; rank < rank_count; rank++) {
            CU_ASSERT_EQUAL(table.seats[rank].wrong_count, 0);
        }
        table_finish(&table);
    }
}

static void gathers_go_on_when_their_counts_wrap(void)
{
    uint32_t round_count = 6;
    struct table table;

    table_init(&table, 3);
    const uint32_t passed_count = UINT32_MAX - 2; /* so that all three counts wrap */
    atomic_store(&table.region->gather.arrived.value, passed_count * 3);
    atomic_store(&table.region->gather.opened.value, passed_count * 2);
    for (uint32_t rank = 0; rank < 3; rank++) {
        table.seats[rank].bootstrap.gather.passed_count = passed_count;
    }
    table_run(&table, gather_often, &round_count);
    for (uint32_t rank = 0; rank < 3; rank++) {
        CU_ASSERT_EQUAL(table.seats[rank].wrong_count, 0);
    }
    table_finish(&table);
}

static void gather_sizes_are_checked(void)
{
    unsigned char mine[GATHER_BYTES + 1] = {0}, all[2 * sizeof mine];
    struct table table;

    table_init(&table, 2);
    struct hd_bootstrap *const zero = &table.seats[0].bootstrap;
    struct hd_bootstrap *const one = &table.seats[1].bootstrap;
    CU_ASSERT_EQUAL(hd_bootstrap_gather(zero, mine, 0, all, 0), HD_INVALID);
    CU_ASSERT_EQUAL(hd_bootstrap_gather(zero, mine, sizeof mine, all, 0), HD_INVALID);
    CU_ASSERT_EQUAL(hd_bootstrap_gather(zero, mine, 8, all, 0), HD_TIMEOUT);
    CU_ASSERT_EQUAL(hd_bootstrap_gather(one, mine, 16, all, 0), HD_PROTOCOL);
    CU_ASSERT_EQUAL(hd_bootstrap_gather(zero, mine, 8, all, 0), HD_PROTOCOL);
    table_finish(&table);
}

static void what_timed_out_goes_on_where_it_was(void)
{
    const uint32_t first = 11, second = 12;
    uint32_t all[2] = {0};
    struct table table;

    table_init(&table, 2);
    struct hd_bootstrap *const zero = &table.seats[0].bootstrap;
    struct hd_bootstrap *const one = &table.seats[1].bootstrap;
    for (uint32_t round = 0; round < 5; round++) {
        CU_ASSERT_EQUAL(hd_bootstrap_fence(zero, 0), HD_TIMEOUT);
        CU_ASSERT_EQUAL(hd_bootstrap_fence(zero, 0), HD_TIMEOUT);
        CU_ASSERT_EQUAL(hd_bootstrap_fence(one, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_bootstrap_fence(zero, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_bootstrap_gather(one, &second, 4, all, 0), HD_TIMEOUT);
        CU_ASSERT_EQUAL(hd_bootstrap_gather(one, &first, 4, all, 0), HD_TIMEOUT);
        CU_ASSERT_EQUAL(hd_bootstrap_gather(zero, &first, 4, all, 0), HD_OK);
        CU_ASSERT_EQUAL(hd_bootstrap_gather(one, &second, 4, all, 0), HD_OK);
        CU_ASSERT_EQUAL(all[0], first);
        CU_ASSERT_EQUAL(all[1], second);
    }
    table_finish(&table);
}

/* --- abort ---------------------------------------------------------------------------------- */

static void *wait_for_what_never_comes(void *argument)
{
    struct seat *const seat = argument;
    uint32_t value = 0, all[4];

    switch (hd_bootstrap_rank(&seat->bootstrap)) {
    case 0:
        seat->status = hd_bootstrap_get(&seat->bootstrap, "none", &value, 4, UINT64_MAX);
        break;
    case 1:
        seat->status = hd_bootstrap_fence(&seat->bootstrap, UINT64_MAX);
        break;
    case 2:
        seat->status = hd_bootstrap_gather(&seat->bootstrap, &value, 4, all, UINT64_MAX);
        break;
    default:
        hd_bootstrap_abort(&seat->bootstrap);
        seat->status = HD_ABORTED;
    }
    return NULL;
}

static void abort_ends_every_wait_now_and_later(void)
{
    for (unsigned i = 0; i < 200; i++) {
        struct table table;
        uint32_t value = 0, all[4];
        table_init(&table, 4);
        CU_ASSERT_FALSE(hd_region_is_aborted(table.region));
        table_run(&table, wait_for_what_never_comes, NULL);
        for (uint32_t rank = 0; rank < 4; rank++) {
            CU_ASSERT_EQUAL(table.seats[rank].status, HD_ABORTED);
        }
        struct hd_bootstrap *const bootstrap = &table.seats[3].bootstrap;
        CU_ASSERT_TRUE(hd_region_is_aborted(table.region));
        CU_ASSERT_EQUAL(hd_bootstrap_put(bootstrap, "here", &value, 4), HD_OK);
        CU_ASSERT_EQUAL(hd_bootstrap_get(bootstrap, "here", &value, 4, far_ns()), HD_ABORTED);
        CU_ASSERT_EQUAL(hd_bootstrap_fence(bootstrap, far_ns()), HD_ABORTED);
        CU_ASSERT_EQUAL(hd_bootstrap_gather(bootstrap, &value, 4, all, far_ns()), HD_ABORTED);
        table_finish(&table);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"what was put before a fence is visible after it, 1 to 8 ranks",
         what_was_put_before_a_fence_is_visible_after_it},
        {"get waits until the key is put", get_waits_until_the_key_is_put},
        {"a missing key times out", a_missing_key_times_out},
        {"a value of another size is a protocol error",
         a_value_of_another_size_is_a_protocol_error},
        {"keys have a length and are put once", keys_have_a_length_and_are_put_once},
        {"a full log refuses and keeps what it has", a_full_log_refuses_and_keeps_what_it_has},
        {"a log holds thousands of cards", a_log_holds_thousands_of_cards},
        {"one key of several ranks is the first one's", one_key_of_several_ranks_is_the_first_ones},
        {"only whole entries are added", only_whole_entries_are_added},
        {"gathers return every block of this round, 1 to 8 ranks",
         gathers_return_every_block_of_this_round},
        {"gathers go on when their counts wrap", gathers_go_on_when_their_counts_wrap},
        {"gather sizes are checked", gather_sizes_are_checked},
        {"what timed out goes on where it was", what_timed_out_goes_on_where_it_was},
        {"abort ends every wait, now and later", abort_ends_every_wait_now_and_later},
    };
    return hd_check_main("bootstrap", checks, HD_CHECK_COUNT(checks));
}
