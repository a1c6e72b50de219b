/*
 * tests/support/op_compare.h - one op table beside another, output for output.
 *
 * An op may sum in another order: outputs are held by the residual |a - b| / |b|, whole numbers by
 * equality.
 */
#ifndef HD_TESTS_SUPPORT_OP_COMPARE_H
#define HD_TESTS_SUPPORT_OP_COMPARE_H

#include "support/op_runs.h"

/* The reference's device, whose tag is another's in a test of another table. */
struct hd_op_reference {
    const struct hd_host *host;
    char *scratch;
    uint64_t scratch_bytes;
};

extern const struct hd_ops reference_ops_bf16, reference_ops_f32;

/* What the ops of the plugin cuda are asked, emulated (test_emulated_ops.c) and on a GPU
   (test_gpu_ops.c). */
extern const struct hd_op_shape hd_op_shapes[];
extern const unsigned hd_op_shape_count;

#define HD_OP_SCRATCH_BYTES (16u << 20)

/* Runs every op on the shape of the two runs and asserts that `made` gives what `right` gives. With
   a NaN put in, that it has one wherever `right` has. */
void hd_op_compare_all(struct hd_op_run *made, struct hd_op_run *right, int with_nan);
/* Attention with a NaN in each of its inputs: both tables have the same finite values. */
void hd_op_compare_causal(struct hd_op_run *made, struct hd_op_run *right);

/* The same beside the reference of BF16, opened for the shape of `made`.  The program links
   hd_reference_ops. */
void hd_op_compare_with_reference(struct hd_op_run *made, int with_nan);

#endif /* HD_TESTS_SUPPORT_OP_COMPARE_H */
