/*
 * plugins/kernels/cuda/device.h - the opened device, as the ops see it.
 *
 *   struct hd_ops --> ops_*.c, gemm.c, mxfp8.c   chooses kernels, grid and scratch
 *                         |
 *                         +--> launch     a kernel of the module (driver.c), or in tests emulated
 *                         +--> multiply   cuBLASLt (lt.c); NULL: every product by our own kernels
 *
 * The ops use no type or header of CUDA, so their decisions are tested on machines without it.
 * Nothing here blocks, allocates, or reads from the device.  Only the device knows how many rows
 * an expert has, so grids are sized for the worst routing.
 */
#ifndef HD_CUDA_DEVICE_H
#define HD_CUDA_DEVICE_H

#include "kernels/arguments.h"
#include "kernels/places.h"
#include "kernels/shared.h"

#include "../transformer/transformer.h"

#include <stdbool.h>

struct hd_cuda_grid {
    uint32_t x, y, z;
};

/* A kernel of the module: the constants of its launch. */
struct hd_cuda_row {
    const char *symbol;
    uint32_t threads, shared_bytes, argument_bytes;
};
extern const struct hd_cuda_row hd_cuda_rows[HD_CUDA_KERNEL_COUNT];

/* A run of scratch that one op divides among its needs; parts start on 256 bytes. */
struct hd_cuda_arena {
    char *at;
    uint64_t left_bytes;
};

#define HD_CUDA_HEAD_WIDTH_MAX 128u
#define HD_CUDA_PARTIALS       1024u /* blocks of a sum of squares, at most */
#define HD_CUDA_NORM_CHUNK     64u   /* rows of one addend of a norm weight's gradient */
#define HD_CUDA_ROUTER_CHUNK   512u  /* tokens of one addend of the router's gradient */

struct hd_ops_device {
    const struct hd_host *host;
    /* Enqueues one kernel; `args` is copied. */
    hd_status (*launch)(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                        struct hd_cuda_grid grid, const void *args);
    /* NULL, or a product of BF16 matrices without experts; BUSY: not for this shape, use another
       kernel.  FPROP also takes packed E4M3 matrices, if has_mxfp8 returned true. */
    hd_status (*multiply)(struct hd_ops_device *device, const struct hd_gemm_args *args);
    /* NULL, or whether multiply takes these operands once they are packed: the same answer for a
       weight in all three forms, fixed when its stage is created. */
    bool (*has_mxfp8)(const struct hd_ops_device *device, const struct hd_gemm_args *args);
    struct hd_cuda_arena scratch;
    double *partials;       /* [HD_CUDA_PARTIALS] of the device */
    struct hd_cuda *driver; /* of launch and multiply; NULL in tests without a driver */
};

/* `bytes` of the arena; asserts that scratch_bytes counted them. */
void *hd_cuda_take(struct hd_cuda_arena *arena, uint64_t bytes);
uint64_t hd_cuda_part_bytes(uint64_t bytes); /* what the arena loses by such a part */

/* --- gemm.c: which kernel computes a product -------------------------------------------------- */

/* Whether the tensor cores' kernel takes it: rows of whole 16 bytes, both operands in BF16. */
bool hd_cuda_tile_serves(const struct hd_gemm_args *args);
struct hd_cuda_grid hd_cuda_tile_grid(const struct hd_gemm_args *args);

/* FPROP, DGRAD and WGRAD, with or without experts. */
hd_status hd_cuda_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);
hd_status hd_cuda_expert_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);
/* One product of any operands, grid by its sizes. */
hd_status hd_cuda_product(struct hd_ops_device *device, const struct hd_product *product,
                          uint32_t groups);

/* --- mxfp8.c: products in MXFP8 of the device's own ------------------------------------------- */

#define HD_CUDA_MXFP8_CAPABILITY_MIN 100u
#define HD_CUDA_FORM_COUNT           3u

/* The option mxfp8, and what a stage does. */
enum hd_cuda_wish { HD_CUDA_WISH_AUTO, HD_CUDA_WISH_EMULATED, HD_CUDA_WISH_NATIVE };
enum hd_cuda_way { HD_CUDA_WAY_EMULATED, HD_CUDA_WAY_NATIVE, HD_CUDA_WAY_REFUSED };

struct hd_cuda_mxfp8_facts {
    uint32_t experts, has_cublaslt, capability; /* 90 is 9.0 */
    uint32_t algorithm_count; /* how many of a weight's three products have an algorithm */
};

/* NULL, or why native products are impossible: a clause, static. */
const char *hd_cuda_mxfp8_missing(const struct hd_cuda_mxfp8_facts *facts);
enum hd_cuda_way hd_cuda_mxfp8_way(enum hd_cuda_wish wish, const char *missing);
/* Scratch for the packed operands of one product. */
uint64_t hd_cuda_mxfp8_bytes(const struct hd_stage_spec *spec);
/* BUSY if the device has no such product. */
hd_status hd_cuda_gemm_mxfp8(struct hd_ops_device *device, const struct hd_gemm_args *args);

/* --- table.c ---------------------------------------------------------------------------------- */

extern const struct hd_ops hd_cuda_ops;
uint64_t hd_cuda_scratch_bytes(const struct hd_stage_spec *spec);

static inline uint32_t hd_cuda_blocks(uint64_t count, uint32_t each)
{
    return (uint32_t)((count + each - 1) / each);
}

/* Enqueues a kernel with a one-dimensional grid. */
static inline hd_status hd_cuda_run(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                                    uint32_t blocks, const void *args)
{
    return device->launch(device, kernel, (struct hd_cuda_grid){blocks, 1, 1}, args);
}

/* --- the ops: ops_block.c, ops_experts.c, ops_head.c, ops_optimizer.c ------------------------- */

#define HD_CUDA_OP(name, args) \
    hd_status hd_cuda_##name(struct hd_ops_device *device, const struct args *args_);
HD_OPS_EACH(HD_CUDA_OP)
HD_CUDA_OP(image, hd_image_args)
#undef HD_CUDA_OP

#endif /* HD_CUDA_DEVICE_H */
