/* heddle bench step - what a step costs: the kernel, the engine, and the schedule against its
   plan. */
#include "bench/cmd/cmd_bench.h"
#include "base/number.h"
#include "base/try.h"
#include "bench/step.h"
#include "launch/launch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ITERATIONS_USUAL = 5, WARMUP_USUAL = 2, ENGINE_STEPS = 20, WORD_BYTES = 64 };

/* Of one measurement by a yardstick's program, of which there are as many as iterations. */
#define YARDSTICK_SECONDS     0.05
#define YARDSTICK_SECONDS_MAX 1.0

/* --- model ----------------------------------------------------------------------------------- */

struct model {
    struct hd_bench_model model;
    double gflop;
    char big[64], best[64]; /* the two products of the yardstick */
};

#define HD_BENCH_ROW struct model
static const struct hd_bench_field bench_step_model_fields[] = {
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, model.rank_count),
    HD_BENCH_FIELD("device", NULL, NULL, CHARS, model.session.device),
    HD_BENCH_FIELD("gflop_per_step", "GFLOP/step", "%.1f", NUMBER, gflop),
    HD_BENCH_FIELD("step_seconds", "seconds", "%.3f", SPREAD, model.session.step_seconds),
    HD_BENCH_FIELD("compute_seconds", "compute", "%.3f", NUMBER, model.session.compute_seconds),
    HD_BENCH_FIELD("gflops", "GFLOP/s", "%.1f", NUMBER, model.gflops),
    HD_BENCH_FIELD(NULL, "oneDNN big", NULL, CHARS, big),
    HD_BENCH_FIELD(NULL, "ratio", "%.3f", NUMBER, model.big_ratio),
    HD_BENCH_FIELD(NULL, "oneDNN best", NULL, CHARS, best),
    HD_BENCH_FIELD(NULL, "ratio", "%.3f", NUMBER, model.best_ratio),
    {0}};
#undef HD_BENCH_ROW

static void bench_step_add_gemm(struct cJSON *parent, const struct hd_bench_model *row)
{
    const struct hd_gemm_rate *rate = &row->yardstick;
    struct cJSON *object = hd_json_object(parent, "yardstick");

    hd_json_u64(object, "copies", rate->copies);
    hd_json_text(object, "missing", rate->row_count > 0 ? NULL : rate->missing);
    struct cJSON *list = hd_json_array(object, "products");
    for (uint32_t i = 0; i < rate->row_count; i++) {
        struct cJSON *product = hd_json_object(list, NULL);
        hd_json_text(product, "type", rate->rows[i].type);
        hd_json_text(product, "layout", rate->rows[i].layout);
        hd_json_u64(product, "size", rate->rows[i].size);
        hd_json_u64(product, "samples", rate->rows[i].sample_count);
        hd_json_number(product, "gflops", rate->rows[i].gflops);
    }
    hd_json_number(parent, "ratio_big", row->big_ratio);
    hd_json_number(parent, "ratio_best", row->best_ratio);
}

static void bench_step_name_product(const struct hd_gemm_rate *rate, uint32_t index, char text[64])
{
    const struct hd_gemm_row *row = &rate->rows[index];

    if (rate->row_count == 0) {
        snprintf(text, 64, "-");
    } else {
        snprintf(text, 64, "%u x %.1f (%s %u %s)", rate->copies, row->gflops / rate->copies,
                 row->type, row->size, row->layout);
    }
}

static hd_status bench_step_measure_model(struct hd_bench_part *part,
                                          struct hd_cli_bench_job *bench)
{
    struct hd_bench_machine machine;
    struct model row;

    hd_bench_machine(&machine);
    const struct hd_bench_model_request request = {
        .type = bench->config.kernels.precision == HD_CONFIG_F32 ? "f32" : "bf16",
        .warmup = part->warmup,
        .gemm_seconds = part->seconds,
        .copies = hd_min_u32(bench->job.pipeline->rank_count,
                             hd_min_u32(machine.core_count, HD_GEMM_COPIES_MAX)),
    };
    HD_TRY(hd_bench_model(&bench->job, &request, &row.model, &part->cli->problem));
    const struct hd_gemm_rate *rate = &row.model.yardstick;
    row.gflop = row.model.flops * 1e-9;
    bench_step_name_product(rate, rate->big, row.big);
    bench_step_name_product(rate, rate->best, row.best);
    struct cJSON *object = hd_bench_show(&part->sheet, &row);
    if (object != NULL) {
        bench_step_add_gemm(object, &row.model);
    } else if (rate->row_count == 0) {
        printf("no yardstick: %s\n", rate->missing);
    }
    return HD_OK;
}

/* One rank, and pipeline.ranks or four. */
static hd_status bench_step_part_model(struct hd_bench_part *part)
{
    const bool is_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    const uint32_t ranks[] = {1, is_asked ? part->asked.pipeline.ranks : 4};
    char rank_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL},
        .forced = {rank_word, part->steps, HD_CLI_BENCH_FEW_STEPS},
    };

    for (unsigned i = 0; i < (ranks[1] > 1 ? 2 : 1); i++) {
        snprintf(rank_word, sizeof rank_word, "pipeline.ranks=%u", ranks[i]);
        HD_TRY(hd_bench_part_measure(part, &words, bench_step_measure_model));
    }
    return HD_OK;
}

/* --- engine ---------------------------------------------------------------------------------- */

#define HD_BENCH_ROW struct hd_bench_engine
static const struct hd_bench_field bench_step_engine_fields[] = {
    HD_BENCH_FIELD("transport", "transport", NULL, TEXT, transport),
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, rank_count),
    HD_BENCH_FIELD("actions", "actions", NULL, BIG, action_count),
    HD_BENCH_FIELD("action_us", "median", "%.3f", SPREAD, action_us),
    HD_BENCH_FIELD("wait_us", "waits", "%.3f", MEDIAN, wait_us),
    HD_BENCH_FIELD("clock_pair_ns", "clock ns", "%.1f", NUMBER, yardstick.clock_pair_ns),
    HD_BENCH_FIELD("call_ns", "call ns", "%.1f", NUMBER, yardstick.call_ns),
    HD_BENCH_FIELD("ratio", "ratio", "%.1f", NUMBER, ratio),
    {0}};
#undef HD_BENCH_ROW

static hd_status bench_step_measure_engine(struct hd_bench_part *part,
                                           struct hd_cli_bench_job *bench)
{
    struct hd_bench_engine row;

    HD_TRY(hd_bench_engine(&bench->job, part->iterations, &row, &part->cli->problem));
    hd_bench_show(&part->sheet, &row);
    return HD_OK;
}

static hd_status bench_step_part_engine(struct hd_bench_part *part)
{
    static const char *const transports[] = {"null", "shm"};
    static const uint32_t ranks[] = {1, 2, 4};
    const bool is_transport_asked = hd_cli_bench_is_asked(&part->asked, "transport.name");
    const bool are_ranks_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    char steps[WORD_BYTES], rank_word[WORD_BYTES], transport_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.microbatches=256"},
        .forced = {rank_word, transport_word, steps, HD_CLI_BENCH_FEW_STEPS,
                   HD_CLI_BENCH_NO_COMPUTE},
    };

    snprintf(steps, sizeof steps, "train.steps=%u", (unsigned)ENGINE_STEPS);
    for (unsigned i = 0; i < (is_transport_asked ? 1 : 2); i++) {
        snprintf(transport_word, sizeof transport_word, "transport.name=%.40s",
                 is_transport_asked ? part->asked.transport.name : transports[i]);
        for (unsigned j = 0; j < (are_ranks_asked ? 1 : 3); j++) {
            snprintf(rank_word, sizeof rank_word, "pipeline.ranks=%u",
                     are_ranks_asked ? part->asked.pipeline.ranks : ranks[j]);
            HD_TRY(hd_bench_part_measure(part, &words, bench_step_measure_engine));
        }
    }
    return HD_OK;
}

/* --- schedule -------------------------------------------------------------------------------- */

#define HD_BENCH_ROW struct hd_bench_schedule
static const struct hd_bench_field bench_step_schedule_fields[] = {
    HD_BENCH_FIELD("schedule", "schedule", NULL, TEXT, schedule),
    HD_BENCH_FIELD("ranks", "ranks", NULL, COUNT, rank_count),
    HD_BENCH_FIELD("stages", "stages", NULL, COUNT, stage_count),
    HD_BENCH_FIELD("microbatches", "microbatches", NULL, COUNT, microbatch_count),
    HD_BENCH_FIELD("shortest_ms", "shortest", "%.3f", NUMBER, shortest_ms),
    HD_BENCH_FIELD("span_seconds", "seconds", "%.4f", SPREAD, session.span_seconds),
    HD_BENCH_FIELD("plan_seconds", "plan", "%.4f", NUMBER, plan_seconds),
    HD_BENCH_FIELD("ratio", "ratio", "%.4f", NUMBER, ratio),
    {0}};
#undef HD_BENCH_ROW

static hd_status bench_step_measure_schedule(struct hd_bench_part *part,
                                             struct hd_cli_bench_job *bench)
{
    struct hd_bench_schedule row;

    HD_TRY(hd_bench_schedule(&bench->job, part->warmup, &row, &part->cli->problem));
    hd_bench_show(&part->sheet, &row);
    return HD_OK;
}

static hd_status bench_step_part_schedule(struct hd_bench_part *part)
{
    char kept[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.schedule=interleaved_1f1b", "pipeline.ranks=16",
                  "pipeline.stages_per_rank=2", "pipeline.microbatches=64", "cost.tick_us=5000"},
        .forced = {part->steps, kept, HD_CLI_BENCH_FEW_STEPS, "output.trace=on",
                   "kernels.name=synthetic"},
    };

    snprintf(kept, sizeof kept, "output.trace_steps=%u", part->warmup + part->iterations);
    return hd_bench_part_measure(part, &words, bench_step_measure_schedule);
}

/* --- all parts ------------------------------------------------------------------------------- */

/* The kernels that a part is for: all, all but cuda, or cuda. */
enum part_kernel { ANY_KERNEL, NOT_CUDA, ONLY_CUDA };

struct part_row {
    const char *name, *head, *foot;
    hd_status (*run)(struct hd_bench_part *part);
    const struct hd_bench_field *fields;
    enum part_kernel kernel;
};

static const struct part_row bench_step_parts[] = {
    {"model", "model: floating-point rate of the model by the kernel, beside products of oneDNN",
     "compute: seconds in passes, of all ranks; GFLOP/s: over the median step, with its optimizer; "
     "oneDNN: one thread per copy, medians, of the\nfastest square product of at least 1024, and "
     "of the fastest product; ratio: GFLOP/s over all copies together",
     bench_step_part_model, bench_step_model_fields, NOT_CUDA},
    {"model",
     "model: floating-point rate of the model by the kernel, beside the fastest square product of "
     "cuBLASLt",
     "passes: seconds in passes, of all ranks, by marks of the device; ceiling: devices x TFLOP/s "
     "(size) of a BF16 product, the faster of\nbefore and after; MFU: fraction of the ceiling, "
     "first over the seconds in passes, then over the median step with its optimizer",
     hd_bench_part_passes, hd_bench_passes_fields, ONLY_CUDA},
    {"products",
     "products: TFLOP/s of every product of a stage by the kernel cuda, beside cuBLASLt alone",
     "C [rows, columns] over depth, for each expert; cuBLASLt: the yardstick, the fastest of its "
     "algorithms, experts as one batch; ratio: TFLOP/s\nover cuBLASLt; square: products of "
     "cuBLASLt "
     "alone, the ceiling of the device",
     hd_bench_part_products, hd_bench_products_fields, ONLY_CUDA},
    {"engine",
     "engine: CPU time per action outside of waits, with stages that take no time, microseconds",
     "waits: CPU time per action in waits; yardstick: a pair of clock readings and an empty call, "
     "nanoseconds; ratio: median over their sum",
     bench_step_part_engine, bench_step_engine_fields, ANY_KERNEL},
    {"schedule",
     "schedule: a step whose stages last as long as [cost] says, beside its costed plan",
     "shortest: the shortest action, ms; seconds: from the first pass to the last, median of the "
     "steps; plan: the yardstick; ratio: seconds over plan",
     bench_step_part_schedule, bench_step_schedule_fields, ANY_KERNEL},
    {"quantiser",
     "quantiser: BF16 to MXFP8 and back by the kernel cpu, one thread, beside a copy; and a step "
     "in "
     "MXFP8 beside one in BF16",
     "blocks along rows, down columns, and back to BF16; KiB: of the BF16 side; GB/s: read and "
     "written; copy: the yardstick, memcpy of the\nsame source; ratio: GB/s over copy",
     hd_bench_part_quantiser, hd_bench_quantiser_fields, ANY_KERNEL},
    {"overlap", "overlap: a step whose transfers take time, beside its costed plan",
     "seconds: from the first pass to the last, median of the steps; plan: the yardstick; ratio: "
     "seconds over plan; moved: seconds of transfer\nper step, all channels; hidden: the share of "
     "it "
     "during other work of the receiver, as measured and as planned; kept: hidden over planned",
     hd_bench_part_overlap, hd_bench_overlap_fields, ANY_KERNEL},
    {"recording", "recording: steps with the trace beside steps without it, in alternation",
     "milliseconds, medians; pairs: pairs of steps; ratio: with over without, median of the pairs",
     hd_bench_part_recording, hd_bench_recording_fields, ANY_KERNEL},
};

enum { PART_COUNT = sizeof bench_step_parts / sizeof bench_step_parts[0] };

/* The text of a part is printed when the part has been measured. */
static hd_status bench_step_run_part(struct hd_bench_part *part, const struct part_row *row)
{
    const bool is_text = !part->cli->is_json;

    part->sheet.fields = row->fields;
    hd_bench_sheet_begin(&part->sheet, part->cli, row->name);
    if (is_text) {
        printf("\n%s\n", row->head);
        fflush(stdout);
    }
    const hd_status status = row->run(part);
    hd_bench_sheet_end(&part->sheet, status);
    if (is_text && status == HD_OK) {
        printf("%s\n", row->foot);
        fflush(stdout);
    }
    return status;
}

static bool bench_step_fits_kernel(const struct part_row *row, const struct hd_config *asked)
{
    const bool is_cuda = strcmp(asked->kernels.name, "cuda") == 0;
    return row->kernel == ANY_KERNEL || (row->kernel == ONLY_CUDA) == is_cuda;
}

/* Chooses the part of that name for this kernel. */
static hd_status bench_step_choose_part(struct hd_cli *cli, const struct hd_config *asked,
                                        const char *name, bool is_chosen[PART_COUNT])
{
    bool is_known = false, fits = false;

    for (unsigned i = 0; i < PART_COUNT; i++) {
        const struct part_row *row = &bench_step_parts[i];
        if (strcmp(row->name, name) == 0) {
            is_known = true;
            is_chosen[i] = bench_step_fits_kernel(row, asked);
            fits |= is_chosen[i];
        }
    }
    if (!is_known) {
        hd_cli_refuse(cli,
                      "--part must be model, products, engine, schedule, quantiser, overlap or "
                      "recording, not %.100s",
                      name);
        return HD_INVALID;
    }
    if (fits) {
        return HD_OK;
    }
    hd_problem_remedy(&cli->problem, "set kernels.name=cuda");
    hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE,
                   "the part %s is for the kernel cuda, not for %s", name, asked->kernels.name);
    return hd_cli_bench_blame(cli, asked, "kernels", "name");
}

/* Without --part, all parts for this kernel. */
static hd_status bench_step_choose_parts(struct hd_cli *cli, const struct hd_config *asked,
                                         bool is_chosen[PART_COUNT])
{
    const char *name = hd_cli_option(cli, "--part", 0);

    for (unsigned i = 0; i < PART_COUNT; i++) {
        is_chosen[i] = name == NULL && bench_step_fits_kernel(&bench_step_parts[i], asked);
    }
    for (uint32_t use = 0; name != NULL; name = hd_cli_option(cli, "--part", ++use)) {
        HD_TRY(bench_step_choose_part(cli, asked, name, is_chosen));
    }
    return HD_OK;
}

int hd_cli_bench_step(struct hd_cli *cli)
{
    bool is_chosen[PART_COUNT];
    struct hd_bench_part part = {.cli = cli};

    if (hd_launch_check_environment(&cli->problem) != HD_OK ||
        hd_cli_config(cli, &part.asked) != HD_OK) {
        return cli->problem.exit_code;
    }
    hd_status status = bench_step_choose_parts(cli, &part.asked, is_chosen);
    if (status == HD_OK) {
        status = hd_cli_bench_check_repeats(cli, &part.asked, HD_BENCH_ITERATIONS_MAX);
    }
    const uint32_t iterations = part.asked.bench.iterations, warmup = part.asked.bench.warmup;
    part.iterations = iterations > 0 ? iterations : ITERATIONS_USUAL;
    part.warmup = warmup > 0 ? warmup : WARMUP_USUAL;
    part.seconds = fmin(YARDSTICK_SECONDS * part.iterations, YARDSTICK_SECONDS_MAX);
    snprintf(part.steps, sizeof part.steps, "train.steps=%u", part.warmup + part.iterations);
    for (unsigned i = 0; status == HD_OK && i < PART_COUNT; i++) {
        if (is_chosen[i]) {
            status = bench_step_run_part(&part, &bench_step_parts[i]);
        }
    }
    hd_config_finish(&part.asked);
    return cli->problem.exit_code;
}
