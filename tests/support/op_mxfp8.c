/* tests/support/op_mxfp8.c - the arguments of image, quantise and dequantise; the vectors. */
#include "support/check.h"
#include "support/mxfp8_vectors.h"
#include "support/op_arguments.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* From 2^-20 to 2^20, block by block: scales differ, and some blocks are zero. */
static void *wide_input(struct hd_op_run *run, uint64_t count)
{
    const uint32_t act = run->ops->activation;
    void *data = hd_op_take(run, act, count);
    for (uint64_t at = 0; at < count; at++) {
        const double size = hd_op_draw(run->seed + at / HD_ROW_BLOCK);
        const double value = size < -0.95 ? 0 : ldexp(hd_op_draw(run->draws++), (int)(20 * size));
        hd_op_put(data, act, at, (float)value);
    }
    if (run->with_nan == 1) {
        hd_op_put(data, act, count / 2, NAN);
        run->with_nan = 2;
    }
    return hd_op_there(run, data);
}

static struct hd_matrix matrix_of(struct hd_op_run *run, const char *name, const char *scales,
                                  const struct hd_quantise_args *args)
{
    const uint64_t count = (uint64_t)args->rows * args->columns;
    return (struct hd_matrix){.data = hd_op_output(run, name, HD_OP_U8, count),
                              .scales = hd_op_output(run, scales, HD_OP_U8, count / HD_ROW_BLOCK),
                              .dtype = HD_E4M3,
                              .rows = args->rows,
                              .columns = args->columns};
}

static uint32_t rounded(uint64_t count)
{
    return (uint32_t)((count + HD_ROW_BLOCK - 1) / HD_ROW_BLOCK * HD_ROW_BLOCK);
}

/* --- image ------------------------------------------------------------------------------------ */

/* Where a table has no such op: what it stands for, by the two that every table has. */
static void make_image(struct hd_op_run *run, const struct hd_image_args *args, int is_columnwise)
{
    const uint64_t count = args->rows * args->columns;
    const struct hd_matrix bytes = {
        .data = hd_op_there(run, hd_op_take(run, HD_OP_U8, count)),
        .scales = hd_op_there(run, hd_op_take(run, HD_OP_U8, count / HD_ROW_BLOCK)),
        .dtype = HD_E4M3,
        .rows = (uint32_t)args->rows,
        .columns = (uint32_t)args->columns};
    struct hd_quantise_args step = {.source = args->source,
                                    .target = is_columnwise ? args->columnwise : args->rowwise,
                                    .rows = (uint32_t)args->rows,
                                    .columns = (uint32_t)args->columns,
                                    .scale_rule = args->scale_rule,
                                    .row_limit = args->row_limit};
    *(is_columnwise ? &step.columnwise : &step.rowwise) = bytes;
    HD_OP_RUN(quantise, &step);
    HD_OP_RUN(dequantise, &step);
}

static void image(struct hd_op_run *run, const struct hd_image_args *args)
{
    if (run->ops->image != NULL) {
        HD_OP_RUN(image, args);
        return;
    }
    for (int is_columnwise = 0; is_columnwise < 2; is_columnwise++) {
        if ((is_columnwise ? args->columnwise : args->rowwise) != NULL) {
            make_image(run, args, is_columnwise);
        }
    }
}

void hd_op_run_image(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation;
    const uint64_t rows = rounded(hd_op_tokens(run)) + HD_ROW_BLOCK;
    const uint64_t columns = rounded(run->shape->width), count = rows * columns;
    struct hd_image_args args = {.source = wide_input(run, count),
                                 .rowwise = hd_op_output(run, "both, by rows", act, count),
                                 .columnwise = hd_op_output(run, "both, by columns", act, count),
                                 .rows = rows,
                                 .columns = columns};
    image(run, &args);
    args.scale_rule = 1;
    args.columnwise = NULL;
    args.rowwise = hd_op_output(run, "rounded down, by rows", act, count);
    image(run, &args);
    args.rowwise = NULL;
    args.columnwise = hd_op_output(run, "rounded down, by columns", act, count);
    image(run, &args);
    /* Of the rows only those before the limit are there; a host's ops are not told of one. */
    if (run->ops->image != NULL) {
        int32_t *limit = hd_op_take(run, HD_OP_I32, 1);
        *limit = (int32_t)(rows - HD_ROW_BLOCK);
        args.row_limit = hd_op_there(run, limit);
    }
    const struct hd_op_output kept = {.dtype = act, .count = (rows - HD_ROW_BLOCK) * columns};
    args.rowwise = hd_op_there(run, hd_op_take(run, act, count));
    args.columnwise = hd_op_there(run, hd_op_take(run, act, count));
    hd_op_watch(run, "fewer rows, by rows", args.rowwise, kept);
    hd_op_watch(run, "fewer rows, by columns", args.columnwise, kept);
    image(run, &args);
}

/* --- quantise, dequantise --------------------------------------------------------------------- */

void hd_op_run_quantise(struct hd_op_run *run)
{
    const uint32_t act = run->ops->activation, tokens = hd_op_tokens(run);
    struct hd_quantise_args args = {.rows = rounded(tokens), .columns = rounded(run->shape->width)};
    const uint64_t count = (uint64_t)args.rows * args.columns;
    args.source = wide_input(run, count);
    args.rowwise = matrix_of(run, "rows", "scales of rows", &args);
    args.columnwise = matrix_of(run, "columns", "scales of columns", &args);
    args.target = hd_op_output(run, "from rows", act, count);
    HD_OP_RUN(quantise, &args);
    HD_OP_RUN(dequantise, &args);
    args.rowwise = (struct hd_matrix){.data = NULL};
    args.target = hd_op_output(run, "from columns", act, count);
    HD_OP_RUN(dequantise, &args);
    /* Rows alone may be any number. */
    args = (struct hd_quantise_args){
        .source = args.source, .rows = tokens, .columns = args.columns, .scale_rule = 1};
    args.rowwise = matrix_of(run, "rows, rounded down", "their scales", &args);
    args.target = hd_op_output(run, "from them", act, (uint64_t)tokens * args.columns);
    HD_OP_RUN(quantise, &args);
    HD_OP_RUN(dequantise, &args);
}

/* --- the vectors ------------------------------------------------------------------------------ */

enum { BLOCK = HD_ROW_BLOCK };

/* Vector i is row i, or down column i. */
static uint64_t place_of(unsigned vector, unsigned element, int is_columnwise)
{
    return is_columnwise ? (uint64_t)element * HD_MXFP8_VECTOR_MAX + vector
                         : (uint64_t)vector * BLOCK + element;
}

static void judge_vectors(struct hd_op_run *run, const struct hd_quantise_args *args,
                          const struct hd_mxfp8_vectors *vectors)
{
    const int is_columnwise = args->rowwise.data == NULL;
    const struct hd_matrix *made = is_columnwise ? &args->columnwise : &args->rowwise;
    const uint8_t *bytes = hd_op_read(run, made->data), *scales = hd_op_read(run, made->scales);
    unsigned compared = 0;
    for (unsigned i = 0; i < vectors->count; i++) {
        const struct hd_mxfp8_vector *vector = &vectors->rows[i];
        unsigned wrong = scales[i] != vector->scale[args->scale_rule];
        if (run->ops->activation == HD_BF16 && !vector->is_bf16) {
            continue;
        }
        for (unsigned element = 0; element < BLOCK; element++) {
            wrong += bytes[place_of(i, element, is_columnwise)] !=
                     vector->elements[args->scale_rule][element];
        }
        if (wrong > 0) {
            printf("\n    %s, rule %u, %s: %s differs\n", run->shape->name, args->scale_rule,
                   is_columnwise ? "by columns" : "by rows", vector->name);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        compared++;
    }
    CU_ASSERT(compared > 100);
}

/* Beside what was computed in exact fractions; and whatever else they become, beside the other
   table. */
void hd_op_run_vectors(struct hd_op_run *run)
{
    const struct hd_mxfp8_vectors *vectors = hd_mxfp8_vectors();
    const uint32_t act = run->ops->activation;
    const uint64_t count = (uint64_t)HD_MXFP8_VECTOR_MAX * BLOCK;
    for (unsigned way = 0; way < 4; way++) {
        const int is_columnwise = way >= 2;
        void *source = hd_op_take(run, act, count);
        struct hd_quantise_args args = {.source = hd_op_there(run, source),
                                        .rows = is_columnwise ? BLOCK : HD_MXFP8_VECTOR_MAX,
                                        .columns = is_columnwise ? HD_MXFP8_VECTOR_MAX : BLOCK,
                                        .scale_rule = way % 2};
        for (uint64_t at = 0; at < count; at++) {
            hd_op_put(source, act,
                      place_of((unsigned)(at / BLOCK), (unsigned)(at % BLOCK), is_columnwise),
                      vectors->rows[at / BLOCK].values[at % BLOCK]);
        }
        *(is_columnwise ? &args.columnwise : &args.rowwise) =
            matrix_of(run, is_columnwise ? "columns" : "rows", "scales", &args);
        args.target = hd_op_output(run, "decoded", act, count);
        HD_OP_RUN(quantise, &args);
        HD_OP_RUN(dequantise, &args);
        judge_vectors(run, &args, vectors);
    }
}
