/*
 * tests/support/op_arguments.h - with what the drivers of op_runs.h draw arguments and list
 * results.
 *
 * Arguments lie one behind the other in the run's memory.  Where the ops work in a device's, every
 * address that an op is given is the device's, and what was drawn is sent before the next op.
 */
#ifndef HD_TESTS_SUPPORT_OP_ARGUMENTS_H
#define HD_TESTS_SUPPORT_OP_ARGUMENTS_H

#include "support/op_runs.h"

/* Memory here, full of NaN, to be filled before the next op; hd_op_there gives its address for
   one. */
void *hd_op_take(struct hd_op_run *run, uint32_t dtype, uint64_t count);
void *hd_op_there(const struct hd_op_run *run, const void *here);
double hd_op_draw(uint64_t seed); /* -1 .. 1 */
void hd_op_put(void *data, uint32_t dtype, uint64_t at, float value);

/* Addresses for an op: drawn around 0, or `middle`, the same for every table; ... */
void *hd_op_input(struct hd_op_run *run, uint32_t dtype, uint64_t count);
void *hd_op_input_at(struct hd_op_run *run, uint32_t dtype, uint64_t count, double middle);
/* ... full of NaN, and compared; drawn, and compared: what was there stays in the sum. */
void *hd_op_output(struct hd_op_run *run, const char *name, uint32_t dtype, uint64_t count);
void *hd_op_sum(struct hd_op_run *run, const char *name, uint64_t count);
void *hd_op_watch(struct hd_op_run *run, const char *name, void *there, struct hd_op_output of);

/* What lies behind an op's address now, after all ops so far. */
const void *hd_op_read(struct hd_op_run *run, const void *there);
void hd_op_send(struct hd_op_run *run);
void hd_op_fetch(struct hd_op_run *run); /* all of it */

uint32_t hd_op_tokens(const struct hd_op_run *run);
uint64_t hd_op_row_max(const struct hd_op_shape *shape);

#define HD_OP_RUN(op, args)                                      \
    do {                                                         \
        hd_op_send(run);                                         \
        CU_ASSERT_EQUAL(run->ops->op(run->device, args), HD_OK); \
    } while (0)

/* op_mxfp8.c */
void hd_op_run_image(struct hd_op_run *run);
void hd_op_run_quantise(struct hd_op_run *run);
void hd_op_run_vectors(struct hd_op_run *run);

#endif /* HD_TESTS_SUPPORT_OP_ARGUMENTS_H */
