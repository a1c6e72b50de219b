/*
 * rates/quantiser_rate.c - heddle-quantiser-rate: how fast the kernel cpu makes MXFP8 of
 * BF16, and back, beside a copy of the same numbers.
 *
 *   heddle-quantiser-rate SECONDS
 *
 * `heddle bench step --part quantiser` starts it as a child; it is linked with the very objects of
 * the plugin, whose ops no program can call from outside.  The best instruction set that the
 * processor has, one thread.  A slab of 32 rows that stays in a core's cache is what a step
 * quantises at a time; the other source is larger than most caches.  Each for SECONDS by the clock
 * on the wall, one line:
 *
 *   rows avx512 131072 2.41 2.55 41    what, lane, KiB of BF16, median and best 1e9 elements/s,
 *                                      samples
 *
 *   copy     memcpy                    rows     blocks along rows
 *   back     rows, to BF16 again       columns  blocks down columns
 */
#include "plugins/kernels/cpu/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLE_MAX = 4096, SAMPLE_MIN = 3, EXIT_USAGE = 2, EXIT_MEMORY = 4, BLOCK = 32 };
enum { COLUMNS = 1024, SMALL_ROWS = 32, LARGE_ROWS = 65536, SMALL_REPEAT = 64 };

struct field {
    uint32_t rows;
    uint16_t *source, *target;  /* BF16 [rows, COLUMNS] */
    uint8_t *elements, *scales; /* [rows, COLUMNS], a 32nd of it */
};

typedef hd_status operation(const struct hd_ops *ops, const struct field *field);

static double quantiser_rate_now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct hd_quantise_args quantiser_rate_arguments_of(const struct field *field)
{
    return (struct hd_quantise_args){
        .source = field->source, .target = field->target, .rows = field->rows, .columns = COLUMNS};
}

static struct hd_matrix quantiser_rate_image_of(const struct field *field)
{
    return (struct hd_matrix){.data = field->elements,
                              .scales = field->scales,
                              .dtype = HD_E4M3,
                              .rows = field->rows,
                              .columns = COLUMNS};
}

static hd_status quantiser_rate_copy(const struct hd_ops *ops, const struct field *field)
{
    (void)ops;
    memcpy(field->target, field->source, (size_t)field->rows * COLUMNS * sizeof *field->source);
    return HD_OK;
}

static hd_status quantiser_rate_quantise_rows(const struct hd_ops *ops, const struct field *field)
{
    struct hd_quantise_args args = quantiser_rate_arguments_of(field);
    args.rowwise = quantiser_rate_image_of(field);
    return ops->quantise(NULL, &args);
}

static hd_status quantiser_rate_quantise_columns(const struct hd_ops *ops,
                                                 const struct field *field)
{
    struct hd_quantise_args args = quantiser_rate_arguments_of(field);
    args.columnwise = quantiser_rate_image_of(field);
    return ops->quantise(NULL, &args);
}

static hd_status quantiser_rate_dequantise(const struct hd_ops *ops, const struct field *field)
{
    struct hd_quantise_args args = quantiser_rate_arguments_of(field);
    args.rowwise = quantiser_rate_image_of(field);
    return ops->dequantise(NULL, &args);
}

static const struct {
    const char *name;
    operation *run;
} quantiser_rate_operations[] = {{"copy", quantiser_rate_copy},
                                 {"rows", quantiser_rate_quantise_rows},
                                 {"columns", quantiser_rate_quantise_columns},
                                 {"back", quantiser_rate_dequantise}};

/* Numbers between 2^-8 and 2^8, of both signs, so that scales and elements of all kinds occur. */
static int quantiser_rate_make_field(struct field *field, uint32_t rows)
{
    const size_t count = (size_t)rows * COLUMNS;
    uint32_t state = 1;

    *field = (struct field){.rows = rows,
                            .source = aligned_alloc(64, count * sizeof(uint16_t)),
                            .target = aligned_alloc(64, count * sizeof(uint16_t)),
                            .elements = aligned_alloc(64, count),
                            .scales = aligned_alloc(64, count / BLOCK)};
    if (field->source == NULL || field->target == NULL || field->elements == NULL ||
        field->scales == NULL) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        field->source[i] = (uint16_t)((state >> 16 & 0x87ffu) + 0x3b80u);
    }
    memset(field->target, 0, count * sizeof(uint16_t));
    memset(field->elements, 0, count);
    memset(field->scales, 0, count / BLOCK);
    return 1;
}

static void quantiser_rate_free_field(struct field *field)
{
    free(field->source);
    free(field->target);
    free(field->elements);
    free(field->scales);
}

static int quantiser_rate_by_value(const void *left, const void *right)
{
    const double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

/* A slab is repeated within a sample, so that the clock does not count. */
static void quantiser_rate_measure(const struct hd_cpu_isa *lane, const struct field *field,
                                   unsigned which, double seconds)
{
    static double rates[SAMPLE_MAX];
    const int repeat = field->rows == SMALL_ROWS ? SMALL_REPEAT : 1;
    const double elements = (double)field->rows * COLUMNS * repeat;
    int count = 0;
    hd_status status = quantiser_rate_operations[which].run(&lane->bf16, field);

    const double until = quantiser_rate_now_seconds() + seconds;
    while (count < SAMPLE_MAX && (count < SAMPLE_MIN || quantiser_rate_now_seconds() < until)) {
        const double begin = quantiser_rate_now_seconds();
        for (int i = 0; i < repeat; i++) {
            status |= quantiser_rate_operations[which].run(&lane->bf16, field);
        }
        rates[count++] = elements / (quantiser_rate_now_seconds() - begin) * 1e-9;
    }
    assert(status == HD_OK);
    qsort(rates, (size_t)count, sizeof rates[0], quantiser_rate_by_value);
    printf("%s %s %u %.4f %.4f %d\n", quantiser_rate_operations[which].name, lane->name,
           field->rows * 2, rates[count / 2], rates[count - 1], count);
    fflush(stdout);
}

static const struct hd_cpu_isa *quantiser_rate_best_lane(void)
{
    static const char *const names[] = {"avx512", "plain"};
    const struct hd_cpu_isa *lane = NULL;

    for (unsigned i = 0; lane == NULL && i < 3; i++) {
        lane = hd_cpu_isa(names[i]);
    }
    assert(lane != NULL);
    return lane;
}

int main(int argument_count, char **arguments)
{
    static const uint32_t rows[] = {SMALL_ROWS, LARGE_ROWS};
    const double seconds = argument_count == 2 ? strtod(arguments[1], NULL) : 0;

    if (!(seconds > 0 && seconds <= 60)) {
        fprintf(stderr, "usage: heddle-quantiser-rate SECONDS\n");
        return EXIT_USAGE;
    }
    for (unsigned i = 0; i < 2; i++) {
        struct field field;
        if (!quantiser_rate_make_field(&field, rows[i])) {
            quantiser_rate_free_field(&field);
            return EXIT_MEMORY;
        }
        for (unsigned which = 0;
             which < sizeof quantiser_rate_operations / sizeof quantiser_rate_operations[0];
             which++) {
            quantiser_rate_measure(quantiser_rate_best_lane(), &field, which, seconds);
        }
        quantiser_rate_free_field(&field);
    }
    return 0;
}
