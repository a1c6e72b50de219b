/* What the core derives from the plans of the five schedules, against the report's tables, the
   public cases and the closed forms. */
#include "plan/footprint.h"
#include "plan/pipeline.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <stdio.h>
#include <string.h>

enum { VALUE_MAX = 16 };

static void check_values(const char *name, const char *what, const uint32_t *found,
                         const uint32_t *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (found[i] != wanted[i]) {
            printf("\n    %s: %s %u is %u, not %u ", name, what, i, found[i], wanted[i]);
            CU_FAIL("a derived value differs");
            return;
        }
    }
}

/* --- the tables of the report ---------------------------------------------------------------- */

struct table_row {
    const char *name, *source;
    struct hd_schedule_case wanted;
    uint32_t ticks, loss_rank;
    uint64_t local, hidden, exposed; /* asap */
    uint32_t copies[VALUE_MAX];
    uint32_t retention[VALUE_MAX];
    uint32_t depths[VALUE_MAX]; /* forward by boundary, then backward */
};

static const struct table_row tables[] = {
    {"interleaved_1f1b, P4 V2 m8",
     "report, Table 10; docs/architecture.md, Slots",
     {"interleaved_1f1b", 4, 2, 8, 0, NULL},
     57,
     3,
     0,
     37,
     75,
     {11, 9, 7, 5},
     {8, 8, 7, 5, 4, 4, 3, 1},
     {8, 8, 7, 4, 4, 4, 3, 2, 2, 2, 3, 2, 2, 2}},
    {"1f1b_v, P4 V2 m8",
     "report, Table 10; docs/architecture.md, Slots",
     {"1f1b_v", 4, 2, 8, 0, NULL},
     63,
     0,
     16,
     18,
     78,
     {6, 6, 6, 6},
     {5, 5, 5, 3, 3, 3, 2, 1},
     {5, 5, 5, 3, 3, 3, 2, 1, 2, 1, 1, 2, 2, 2}},
    {"interleaved_lean, P4 V2 m8",
     "cases, C11 fault B; facts, depths",
     {"interleaved_lean", 4, 2, 8, 0, NULL},
     57,
     3,
     0,
     13,
     99,
     {8, 7, 6, 5},
     {8, 7, 6, 5, 4, 3, 2, 1},
     {8, 7, 6, 4, 4, 3, 2, 2, 2, 2, 3, 2, 2, 2}},
    {"1f1b, P4 m8",
     "facts, depths; peaks min(m, P - r)",
     {"1f1b", 4, 1, 8, 0, NULL},
     33,
     3,
     0,
     3,
     45,
     {4, 3, 2, 1},
     {4, 3, 2, 1},
     {4, 3, 2, 2, 2, 2}},
    {"gpipe, P4 m8",
     "facts, depths; peaks m",
     {"gpipe", 4, 1, 8, 0, NULL},
     33,
     3,
     0,
     0,
     48,
     {8, 8, 8, 8},
     {8, 8, 8, 8},
     {8, 8, 8, 2, 2, 2}},
    {"1f1b, P4 m4",
     "cases, C08",
     {"1f1b", 4, 1, 4, 0, NULL},
     21,
     3,
     0,
     3,
     21,
     {4, 3, 2, 1},
     {4, 3, 2, 1},
     {4, 3, 2, 2, 2, 2}},
    {"1f1b, P4 m1",
     "cases, C05",
     {"1f1b", 4, 1, 1, 0, NULL},
     12,
     3,
     0,
     0,
     6,
     {1, 1, 1, 1},
     {1, 1, 1, 1},
     {1, 1, 1, 1, 1, 1}},
    {"gpipe, P4 m1",
     "cases, C05",
     {"gpipe", 4, 1, 1, 0, NULL},
     12,
     3,
     0,
     0,
     6,
     {1, 1, 1, 1},
     {1, 1, 1, 1},
     {1, 1, 1, 1, 1, 1}},
    {"interleaved_1f1b, P1 V1 m3: no channel",
     "golden/olmo",
     {"interleaved_1f1b", 1, 1, 3, 0, NULL},
     9,
     0,
     0,
     0,
     0,
     {1},
     {1},
     {0}},
};

static void check_table(const struct table_row *row)
{
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&row->wanted);
    uint32_t depths[VALUE_MAX];

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *const channel = &pipeline->channels[i];
        depths[i] = channel->depth;
        const uint32_t is_remote = channel->source != channel->target;
        CU_ASSERT_EQUAL(channel->slots, channel->depth + is_remote);
        CU_ASSERT_EQUAL(channel->message_count, pipeline->microbatch_count);
    }
    CU_ASSERT_EQUAL(pipeline->asap_ticks, row->ticks);
    CU_ASSERT_EQUAL(pipeline->loss_ranks[0], row->loss_rank);
    CU_ASSERT_EQUAL(pipeline->handoffs.local, row->local);
    CU_ASSERT_EQUAL(pipeline->handoffs.hidden, row->hidden);
    CU_ASSERT_EQUAL(pipeline->handoffs.exposed, row->exposed);
    CU_ASSERT_EQUAL(pipeline->is_ascending, 1);
    CU_ASSERT_EQUAL(pipeline->is_split, 0);
    check_values(row->name, "copies of rank", pipeline->peak_copies, row->copies,
                 pipeline->rank_count);
    check_values(row->name, "retention of stage", pipeline->retention, row->retention,
                 pipeline->stage_count);
    check_values(row->name, "payload slots of stage", pipeline->payload_slots, row->retention,
                 pipeline->stage_count);
    check_values(row->name, "depth of channel", depths, row->depths, pipeline->channel_count);
    hd_pipeline_destroy(pipeline);
}

static void derives_the_tables_of_the_report(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(tables); i++) {
        check_table(&tables[i]);
    }
}

/* --- closed forms ---------------------------------------------------------------------------- */

static void keeps_the_closed_forms(void)
{
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint32_t per_rank = 1; per_rank <= 4; per_rank++) {
            for (uint32_t total = 1; total <= 20; total++) {
                const struct hd_schedule_case wanted = {
                    "interleaved_1f1b", ranks, per_rank, total, 0, NULL};
                struct hd_pipeline *const pipeline = hd_schedule_must_plan(&wanted);
                if (total >= ranks) {
                    CU_ASSERT_EQUAL(pipeline->asap_ticks, 3 * per_rank * total + 3 * (ranks - 1));
                }
                CU_ASSERT_EQUAL(pipeline->is_ascending, 1);
                hd_pipeline_destroy(pipeline);
            }
        }
    }
}

/* --- forward only, splits, replicas ---------------------------------------------------------- */

static void plans_forward_only(void)
{
    const struct hd_schedule_case wanted = {"1f1b", 4, 1, 8, HD_FORWARD_ONLY, NULL};
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&wanted);

    CU_ASSERT_EQUAL(pipeline->is_forward_only, 1);
    CU_ASSERT_EQUAL(pipeline->action_count, 32);
    CU_ASSERT_EQUAL(pipeline->asap_ticks, 11);
    CU_ASSERT_EQUAL(pipeline->channel_count, 3);
    CU_ASSERT_EQUAL(pipeline->channels[0].depth, 2);
    CU_ASSERT_EQUAL(pipeline->retention[0], 1);
    CU_ASSERT_EQUAL(pipeline->peak_copies[3], 1);
    CU_ASSERT_EQUAL(hd_pipeline_channel(pipeline, 1, HD_FORWARD, 0), 1);
    CU_ASSERT_EQUAL(hd_pipeline_channel(pipeline, 1, HD_BACKWARD, 0), HD_NO_CHANNEL);
    hd_pipeline_destroy(pipeline);
}

static void a_split_backward_holds_its_input_until_the_weight_pass(void)
{
    /* Rank 1 holds the last stage; its W come late, so 0's messages are released late as well,
       while the gradients go back after I. */
    static const uint32_t homes[] = {0, 1};
    static const uint32_t depths[] = {2, 1};
    static const uint32_t retention[] = {2, 2};
    struct hd_pipeline_source source;
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};

    hd_schedule_parse("0F0 0F1 0I0 0I1 0W0 0W1; 1F0 1I0 1F1 1I1 1W0 1W1", 2, 2, homes, &source);
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->is_split, 1);
    CU_ASSERT_EQUAL(pipeline->is_ascending, 1);
    CU_ASSERT_EQUAL(pipeline->asap_ticks, 8);
    check_values("by hand", "retention of stage", pipeline->retention, retention, 2);
    CU_ASSERT_EQUAL(pipeline->channels[0].depth, depths[0]);
    CU_ASSERT_EQUAL(pipeline->channels[1].depth, depths[1]);
    hd_pipeline_destroy(pipeline);
}

/* DualPipe over four ranks, four microbatches each way.  Stages 4 to 7 of the text are stages 0 to
   3 of the other chain, which runs from rank 3 to rank 0. */
static void make_dual_pipe(struct hd_pipeline_source *source)
{
    static const uint32_t homes[] = {0, 1, 2, 3, 3, 2, 1, 0};

    hd_schedule_parse(
        "0F0 0F1 0F2 7F0 7I0 7W0 7F1 0F3 7B1 7F2 0B0 7B2 7F3 0B1 7B3 0I2 0W2 0I3 0W3; "
        "1F0 6F0 1F1 6F1 1F2 6B0 6F2 1B0 1F3 6B1 6F3 1B1 6B2 1B2 6I3 1I3 6W3 1W3; "
        "5F0 2F0 5F1 2F1 5F2 2B0 2F2 5B0 5F3 2B1 2F3 5B1 2B2 5B2 2I3 5I3 2W3 5W3; "
        "4F0 4F1 4F2 3F0 3I0 3W0 3F1 4F3 3B1 3F2 4B0 3B2 3F3 4B1 3B3 4I2 4W2 4I3 4W3",
        8, 8, homes, source);
    source->stage_count = 4;
    source->replica_count = 2;
    memset(&source->replica_of[4], 1, 4);
    for (uint64_t i = 0; i < source->rank_begin[4]; i++) {
        struct hd_action *const action = &source->actions[i];
        if (action->stage >= 4) {
            action->stage -= 4;
            action->microbatch += 4;
            action->replica = 1;
        }
    }
}

/* golden/peers, DeepSeekDualPipe_P4_bidir_m8: five copies on every rank; 26 ticks if both halves of
   a pair end together, 25 if each ends when it is done, as here. */
static void plans_two_replicas(void)
{
    static const uint32_t copies[] = {5, 5, 5, 5};
    struct hd_pipeline_source source;
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};
    char text[32];

    make_dual_pipe(&source);
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
    CU_ASSERT_EQUAL(pipeline->asap_ticks, 25);
    CU_ASSERT_EQUAL(pipeline->is_split, 1);
    check_values("DualPipe", "copies of rank", pipeline->peak_copies, copies, 4);
    CU_ASSERT_EQUAL(pipeline->channel_count, 12);
    CU_ASSERT_EQUAL(pipeline->loss_ranks[0], 3);
    CU_ASSERT_EQUAL(pipeline->loss_ranks[1], 0);
    const uint32_t reverse = hd_pipeline_channel(pipeline, 0, HD_FORWARD, 1);
    CU_ASSERT_EQUAL(reverse, 6);
    CU_ASSERT_EQUAL(pipeline->channels[reverse].source, 3);
    CU_ASSERT_EQUAL(pipeline->channels[reverse].target, 2);
    CU_ASSERT_EQUAL(pipeline->channels[reverse].message_count, 4);
    CU_ASSERT_STRING_EQUAL(hd_action_text(&pipeline->actions[3], text), "3F4'");
    CU_ASSERT_EQUAL(hd_pipeline_verify_serial(pipeline, &problem), HD_OK);
    hd_pipeline_destroy(pipeline);
}

/* Whatever is wrong with a replica is told in its own words. */
static void refuses_a_microbatch_in_the_wrong_replica(void)
{
    struct hd_pipeline_source source;
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};

    make_dual_pipe(&source);
    source.replica_of[4] = 0;
    CU_ASSERT_TRUE(hd_pipeline_from_actions(&source, &pipeline, &problem) < 0);
    CU_ASSERT_EQUAL(problem.law, 1);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(problem.message, "names replica 1, but microbatch 4 runs in replica 0"));
    problem = (struct hd_problem){0};
    make_dual_pipe(&source);
    source.replica_of[4] = 2;
    CU_ASSERT_TRUE(hd_pipeline_from_actions(&source, &pipeline, &problem) < 0);
    CU_ASSERT_STRING_EQUAL(problem.message,
                           "microbatch 4 runs in replica 2, but the last replica is 1");
    CU_ASSERT_PTR_NULL(pipeline);
}

/* --- refusals, memory, hash ------------------------------------------------------------------ */

static void refuses_what_the_schedule_refuses(void)
{
    const struct hd_schedule_case wanted = {"1f1b", 4, 2, 8, 0, NULL};
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};

    CU_ASSERT_TRUE(hd_schedule_plan(&wanted, &pipeline, &problem) < 0);
    CU_ASSERT_PTR_NULL(pipeline);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "not 8 stages on 4 ranks; use inter"));
}

static void refuses_what_is_past_the_limits(void)
{
    static const struct {
        struct hd_schedule_case wanted;
        const char *number;
    } rows[] = {
        {{"gpipe", 4, 1, 65537, 0, NULL}, "65537 microbatches"},
        {{"gpipe", 4097, 1, 1, 0, NULL}, "4097 ranks"},
        {{"interleaved_1f1b", 4096, 5, 1, 0, NULL}, "20480 stages"},
        {{"interleaved_1f1b", 4096, 4, 65536, 0, NULL}, "2147483648 actions"},
        {{"gpipe", 4, 1, 0, 0, NULL}, "0 microbatches"},
    };
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_pipeline *pipeline = NULL;
        struct hd_problem problem = {0};
        CU_ASSERT_TRUE(hd_schedule_plan(&rows[i].wanted, &pipeline, &problem) < 0);
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLAN);
        CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, rows[i].number));
        CU_ASSERT_PTR_NULL(pipeline);
    }
}

static void predicts_memory_by_rank(void)
{
    /* cases, C41: P = 8, m = 32, 1 GB a copy and 2 GB of state against 8 GB. */
    static const uint64_t gigabytes[] = {10, 9, 8, 7, 6, 5, 4, 3};
    const struct hd_schedule_case wanted = {"1f1b", 8, 1, 32, 0, NULL};
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(&wanted);
    struct hd_stage_bytes stages[8];
    struct hd_footprint ranks[8];
    const uint64_t gigabyte = 1000000000;

    for (uint32_t i = 0; i < 8; i++) {
        stages[i] = (struct hd_stage_bytes){.state = 2 * gigabyte, .payload = gigabyte};
    }
    hd_footprint_fill(pipeline, stages, NULL, 8 * gigabyte + 5000, ranks);
    for (uint32_t i = 0; i < 8; i++) {
        CU_ASSERT_EQUAL((ranks[i].state_bytes + ranks[i].payload_bytes) / gigabyte, gigabytes[i]);
        CU_ASSERT_EQUAL(ranks[i].fits, i >= 2);
    }
    /* Messages of 100 bytes lie in 128 and a seal of 64; rank 1 receives 8 + 1 activations (7 when
       rank 1 itself is the source) and 2 + 1 gradients. */
    for (uint32_t i = 0; i < 8; i++) {
        stages[i] = (struct hd_stage_bytes){.boundary = 100, .scratch = i};
    }
    hd_footprint_fill(pipeline, stages, NULL, 0, ranks);
    CU_ASSERT_EQUAL(ranks[0].transfer_bytes, 3 * 192);
    CU_ASSERT_EQUAL(ranks[1].transfer_bytes, (9 + 3) * 192);
    CU_ASSERT_EQUAL(ranks[7].transfer_bytes, (2 + 1) * 192);
    CU_ASSERT_EQUAL(ranks[7].scratch_bytes, 7);
    CU_ASSERT_EQUAL(ranks[1].fits, 1);
    hd_pipeline_destroy(pipeline);
}

static void hash_of(struct hd_pipeline *pipeline, char text[HD_HASH_TEXT_BYTES])
{
    struct hd_hash hash;
    uint8_t digest[HD_HASH_BYTES];

    hd_hash_begin(&hash);
    hd_pipeline_hash(pipeline, &hash);
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, text);
}

static void hashes_all_that_the_ranks_must_agree_on(void)
{
    const struct hd_schedule_case wanted = {"interleaved_1f1b", 4, 2, 8, 0, NULL};
    const uint32_t slots = 9;
    const struct hd_slot_request request = {.transfer_count = 1, .transfer = &slots};
    const struct hd_slot_request pools = {.payload_count = 1, .payload = &slots};
    char texts[4][HD_HASH_TEXT_BYTES];
    struct hd_problem problem = {0};
    struct hd_pipeline *pipeline = hd_schedule_must_plan(&wanted);

    hash_of(pipeline, texts[0]);
    CU_ASSERT_EQUAL(hd_pipeline_give_slots(pipeline, &request, &problem), HD_OK);
    hash_of(pipeline, texts[1]);
    CU_ASSERT_EQUAL(hd_pipeline_give_slots(pipeline, &pools, &problem), HD_OK);
    hash_of(pipeline, texts[2]);
    pipeline->actions[7].flags ^= HD_PAIRED;
    hash_of(pipeline, texts[3]);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t j = i + 1; j < 4; j++) {
            CU_ASSERT_STRING_NOT_EQUAL(texts[i], texts[j]);
        }
    }
    hd_pipeline_destroy(pipeline);
    pipeline = hd_schedule_must_plan(&wanted);
    hash_of(pipeline, texts[3]);
    CU_ASSERT_STRING_EQUAL(texts[0], texts[3]);
    hd_pipeline_destroy(pipeline);
}

static const struct hd_check checks[] = {
    {"derives the tables of the report", derives_the_tables_of_the_report},
    {"keeps the closed forms", keeps_the_closed_forms},
    {"plans forward only", plans_forward_only},
    {"a split backward holds its input until W",
     a_split_backward_holds_its_input_until_the_weight_pass},
    {"plans two replicas", plans_two_replicas},
    {"refuses a microbatch in the wrong replica", refuses_a_microbatch_in_the_wrong_replica},
    {"refuses what the schedule refuses", refuses_what_the_schedule_refuses},
    {"refuses what is past the limits", refuses_what_is_past_the_limits},
    {"predicts memory by rank", predicts_memory_by_rank},
    {"hashes all that the ranks must agree on", hashes_all_that_the_ranks_must_agree_on},
};

int main(void)
{
    return hd_check_main("plan", checks, HD_CHECK_COUNT(checks));
}
