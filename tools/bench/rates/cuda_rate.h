/*
 * rates/cuda_rate.h - the parts of heddle-cuda-rate: cuda_rate.c measures the products of the
 * plugin cuda, cuda_rate_lt.c computes the same ones by cuBLASLt alone, cuda_rate_shape.c lists
 * them.
 */
#ifndef HD_TESTS_BENCH_CUDA_RATE_H
#define HD_TESTS_BENCH_CUDA_RATE_H

#include "plugins/kernels/cuda/driver.h"

#include <heddle/kernel.h>

/* One product, as an argument of the plugin; all experts have the same number of rows. */
struct rate_product {
    const char *name; /* "q, o", "experts up", "square" */
    struct hd_gemm_args args;
    uint32_t experts, rows, columns, depth; /* of one expert's C, or of C; experts 0: dense */
};

/* --- cuda_rate_lt.c --------------------------------------------------------------------------- */

/* The same by cuBLASLt, with the fastest of its algorithms. */
struct lt_product;

/* A handle and a workspace beside those of the driver. */
struct lt_alone {
    struct hd_cuda *driver;
    cublasLtHandle_t handle;
    void *workspace;
    uint64_t workspace_bytes;
};

/* NULL if cuBLASLt has no algorithm or fails; *why is the reason. */
struct lt_product *lt_product_make(const struct lt_alone *lt, const struct rate_product *product,
                                   const char **why);
/* The number of algorithms. */
uint32_t lt_product_count(const struct lt_product *product);
/* Enqueues the product by one of them.  HD_OK or HD_DEVICE. */
hd_status lt_product_run(struct lt_product *product, uint32_t algorithm);
void lt_product_free(struct lt_product *product); /* takes NULL */

/* --- the program ------------------------------------------------------------------------------ */

#define RATE_PRODUCT_MAX 32u

struct rate {
    double seconds;
    struct hd_stage_spec spec;
    struct hd_option_value options[16];
    struct hd_host host;
    struct hd_ops_device *device;
    struct lt_alone lt;
    struct rate_product products[RATE_PRODUCT_MAX];
    uint32_t product_count;
    void *a, *b, *c; /* the operands of all products, one after the other */
    uint64_t c_bytes;
    int32_t *offsets;
};

/* Prints the reason for the parent process, and ends the program. */
__attribute__((noreturn, format(printf, 1, 2))) void rate_give_up(const char *format, ...);

/* --- cuda_rate_shape.c ------------------------------------------------------------------------ */

/* Every product of one block and of a chunk of the head, in the three forms; and square ones. */
void rate_add_stage(struct rate *rate);
void rate_add_squares(struct rate *rate);

/* Allocates device memory for each operand of the largest product, filled with random values. */
void rate_take_operands(struct rate *rate);
/* Sets the operands of `product`: C is zero, and all experts have the same number of rows. */
void rate_place(struct rate *rate, struct rate_product *product);
void *rate_allocate(struct rate *rate, uint64_t bytes); /* of the device */

#endif /* HD_TESTS_BENCH_CUDA_RATE_H */
