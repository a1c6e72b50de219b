/*
 * tests/support/op_runs.h - every op of an op table, run on drawn arguments.
 *
 * A driver draws the same arguments for every table, fills outputs with NaN, so that what an op
 * does not write shows, and lists them for whoever compares two tables.  What bytes quantise and
 * dequantise are to give: test_mxfp8.c.
 */
#ifndef HD_TESTS_SUPPORT_OP_RUNS_H
#define HD_TESTS_SUPPORT_OP_RUNS_H

#include "plugins/kernels/transformer/transformer.h"

#define HD_OP_OUTPUT_MAX   16u
#define HD_OP_MEMORY_BYTES (24u << 20)
#define HD_OP_I32          100u /* beside enum hd_dtype */
#define HD_OP_F64          101u
#define HD_OP_U8           102u

struct hd_op_shape {
    const char *name;
    uint32_t batch, sequence, width, heads, key_value_heads, experts, picks, inner, vocabulary;
};

struct hd_op_output {
    const char *name;
    void *data;
    uint32_t dtype;
    uint64_t count;
};

/* Where the ops work in other memory than the host's. */
struct hd_op_mover {
    char *memory; /* HD_OP_MEMORY_BYTES there, aligned to 256 */
    void *context;
    hd_status (*send)(const struct hd_op_mover *mover, const char *here, uint64_t begin,
                      uint64_t end);
    /* Waits for all ops, and brings back what lies before `end`. */
    hd_status (*fetch)(const struct hd_op_mover *mover, char *here, uint64_t end);
};

/* One table on one shape: everything it reads and writes lies in `memory`. */
struct hd_op_run {
    const struct hd_ops *ops;
    struct hd_ops_device *device;
    const struct hd_op_shape *shape;
    char *memory;                    /* HD_OP_MEMORY_BYTES, borrowed */
    const struct hd_op_mover *mover; /* NULL: the ops work in `memory` itself */
    uint64_t seed;                   /* of what is drawn */
    int with_nan;                    /* 1: input `nan_input` gets one in the middle */
    unsigned nan_input, input_count; /* inputs are counted from 0 */
    uint64_t used_bytes, sent_bytes, draws;
    struct hd_op_output outputs[HD_OP_OUTPUT_MAX];
    unsigned output_count;
};

struct hd_op_driver {
    const char *name;
    void (*run)(struct hd_op_run *run);
    double bf16_bound; /* of the residual between two sound tables of BF16 */
    int is_exact;      /* in every type: what it gives are bits that somebody has set down */
};

extern const struct hd_op_driver hd_op_drivers[];
extern const unsigned hd_op_driver_count;

/* Runs one driver from the beginning of `memory`. */
void hd_op_run(struct hd_op_run *run, const struct hd_op_driver *driver, int with_nan);
double hd_op_value(const struct hd_op_output *output, uint64_t at);

#endif /* HD_TESTS_SUPPORT_OP_RUNS_H */
