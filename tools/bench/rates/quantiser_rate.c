/*
 * rates/quantiser_rate.c - heddle-quantiser-rate: how fast the kernel cpu converts BF16 to MXFP8
 * and back, beside a copy of the same numbers.
 *
 *   heddle-quantiser-rate SECONDS
 *
 * `heddle bench step --part quantiser` starts it as a child process.  It is linked with the objects
 * of the plugin, because no program can call a plugin's ops.  It uses the best instruction set of
 * the processor, and one thread.  A step quantises slabs of 32 rows, which stay in a core's cache;
 * the other source is larger than most caches.  Each operation runs for SECONDS and prints one
 * line:
 *
 *   rows avx512 131072 2.41 2.55 41    operation, instruction set, KiB of BF16, median and best
 *                                      1e9 elements/s, samples
 *
 *   copy     memcpy                    rows     blocks along rows
 *   back     rows, to BF16 again       columns  blocks down columns
 */
#include "samples.h"

#include "plugins/kernels/cpu/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_MEMORY = 4, BLOCK = 32 };
enum { COLUMNS = 1024, SMALL_ROWS = 32, LARGE_ROWS = 65536, SMALL_REPEAT = 64 };

struct field {
    uint32_t rows;
    uint16_t *source, *target;  /* BF16 [rows, COLUMNS] */
    uint8_t *elements, *scales; /* [rows, COLUMNS], a 32nd of it */
};

typedef hd_status operation(const struct hd_ops *ops, const struct field *field);

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
static bool quantiser_rate_make_field(struct field *field, uint32_t rows)
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
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        field->source[i] = (uint16_t)((state >> 16 & 0x87ffu) + 0x3b80u);
    }
    memset(field->target, 0, count * sizeof(uint16_t));
    memset(field->elements, 0, count);
    memset(field->scales, 0, count / BLOCK);
    return true;
}

static void quantiser_rate_free_field(struct field *field)
{
    free(field->source);
    free(field->target);
    free(field->elements);
    free(field->scales);
}

/* One operation of one instruction set. */
struct measured {
    const struct hd_cpu_isa *isa;
    const struct field *field;
    operation *run;
};

static void quantiser_rate_run(const void *context)
{
    const struct measured *measured = context;
    const hd_status status = measured->run(&measured->isa->bf16, measured->field);
    assert(status == HD_OK);
}

static void quantiser_rate_measure(const struct field *field, unsigned which, double seconds)
{
    const struct measured measured = {
        .isa = hd_cpu_isa("auto"), .field = field, .run = quantiser_rate_operations[which].run};
    const int repeat = field->rows == SMALL_ROWS ? SMALL_REPEAT : 1;
    const struct samples samples =
        samples_take(quantiser_rate_run, &measured, seconds, repeat, (double)field->rows * COLUMNS);

    printf("%s %s %u %.4f %.4f %u\n", quantiser_rate_operations[which].name, measured.isa->name,
           field->rows * 2, samples.median, samples.best, samples.count);
    fflush(stdout);
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
            quantiser_rate_measure(&field, which, seconds);
        }
        quantiser_rate_free_field(&field);
    }
    return 0;
}
