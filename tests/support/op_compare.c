/* tests/support/op_compare.c - residuals between two op tables. */
#include "support/op_compare.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>

static void report(const struct hd_op_run *run, const char *op, const char *output, double error)
{
    printf("\n    %s, %s, %s: %.2e", run->shape->name, op, output, error);
}

/* Where the reference has a NaN so has the lane; without one put in, neither has any. */
static void compare(const struct hd_op_run *made, const struct hd_op_run *right,
                    const struct hd_op_driver *op)
{
    const double bound = made->ops->activation == HD_BF16 ? op->bf16_bound : 2e-6;
    CU_ASSERT_EQUAL_FATAL(made->output_count, right->output_count);
    for (unsigned i = 0; i < made->output_count; i++) {
        const struct hd_op_output *one = &made->outputs[i], *other = &right->outputs[i];
        double error = 0, norm = 0;
        unsigned lost = 0;
        CU_ASSERT_EQUAL_FATAL(one->count, other->count);
        for (uint64_t at = 0; at < one->count; at++) {
            const double a = hd_op_value(one, at), b = hd_op_value(other, at);
            lost += isnan(b) && !isnan(a);
            error += (a - b) * (a - b);
            norm += b * b;
        }
        const double residual = norm > 0 ? sqrt(error / norm) : sqrt(error);
        const int is_good =
            made->with_nan ? lost == 0 : residual <= (one->dtype == HD_OP_I32 ? 0 : bound);
        if (!is_good) {
            report(made, op->name, one->name, made->with_nan ? lost : residual);
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
