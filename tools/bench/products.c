/* bench/products.c - runs heddle-cuda-rate, and a step beside it. */
#include "bench/products.h"
#include "base/number.h"
#include "base/try.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 32, WORD_BYTES = PATH_MAX + 64 };

/* What one run of the program prints. */
struct reading {
    struct hd_product_rates *rates;
    char missing[HD_BENCH_LINE_BYTES];
};

static void products_take_line(void *context, const char *line)
{
    struct reading *reading = context;
    struct hd_product_rates *rates = reading->rates;
    struct hd_product_row row = {0};

    if (strncmp(line, "device ", 7) == 0) {
        snprintf(rates->device, sizeof rates->device, "%s", line + 7);
    } else if (sscanf(line, "count %u", &rates->device_count) == 1) {
        return;
    } else if (strncmp(line, "missing ", 8) == 0) {
        snprintf(reading->missing, sizeof reading->missing, "%s", line + 8);
    } else if (rates->row_count < HD_PRODUCT_ROWS_MAX &&
               sscanf(line, "product %23s %7s %u %u %u %u %lf %lf %u", row.name, row.form,
                      &row.experts, &row.rows, &row.columns, &row.depth, &row.tflops,
                      &row.library_tflops, &row.sample_count) == 9) {
        row.tflops = row.tflops > 0 ? row.tflops : NAN;
        row.ratio = hd_bench_ratio(row.tflops, row.library_tflops);
        rates->rows[rates->row_count++] = row;
    }
}

/* --- the command line of the program --------------------------------------------------------- */

struct words {
    char text[WORD_MAX][WORD_BYTES];
    char *list[WORD_MAX + 1]; /* ends with NULL */
    uint32_t count;
};

static char *products_next_word(struct words *words)
{
    assert(words->count < WORD_MAX);
    words->list[words->count] = words->text[words->count];
    return words->text[words->count++];
}

static void products_add_option(struct words *words, const struct hd_option *option,
                                const struct hd_option_value *value)
{
    char *word = products_next_word(words);

    if (option->type == HD_OPTION_TEXT) {
        snprintf(word, WORD_BYTES, "%s=%s", option->name, value->text);
    } else if (option->type == HD_OPTION_NUMBER) {
        snprintf(word, WORD_BYTES, "%s=%.17g", option->name, value->number);
    } else {
        snprintf(word, WORD_BYTES, "%s=%lld", option->name, (long long)value->integer);
    }
}

static void products_add_model(struct words *words, const struct hd_stage_spec *spec)
{
    const struct {
        const char *key;
        uint32_t value;
    } rows[] = {{"batch", spec->batch / spec->half_batches},
                {"sequence", spec->sequence},
                {"width", spec->width},
                {"heads", spec->heads},
                {"key_value_heads", spec->key_value_heads},
                {"experts", spec->experts},
                {"experts_per_token", spec->experts_per_token},
                {"expert_width", spec->expert_width},
                {"vocabulary", spec->vocabulary}};

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(products_next_word(words), WORD_BYTES, "%s=%u", rows[i].key, rows[i].value);
    }
}

static void products_fill_words(struct words *words, const struct hd_product_request *request)
{
    words->count = 0;
    snprintf(products_next_word(words), WORD_BYTES, "heddle-cuda-rate");
    snprintf(products_next_word(words), WORD_BYTES, "%s", request->what);
    snprintf(products_next_word(words), WORD_BYTES, "%.3f", request->seconds);
    snprintf(products_next_word(words), WORD_BYTES, "0"); /* the device of the first rank */
    for (uint32_t i = 0; i < request->kernel->option_count; i++) {
        products_add_option(words, &request->kernel->options[i], &request->options[i]);
    }
    products_add_model(words, request->spec);
    words->list[words->count] = NULL;
}

/* --- rates ----------------------------------------------------------------------------------- */

hd_status hd_product_rates(const struct hd_product_request *request, struct hd_product_rates *rates,
                           struct hd_problem *problem)
{
    static struct words words;
    char path[PATH_MAX];
    struct hd_child child;
    struct reading reading = {.rates = rates};

    *rates = (struct hd_product_rates){0};
    if (!hd_bench_program_find("heddle-cuda-rate", path)) {
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                              "libexec/heddle/heddle-cuda-rate is missing; it is built if nvcc and "
                              "the header of cuBLASLt are installed");
    }
    products_fill_words(&words, request);
    if (hd_bench_program_start(&child, path, words.list) != HD_OK) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED, "cannot start %s: %s", path,
                              strerror(errno));
    }
    const int exit_code = hd_bench_program_read(&child, products_take_line, &reading);
    if (reading.missing[0] != '\0') {
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN, "%s: %s",
                              request->kernel->name, reading.missing);
    }
    if (exit_code != 0 || rates->row_count == 0) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                              "heddle-cuda-rate ended with exit code %d", exit_code);
    }
    return HD_OK;
}

/* The row with the highest library_tflops. */
static const struct hd_product_row *products_best(const struct hd_product_rates *rates)
{
    const struct hd_product_row *best = &rates->rows[0];

    assert(rates->row_count > 0);
    for (uint32_t i = 1; i < rates->row_count; i++) {
        best = rates->rows[i].library_tflops > best->library_tflops ? &rates->rows[i] : best;
    }
    return best;
}

/* --- a step beside the ceiling --------------------------------------------------------------- */

/* The ceiling is measured before and after the step, and the faster one counts, so that a warm
   device or other load does not flatter the kernel. */
hd_status hd_bench_passes(struct hd_job *job, double seconds, uint32_t warmup,
                          struct hd_bench_passes *row, struct hd_problem *problem)
{
    const struct hd_product_request request = {.what = "squares",
                                               .seconds = seconds,
                                               .kernel = &job->plugins.kernel->plugin,
                                               .options = job->plugins.kernel_options,
                                               .spec = &job->model.specs[0]};
    struct hd_product_rates before, after;

    *row = (struct hd_bench_passes){.rank_count = job->pipeline->rank_count,
                                    .flops = hd_bench_step_flops(job)};
    HD_TRY(hd_product_rates(&request, &before, problem));
    HD_TRY(hd_bench_session_run(job, warmup, &row->session, problem));
    HD_TRY(hd_product_rates(&request, &after, problem));
    const struct hd_product_row *one = products_best(&before), *other = products_best(&after);
    row->ceiling = one->library_tflops > other->library_tflops ? *one : *other;
    row->device_count = hd_min_u32(row->rank_count, before.device_count);
    memcpy(row->device, before.device, sizeof row->device);
    row->pass_tflops = hd_bench_ratio(row->flops * 1e-12, row->session.compute_seconds);
    row->step_tflops = hd_bench_ratio(row->flops * 1e-12, row->session.step_seconds.median);
    row->pass_ratio = hd_bench_ratio(row->pass_tflops, row->ceiling.library_tflops);
    row->step_ratio =
        hd_bench_ratio(row->step_tflops, row->ceiling.library_tflops * row->device_count);
    return HD_OK;
}
