/* The recorder: a ring of rows, and what transports report of transfers. */
#include "base/clock.h"
#include "engine/recorder.h"
#include "support/check.h"

static void test_recorder_ring(void)
{
    struct hd_recorder recorder;
    struct hd_problem problem = {0};

    CU_ASSERT_EQUAL_FATAL(hd_recorder_create(&recorder, 4, 2, &problem), HD_OK);
    for (uint32_t step = 1; step <= 3; step++) {
        hd_recorder_begin(&recorder, step);
        for (uint32_t action = 0; action < 4; action++) {
            struct hd_record *row = hd_recorder_row(&recorder, action);
            *row = (struct hd_record){.begin_ns = step,
                                      .ready_ns = step + 1,
                                      .claim_ns = step + 3,
                                      .run_ns = step + 6,
                                      .end_ns = step + 10,
                                      .sent_ns = step + 10};
            hd_recorder_add(&recorder, row);
        }
        hd_recorder_end(&recorder, hd_now_ns());
        CU_ASSERT_EQUAL(recorder.times.wait_ns, 4);
        CU_ASSERT_EQUAL(recorder.times.credit_ns, 8);
        CU_ASSERT_EQUAL(recorder.times.compute_ns, 16);
    }
    CU_ASSERT_PTR_NULL(hd_recorder_step(&recorder, 0));
    CU_ASSERT_PTR_NULL(hd_recorder_step(&recorder, 1));
    CU_ASSERT_PTR_NULL(hd_recorder_step(&recorder, 4));
    CU_ASSERT_EQUAL(hd_recorder_step(&recorder, 2)[3].begin_ns, 2);
    CU_ASSERT_EQUAL(hd_recorder_step(&recorder, 3)[0].begin_ns, 3);
    hd_recorder_finish(&recorder);
    CU_ASSERT_EQUAL_FATAL(hd_recorder_create(&recorder, 4, 0, &problem), HD_OK);
    hd_recorder_begin(&recorder, 1);
    CU_ASSERT_PTR_NOT_NULL(hd_recorder_row(&recorder, 3)); /* sums need a row */
    CU_ASSERT_PTR_NULL(hd_recorder_step(&recorder, 1));
    hd_recorder_finish(&recorder);
}

/* The row of step 3, action 1. */
static struct hd_passage noted(const struct hd_recorder *recorder, uint32_t step)
{
    return hd_recorder_step(recorder, step)[1].out;
}

static void test_recorder_reports(void)
{
    struct hd_recorder recorder;
    struct hd_problem problem = {0};
    const struct hd_recorder_report reports[] = {
        {.step = 2, .action = 1, .begin_ns = 7, .end_ns = 9}, /* of the ring */
        {.step = 3, .action = 1, .begin_ns = 20},             /* of this step, by a hook */
        {.step = 3,
         .action = 1,
         .begin_ns = 25,
         .end_ns = 26,
         .resident_ns = 3},                                   /* and its inner */
        {.step = 4, .action = 1, .end_ns = 40},               /* a peer that is ahead */
        {.step = 1, .action = 1, .begin_ns = 1, .end_ns = 2}, /* too old */
        {.step = 5, .action = 1, .begin_ns = 1, .end_ns = 2}, /* too far ahead */
        {.step = 3, .action = 4, .begin_ns = 1, .end_ns = 2}, /* no such action */
    };
    struct hd_record copies[4];

    CU_ASSERT_EQUAL_FATAL(hd_recorder_create(&recorder, 4, 2, &problem), HD_OK);
    hd_recorder_begin(&recorder, 3);
    for (unsigned i = 0; i < HD_CHECK_COUNT(reports); i++) {
        hd_recorder_note(&recorder, &reports[i]);
    }
    CU_ASSERT_EQUAL(hd_recorder_lost_count(&recorder), 3);
    CU_ASSERT_EQUAL(hd_recorder_resident_ns(&recorder), 3);
    CU_ASSERT_EQUAL(noted(&recorder, 3).begin_ns, 20);
    CU_ASSERT_EQUAL(noted(&recorder, 3).end_ns, 26);
    CU_ASSERT_EQUAL(noted(&recorder, 3).resident_ns, 3);
    CU_ASSERT_EQUAL(hd_recorder_copy(&recorder, 2, copies), 1);
    CU_ASSERT_EQUAL(copies[1].out.step, 4); /* it has taken the row of step 2, and says so */
    CU_ASSERT_EQUAL(hd_recorder_copy(&recorder, 1, copies), 0);
    hd_recorder_begin(&recorder, 4);
    CU_ASSERT_EQUAL(noted(&recorder, 4).end_ns, 40);
    CU_ASSERT_EQUAL(noted(&recorder, 4).begin_ns, 0);
    hd_recorder_finish(&recorder);
}

static void test_record_transfer(void)
{
    static const struct {
        struct hd_passage out, in;
        uint64_t begin_ns, end_ns, resident_ns;
    } rows[] = {
        {{10, 20, 0, 3, 0}, {0}, 10, 20, 0},              /* one-sided: the source knows all */
        {{10, 0, 0, 3, 0}, {12, 30, 2, 3, 0}, 12, 30, 2}, /* two-sided, the target late */
        {{10, 0, 5, 3, 0}, {7, 30, 2, 3, 0}, 10, 30, 7},  /* the source late */
        {{10, 0, 0, 3, 0}, {0}, 10, 0, 0},                /* nobody says when it was there */
        {{10, 20, 0, 2, 0}, {0}, 0, 0, 0},                /* of another step */
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_record producer = {.out = rows[i].out}, consumer = {.in = rows[i].in};
        const struct hd_passage way = hd_record_transfer(&producer, &consumer, 3);
        CU_ASSERT_EQUAL(way.begin_ns, rows[i].begin_ns);
        CU_ASSERT_EQUAL(way.end_ns, rows[i].end_ns);
        CU_ASSERT_EQUAL(way.resident_ns, rows[i].resident_ns);
    }
}

/* A time that is not known stays so on another clock. */
static void test_record_shift(void)
{
    struct hd_record record = {.begin_ns = 100, .sent_ns = 200, .out = {150, 0, 7, 3, 0}};

    hd_record_shift(&record, -60);
    CU_ASSERT_EQUAL(record.begin_ns, 40);
    CU_ASSERT_EQUAL(record.sent_ns, 140);
    CU_ASSERT_EQUAL(record.out.begin_ns, 90);
    CU_ASSERT_EQUAL(record.out.end_ns, 0);
    CU_ASSERT_EQUAL(record.out.resident_ns, 7);
    CU_ASSERT_EQUAL(record.in.end_ns, 0);
}

static const struct hd_check checks[] = {
    {"the recorder keeps the last steps, and sums", test_recorder_ring},
    {"reports of transfers find their rows, and none is dropped in silence", test_recorder_reports},
    {"both ends of a transfer make one", test_record_transfer},
    {"rows move to another clock, and what is unknown stays unknown", test_record_shift},
};

int main(void)
{
    return hd_check_main("recorder", checks, HD_CHECK_COUNT(checks));
}
