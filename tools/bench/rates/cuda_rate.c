/*
 * rates/cuda_rate.c - heddle-cuda-rate: the matrix products of a stage by the kernel plugin
 * cuda, beside cuBLASLt alone, and what cuBLASLt makes of large square ones.
 *
 *   heddle-cuda-rate WHAT SECONDS DEVICE key=value...
 *
 * A yardstick of `heddle bench step`, which starts it as a child: nobody outside the plugin can
 * call its products, so this program is made of the plugin's own objects.  WHAT is `products` or
 * `squares`; keys are the plugin's options, and of the model batch, sequence, width, heads,
 * key_value_heads, experts, experts_per_token, expert_width and vocabulary.  It says
 *
 *   device cuda:0 sm_90, runtime 13.0, ...         what open reports
 *   count 8                                        devices on this machine
 *   product qo fprop 0 4096 2048 2048 641.2 655.3 31
 *           name, form, experts, rows, columns and depth of C; medians of TFLOP/s: the plugin's
 *           (0: it is not asked), cuBLASLt's; samples
 *   missing SENTENCE                               and exits with 3
 *
 * Rows of experts are as many for each.  Operands are drawn, since a product of zeros costs less
 * power.  Samples of both alternate, each of about two milliseconds between marks of the device.
 */
#include "cuda_rate.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const struct hd_plugin hd_plugin;

enum { SAMPLE_MAX = 256, SAMPLE_MIN = 3, REPEAT_MAX = 2000, COMPARED_MAX = 65536 };
enum { EXIT_USAGE = 2, EXIT_MISSING = 3 };

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
    struct timespec now;

    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void cuda_rate_say_nothing(void *context, uint32_t level, const char *text)
{
    (void)context, (void)level, (void)text;
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

/* --- what is asked --------------------------------------------------------------------------- */

static int cuda_rate_read_model(struct rate *rate, const char *key, size_t length,
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
            return 1;
        }
    }
    return 0;
}

static void cuda_rate_set_option(struct rate *rate, uint32_t index, const char *text)
{
    struct hd_option_value *value = &rate->options[index];

    value->text = text;
    value->number = strtod(text, NULL);
    value->integer = strcmp(text, "on") == 0 ? 1 : strtoll(text, NULL, 10);
}

static int cuda_rate_read_option(struct rate *rate, const char *key, size_t length,
                                 const char *value)
{
    for (uint32_t i = 0; i < hd_plugin.option_count; i++) {
        const char *name = hd_plugin.options[i].name;
        if (strlen(name) == length && strncmp(name, key, length) == 0) {
            cuda_rate_set_option(rate, i, value);
            return 1;
        }
    }
    return 0;
}

static int cuda_rate_read_words(struct rate *rate, int count, char **words)
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
            fprintf(stderr, "heddle-cuda-rate: %s is not known\n", words[i]);
            return 0;
        }
    }
    return 1;
}

/* --- the clock ------------------------------------------------------------------------------- */

/* One way to make a product. */
struct way {
    struct lt_product *lt; /* NULL: the plugin's */
    uint32_t algorithm;
    uint32_t repeat; /* a sample */
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
        rate_give_up("a product (%s) is refused: status %d", product->name, (int)status);
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
        rate_give_up("a product (%s) does not end: status %d", product->name, (int)status);
    }
    return passed[1] > passed[0] ? passed[1] - passed[0] : 1;
}

/* So many that a sample lasts long beside a mark; what comes first warms up. */
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

static int cuda_rate_by_value(const void *left, const void *right)
{
    const double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

static double cuda_rate_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, cuda_rate_by_value);
    return values[count / 2];
}

static void cuda_rate_sample(struct rate *rate, const struct rate_product *product, struct way *way,
                             uint32_t index)
{
    const double experts = product->experts > 0 ? product->experts : 1;
    const double flops =
        2.0 * product->rows * (double)product->columns * product->depth * experts * way->repeat;

    way->samples[index] = flops * 1e-3 / (double)cuda_rate_time_ns(rate, product, way, way->repeat);
}

/* Of two ways to make the same numbers: the head of C by this one, from zero. */
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
        rate_give_up("a product (%s) does not end", product->name);
    }
    for (uint64_t i = 0; !is_f32 && i < compared; i++) {
        const uint32_t bits = (uint32_t)rounded[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

/* A yardstick of another product would be none. */
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
        rate_give_up("the product %s of the plugin and that of cuBLASLt differ: squares %g of %g",
                     product->name, error, size);
    }
    rate_place(rate, product);
}

static void cuda_rate_measure(struct rate *rate, struct rate_product *product)
{
    static const char *const forms[] = {"fprop", "dgrad", "wgrad"};
    static struct way own, alone;
    const int is_asked = strcmp(product->name, "square") != 0;
    const char *why = NULL;
    uint32_t count = 0;

    rate_place(rate, product);
    own = (struct way){0};
    alone = (struct way){.lt = lt_product_make(&rate->lt, product, &why)};
    if (alone.lt == NULL) {
        rate_give_up("cuBLASLt does not make the product %s, %s of %u x %u x %u: %s", product->name,
                     forms[product->args.form], product->rows, product->columns, product->depth,
                     why);
    }
    if (is_asked) {
        cuda_rate_compare(rate, product, &own, &alone);
    }
    cuda_rate_choose_algorithm(rate, product, &alone);
    cuda_rate_prepare(rate, product, &alone);
    if (is_asked) {
        cuda_rate_prepare(rate, product, &own);
    }
    const uint64_t until_ns = cuda_rate_now_ns(NULL) + (uint64_t)(rate->seconds * 1e9);
    while (count < SAMPLE_MAX && (count < SAMPLE_MIN || cuda_rate_now_ns(NULL) < until_ns)) {
        if (is_asked) {
            cuda_rate_sample(rate, product, &own, count);
        }
        cuda_rate_sample(rate, product, &alone, count++);
    }
    printf("product %s %s %u %u %u %u %.6g %.6g %u\n", product->name, forms[product->args.form],
           product->experts, product->rows, product->columns, product->depth,
           is_asked ? cuda_rate_median(own.samples, count) : 0,
           cuda_rate_median(alone.samples, count), count);
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
                                  .log = cuda_rate_say_nothing,
                                  .fail = cuda_rate_fail,
                                  .account = cuda_rate_account};
    if (hd_transformer_backend.open(&rate->host, ordinal, &about, &rate->device) != HD_OK) {
        rate_give_up("the device cannot be opened");
    }
    struct hd_cuda *driver = rate->device->driver;
    printf("device %s\ncount %d\n", about.effective, driver->cuda.device_count);
    if (driver->plans == NULL) {
        rate_give_up("without cuBLASLt (kernel.cuda.products=own) there is no yardstick");
    }
    rate->lt = (struct lt_alone){.driver = driver,
                                 .workspace = rate_allocate(rate, WORKSPACE_BYTES),
                                 .workspace_bytes = WORKSPACE_BYTES};
    if (driver->blas.cublasLtCreate(&rate->lt.handle) != CUBLAS_STATUS_SUCCESS) {
        rate_give_up("cuBLASLt gives no handle");
    }
}

/* As stage_create would: the plugin has an algorithm for each dense product. */
static void cuda_rate_prepare_stage(struct rate *rate)
{
    struct hd_stage_spec *spec = &rate->spec;

    spec->size = sizeof *spec;
    spec->layers = spec->block_count = 1;
    spec->has_head = 1;
    spec->key_value_heads = spec->key_value_heads > 0 ? spec->key_value_heads : spec->heads;
    if (spec->heads == 0 || spec->width == 0 || spec->batch * spec->sequence == 0) {
        rate_give_up("a stage without width, heads or tokens has no products");
    }
    hd_transformer_backend.prepare(rate->device, &hd_cuda_ops, spec);
}

int main(int count, char **words)
{
    static struct rate rate;
    const int is_squares = count > 1 && strcmp(words[1], "squares") == 0;

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
