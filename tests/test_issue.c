/*
 * Law 7 at work: in which order a serial transport's transfers are issued, which orders end, and
 * what they cost.
 */
#include "plan/issue.h"
#include "report/timeline.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <stdio.h>
#include <string.h>

enum { STAGE_MAX = 64 };

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                        "1f1b_v"};

static struct hd_pipeline *plan_of(const char *schedule, uint32_t ranks, uint32_t microbatches)
{
    const uint32_t stages = strcmp(schedule, "gpipe") == 0 || strcmp(schedule, "1f1b") == 0 ? 1 : 2;
    return hd_schedule_must_plan(
        &(struct hd_schedule_case){schedule, ranks, stages, microbatches, 0, NULL});
}

/* The exact depths: auto gives one slot more. */
static void give_depths(struct hd_pipeline *pipeline)
{
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        pipeline->channels[i].slots = pipeline->channels[i].depth;
    }
}

static void shipped_schedules_pass(void)
{
    static const uint32_t orders[] = {HD_ISSUE_CANONICAL, HD_ISSUE_GROUPED};

    for (uint32_t i = 0; i < HD_CHECK_COUNT(schedules); i++) {
        for (uint32_t ranks = 1; ranks <= 8; ranks++) {
            for (uint32_t order = 0; order < 2; order++) {
                struct hd_pipeline *pipeline = plan_of(schedules[i], ranks, ranks + 3);
                struct hd_problem problem = {0};
                pipeline->issue_order = orders[order];
                CU_ASSERT_EQUAL(hd_pipeline_verify_serial(pipeline, &problem), HD_OK);
                give_depths(pipeline);
                CU_ASSERT_EQUAL(hd_pipeline_verify_serial(pipeline, &problem), HD_OK);
                hd_pipeline_destroy(pipeline);
            }
        }
    }
}

/* Where both ranks of a pair send first; GPipe is the control: it passes even so (cases, C13). */
static void naive_orders(void)
{
    static const struct {
        const char *schedule;
        uint32_t ranks, microbatches;
        const char *cycle; /* NULL: passes */
    } rows[] = {
        {"1f1b", 2, 4,
         "rank 0 at the transfer of 0F1 waits for the transfer of 1B0; rank 1 at the transfer of "
         "1B0 "
         "waits for the transfer of 0F1"},
        {"1f1b", 4, 8,
         "rank 2 at the transfer of 2F1 waits for the transfer of 3B0; rank 3 at the transfer of "
         "3B0 "
         "waits for the transfer of 2F1"},
        {"gpipe", 4, 8, NULL},
        {"gpipe", 2, 4, NULL},
    };

    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_pipeline *pipeline =
            plan_of(rows[i].schedule, rows[i].ranks, rows[i].microbatches);
        struct hd_problem problem = {0};
        pipeline->issue_order = HD_ISSUE_PROGRAM;
        const hd_status status = hd_pipeline_verify_serial(pipeline, &problem);
        CU_ASSERT_EQUAL(status == HD_OK, rows[i].cycle == NULL);
        if (rows[i].cycle != NULL) {
            CU_ASSERT_EQUAL(problem.law, 7);
            CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
            CU_ASSERT_STRING_EQUAL(problem.key, "transport.issue_order");
            CU_ASSERT_STRING_EQUAL(problem.cycle, rows[i].cycle);
        }
        hd_pipeline_destroy(pipeline);
    }
}

/* Every message is in both its ranks' lists, at the same place among the others of its channel. */
static void check_lists(const struct hd_pipeline *pipeline, const struct hd_issue *issue)
{
    uint64_t remote_count = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        const uint32_t ends[2] = {channel->source, channel->target};
        if (channel->source == channel->target) {
            continue;
        }
        remote_count += channel->message_count;
        for (uint32_t end = 0; end < 2; end++) {
            uint32_t next = 0;
            for (uint32_t at = issue->begin[ends[end]]; at < issue->begin[ends[end] + 1]; at++) {
                const uint32_t *const messages = &pipeline->messages[channel->message_begin];
                if (next < channel->message_count && issue->sender[at] == messages[next]) {
                    next++;
                }
            }
            CU_ASSERT_EQUAL(next, channel->message_count);
        }
    }
    CU_ASSERT_EQUAL(issue->count, 2 * remote_count);
}

/* Returns the largest group. */
static uint32_t check_groups(const struct hd_pipeline *pipeline, const struct hd_issue *issue)
{
    uint32_t largest = 0;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        uint32_t at = issue->begin[rank];
        while (at < issue->begin[rank + 1]) {
            const uint32_t end = issue->group_end[at];
            CU_ASSERT_FATAL(end > at && end <= issue->begin[rank + 1]);
            largest = end - at > largest ? end - at : largest;
            for (; at < end; at++) {
                CU_ASSERT_EQUAL(issue->group_end[at], end);
            }
        }
    }
    return largest;
}

static void lists_hold_every_message_twice(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(schedules); i++) {
        for (uint32_t order = HD_ISSUE_CANONICAL; order <= HD_ISSUE_PROGRAM; order++) {
            struct hd_pipeline *pipeline = plan_of(schedules[i], 4, 8);
            struct hd_issue issue;
            struct hd_problem problem = {0};
            pipeline->issue_order = order;
            CU_ASSERT_EQUAL_FATAL(hd_issue_create(pipeline, &issue, &problem), HD_OK);
            check_lists(pipeline, &issue);
            const uint32_t largest = check_groups(pipeline, &issue);
            CU_ASSERT_TRUE(largest <= (order == HD_ISSUE_GROUPED ? HD_ISSUE_GROUP_MAX : 1));
            CU_ASSERT_TRUE(order != HD_ISSUE_GROUPED || largest > 1 ||
                           strcmp(schedules[i], "gpipe") == 0);
            hd_issue_finish(&issue);
            hd_pipeline_destroy(pipeline);
        }
    }
}

static double length_of(const char *schedule, uint32_t mode, uint32_t order)
{
    struct hd_pipeline *pipeline = plan_of(schedule, 4, 8);
    double forward[STAGE_MAX], backward[STAGE_MAX], transfer[STAGE_MAX];
    struct hd_timeline *timeline = NULL;
    struct hd_problem problem = {0};

    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        forward[stage] = transfer[stage] = 1;
        backward[stage] = 2;
    }
    const struct hd_timeline_costs costs = {
        .forward = forward, .backward = backward, .transfer = transfer, .mode = mode};
    pipeline->issue_order = order;
    const hd_status status =
        hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &costs, &timeline, &problem);
    CU_ASSERT_EQUAL_FATAL(status, HD_OK);
    const double length = timeline->length;
    hd_timeline_destroy(timeline);
    hd_pipeline_destroy(pipeline);
    return length;
}

/* docs/architecture.md, "Law 7": 110 ticks against 71; docs/sources.md, "Numbers of our own". */
static void order_has_its_price(void)
{
    static const struct {
        const char *schedule;
        double side_by_side, canonical, grouped;
    } rows[] = {{"gpipe", 39, 60, 53},
                {"1f1b", 49, 53, 51},
                {"interleaved_1f1b", 71, 110, 83},
                {"interleaved_lean", 87, 108, 91},
                {"1f1b_v", 95, 107, 101}};

    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const char *schedule = rows[i].schedule;
        const double found[3] = {
            length_of(schedule, HD_TRANSFER_OVERLAPPED, HD_ISSUE_CANONICAL),
            length_of(schedule, HD_TRANSFER_SERIAL, HD_ISSUE_CANONICAL),
            length_of(schedule, HD_TRANSFER_SERIAL, HD_ISSUE_GROUPED),
        };
        CU_ASSERT_DOUBLE_EQUAL(found[0], rows[i].side_by_side, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(found[1], rows[i].canonical, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(found[2], rows[i].grouped, 1e-9);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the shipped schedules pass, also at the depths", shipped_schedules_pass},
        {"the order of the programs is refused where two ranks send first", naive_orders},
        {"every message is in two lists, and groups are whole", lists_hold_every_message_twice},
        {"the order has its price", order_has_its_price},
    };
    return hd_check_main("issue", checks, HD_CHECK_COUNT(checks));
}
