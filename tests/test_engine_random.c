/*
 * tests/test_engine_random.c - plans that are nobody's schedule, slots from the depths up, and
 * messages that come late: no hang, and the bits of one rank (docs/architecture.md, "One oracle").
 *
 * Each seed is one small job of real engines (support/engine_crew.h).  They mostly sleep, so a few
 * processes share the seeds.  A seed that fails is named, and makes the same job again; a hang is
 * reported by the engines themselves, in the words of the schedule.
 */
#include "support/check.h"
#include "support/engine_crew.h"
#include "support/random_plan.h"
#include "support/schedule_harness.h"
#include "support/transport_harness.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A sanitizer looks at every access of every seed, and sees no more in the last than in the first
   twenty. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SEED_COUNT = 20 };
#else
enum { SEED_COUNT = 100 };
#endif
enum { SHARE_COUNT = 10, MICROBATCH_MOST = 8, LIMIT_MS = 20000 };
enum { TEXT_BYTES = 64, CHANNEL_MAX = 2 * HD_RANDOM_STAGE_MAX };

/* --- a job ------------------------------------------------------------------------------- */

struct words {
    struct hd_crew_job job;
    char texts[8][TEXT_BYTES];
    uint32_t text_count;
};

static void add_number(struct words *words, const char *key, uint64_t value)
{
    assert(words->text_count < sizeof words->texts / sizeof words->texts[0]);
    char *text = words->texts[words->text_count++];
    snprintf(text, TEXT_BYTES, "%s=%llu", key, (unsigned long long)value);
    hd_crew_add(&words->job, text);
}

static void add_all(struct words *words, const char *const *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        hd_crew_add(&words->job, list[i]);
    }
}

/* Twelve small layers with experts, of which four ranks can have three stages each. */
static void begin(struct words *words, const struct hd_pipeline *pipeline)
{
    static const char *const model[] = {"model.layers=12",        "model.width=8",
                                        "model.heads=2",          "model.experts=2",
                                        "model.expert_width=8",   "model.experts_per_token=1",
                                        "model.vocabulary=32",    "model.sequence=4",
                                        "data.microbatch_size=1", "kernels.name=reference"};

    memset(words, 0, sizeof *words);
    words->job.pipeline = pipeline;
    words->job.step_count = 2;
    words->job.limit_ms = LIMIT_MS;
    add_all(words, model, HD_CHECK_COUNT(model));
}

static void wrap(struct words *words, const char *inner)
{
    hd_crew_add(&words->job, "transport.name=hook_fault");
    char *text = words->texts[words->text_count++];
    snprintf(text, TEXT_BYTES, "transport.inner=%s", inner);
    hd_crew_add(&words->job, text);
}

/* None of ours has I and W yet; this one of tests/fault has, and breaks nothing unless told to. */
static void split_backwards(struct words *words)
{
    words->job.kernel_file = "tests/fault/heddle_kernel_breaker.so";
    hd_crew_add(&words->job, "kernels.precision=f32");
}

/* What one rank computes, by the number of microbatches: what law 8 promises of every plan; by the
   reference kernel, and by the one that splits. */
static uint64_t of_one_rank[MICROBATCH_MOST + 1];
static uint64_t of_one_rank_split[MICROBATCH_MOST + 1];

static void learn_one_rank(uint32_t microbatch_count)
{
    struct hd_pipeline *const pipeline =
        hd_schedule_must_plan(&(struct hd_schedule_case){"gpipe", 1, 1, microbatch_count, 0, NULL});
    struct words words;

    begin(&words, pipeline);
    CU_ASSERT_EQUAL_FATAL(hd_crew_run(&words.job, &of_one_rank[microbatch_count]), 0);
    split_backwards(&words);
    CU_ASSERT_EQUAL_FATAL(hd_crew_run(&words.job, &of_one_rank_split[microbatch_count]), 0);
    hd_pipeline_destroy(pipeline);
}

/* --- seeds -------------------------------------------------------------------------------- */

/* Every SHARE_COUNT-th seed from `first` on, in a process of its own. */
static pid_t start_share(int (*run)(uint64_t seed), uint64_t first)
{
    const pid_t parent = getpid();
    const pid_t pid = fork();

    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = getppid() != parent;
    for (uint64_t seed = first; code == 0 && seed <= SEED_COUNT; seed += SHARE_COUNT) {
        code = run(seed);
        if (code != 0) {
            fprintf(stderr, "seed %llu fails\n", (unsigned long long)seed);
        }
    }
    fflush(NULL);
    _exit(code);
}

static void run_seeds(int (*run)(uint64_t seed))
{
    pid_t pids[SHARE_COUNT];
    uint32_t failed_count = 0;

    fflush(NULL);
    for (uint32_t i = 0; i < SHARE_COUNT; i++) {
        pids[i] = start_share(run, i + 1);
        CU_ASSERT_FATAL(pids[i] > 0);
    }
    for (uint32_t i = 0; i < SHARE_COUNT; i++) {
        int code = 0;
        waitpid(pids[i], &code, 0); /* every wait in it has a deadline */
        failed_count += code != 0;
    }
    CU_ASSERT_EQUAL(failed_count, 0);
}

/* The digest must be `wanted`. */
static int expect(const struct words *words, uint64_t wanted, const char *what)
{
    uint64_t digest = 0;

    if (hd_crew_run(&words->job, &digest) != 0) {
        return 1;
    }
    if (digest != wanted) {
        fprintf(stderr, "%s: digest %016llx, not %016llx\n", what, (unsigned long long)digest,
                (unsigned long long)wanted);
    }
    return digest != wanted;
}

/* --- first uses --------------------------------------------------------------------------- */

/* C14: the first message of every channel is 0 to 50 ms late, and every rank comes to every call
   of the bootstrap when it likes. */
static int use_late(uint64_t seed)
{
    static const char *const schedules[] = {"interleaved_1f1b", "1f1b_v", "interleaved_lean"};
    struct hd_pipeline *const pipeline = hd_schedule_must_plan(
        &(struct hd_schedule_case){schedules[seed % 3], 4, 2, MICROBATCH_MOST, 0, NULL});
    struct words words;

    begin(&words, pipeline);
    wrap(&words, "shm");
    add_number(&words, "transport.hook_fault.seed", seed);
    hd_crew_add(&words.job, "transport.hook_fault.sequence=0");
    hd_crew_add(&words.job, "transport.hook_fault.delay_us=25000");
    words.job.seed = seed;
    words.job.hesitation_us = 2000;
    const int code = expect(&words, of_one_rank[MICROBATCH_MOST], "first uses");
    hd_pipeline_destroy(pipeline);
    return code;
}

static uint32_t pair_count(const char *schedule)
{
    struct hd_pipeline *const pipeline =
        hd_schedule_must_plan(&(struct hd_schedule_case){schedule, 4, 2, MICROBATCH_MOST, 0, NULL});
    uint32_t is_pair[4][4] = {{0}}, count = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        const uint32_t has_both = is_pair[channel->source][channel->target] ||
                                  is_pair[channel->target][channel->source] ||
                                  channel->source == channel->target;
        is_pair[channel->source][channel->target] = 1;
        count += !has_both;
    }
    hd_pipeline_destroy(pipeline);
    return count;
}

static void test_first_uses(void)
{
    CU_ASSERT_EQUAL(pair_count("interleaved_1f1b"), 4);
    CU_ASSERT_EQUAL(pair_count("1f1b_v"), 3);
    learn_one_rank(MICROBATCH_MOST);
    run_seeds(use_late);
}

/* --- random plans ------------------------------------------------------------------------- */

static const struct hd_random_limits two_to_four = {.rank_least = 2,
                                                    .rank_most = 4,
                                                    .per_rank_most = 3,
                                                    .microbatch_least = 2,
                                                    .microbatch_most = MICROBATCH_MOST,
                                                    .split = HD_RANDOM_UNSPLIT};

/* Every remote channel gets its depth and up to two slots more, every pool up to one more. */
static int give_slots(struct hd_pipeline *pipeline, uint64_t *random)
{
    uint32_t transfer[CHANNEL_MAX], payload[HD_RANDOM_STAGE_MAX];
    struct hd_slot_request request = {
        .transfer = transfer, .payload_count = pipeline->stage_count, .payload = payload};
    struct hd_problem problem = {0};

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (channel->source != channel->target) {
            transfer[request.transfer_count++] = channel->depth + hd_random_draw(random, 3);
        }
    }
    for (uint32_t i = 0; i < pipeline->stage_count; i++) {
        payload[i] = pipeline->retention[i] + hd_random_draw(random, 2);
    }
    if (hd_pipeline_give_slots(pipeline, &request, &problem) != HD_OK) {
        fprintf(stderr, "slots from the depths up are refused: %s\n", problem.message);
        return 1;
    }
    return 0;
}

static void disturb(struct words *words, uint64_t seed, uint64_t *random)
{
    static const uint32_t delays_us[] = {0, 60, 400, 1500};

    add_number(words, "transport.hook_fault.seed", seed);
    add_number(words, "transport.hook_fault.delay_us", delays_us[hd_random_draw(random, 4)]);
    add_number(words, "transport.hook_fault.busy_percent", hd_random_draw(random, 80));
    add_number(words, "transport.hook_fault.reorder_percent", hd_random_draw(random, 30));
    add_number(words, "pipeline.overlap", hd_random_draw(random, 2));
    hd_crew_add(&words->job, "debug.poison=on");
    hd_crew_add(&words->job, "debug.checksum=on");
    words->job.seed = seed;
    words->job.hesitation_us = 300;
}

static struct hd_pipeline *draw_plan(uint64_t seed, const struct hd_random_limits *limits,
                                     uint64_t *random)
{
    static struct hd_random_plan plan;

    plan.random = seed * 0x9e3779b97f4a7c15ull;
    struct hd_pipeline *pipeline = hd_random_plan_draw(&plan, limits);
    *random = plan.random;
    if (pipeline != NULL && give_slots(pipeline, random) != 0) {
        hd_pipeline_destroy(pipeline);
        return NULL;
    }
    return pipeline;
}

/* A plan that breaks law 8 has bits of its own: those of the same plan when nothing is late. */
static int wanted_of(const struct hd_pipeline *pipeline, uint64_t *wanted)
{
    struct words words;

    *wanted = of_one_rank[pipeline->microbatch_count];
    if (pipeline->is_ascending) {
        return 0;
    }
    begin(&words, pipeline);
    return hd_crew_run(&words.job, wanted);
}

static int run_plan(uint64_t seed, const char *inner, uint32_t as_processes)
{
    struct hd_random_limits limits = two_to_four;
    uint64_t random = 0, wanted = 0;
    struct words words;

    limits.is_ascending = seed % 4 != 0;
    struct hd_pipeline *const pipeline = draw_plan(seed, &limits, &random);
    int code = pipeline == NULL || (limits.is_ascending && !pipeline->is_ascending);
    if (code == 0) {
        begin(&words, pipeline);
        wrap(&words, inner);
        disturb(&words, seed, &random);
        words.job.as_processes = as_processes;
        code = wanted_of(pipeline, &wanted) || expect(&words, wanted, inner);
    }
    hd_pipeline_destroy(pipeline);
    return code;
}

/* Every fifth by ranks that are processes, the others by threads. */
static int run_on_shm(uint64_t seed)
{
    return run_plan(seed, "shm", seed % 5 == 0);
}

static int run_on_ucx(uint64_t seed)
{
    return seed % 8 == 0 ? run_plan(seed, seed % 16 == 0 ? "ucx_tag" : "ucx_put", 1) : 0;
}

static void learn_all(void)
{
    for (uint32_t count = two_to_four.microbatch_least; count <= MICROBATCH_MOST; count++) {
        learn_one_rank(count);
    }
    CU_ASSERT_NOT_EQUAL(of_one_rank[MICROBATCH_MOST], of_one_rank[MICROBATCH_MOST - 1]);
}

static void test_random_plans(void)
{
    learn_all();
    run_seeds(run_on_shm);
}

static void test_random_plans_on_ucx(void)
{
    const struct hd_testbed_variant tag = {.name = "ucx_tag"}, put = {.name = "ucx_put"};

    if (!hd_testbed_is_built(&tag) || !hd_testbed_is_built(&put)) {
        printf("(UCX is not installed) ");
        return;
    }
    learn_all();
    run_seeds(run_on_ucx);
}

/* Split backwards: B of one rank is I then W of many.  Every other seed has a kernel that computes
   nothing and looks at every message and payload that it is given; it needs no law 8. */
static int run_split(uint64_t seed)
{
    struct hd_random_limits limits = two_to_four;
    uint64_t random = 0, digest = 0;
    struct words words;

    limits.split = HD_RANDOM_SPLIT;
    limits.is_ascending = seed % 2;
    struct hd_pipeline *const pipeline = draw_plan(seed + 1000, &limits, &random);
    int code = pipeline == NULL;
    if (code == 0) {
        begin(&words, pipeline);
        wrap(&words, "shm");
        disturb(&words, seed, &random);
        if (limits.is_ascending) {
            split_backwards(&words);
            code = expect(&words, of_one_rank_split[pipeline->microbatch_count], "split backwards");
        } else {
            hd_crew_add(&words.job, "kernels.name=synthetic");
            hd_crew_add(&words.job, "cost.tick_us=0");
            code = hd_crew_run(&words.job, &digest);
        }
    }
    hd_pipeline_destroy(pipeline);
    return code;
}

static void test_split_plans(void)
{
    learn_all();
    run_seeds(run_split);
}

/* Law 7: one transfer at a time a rank, once both ranks have come to it; each takes its time. */
static int run_in_order(uint64_t seed)
{
    struct hd_random_limits limits = two_to_four;
    struct hd_problem problem = {0};
    uint64_t random = 0;
    struct words words;

    limits.is_ascending = 1;
    struct hd_pipeline *const pipeline = draw_plan(seed + 2000, &limits, &random);
    int code = pipeline == NULL;
    if (code == 0) {
        pipeline->is_serial = 1;
        pipeline->issue_order =
            hd_random_draw(&random, 2) != 0 ? HD_ISSUE_CANONICAL : HD_ISSUE_GROUPED;
        begin(&words, pipeline);
        hd_crew_add(&words.job, "transport.name=rendezvous");
        words.job.as_processes = seed % 5 == 0;
        words.job.seed = seed;
        words.job.hesitation_us = 300;
        add_number(&words, "transport.rendezvous.late_us", 300 * hd_random_draw(&random, 2));
        add_number(&words, "pipeline.overlap", hd_random_draw(&random, 2));
        hd_crew_add(&words.job, "debug.poison=on");
        hd_crew_add(&words.job, "debug.checksum=on");
        code = hd_pipeline_verify_serial(pipeline, &problem) != HD_OK ||
               expect(&words, of_one_rank[pipeline->microbatch_count], "in order");
    }
    hd_pipeline_destroy(pipeline);
    return code;
}

static void test_plans_in_order(void)
{
    learn_all();
    run_seeds(run_in_order);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"100 seeds of delays at every first use, P = 4: no hang (C14)", test_first_uses},
        {"random plans, slots from the depths up, random delays: the bits of one rank",
         test_random_plans},
        {"a few of them over ucx_tag and ucx_put", test_random_plans_on_ucx},
        {"random plans with split backwards: the bits of one rank, that does not split",
         test_split_plans},
        {"random plans over a strict rendezvous, in the order of law 7: the bits of one rank",
         test_plans_in_order},
    };
    return hd_check_main("test_engine_random", checks, HD_CHECK_COUNT(checks));
}
