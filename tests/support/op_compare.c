/* tests/support/op_compare.c - residuals between two op tables. */
#include "support/op_compare.h"
#include "base/memory.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct hd_op_shape hd_op_shapes[] = {
    {"tensor cores, two tiles of rows and of queries", 1, 136, 128, 2, 1, 3, 2, 96, 96},
    {"nothing a multiple of 16, a last tile of 6", 1, 70, 36, 2, 1, 3, 3, 20, 50},
    {"idle experts, padding in each", 2, 5, 48, 4, 2, 12, 1, 40, 33},
    {"one token", 1, 1, 8, 1, 1, 1, 1, 8, 3},
    {"heads of 128, tiles of one and a ragged one", 1, 65, 256, 2, 2, 2, 1, 32, 40},
    {"two chunks of the vocabulary", 1, 9, 32, 1, 1, 2, 1, 8, 8203},
};

const unsigned hd_op_shape_count = HD_CHECK_COUNT(hd_op_shapes);

static void report(const struct hd_op_run *run, const char *op, const char *output, double error)
{
    printf("\n    %s, %s, %s: %.2e", run->shape->name, op, output, error);
}

/* How far two outputs are apart. */
struct distance {
    double residual;
    unsigned lost;    /* the other has a NaN, and this one has none */
    unsigned unequal; /* values; two that are NaN are equal */
};

static struct distance distance_of(const struct hd_op_output *one, const struct hd_op_output *other)
{
    struct distance distance = {0};
    double error = 0, norm = 0;
    for (uint64_t at = 0; at < one->count; at++) {
        const double a = hd_op_value(one, at), b = hd_op_value(other, at);
        distance.lost += isnan(b) && !isnan(a);
        distance.unequal += !(a == b || (isnan(a) && isnan(b)));
        error += (a - b) * (a - b);
        norm += b * b;
    }
    distance.residual = norm > 0 ? sqrt(error / norm) : sqrt(error);
    return distance;
}

/* Where the reference has a NaN so has the other; without one put in, neither has any. */
static void compare(const struct hd_op_run *made, const struct hd_op_run *right,
                    const struct hd_op_driver *op)
{
    const double bound = made->ops->activation == HD_BF16 ? op->bf16_bound : 2e-6;
    CU_ASSERT_EQUAL_FATAL(made->output_count, right->output_count);
    for (unsigned i = 0; i < made->output_count; i++) {
        const struct hd_op_output *one = &made->outputs[i], *other = &right->outputs[i];
        CU_ASSERT_EQUAL_FATAL(one->count, other->count);
        const struct distance apart = distance_of(one, other);
        const int is_whole = one->dtype == HD_OP_I32 || one->dtype == HD_OP_U8;
        const double error = made->with_nan             ? apart.lost
                             : op->is_exact || is_whole ? apart.unequal
                                                        : apart.residual;
        const int is_good =
            error <= (made->with_nan || op->is_exact || is_whole ? 0 : bound); /* a NaN is not */
        if (!is_good) {
            report(made, op->name, one->name, error);
        }
        CU_ASSERT(is_good);
    }
}

void hd_op_compare_all(struct hd_op_run *made, struct hd_op_run *right, int with_nan)
{
    for (unsigned i = 0; i < hd_op_driver_count; i++) {
        hd_op_run(made, &hd_op_drivers[i], with_nan);
        hd_op_run(right, &hd_op_drivers[i], with_nan);
        compare(made, right, &hd_op_drivers[i]);
    }
}

/* The outputs that are finite in one table and not in the other. */
static void compare_finite(const struct hd_op_run *made, const struct hd_op_run *right)
{
    for (unsigned i = 0; i < made->output_count; i++) {
        unsigned unequal = 0;
        for (uint64_t at = 0; at < made->outputs[i].count; at++) {
            unequal += !isfinite(hd_op_value(&made->outputs[i], at)) !=
                       !isfinite(hd_op_value(&right->outputs[i], at));
        }
        if (unequal > 0) {
            printf("\n    %s, NaN in input %u: %s: %u values differ in being finite",
                   made->shape->name, made->nan_input, made->outputs[i].name, unequal);
        }
        CU_ASSERT_EQUAL(unequal, 0);
    }
}

void hd_op_compare_causal(struct hd_op_run *made, struct hd_op_run *right)
{
    enum { INPUTS = 4 }; /* q, k, v, dout */
    const struct hd_op_driver *attention = hd_op_drivers;
    while (strcmp(attention->name, "attention") != 0) {
        attention++;
    }
    for (unsigned input = 0; input < INPUTS; input++) {
        made->nan_input = right->nan_input = input;
        hd_op_run(made, attention, 1);
        hd_op_run(right, attention, 1);
        compare_finite(made, right);
    }
    made->nan_input = right->nan_input = 0;
}

void hd_op_compare_with_reference(struct hd_op_run *made, int with_nan)
{
    static const struct hd_host host = {.size = sizeof host};
    char *scratch = hd_memory_take(HD_OP_SCRATCH_BYTES, 256, "scratch");
    struct hd_op_reference plain = {&host, scratch, HD_OP_SCRATCH_BYTES};
    struct hd_op_run right = {.ops = &reference_ops_bf16,
                              .device = (struct hd_ops_device *)(void *)&plain,
                              .shape = made->shape,
                              .seed = made->seed,
                              .memory = hd_memory_take(HD_OP_MEMORY_BYTES, 256, "memory")};
    memset(scratch, 0xFF, HD_OP_SCRATCH_BYTES);
    hd_op_compare_all(made, &right, with_nan);
    hd_memory_give(right.memory);
    hd_memory_give(scratch);
}
