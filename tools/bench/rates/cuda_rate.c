/*
 * rates/cuda_rate.c - heddle-cuda-rate: the rates of a stage's matrix products by the kernel plugin
 * cuda, beside cuBLASLt alone; and of large square products by cuBLASLt.
 *
 *   heddle-cuda-rate WHAT SECONDS DEVICE key=value...
 *
 * `heddle bench step` starts it as a child process.  It is linked with the plugin's objects,
 * because no program can call a plugin's products.  WHAT is `products` or `squares`; keys are the
 * plugin's options, and of the model batch, sequence, width, heads, key_value_heads, experts,
 * experts_per_token, expert_width and vocabulary.  It prints
 *
 *   device cuda:0 sm_90, runtime 13.0, ...         what open reports
 *   count 8                                        devices on this machine
 *   product qo fprop 0 4096 2048 2048 641.2 655.3 31
 *           name, form, experts, rows, columns and depth of C; medians of TFLOP/s: the plugin's
 *           (0: not measured), cuBLASLt's; samples
 *   missing REASON                                 and exits with 3
 *
 * All experts have the same number of rows.  Operands are random, because a product of zeros uses
 * less power.  Samples of both alternate; each takes about two milliseconds between marks of the
 * device.
 */
#include "cuda_rate.h"
#include "samples.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct hd_plugin hd_plugin;

enum { SAMPLE_MAX = 256, REPEAT_MAX = 2000, COMPARED_MAX = 65536, EXIT_MISSING = 3 };

#define WORKSPACE_BYTES (64u << 20)
#define SAMPLE_NS       2000000u
#define PATIENCE_NS     60000000000u

/* --- a host ---------------------------------------------------------------------------------- */

static void *cuda_rate_take(void *context, uint64_t bytes, uint64_t alignment_bytes,
                            const char *tag)
{
    void *memory = NULL;

    (void)context, (void)tag;
    if (posix_memalign(&memory, alignment_bytes < 64 ? 64 : alignment_bytes, bytes + 1) != 0) {
        return NULL;
    }
    return memset(memory, 0, bytes);
}

static void cuda_rate_give(void *context, void *memory)
{
    (void)context;
    free(memory);
}

static uint64_t cuda_rate_now_ns(void *context)
{
    (void)context;
    return samples_now_ns();
}

static void cuda_rate_account(void *context, int64_t bytes, const char *tag)
{
    (void)context, (void)bytes, (void)tag;
}

void rate_give_up(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    printf("missing ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
    _Exit(EXIT_MISSING);
}

static hd_status cuda_rate_fail(void *context, const struct hd_error *error)
{
    (void)context;
    rate_give_up("%s", error->text);
}

/* --- arguments ------------------------------------------------------------------------------- */

static bool cuda_rate_read_model(struct rate *rate, const char *key, size_t length,
                                 const char *value)
{
    struct hd_stage_spec *spec = &rate->spec;
    const struct {
        const char *key;
        uint32_t *value;
    } rows[] = {{"batch", &spec->batch},
                {"sequence", &spec->sequence},
                {"width", &spec->width},
                {"heads", &spec->heads},
                {"key_value_heads", &spec->key_value_heads},
                {"experts", &spec->experts},
                {"experts_per_token", &spec->experts_per_token},
                {"expert_width", &spec->expert_width},
                {"vocabulary", &spec->vocabulary}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strlen(rows[i].key) == length && strncmp(rows[i].key, key, length) == 0) {
            *rows[i].value = (uint32_t)strtoul(value, NULL, 10);
            return true;
        }
    }
    return false;
}

static void cuda_rate_set_option(struct rate *rate, uint32_t index, const char *text)
{
    struct hd_option_value *value = &rate->options[index];

    value->text = text;
    value->number = strtod(text, NULL);
    value->integer = strcmp(text, "on") == 0 ? 1 : strtoll(text, NULL, 10);
}

static bool cuda_rate_read_option(struct rate *rate, const char *key, size_t length,
                                  const char *value)
{
    for (uint32_t i = 0; i < hd_plugin.option_count; i++) {
        const char *name = hd_plugin.options[i].name;
        if (strlen(name) == length && strncmp(name, key, length) == 0) {
            cuda_rate_set_option(rate, i, value);
            return true;
        }
    }
    return false;
}

static bool cuda_rate_read_words(struct rate *rate, int count, char **words)
{
    assert(hd_plugin.option_count <= sizeof rate->options / sizeof rate->options[0]);
    for (uint32_t i = 0; i < hd_plugin.option_count; i++) {
        cuda_rate_set_option(rate, i, hd_plugin.options[i].initial);
    }
    for (int i = 0; i < count; i++) {
        const char *value = strchr(words[i], '=');
        const size_t length = value != NULL ? (size_t)(value - words[i]) : 0;
        if (value == NULL || (!cuda_rate_read_model(rate, words[i], length, value + 1) &&
                              !cuda_rate_read_option(rate, words[i], length, value + 1))) {
            fprintf(stderr, "heddle-cuda-rate: unknown argument %s\n", words[i]);
            return false;
        }
    }
    return true;
}

/* --- the clock ------------------------------------------------------------------------------- */

/* One way to compute a product. */
struct way {
    struct lt_product *lt; /* NULL: by the plugin */
    uint32_t algorithm;
    uint32_t repeat; /* products in a sample */
    double samples[SAMPLE_MAX];
};

static void cuda_rate_run_once(struct rate *rate, const struct rate_product *product,
                               const struct way *way)
{
    hd_status status;

    if (way->lt != NULL) {
        status = lt_product_run(way->lt, way->algorithm);
    } else if (product->experts > 0) {
        status = hd_cuda_expert_gemm(rate->device, &product->args);
    } else {
        status = hd_cuda_gemm(rate->device, &product->args);
    }
    if (status != HD_OK) {
        rate_give_up("cannot compute the product %s: status %d", product->name, (int)status);
    }
}

static uint64_t cuda_rate_time_ns(struct rate *rate, const struct rate_product *product,
                                  const struct way *way, uint32_t repeat)
{
    const struct hd_remote *remote = hd_transformer_backend.remote;
    uint64_t marks[2], passed[2] = {0};

    hd_status status = remote->mark(rate->device, &marks[0]);
    for (uint32_t i = 0; status == HD_OK && i < repeat; i++) {
        cuda_rate_run_once(rate, product, way);
    }
    if (status == HD_OK) {
        status = remote->mark(rate->device, &marks[1]);
    }
    for (int i = 1; status == HD_OK && i >= 0; i--) {
        status = remote->reached(rate->device, marks[i], PATIENCE_NS, &passed[i]);
    }
    if (status != HD_OK) {
        rate_give_up("the product %s does not end: status %d", product->name, (int)status);
    }
    return passed[1] > passed[0] ? passed[1] - passed[0] : 1;
}

/* Chooses `repeat` so that a sample takes much longer than a mark; the first run warms up. */
static void cuda_rate_prepare(struct rate *rate, const struct rate_product *product,
                              struct way *way)
{
    (void)cuda_rate_time_ns(rate, product, way, 1);
    const uint64_t once_ns = cuda_rate_time_ns(rate, product, way, 1);
    const uint64_t repeat = SAMPLE_NS / once_ns;

    way->repeat = (uint32_t)(repeat < 1 ? 1 : repeat < REPEAT_MAX ? repeat : REPEAT_MAX);
}

static void cuda_rate_choose_algorithm(struct rate *rate, const struct rate_product *product,
                                       struct way *way)
{
    uint64_t best_ns = UINT64_MAX;
    uint32_t best = 0;

    for (way->algorithm = 0; way->algorithm < lt_product_count(way->lt); way->algorithm++) {
        (void)cuda_rate_time_ns(rate, product, way, 1);
        const uint64_t spent_ns = cuda_rate_time_ns(rate, product, way, 4);
        best = spent_ns < best_ns ? way->algorithm : best;
        best_ns = spent_ns < best_ns ? spent_ns : best_ns;
    }
    way->algorithm = best;
}

static void cuda_rate_sample(struct rate *rate, const struct rate_product *product, struct way *way,
                             uint32_t index)
{
    const double experts = product->experts > 0 ? product->experts : 1;
    const double flops =
        2.0 * product->rows * (double)product->columns * product->depth * experts * way->repeat;

    way->samples[index] = flops * 1e-3 / (double)cuda_rate_time_ns(rate, product, way, way->repeat);
}

/* Computes the product into a zeroed C, and fetches the begin of C. */
static void cuda_rate_fetch(struct rate *rate, struct rate_product *product, const struct way *way,
                            float values[COMPARED_MAX])
{
    const struct hd_remote *remote = hd_transformer_backend.remote;
    const struct hd_matrix *c = &product->args.c;
    const uint32_t is_f32 = c->dtype == HD_F32;
    const uint32_t experts = product->experts > 0 ? product->experts : 1;
    const uint64_t count = (uint64_t)product->rows * product->columns * experts;
    const uint64_t compared = count < COMPARED_MAX ? count : COMPARED_MAX;
    static uint16_t rounded[COMPARED_MAX];

    rate_place(rate, product);
    cuda_rate_run_once(rate, product, way);
    memset(values, 0, COMPARED_MAX * sizeof *values);
    remote->copy(rate->device, is_f32 ? (void *)values : (void *)rounded, c->data,
                 compared * (is_f32 ? sizeof *values : sizeof *rounded), 0);
    if (remote->drain(rate->device) != HD_OK) {
        rate_give_up("the product %s does not end", product->name);
    }
    for (uint64_t i = 0; !is_f32 && i < compared; i++) {
        const uint32_t bits = (uint32_t)rounded[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

/* Both ways must compute the same product. */
static void cuda_rate_compare(struct rate *rate, struct rate_product *product,
                              const struct way *own, const struct way *alone)
{
    static float values[2][COMPARED_MAX];
    double error = 0, size = 0;

    cuda_rate_fetch(rate, product, own, values[0]);
    cuda_rate_fetch(rate, product, alone, values[1]);
    for (uint32_t i = 0; i < COMPARED_MAX; i++) {
        const double difference = (double)values[0][i] - (double)values[1][i];
        error += difference * difference;
        size += (double)values[1][i] * (double)values[1][i];
    }
    if (!(size > 0 && error <= 1e-4 * size)) { /* a hundredth, of numbers rounded to 1/256 */
        rate_give_up("the product %s of the plugin differs from that of cuBLASLt: squares %g of %g",
                     product->name, error, size);
    }
    rate_place(rate, product);
}

static void cuda_rate_measure(struct rate *rate, struct rate_product *product)
{
    static const char *const forms[] = {"fprop", "dgrad", "wgrad"};
    static struct way own, alone;
    const bool is_compared = strcmp(product->name, "square") != 0;
    const char *why = NULL;
    uint32_t count = 0;

    rate_place(rate, product);
    own = (struct way){0};
    alone = (struct way){.lt = lt_product_make(&rate->lt, product, &why)};
    if (alone.lt == NULL) {
        rate_give_up("cuBLASLt cannot compute the product %s, %s of %u x %u x %u: %s",
                     product->name, forms[product->args.form], product->rows, product->columns,
                     product->depth, why);
    }
    if (is_compared) {
        cuda_rate_compare(rate, product, &own, &alone);
    }
    cuda_rate_choose_algorithm(rate, product, &alone);
    cuda_rate_prepare(rate, product, &alone);
    if (is_compared) {
        cuda_rate_prepare(rate, product, &own);
    }
    const uint64_t until_ns = samples_now_ns() + (uint64_t)(rate->seconds * 1e9);
    while (count < SAMPLE_MAX && (count < SAMPLE_MIN || samples_now_ns() < until_ns)) {
        if (is_compared) {
            cuda_rate_sample(rate, product, &own, count);
        }
        cuda_rate_sample(rate, product, &alone, count++);
    }
    printf("product %s %s %u %u %u %u %.6g %.6g %u\n", product->name, forms[product->args.form],
           product->experts, product->rows, product->columns, product->depth,
           is_compared ? samples_median(own.samples, count) : 0,
           samples_median(alone.samples, count), count);
    fflush(stdout);
    lt_product_free(alone.lt);
}

/* --- the program ----------------------------------------------------------------------------- */

static void cuda_rate_open_device(struct rate *rate, uint32_t ordinal)
{
    struct hd_device about = {.size = sizeof about};

    rate->host = (struct hd_host){.size = sizeof rate->host,
                                  .rank_count = 1,
                                  .option_count = hd_plugin.option_count,
                                  .options = rate->options,
                                  .alloc = cuda_rate_take,
                                  .free = cuda_rate_give,
                                  .now_ns = cuda_rate_now_ns,
                                  .fail = cuda_rate_fail,
                                  .account = cuda_rate_account};
    if (hd_transformer_backend.open(&rate->host, ordinal, &about, &rate->device) != HD_OK) {
        rate_give_up("cannot open the device");
    }
    struct hd_cuda *driver = rate->device->driver;
    printf("device %s\ncount %d\n", about.effective, driver->cuda.device_count);
    if (driver->plans == NULL) {
        rate_give_up("kernel.cuda.products=own: cuBLASLt is needed for comparison");
    }
    rate->lt = (struct lt_alone){.driver = driver,
                                 .workspace = rate_allocate(rate, WORKSPACE_BYTES),
                                 .workspace_bytes = WORKSPACE_BYTES};
    if (driver->blas.cublasLtCreate(&rate->lt.handle) != CUBLAS_STATUS_SUCCESS) {
        rate_give_up("cuBLASLt cannot create a handle");
    }
}

/* As stage_create does: lets the plugin choose an algorithm for each dense product. */
static void cuda_rate_prepare_stage(struct rate *rate)
{
    struct hd_stage_spec *spec = &rate->spec;

    spec->size = sizeof *spec;
    spec->layers = spec->block_count = 1;
    spec->has_head = 1;
    spec->key_value_heads = spec->key_value_heads > 0 ? spec->key_value_heads : spec->heads;
    if (spec->heads == 0 || spec->width == 0 || spec->batch * spec->sequence == 0) {
        rate_give_up("width, heads, batch and sequence must be at least 1");
    }
    hd_transformer_backend.prepare(rate->device, &hd_cuda_ops, spec);
}

int main(int count, char **words)
{
    static struct rate rate;
    const bool is_squares = count > 1 && strcmp(words[1], "squares") == 0;

    rate.seconds = count > 3 ? strtod(words[2], NULL) : 0;
    if (!(rate.seconds > 0 && rate.seconds <= 60) ||
        (!is_squares && strcmp(words[1], "products") != 0)) { /* `words` has more than 3 */
        fprintf(stderr, "usage: heddle-cuda-rate products|squares SECONDS DEVICE key=value ...\n");
        return EXIT_USAGE;
    }
    if (!cuda_rate_read_words(&rate, count - 4, words + 4)) {
        return EXIT_USAGE;
    }
    cuda_rate_open_device(&rate, (uint32_t)strtoul(words[3], NULL, 10));
    if (is_squares) {
        rate_add_squares(&rate);
    } else {
        cuda_rate_prepare_stage(&rate);
        rate_add_stage(&rate);
    }
    rate_take_operands(&rate);
    for (uint32_t i = 0; i < rate.product_count; i++) {
        cuda_rate_measure(&rate, &rate.products[i]);
    }
    hd_transformer_backend.close(rate.device);
    return 0;
}
