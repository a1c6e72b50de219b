/* heddle bench step - what a step costs: the kernel, the engine, and the schedule against its
   plan. */
#include "bench/cmd/cmd_bench.h"
#include "launch/launch.h"
#include "bench/step.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { ITERATIONS_USUAL = 5, WARMUP_USUAL = 2, ENGINE_STEPS = 20, WORD_BYTES = 64 };

/* Of each product of the yardstick, a measured repetition. */
#define GEMM_SECONDS 0.05

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

static void bench_step_show_model(const struct hd_cli_bench_part *part,
                                  const struct hd_bench_model *row)
{
    const struct hd_gemm_rate *rate = &row->yardstick;
    const struct hd_bench_session *session = &row->session;
    struct hd_table *table = part->table;

    if (part->list != NULL) {
        struct cJSON *object = hd_json_object(part->list, NULL);
        hd_json_u64(object, "ranks", row->rank_count);
        hd_json_text(object, "device", session->device);
        hd_json_number(object, "gflop_per_step", row->flops * 1e-9);
        hd_cli_bench_json(object, "step_seconds", &session->step_seconds);
        hd_json_number(object, "compute_seconds", session->compute_seconds);
        hd_json_number(object, "gflops", row->gflops);
        bench_step_add_gemm_json(object, row);
        return;
    }
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%.1f", row->flops * 1e-9);
    hd_table_cell(table, "%.3f", session->step_seconds.median);
    hd_table_cell(table, "%.3f", session->step_seconds.min);
    hd_table_cell(table, "%.3f", session->step_seconds.p90);
    hd_table_cell(table, "%.3f", session->compute_seconds);
    hd_table_cell(table, "%.1f", row->gflops);
    if (rate->row_count == 0) {
        for (int i = 0; i < 4; i++) {
            hd_table_cell(table, "-");
        }
        printf("no yardstick: %s\n", rate->missing);
        return;
    }
    const struct hd_gemm_row *const rows[] = {&rate->rows[rate->big], &rate->rows[rate->best]};
    const double ratios[] = {row->big_ratio, row->best_ratio};
    for (int i = 0; i < 2; i++) {
        hd_table_cell(table, "%u x %.1f (%s %u %s)", rate->copies, rows[i]->gflops / rate->copies,
                      rows[i]->type, rows[i]->size, rows[i]->layout);
        hd_table_cell(table, "%.3f", ratios[i]);
    }
}

static hd_status bench_step_measure_model(const struct hd_cli_bench_part *part, uint32_t ranks)
{
    char steps[WORD_BYTES], rank_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {HD_CLI_BENCH_MODEL},
        .forced = {rank_word, steps, HD_CLI_BENCH_FEW_STEPS},
    };
    struct hd_cli *cli = part->cli;
    struct hd_cli_bench_job bench;
    struct hd_bench_machine machine;
    struct hd_bench_model row;

    snprintf(steps, sizeof steps, "train.steps=%u", part->warmup + part->iterations);
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
        .gemm_seconds = GEMM_SECONDS * (part->iterations < 20 ? part->iterations : 20),
        .copies = ranks < cores ? ranks : cores,
    };
    status = hd_bench_model(&bench.job, &request, &row, &cli->problem);
    if (status == HD_OK) {
        bench_step_show_model(part, &row);
    }
    hd_cli_bench_close(&bench);
    return status;
}

/* One rank, and four or what is asked. */
static hd_status bench_step_part_model(struct hd_cli_bench_part *part)
{
    const int is_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
    const uint32_t more = is_asked ? part->asked.pipeline.ranks : 4;
    hd_status status = bench_step_measure_model(part, 1);

    if (status == HD_OK && more > 1) {
        status = bench_step_measure_model(part, more);
    }
    return status;
}

static void bench_step_show_engine(const struct hd_cli_bench_part *part, const char *transport,
                                   const struct hd_bench_engine *row)
{
    struct hd_table *table = part->table;

    if (part->list != NULL) {
        struct cJSON *object = hd_json_object(part->list, NULL);
        hd_json_text(object, "transport", transport);
        hd_json_u64(object, "ranks", row->rank_count);
        hd_json_u64(object, "actions", row->action_count);
        hd_cli_bench_json(object, "action_us", &row->action_us);
        hd_cli_bench_json(object, "wait_us", &row->wait_us);
        hd_json_number(object, "clock_pair_ns", row->yardstick.clock_pair_ns);
        hd_json_number(object, "call_ns", row->yardstick.call_ns);
        hd_json_number(object, "ratio", row->ratio);
        return;
    }
    hd_table_cell(table, "%s", transport);
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%llu", (unsigned long long)row->action_count);
    hd_table_cell(table, "%.3f", row->action_us.median);
    hd_table_cell(table, "%.3f", row->action_us.min);
    hd_table_cell(table, "%.3f", row->action_us.p90);
    hd_table_cell(table, "%.3f", row->wait_us.median);
    hd_table_cell(table, "%.1f", row->yardstick.clock_pair_ns);
    hd_table_cell(table, "%.1f", row->yardstick.call_ns);
    hd_table_cell(table, "%.1f", row->ratio);
}

static hd_status bench_step_measure_engine(const struct hd_cli_bench_part *part,
                                           const char *transport, uint32_t ranks)
{
    char steps[WORD_BYTES], rank_word[WORD_BYTES], transport_word[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.microbatches=256"},
        .forced = {rank_word, transport_word, steps, HD_CLI_BENCH_FEW_STEPS,
                   "kernels.name=synthetic", "kernel.synthetic.check=off",
                   "kernel.synthetic.boundary_bytes=64", "model.sequence=1",
                   "data.microbatch_size=1", "cost.forward=0", "cost.backward=0",
                   "cost.input_gradient=0", "cost.weight_gradient=0"},
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

static hd_status bench_step_part_engine(struct hd_cli_bench_part *part)
{
    static const char *const transports[] = {"null", "shm"};
    static const uint32_t ranks[] = {1, 2, 4};
    const int is_transport_asked = hd_cli_bench_is_asked(&part->asked, "transport.name");
    const int are_ranks_asked = hd_cli_bench_is_asked(&part->asked, "pipeline.ranks");
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

static void bench_step_show_schedule(const struct hd_cli_bench_part *part, const char *schedule,
                                     const struct hd_bench_schedule *row)
{
    const struct hd_bench_spread *span = &row->session.span_seconds;
    struct hd_table *table = part->table;

    if (part->list != NULL) {
        struct cJSON *object = hd_json_object(part->list, NULL);
        hd_json_text(object, "schedule", schedule);
        hd_json_u64(object, "ranks", row->rank_count);
        hd_json_u64(object, "stages", row->stage_count);
        hd_json_u64(object, "microbatches", row->microbatch_count);
        hd_json_number(object, "shortest_ms", row->shortest_ms);
        hd_cli_bench_json(object, "span_seconds", span);
        hd_json_number(object, "plan_seconds", row->plan_seconds);
        hd_json_number(object, "ratio", row->ratio);
        return;
    }
    hd_table_cell(table, "%s", schedule);
    hd_table_cell(table, "%u", row->rank_count);
    hd_table_cell(table, "%u", row->stage_count);
    hd_table_cell(table, "%u", row->microbatch_count);
    hd_table_cell(table, "%.3f", row->shortest_ms);
    hd_table_cell(table, "%.4f", span->median);
    hd_table_cell(table, "%.4f", span->min);
    hd_table_cell(table, "%.4f", span->p90);
    hd_table_cell(table, "%.4f", row->plan_seconds);
    hd_table_cell(table, "%.4f", row->ratio);
}

static hd_status bench_step_part_schedule(struct hd_cli_bench_part *part)
{
    char steps[WORD_BYTES], kept[WORD_BYTES];
    const struct hd_cli_bench_words words = {
        .usual = {"pipeline.schedule=interleaved_1f1b", "pipeline.ranks=16",
                  "pipeline.stages_per_rank=2", "pipeline.microbatches=64", "cost.tick_us=5000"},
        .forced = {steps, kept, HD_CLI_BENCH_FEW_STEPS, "output.trace=on",
                   "kernels.name=synthetic"},
    };
    struct hd_cli *cli = part->cli;
    struct hd_cli_bench_job bench;
    struct hd_bench_schedule row;

    snprintf(steps, sizeof steps, "train.steps=%u", part->warmup + part->iterations);
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

/* Of which kernels a part is. */
enum part_kernel { ANY_KERNEL, NOT_CUDA, ONLY_CUDA };

struct part_row {
    const char *name, *head, *foot;
    hd_status (*run)(struct hd_cli_bench_part *part);
    const char *titles[14]; /* ends with NULL */
    enum part_kernel kernel;
};

static const struct part_row bench_step_parts[] = {
    {"model",
     "model: operations of the model a second, by the kernel, beside what oneDNN multiplies",
     "compute: seconds in passes, of all ranks; GFLOP/s: of the median step, optimizer and all; "
     "oneDNN: one thread a copy, medians, the\nfastest square product from 1024 on, and the "
     "fastest of all; ratio: GFLOP/s over all copies together",
     bench_step_part_model,
     {"ranks", "GFLOP/step", "seconds", "min", "p90", "compute", "GFLOP/s", "oneDNN big", "ratio",
      "oneDNN best", "ratio", NULL},
     NOT_CUDA},
    {"model",
     "model: operations of the model a second, by the kernel, beside the fastest square product "
     "of cuBLASLt",
     "passes: seconds in them, of all ranks, by the device's marks; ceiling: devices x TFLOP/s "
     "(size) of a BF16 product, before and after, the\nfaster; MFU: of the ceiling, first over the "
     "seconds in passes, then over the median step, optimizer and all",
     hd_cli_bench_passes,
     {"ranks", "TFLOP/step", "seconds", "min", "p90", "passes", "ceiling", "TFLOP/s", "MFU",
      "step TFLOP/s", "MFU", NULL},
     ONLY_CUDA},
    {"products",
     "products: TFLOP/s of every product of a stage by the kernel cuda, beside cuBLASLt alone",
     "C [rows, columns] over depth, of each expert; cuBLASLt: the yardstick, the fastest of its "
     "algorithms, experts as one batch; ratio: TFLOP/s\nover it; square: of cuBLASLt alone, the "
     "ceiling of the device",
     hd_cli_bench_products,
     {"product", "form", "experts", "rows", "columns", "depth", "TFLOP/s", "cuBLASLt", "ratio",
      NULL},
     ONLY_CUDA},
    {"engine",
     "engine: CPU time an action outside waits, stages of no length, microseconds",
     "waits: CPU time in them, apart; yardstick: a pair of clock readings and an empty call, "
     "nanoseconds; ratio: median over their sum",
     bench_step_part_engine,
     {"transport", "ranks", "actions", "median", "min", "p90", "waits", "clock ns", "call ns",
      "ratio", NULL},
     ANY_KERNEL},
    {"schedule",
     "schedule: a step of stages that last what [cost] says, beside its costed plan",
     "shortest: action, ms; seconds: from the first pass to the last, median of steps; plan: the "
     "yardstick; ratio: seconds over it",
     bench_step_part_schedule,
     {"schedule", "ranks", "stages", "microbatches", "shortest", "seconds", "min", "p90", "plan",
      "ratio", NULL},
     ANY_KERNEL},
    {"quantiser",
     "quantiser: the kernel cpu's BF16 to MXFP8 and back, one thread, beside a copy; and the step "
     "in MXFP8 over the one in BF16",
     "blocks along rows, down columns, and back to BF16; KiB: of the BF16 side; GB/s: read and "
     "written; copy: the yardstick, memcpy of the\nsame source; ratio: GB/s over it",
     hd_cli_bench_quantiser,
     {"quantise", "lane", "KiB", "Gelem/s", "GB/s", "copy GB/s", "ratio", NULL},
     ANY_KERNEL},
    {"overlap",
     "overlap: a step whose transfers take their time, beside its costed plan",
     "seconds: from the first pass to the last, median of steps; plan: the yardstick; ratio: "
     "seconds over it; moved: seconds of transfer a step,\nall channels; hidden: the share of it "
     "beside other work of the receiver, by the clock, and by the plan; kept: of what the plan "
     "hides",
     hd_cli_bench_overlap,
     {"schedule", "ranks", "stages", "microbatches", "seconds", "min", "plan", "ratio", "moved",
      "planned", "hidden", "of plan", "kept", NULL},
     ANY_KERNEL},
    {"recording",
     "recording: steps with the trace beside steps without it, one after the other",
     "milliseconds, medians; pairs: of steps; ratio: with over without, the median over the pairs",
     hd_cli_bench_recording,
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

/* Text of a part is printed as soon as the part is measured. */
static hd_status bench_step_run_part(struct hd_cli_bench_part *part, const struct part_row *row)
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

static uint32_t bench_step_fits_kernel(const struct part_row *row, const struct hd_config *asked)
{
    const uint32_t is_cuda = strcmp(asked->kernels.name, "cuda") == 0;
    return row->kernel == ANY_KERNEL || (row->kernel == ONLY_CUDA) == is_cuda;
}

/* The part of that name for this kernel; a row for another kernel where there is none. */
static hd_status bench_step_choose_part(struct hd_cli *cli, const struct hd_config *asked,
                                        const char *name, uint32_t is_chosen[PART_COUNT])
{
    uint32_t is_known = 0;

    for (unsigned i = 0; i < PART_COUNT; i++) {
        if (strcmp(bench_step_parts[i].name, name) == 0) {
            is_known = 1;
            if (bench_step_fits_kernel(&bench_step_parts[i], asked)) {
                is_chosen[i] = 1;
                return HD_OK;
            }
        }
    }
    if (is_known) {
        hd_problem_place(&cli->problem, "%s", hd_config_place(asked, "kernels", "name"));
        hd_problem_key(&cli->problem, "kernels.name");
        hd_problem_remedy(&cli->problem, "set kernels.name=cuda");
        return hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE,
                              "the part %s is of the kernel cuda, not of %s", name,
                              asked->kernels.name);
    }
    hd_cli_refuse(cli,
                  "--part is model, products, engine, schedule, quantiser, overlap or recording, "
                  "not %.100s",
                  name);
    return HD_INVALID;
}

/* Without --part, all of this kernel; an unknown one is refused. */
static hd_status bench_step_choose_parts(struct hd_cli *cli, const struct hd_config *asked,
                                         uint32_t is_chosen[PART_COUNT])
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
    uint32_t is_chosen[PART_COUNT];
    struct hd_cli_bench_part part = {.cli = cli};

    if (hd_cli_bench_no_figure(cli) != HD_OK ||
        hd_launch_check_environment(&cli->problem) != HD_OK ||
        hd_cli_config(cli, &part.asked) != HD_OK) {
        return cli->problem.exit_code;
    }
    hd_status status = bench_step_choose_parts(cli, &part.asked, is_chosen);
    const uint32_t iterations = part.asked.bench.iterations, warmup = part.asked.bench.warmup;
    part.iterations = iterations > 0 ? iterations : ITERATIONS_USUAL;
    part.warmup = warmup > 0 ? warmup : WARMUP_USUAL;
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
