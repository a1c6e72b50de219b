/*
 * The distance of two clocks, from messages there and back: over ways of all kinds, the error that
 * is said is never exceeded.
 */
#include "launch/clock.h"
#include "support/check.h"

#include <string.h>

enum { ROUNDS = 40 };

/* What the other clock shows when this one shows `at_ns`. */
struct other {
    const char *name;
    int64_t ahead_ns;           /* at this clock's 0 */
    double drift;               /* nanoseconds a nanosecond */
    uint64_t there_ns, back_ns; /* the ways, at least; more now and then */
};

static const struct other others[] = {
    {"one clock", 0, 0, 1000, 1000},
    {"far behind, ways alike", -5000000000000, 0, 20000, 20000},
    {"ahead, all of the way is the way back", 1234567890, 0, 0, 900000},
    {"ahead, all of the way is the way there", 1234567890, 0, 900000, 0},
    {"drifts by 50 in a million", 777, 50e-6, 30000, 60000},
};

static uint64_t shown(const struct other *other, uint64_t at_ns)
{
    return (uint64_t)((int64_t)at_ns + other->ahead_ns + (int64_t)(other->drift * (double)at_ns));
}

/* Every third way is ten times as long, one way or the other. */
static struct hd_clock_sample ask(const struct other *other, uint64_t at_ns, uint32_t round)
{
    const uint64_t there_ns = other->there_ns * (round % 3 == 1 ? 10 : 1);
    const uint64_t back_ns = other->back_ns * (round % 3 == 2 ? 10 : 1);

    return (struct hd_clock_sample){at_ns, shown(other, at_ns + there_ns),
                                    at_ns + there_ns + back_ns};
}

static int64_t distance(int64_t one, int64_t other)
{
    return one > other ? one - other : other - one;
}

static void test_error(void)
{
    const uint64_t begin_ns = 1000000000000, every_ns = 250000000;

    for (unsigned i = 0; i < HD_CHECK_COUNT(others); i++) {
        const struct other *other = &others[i];
        struct hd_clock clock = {0};
        for (uint32_t round = 0; round < 5; round++) {
            hd_clock_take_first(&clock, ask(other, begin_ns + round * 2000000u, round));
        }
        for (uint32_t round = 0; round < ROUNDS; round++) {
            hd_clock_take(&clock, ask(other, begin_ns + (round + 1) * every_ns, round));
        }
        const struct hd_clock_reading last = hd_clock_last(&clock);
        const uint64_t ways_ns = other->there_ns + other->back_ns;
        CU_ASSERT(clock.first.error_ns <= (ways_ns + 1) / 2 && last.error_ns <= (ways_ns + 1) / 2);
        for (uint64_t at_ns = clock.first.at_ns; at_ns <= last.at_ns; at_ns += every_ns / 3) {
            const int64_t truth = (int64_t)(at_ns - shown(other, at_ns));
            const int64_t found = -hd_clock_offset_ns(&clock, at_ns);
            CU_ASSERT(distance(truth, found) <= (int64_t)(clock.first.error_ns > last.error_ns
                                                              ? clock.first.error_ns
                                                              : last.error_ns) +
                                                    2);
        }
    }
}

static void test_line(void)
{
    struct hd_clock clock = {.first = {1000, 50, 3}};

    CU_ASSERT_EQUAL(hd_clock_offset_ns(&clock, 5000), 50); /* nothing but the start */
    clock.window[0] = (struct hd_clock_reading){3000, 90, 9};
    clock.window[1] = (struct hd_clock_reading){2000, 70, 1}; /* the best of the window */
    clock.count = 2;
    CU_ASSERT_EQUAL(hd_clock_last(&clock).at_ns, 2000);
    CU_ASSERT_EQUAL(hd_clock_offset_ns(&clock, 500), 50);
    CU_ASSERT_EQUAL(hd_clock_offset_ns(&clock, 1500), 60);
    CU_ASSERT_EQUAL(hd_clock_offset_ns(&clock, 2500), 70);
}

static void test_one_clock(void)
{
    const struct hd_clock clock = {0};

    CU_ASSERT_EQUAL(hd_clock_offset_ns(&clock, 123456789), 0);
    CU_ASSERT_EQUAL(hd_clock_last(&clock).at_ns, 0);
}

static const struct hd_check checks[] = {
    {"the error that is said is never exceeded, also under drift", test_error},
    {"between first and last a line, outside as there", test_line},
    {"one clock needs no reading", test_one_clock},
};

int main(void)
{
    return hd_check_main("clock", checks, HD_CHECK_COUNT(checks));
}
