/*
 * tests/test_oracle.c - the one oracle (docs/architecture.md): with equal kernel, model, seed
 * and microbatches, losses, norms and parameters after N steps are equal to the last bit, whatever
 * orders, places and carries the work.
 *
 * Every row is a real run of the heddle binary; what it left in run.json is held against the run of
 * one rank with one stage.  The models are small and the microbatches ragged (5 on 2 and 4 ranks).
 */
#include "support/check.h"
#include "support/command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_BYTES = 4096, STEP_MAX = 32, HASH_BYTES = 65 };

#define BASE "pipeline.schedule=gpipe pipeline.ranks=1"
#define SMALL                                                                             \
    "model.width=64 model.heads=4 model.layers=8 model.sequence=16 model.vocabulary=64 "  \
    "model.expert_width=32 data.microbatch_size=2 train.warmup_steps=1 output.trace=off " \
    "output.directory=run output.checkpoint_every=never --overwrite --quiet "
#define RAGGED SMALL "pipeline.microbatches=5 train.steps=3 "

/* What a run says of the numbers. */
struct result {
    uint32_t step_count;
    double losses[STEP_MAX], norms[STEP_MAX];
    char hash[HASH_BYTES];
};

static uint32_t numbers(const cJSON *json, const char *key, double values[STEP_MAX])
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, key), *item;
    uint32_t count = 0;

    cJSON_ArrayForEach(item, list)
    {
        if (count < STEP_MAX) {
            values[count++] = item->valuedouble;
        }
    }
    return count;
}

static struct result read_result(void)
{
    struct result result = {0};
    cJSON *json = command_json("run/run.json");
    const char *hash =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "parameters_hash"));

    result.step_count = numbers(json, "losses", result.losses);
    CU_ASSERT_EQUAL(numbers(json, "grad_norms", result.norms), result.step_count);
    snprintf(result.hash, sizeof result.hash, "%s", hash != NULL ? hash : "");
    cJSON_Delete(json);
    return result;
}

static int is_whole(const struct result *result)
{
    int whole = result->step_count > 0 && strlen(result->hash) == HASH_BYTES - 1;

    for (uint32_t step = 0; step < result->step_count; step++) {
        whole = whole && isfinite(result->losses[step]) && result->norms[step] > 0;
    }
    return whole;
}

/* "run WORDS MORE", and what came of it. */
static struct result run(const char *words, const char *more)
{
    char line[WORDS_BYTES];
    struct command command = {0};

    snprintf(line, sizeof line, "run %s %s", words, more);
    const int code = command_run(&command, line);
    if (code != 0) {
        char *error = command_text(command.err);
        fprintf(stderr, "heddle %s: exit %d: %s\n", line, code, error);
        free(error);
        CU_FAIL("a run of the oracle did not end well");
        return (struct result){0};
    }
    const struct result result = read_result();
    CU_ASSERT(is_whole(&result));
    return result;
}

static int is_equal(const struct result *one, const struct result *other)
{
    const uint64_t bytes = one->step_count * sizeof one->losses[0];

    return one->step_count == other->step_count && memcmp(one->losses, other->losses, bytes) == 0 &&
           memcmp(one->norms, other->norms, bytes) == 0 && strcmp(one->hash, other->hash) == 0;
}

static void expect_equal(const struct result *base, const char *words, const char *more)
{
    const struct result result = run(words, more);

    if (!is_equal(base, &result)) {
        fprintf(stderr, "%s %s: %.17g %s, not %.17g %s\n", words, more, result.losses[0],
                result.hash, base->losses[0], base->hash);
        CU_FAIL("the bits differ from those of one rank");
    }
}

/* Every valid (schedule, V) for P = 1, 2, 4 with eight layers. */
static const struct {
    const char *schedule;
    uint32_t stages_per_rank[3]; /* 0: no more */
} schedules[] = {
    {"gpipe", {1}},
    {"1f1b", {1}},
    {"interleaved_1f1b", {1, 2, 4}},
    {"interleaved_lean", {1, 2, 4}},
    {"1f1b_v", {2}},
    {"1f1b_v schedule.1f1b_v.pull_ahead=1", {2}},
};

/* Under a sanitizer, which is slow and looks for other faults, four ranks are enough. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RANKS_FIRST = 4 };
#else
enum { RANKS_FIRST = 1 };
#endif

enum { LAYERS = 8 };

static void expect_shape(const struct result *base, const char *words, const char *shape)
{
    static const char *const overlaps[] = {"on", "off"};
    char more[512];

    for (unsigned i = 0; i < 2; i++) {
        snprintf(more, sizeof more, "%s pipeline.overlap=%s", shape, overlaps[i]);
        expect_equal(base, words, more);
    }
}

static void sweep(const char *words)
{
    const struct result base = run(words, BASE);
    char shape[256];

    for (unsigned i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        for (uint32_t ranks = RANKS_FIRST; ranks <= 4; ranks *= 2) {
            for (unsigned j = 0; j < 3 && schedules[i].stages_per_rank[j] > 0; j++) {
                const uint32_t per_rank = schedules[i].stages_per_rank[j];
                snprintf(shape, sizeof shape,
                         "pipeline.ranks=%u pipeline.stages_per_rank=%u pipeline.schedule=%s",
                         ranks, per_rank, schedules[i].schedule);
                if (ranks * per_rank <= LAYERS) {
                    expect_shape(&base, words, shape);
                }
            }
        }
    }
}

static void test_reference_dense(void)
{
    sweep(RAGGED "kernels.name=reference model.experts=0");
}

static void test_reference_experts(void)
{
    sweep(RAGGED "kernels.name=reference model.experts=4");
}

static void test_cpu_dense(void)
{
    sweep(RAGGED "kernels.name=cpu model.experts=0");
}

static void test_cpu_experts(void)
{
    sweep(RAGGED "kernels.name=cpu model.experts=4");
}

/* f32: the boundary has another type and size. */
static void test_f32(void)
{
    static const char *const words[] = {
        RAGGED "kernels.name=reference kernels.precision=f32 model.experts=4",
        RAGGED "kernels.name=cpu kernels.precision=f32 model.experts=4",
    };

    for (unsigned i = 0; i < 2; i++) {
        const struct result base = run(words[i], BASE);
        expect_equal(&base, words[i], "pipeline.ranks=4 pipeline.schedule=interleaved_1f1b");
        expect_equal(&base, words[i], "pipeline.ranks=4 pipeline.schedule=1f1b_v");
        expect_equal(&base, words[i], "pipeline.ranks=2 pipeline.schedule=1f1b");
    }
}

/* What is computed again, in how many halves and in which precision: none of it is the plan's. */
static void test_modes(void)
{
    static const char *const kernels[] = {"reference", "cpu"};
    static const struct {
        const char *words, *more[3];
    } rows[] = {
        {"kernels.precision=bf16",
         {"pipeline.ranks=4 pipeline.schedule=1f1b kernels.recompute=experts",
          "pipeline.ranks=2 pipeline.schedule=1f1b_v kernels.recompute=full debug.poison=on"}},
        {"kernels.precision=mxfp8",
         {"pipeline.ranks=4 pipeline.schedule=interleaved_1f1b pipeline.overlap=off",
          "pipeline.ranks=4 pipeline.schedule=1f1b_v kernels.recompute=experts debug.poison=on",
          "pipeline.ranks=2 pipeline.schedule=1f1b kernels.recompute=full"}},
        {"kernels.precision=mxfp8 kernels.scale_rule=floor model.half_batches=2",
         {"pipeline.ranks=4 pipeline.schedule=1f1b debug.poison=on",
          "pipeline.ranks=2 pipeline.schedule=interleaved_lean kernels.recompute=full"}},
    };
    char words[WORDS_BYTES];

    for (unsigned i = 0; i < 6; i++) {
        snprintf(words, sizeof words, RAGGED "model.experts=4 kernels.name=%s %s", kernels[i % 2],
                 rows[i / 2].words);
        const struct result base = run(words, BASE);
        for (unsigned j = 0; j < 3 && rows[i / 2].more[j] != NULL; j++) {
            expect_equal(&base, words, rows[i / 2].more[j]);
        }
    }
}

#define EXPERTS RAGGED "kernels.name=reference model.experts=4"

/* Appends one direction of the plan's remote channels; as "5,5,3". */
static void append_depths(const cJSON *plan, const char *direction, char *list, size_t capacity)
{
    const cJSON *channel;

    cJSON_ArrayForEach(channel, cJSON_GetObjectItemCaseSensitive(plan, "channels"))
    {
        const char *name =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(channel, "direction"));
        const cJSON *depth = cJSON_GetObjectItemCaseSensitive(channel, "depth");
        if (name != NULL && strcmp(name, direction) == 0) {
            const size_t length = strlen(list);
            snprintf(list + length, capacity - length, "%s%d", length > 0 ? "," : "",
                     depth->valueint);
        }
    }
}

static void expect_at_depth(const struct result *base, const char *words, const char *shape)
{
    char line[WORDS_BYTES], depths[512] = "";
    struct command command = {0};

    snprintf(line, sizeof line, "plan %s %s --json", words, shape);
    CU_ASSERT_EQUAL(command_run(&command, line), 0);
    cJSON *plan = command_json(command.out);
    append_depths(plan, "forward", depths, sizeof depths);
    append_depths(plan, "backward", depths, sizeof depths);
    cJSON_Delete(plan);
    CU_ASSERT_FATAL(depths[0] != '\0');
    snprintf(line, sizeof line, "%s pipeline.transfer_slots=%s debug.poison=on --overwrite --quiet",
             shape, depths);
    expect_equal(base, words, line);
}

/* No slot more than law 6 asks for: nothing may be read after it was given back. */
static void test_exact_depth(void)
{
    static const char *const shapes[] = {
        "pipeline.ranks=4 pipeline.schedule=interleaved_1f1b",
        "pipeline.ranks=4 pipeline.schedule=interleaved_lean",
        "pipeline.ranks=4 pipeline.schedule=1f1b_v",
        "pipeline.ranks=4 pipeline.schedule=1f1b pipeline.overlap=off",
    };
    /* The plan command knows no words of `run`. */
    static const char *words =
        "model.width=64 model.heads=4 model.layers=8 model.sequence=16 model.vocabulary=64 "
        "model.expert_width=32 data.microbatch_size=2 train.warmup_steps=1 output.trace=off "
        "output.directory=run output.checkpoint_every=never pipeline.microbatches=5 train.steps=3 "
        "kernels.name=reference "
        "model.experts=4";
    char with_flags[WORDS_BYTES];

    snprintf(with_flags, sizeof with_flags, "%s --overwrite --quiet", words);
    const struct result base = run(with_flags, BASE);
    for (unsigned i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        expect_at_depth(&base, words, shapes[i]);
    }
}

/* Poison, checksums and the trace look on; they change nothing. */
static void test_onlookers(void)
{
    static const char *const rows[] = {
        "pipeline.ranks=4 pipeline.schedule=interleaved_1f1b debug.poison=on debug.checksum=on",
        "pipeline.ranks=4 pipeline.schedule=1f1b_v debug.poison=on pipeline.overlap=off",
        "pipeline.ranks=2 pipeline.schedule=interleaved_lean debug.checksum=on output.trace=on",
        "pipeline.ranks=4 pipeline.schedule=1f1b output.trace=on output.trace_steps=1",
        "pipeline.ranks=1 pipeline.schedule=1f1b_v debug.poison=on debug.checksum=on",
    };
    const struct result base = run(EXPERTS, BASE);

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        expect_equal(&base, EXPERTS, rows[i]);
    }
}

/* Tables of other frameworks, run as CSV. */
static void test_tables(void)
{
    static const struct {
        const char *file;
        uint32_t microbatches;
    } rows[] = {
        {"peers/1F1B_P4_V1_m5.csv", 5},
        {"peers/GPipe_P4_V1_m5.csv", 5},
        {"peers/MegatronInterleaved_P4_V2_m8_G4.csv", 8},
        {"peers/Interleaved1F1B_P4_V2_m8.csv", 8},
        {"peers/SailGroupInterleavedMerged_P4_V2_m8.csv", 8},
        {"peers/Sail1F1BV_P4_V2_m8.csv", 8},
    };
    static const char *words = SMALL "train.steps=2 kernels.name=reference model.experts=0";
    const struct result five = run(words, BASE " pipeline.microbatches=5");
    const struct result eight = run(words, BASE " pipeline.microbatches=8");

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char more[2 * COMMAND_PATH_BYTES];
        snprintf(more, sizeof more, "pipeline.schedule=%s/%s",
                 hd_check_source("tests/golden/schedules"), rows[i].file);
        expect_equal(rows[i].microbatches == 5 ? &five : &eight, words, more);
    }
}

/* Where the cuts fall changes nothing either (30 layers on 4 stages fall unevenly). */
static void test_uneven_layers(void)
{
    static const char *words = SMALL "model.layers=30 pipeline.microbatches=2 train.steps=1 "
                                     "kernels.name=reference model.experts=0";
    const struct result base = run(words, BASE);

    expect_equal(&base, words, "pipeline.ranks=4 pipeline.schedule=1f1b");
    expect_equal(&base, words, "pipeline.ranks=4 pipeline.schedule=1f1b model.split=12,1,1,16");
}

static void test_repeat_and_seed(void)
{
    static const char *shape = "pipeline.ranks=4 pipeline.schedule=interleaved_1f1b";
    const struct result first = run(EXPERTS, shape);
    char other[256];

    expect_equal(&first, EXPERTS, shape);
    snprintf(other, sizeof other, "%s train.seed=2", shape);
    const struct result second = run(EXPERTS, other);
    CU_ASSERT_STRING_NOT_EQUAL(first.hash, second.hash);
    CU_ASSERT(first.losses[0] > second.losses[0] || first.losses[0] < second.losses[0]);
}

/* C22: with rate 0 the hash is that of the initial values, and they know no rank. */
static void test_initial_values(void)
{
    static const char *words = SMALL "pipeline.microbatches=4 train.steps=1 train.learning_rate=0 "
                                     "train.seed=7 kernels.name=reference model.experts=4";
    const struct result base = run(words, BASE);

    expect_equal(&base, words, "pipeline.ranks=2 pipeline.schedule=1f1b");
    expect_equal(&base, words, "pipeline.ranks=4 pipeline.schedule=1f1b");
    expect_equal(&base, words, "pipeline.ranks=2 pipeline.schedule=interleaved_1f1b");
    const struct result trained = run(words, BASE " train.learning_rate=0.001");
    CU_ASSERT_STRING_NOT_EQUAL(base.hash, trained.hash);
}

/* C19: twenty steps, two chunks a rank. */
static void test_two_chunks(void)
{
    static const char *words = SMALL "model.layers=4 pipeline.microbatches=4 train.steps=20 "
                                     "kernels.name=reference kernels.precision=f32 model.experts=0";
    const struct result base = run(words, BASE);

    CU_ASSERT_EQUAL(base.step_count, 20);
    CU_ASSERT(base.losses[19] < base.losses[0]);
    expect_equal(&base, words,
                 "pipeline.ranks=2 pipeline.stages_per_rank=2 pipeline.schedule=interleaved_1f1b");
}

static int is_near(double one, double other)
{
    return fabs(one - other) <= 1e-5 * fabs(other);
}

/* C23, C26: eight samples of a step, cut into 1, 2, 4 and 8 microbatches.  If each microbatch did
   not read its own slice, or gradients were not scaled by the labels of the step, these differ. */
static void test_cut_of_the_batch(void)
{
    static const char *const cuts[] = {
        "pipeline.microbatches=1 data.microbatch_size=8 pipeline.ranks=1",
        "pipeline.microbatches=2 data.microbatch_size=4 pipeline.ranks=2",
        "pipeline.microbatches=4 data.microbatch_size=2 pipeline.ranks=4",
        "pipeline.microbatches=8 data.microbatch_size=1 pipeline.ranks=2",
    };
    static const char *words = SMALL "train.steps=1 kernels.name=reference kernels.precision=f32 "
                                     "model.experts=0 pipeline.schedule=1f1b";
    const struct result base = run(words, cuts[0]);

    for (unsigned i = 1; i < sizeof cuts / sizeof cuts[0]; i++) {
        const struct result result = run(words, cuts[i]);
        CU_ASSERT(is_near(result.losses[0], base.losses[0]));
        CU_ASSERT(is_near(result.norms[0], base.norms[0]));
    }
}

/* C31, C59: the loss is born on rank 3; what rank 0 shows and keeps is that double, to the bit. */
static void test_loss_on_rank_0(void)
{
    static const char *words = SMALL "pipeline.microbatches=2 train.steps=2 kernels.name=reference "
                                     "model.experts=0 pipeline.ranks=4 pipeline.schedule=1f1b";
    const struct result result = run(words, "");

    char *metrics = command_text("run/metrics.jsonl");
    char *line = strchr(metrics, '\n');
    CU_ASSERT_FATAL(line != NULL);
    *line = '\0';
    cJSON *first = cJSON_Parse(metrics);
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(first, "loss");
    CU_ASSERT_FATAL(cJSON_IsNumber(loss));
    CU_ASSERT(memcmp(&loss->valuedouble, &result.losses[0], sizeof(double)) == 0);
    CU_ASSERT_FALSE(command_says("run/metrics.jsonl", "-1.0"));
    CU_ASSERT_FALSE(command_says("run/log/rank-0000.log", "-1.0"));
    cJSON_Delete(first);
    free(metrics);
}

static const struct hd_check checks[] = {
    {"reference, dense: every schedule, V, P and overlap gives the bits of one rank",
     test_reference_dense},
    {"reference, experts: every schedule, V, P and overlap gives the bits of one rank",
     test_reference_experts},
    {"cpu, dense: every schedule, V, P and overlap gives the bits of one rank", test_cpu_dense},
    {"cpu, experts: every schedule, V, P and overlap gives the bits of one rank", test_cpu_experts},
    {"f32 gives the bits of one rank, too", test_f32},
    {"mxfp8, recomputation and half batches give the bits of one rank", test_modes},
    {"slots exactly at the depth, poisoned, change no bit (law 6)", test_exact_depth},
    {"poison, checksum and trace change no bit", test_onlookers},
    {"tables of other frameworks give the bits of one rank", test_tables},
    {"30 layers on 4 stages, and any split, give the bits of one stage (C34)", test_uneven_layers},
    {"the same run twice gives the same bits, another seed others", test_repeat_and_seed},
    {"initial values know nothing of ranks and stages (C22)", test_initial_values},
    {"twenty steps with two chunks a rank equal those of one rank (C19)", test_two_chunks},
    {"a batch cut into 1, 2, 4, 8 microbatches has one loss and one norm (C23, C26)",
     test_cut_of_the_batch},
    {"rank 0 shows the loss of the last stage, and no placeholder (C31, C59)", test_loss_on_rank_0},
};

int main(void)
{
    command_work("oracle");
    return hd_check_main("the oracle", checks, HD_CHECK_COUNT(checks));
}
