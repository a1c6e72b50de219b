/* heddle bench step - what a step costs: the kernel, the engine, and the schedule against its
   plan. */
#include "bench/cmd/cmd_bench_commands.h"
#include "bench/cmd/cmd_bench_part.h"
#include "bench/step.h"
#include "launch/launch.h"

#include <stdio.h>
#include <string.h>

enum { ITERATIONS_USUAL = 5, WARMUP_USUAL = 2, ENGINE_STEPS = 20, WORD_BYTES = 64 };

/* Of one measurement by a yardstick's program, of which there are as many as iterations. */
#define YARDSTICK_SECONDS     0.05
#define YARDSTICK_SECONDS_MAX 1.0

struct hd_bench_row hd_bench_part_row(const struct hd_bench_part *part)
{
    return (struct hd_bench_row){part->table,
                                 part->list != NULL ? hd_json_object(part->list, NULL) : NULL};
}

static void bench_step_add_gemm_json(struct cJSON *parent, const struct hd_bench_model *row)
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

static void bench_step_show_model(const struct hd_bench_part *part,
                                  const struct hd_bench_model *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);
    const struct hd_gemm_rate *rate = &row->yardstick;
    const struct hd_gemm_row *const rows[] = {&rate->rows[rate->big], &rate->rows[rate->best]};
    const double ratios[] = {row->big_ratio, row->best_ratio};

    hd_bench_put_count(&out, "ranks", row->rank_count);
    if (out.table == NULL) {
        hd_json_text(out.object, "device", row->session.device);
    }
    hd_bench_put_number(&out, "gflop_per_step", "%.1f", row->flops * 1e-9);
    hd_bench_put_spread(&out, "step_seconds", "%.3f", &row->session.step_seconds);
    hd_bench_put_number(&out, "compute_seconds", "%.3f", row->session.compute_seconds);
    hd_bench_put_number(&out, "gflops", "%.1f", row->gflops);
    if (out.table == NULL) {
        bench_step_add_gemm_json(out.object, row);
        return;
    }
    if (rate->row_count == 0) {
        printf("no yardstick: %s\n", rate->missing);
    }
    for (int i = 0; i < 2; i++) {
        if (rate->row_count == 0) {
            hd_table_cell(out.table, "-");
        } else {
            hd_table_cell(out.table, "%u x %.1f (%s %u %s)", rate->copies,
                          rows[i]->gflops / rate->copies, rows[i]->type, rows[i]->size,
                          rows[i]->layout);
        }
        hd_bench_put_number(&out, NULL, "%.3f", ratios[i]);
    }
}

static hd_status bench_step_measure_model(const struct hd_bench_part *part, uint32_t ranks)
{
    char rank_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL},
        .forced = {rank_word, part->steps, HD_CLI_BENCH_FEW_STEPS},
    };
    struct hd_cli *cli = part->cli;
    struct hd_cli_bench_job bench;
    struct hd_bench_machine machine;
    struct hd_bench_model row;

    snprintf(rank_word, sizeof rank_word, "pipeline.ranks=%u", ranks);
    hd_status status = hd_cli_bench_open(cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    hd_bench_machine(&machine);
    const uint32_t cores =
        machine.core_count < HD_GEMM_COPIES_MAX ? machine.core_count : HD_GEMM_COPIES_MAX;
    const struct hd_bench_model_request request = {
        .type = bench.config.kernels.precision == HD_CONFIG_F32 ? "f32" : "bf16",
        .warmup = part->warmup,
        .gemm_seconds = part->seconds,
        .copies = ranks < cores ? ranks : cores,
    };
    status = hd_bench_model(&bench.job, &request, &row, &cli->problem);
    if (status == HD_OK) {
        bench_step_show_model(part, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* One rank, and pipeline.ranks or four. */
static hd_status bench_step_part_model(struct hd_bench_part *part)
{
    const bool is_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    const uint32_t more = is_asked ? part->asked.pipeline.ranks : 4;
    hd_status status = bench_step_measure_model(part, 1);

    if (status == HD_OK && more > 1) {
        status = bench_step_measure_model(part, more);
    }
    return status;
}

static void bench_step_show_engine(const struct hd_bench_part *part, const char *transport,
                                   const struct hd_bench_engine *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);

    hd_bench_put_text(&out, "transport", transport);
    hd_bench_put_count(&out, "ranks", row->rank_count);
    hd_bench_put_count(&out, "actions", row->action_count);
    hd_bench_put_spread(&out, "action_us", "%.3f", &row->action_us);
    hd_bench_put_median(&out, "wait_us", "%.3f", 1, &row->wait_us);
    hd_bench_put_number(&out, "clock_pair_ns", "%.1f", row->yardstick.clock_pair_ns);
    hd_bench_put_number(&out, "call_ns", "%.1f", row->yardstick.call_ns);
    hd_bench_put_number(&out, "ratio", "%.1f", row->ratio);
}

static hd_status bench_step_measure_engine(const struct hd_bench_part *part, const char *transport,
                                           uint32_t ranks)
{
    char steps[WORD_BYTES], rank_word[WORD_BYTES], transport_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.microbatches=256"},
        .forced = {rank_word, transport_word, steps, HD_CLI_BENCH_FEW_STEPS,
                   HD_CLI_BENCH_NO_COMPUTE},
    };
    struct hd_cli *cli = part->cli;
    struct hd_cli_bench_job bench;
    struct hd_bench_engine row;

    snprintf(steps, sizeof steps, "train.steps=%u", (unsigned)ENGINE_STEPS);
    snprintf(rank_word, sizeof rank_word, "pipeline.ranks=%u", ranks);
    snprintf(transport_word, sizeof transport_word, "transport.name=%.40s", transport);
    hd_status status = hd_cli_bench_open(cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_engine(&bench.job, part->iterations, &row, &cli->problem);
    if (status == HD_OK) {
        bench_step_show_engine(part, transport, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

static hd_status bench_step_part_engine(struct hd_bench_part *part)
{
    static const char *const transports[] = {"null", "shm"};
    static const uint32_t ranks[] = {1, 2, 4};
    const bool is_transport_asked = hd_cli_bench_is_asked(&part->asked, "transport.name");
    const bool are_ranks_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < (is_transport_asked ? 1 : 2); i++) {
        const char *transport = is_transport_asked ? part->asked.transport.name : transports[i];
        for (unsigned j = 0; status == HD_OK && j < (are_ranks_asked ? 1 : 3); j++) {
            status = bench_step_measure_engine(
                part, transport, are_ranks_asked ? part->asked.pipeline.ranks : ranks[j]);
        }
    }
    return status;
}

static void bench_step_show_schedule(const struct hd_bench_part *part, const char *schedule,
                                     const struct hd_bench_schedule *row)
{
    const struct hd_bench_row out = hd_bench_part_row(part);

    hd_bench_put_text(&out, "schedule", schedule);
    hd_bench_put_count(&out, "ranks", row->rank_count);
    hd_bench_put_count(&out, "stages", row->stage_count);
    hd_bench_put_count(&out, "microbatches", row->microbatch_count);
    hd_bench_put_number(&out, "shortest_ms", "%.3f", row->shortest_ms);
    hd_bench_put_spread(&out, "span_seconds", "%.4f", &row->session.span_seconds);
    hd_bench_put_number(&out, "plan_seconds", "%.4f", row->plan_seconds);
    hd_bench_put_number(&out, "ratio", "%.4f", row->ratio);
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
    struct hd_cli *cli = part->cli;
    struct hd_cli_bench_job bench;
    struct hd_bench_schedule row;

    snprintf(kept, sizeof kept, "output.trace_steps=%u", part->warmup + part->iterations);
    hd_status status = hd_cli_bench_open(cli, &words, &bench);
    if (status != HD_OK) {
        return status;
    }
    status = hd_bench_schedule(&bench.job, part->warmup, &row, &cli->problem);
    if (status == HD_OK) {
        bench_step_show_schedule(part, bench.config.pipeline.schedule, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* The kernels that a part is for: all, all but cuda, or cuda. */
enum part_kernel { ANY_KERNEL, NOT_CUDA, ONLY_CUDA };

struct part_row {
    const char *name, *head, *foot;
    hd_status (*run)(struct hd_bench_part *part);
    const char *titles[14]; /* ends with NULL */
    enum part_kernel kernel;
};

static const struct part_row bench_step_parts[] = {
    {"model",
     "model: floating-point rate of the model by the kernel, beside products of oneDNN",
     "compute: seconds in passes, of all ranks; GFLOP/s: over the median step, with its optimizer; "
     "oneDNN: one thread per copy, medians, of the\nfastest square product of at least 1024, and "
     "of the fastest product; ratio: GFLOP/s over all copies together",
     bench_step_part_model,
     {"ranks", "GFLOP/step", "seconds", "min", "p90", "compute", "GFLOP/s", "oneDNN big", "ratio",
      "oneDNN best", "ratio", NULL},
     NOT_CUDA},
    {"model",
     "model: floating-point rate of the model by the kernel, beside the fastest square product of "
     "cuBLASLt",
     "passes: seconds in passes, of all ranks, by marks of the device; ceiling: devices x TFLOP/s "
     "(size) of a BF16 product, the faster of\nbefore and after; MFU: fraction of the ceiling, "
     "first over the seconds in passes, then over the median step with its optimizer",
     hd_bench_part_passes,
     {"ranks", "TFLOP/step", "seconds", "min", "p90", "passes", "ceiling", "TFLOP/s", "MFU",
      "step TFLOP/s", "MFU", NULL},
     ONLY_CUDA},
    {"products",
     "products: TFLOP/s of every product of a stage by the kernel cuda, beside cuBLASLt alone",
     "C [rows, columns] over depth, for each expert; cuBLASLt: the yardstick, the fastest of its "
     "algorithms, experts as one batch; ratio: TFLOP/s\nover cuBLASLt; square: products of "
     "cuBLASLt "
     "alone, the ceiling of the device",
     hd_bench_part_products,
     {"product", "form", "experts", "rows", "columns", "depth", "TFLOP/s", "cuBLASLt", "ratio",
      NULL},
     ONLY_CUDA},
    {"engine",
     "engine: CPU time per action outside of waits, with stages that take no time, microseconds",
     "waits: CPU time per action in waits; yardstick: a pair of clock readings and an empty call, "
     "nanoseconds; ratio: median over their sum",
     bench_step_part_engine,
     {"transport", "ranks", "actions", "median", "min", "p90", "waits", "clock ns", "call ns",
      "ratio", NULL},
     ANY_KERNEL},
    {"schedule",
     "schedule: a step whose stages last as long as [cost] says, beside its costed plan",
     "shortest: the shortest action, ms; seconds: from the first pass to the last, median of the "
     "steps; plan: the yardstick; ratio: seconds over plan",
     bench_step_part_schedule,
     {"schedule", "ranks", "stages", "microbatches", "shortest", "seconds", "min", "p90", "plan",
      "ratio", NULL},
     ANY_KERNEL},
    {"quantiser",
     "quantiser: BF16 to MXFP8 and back by the kernel cpu, one thread, beside a copy; and a step "
     "in "
     "MXFP8 beside one in BF16",
     "blocks along rows, down columns, and back to BF16; KiB: of the BF16 side; GB/s: read and "
     "written; copy: the yardstick, memcpy of the\nsame source; ratio: GB/s over copy",
     hd_bench_part_quantiser,
     {"quantise", "isa", "KiB", "Gelem/s", "GB/s", "copy GB/s", "ratio", NULL},
     ANY_KERNEL},
    {"overlap",
     "overlap: a step whose transfers take time, beside its costed plan",
     "seconds: from the first pass to the last, median of the steps; plan: the yardstick; ratio: "
     "seconds over plan; moved: seconds of transfer\nper step, all channels; hidden: the share of "
     "it "
     "during other work of the receiver, as measured and as planned; kept: hidden over planned",
     hd_bench_part_overlap,
     {"schedule", "ranks", "stages", "microbatches", "seconds", "min", "plan", "ratio", "moved",
      "planned", "hidden", "of plan", "kept", NULL},
     ANY_KERNEL},
    {"recording",
     "recording: steps with the trace beside steps without it, in alternation",
     "milliseconds, medians; pairs: pairs of steps; ratio: with over without, median of the pairs",
     hd_bench_part_recording,
     {"kernel", "ranks", "actions", "pairs", "with", "min", "without", "min", "ratio", NULL},
     ANY_KERNEL},
};

enum { PART_COUNT = sizeof bench_step_parts / sizeof bench_step_parts[0] };

static uint32_t bench_step_title_count(const struct part_row *row)
{
    uint32_t count = 0;
    while (row->titles[count] != NULL) {
        count++;
    }
    return count;
}

/* The text of a part is printed when the part has been measured. */
static hd_status bench_step_run_part(struct hd_bench_part *part, const struct part_row *row)
{
    struct hd_cli *cli = part->cli;

    part->table = cli->is_json ? NULL : hd_table_create(bench_step_title_count(row), row->titles);
    part->list = cli->is_json ? hd_json_array(cli->json, row->name) : NULL;
    if (!cli->is_json) {
        printf("\n%s\n", row->head);
        fflush(stdout);
    }
    const hd_status status = row->run(part);
    if (part->table != NULL && status == HD_OK) {
        hd_table_print(part->table, 0, stdout);
        printf("%s\n", row->foot);
        fflush(stdout);
    }
    hd_table_destroy(part->table);
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
    bool is_known = false;

    for (unsigned i = 0; i < PART_COUNT; i++) {
        if (strcmp(bench_step_parts[i].name, name) == 0) {
            is_known = true;
            if (bench_step_fits_kernel(&bench_step_parts[i], asked)) {
                is_chosen[i] = true;
                return HD_OK;
            }
        }
    }
    if (is_known) {
        hd_problem_place(&cli->problem, "%s", hd_config_place(asked, "kernels", "name"));
        hd_problem_key(&cli->problem, "kernels.name");
        hd_problem_remedy(&cli->problem, "set kernels.name=cuda");
        return hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE,
                              "the part %s is for the kernel cuda, not for %s", name,
                              asked->kernels.name);
    }
    hd_cli_refuse(cli,
                  "--part must be model, products, engine, schedule, quantiser, overlap or "
                  "recording, not %.100s",
                  name);
    return HD_INVALID;
}

/* Without --part, all parts for this kernel. */
static hd_status bench_step_choose_parts(struct hd_cli *cli, const struct hd_config *asked,
                                         bool is_chosen[PART_COUNT])
{
    const char *name = hd_cli_option(cli, "--part", 0);
    hd_status status = HD_OK;

    for (unsigned i = 0; i < PART_COUNT; i++) {
        is_chosen[i] = name == NULL && bench_step_fits_kernel(&bench_step_parts[i], asked);
    }
    for (uint32_t use = 0; status == HD_OK && name != NULL;
         name = hd_cli_option(cli, "--part", ++use)) {
        status = bench_step_choose_part(cli, asked, name, is_chosen);
    }
    return status;
}

int hd_cli_bench_step(struct hd_cli *cli)
{
    bool is_chosen[PART_COUNT];
    struct hd_bench_part part = {.cli = cli};

    if (hd_cli_bench_refuse_option(cli, "--svg", "skew") != HD_OK ||
        hd_launch_check_environment(&cli->problem) != HD_OK ||
        hd_cli_config(cli, &part.asked) != HD_OK) {
        return cli->problem.exit_code;
    }
    hd_status status = bench_step_choose_parts(cli, &part.asked, is_chosen);
    const uint32_t iterations = part.asked.bench.iterations, warmup = part.asked.bench.warmup;
    part.iterations = iterations > 0 ? iterations : ITERATIONS_USUAL;
    part.warmup = warmup > 0 ? warmup : WARMUP_USUAL;
    part.seconds = YARDSTICK_SECONDS * part.iterations;
    part.seconds = part.seconds < YARDSTICK_SECONDS_MAX ? part.seconds : YARDSTICK_SECONDS_MAX;
    snprintf(part.steps, sizeof part.steps, "train.steps=%u", part.warmup + part.iterations);
    if (status == HD_OK &&
        (part.iterations > HD_BENCH_ITERATIONS_MAX || part.warmup > HD_BENCH_ITERATIONS_MAX)) {
        hd_problem_key(&cli->problem, "bench.iterations");
        hd_cli_refuse(cli, "bench step repeats at most %u times", HD_BENCH_ITERATIONS_MAX);
    }
    status = cli->problem.exit_code == 0 ? HD_OK : HD_INVALID;
    for (unsigned i = 0; status == HD_OK && i < PART_COUNT; i++) {
        if (is_chosen[i]) {
            status = bench_step_run_part(&part, &bench_step_parts[i]);
        }
    }
    hd_config_finish(&part.asked);
    return cli->problem.exit_code;
}
