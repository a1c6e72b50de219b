/*
 * plugins/kernels/cuda/device.h - the opened device, as the ops see it.
 *
 *   struct hd_ops --> ops_*.c, gemm.c, mxfp8.c   which kernels, in which grid, over which scratch
 *                         |
 *                         +--> launch     a kernel of the module (driver.c), or in tests emulated
 *                         +--> multiply   cuBLASLt (lt.c); NULL: every product by our own kernels
 *
 * The ops know no CUDA type and include no header of CUDA: what they decide is the same, and is
 * tested, on a machine that has neither.  Nothing here blocks, allocates, or asks the device
 * anything: how many rows an expert has only the device knows, so grids are those of the worst
 * routing.
 */
#ifndef HD_CUDA_DEVICE_H
#define HD_CUDA_DEVICE_H

#include "kernels/arguments.h"
#include "kernels/places.h"
#include "kernels/shared.h"

#include "../transformer/transformer.h"

struct hd_cuda_grid {
    uint32_t x, y, z;
};

/* A row of the module: what a launch of that kernel takes. */
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
    /* NULL, or a product of BF16 matrices without experts; BUSY: not this shape, take another way.
       FPROP also of packed E4M3 matrices, where has_mxfp8 said so. */
    hd_status (*multiply)(struct hd_ops_device *device, const struct hd_gemm_args *args);
    /* NULL, or whether multiply serves these operands once they are packed: the same answer for a
       weight in all three forms, from when its stage is made. */
    int (*has_mxfp8)(const struct hd_ops_device *device, const struct hd_gemm_args *args);
    struct hd_cuda_arena scratch;
    double *partials;       /* [HD_CUDA_PARTIALS] of the device */
    struct hd_cuda *driver; /* what is behind launch and multiply; NULL in tests without a driver */
};

/* `bytes` of the arena; asserts that scratch_bytes counted them. */
void *hd_cuda_take(struct hd_cuda_arena *arena, uint64_t bytes);
uint64_t hd_cuda_part_bytes(uint64_t bytes); /* what such a part takes */

/* --- gemm.c: how a product is made ------------------------------------------------------------ */

/* Whether the tensor cores' kernel takes it: lines of whole 16 bytes, both operands in BF16. */
int hd_cuda_tile_serves(const struct hd_gemm_args *args);
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

/* The option mxfp8. */
enum hd_cuda_wish { HD_CUDA_WISH_AUTO, HD_CUDA_WISH_EMULATED, HD_CUDA_WISH_NATIVE };
enum hd_cuda_way { HD_CUDA_WAY_EMULATED, HD_CUDA_WAY_NATIVE, HD_CUDA_WAY_REFUSED };

struct hd_cuda_mxfp8_facts {
    uint32_t experts, has_cublaslt, capability; /* 90 is 9.0 */
    uint32_t algorithm_count; /* of the forms of a weight's product, how many have one */
};

/* NULL, or what native products lack: a clause, static. */
const char *hd_cuda_mxfp8_missing(const struct hd_cuda_mxfp8_facts *facts);
enum hd_cuda_way hd_cuda_mxfp8_way(enum hd_cuda_wish wish, const char *missing);
/* Scratch of the packed operands of one product. */
uint64_t hd_cuda_mxfp8_bytes(const struct hd_stage_spec *spec);
/* BUSY where the device has no such product. */
hd_status hd_cuda_gemm_mxfp8(struct hd_ops_device *device, const struct hd_gemm_args *args);

/* --- table.c ---------------------------------------------------------------------------------- */

extern const struct hd_ops hd_cuda_ops;
uint64_t hd_cuda_scratch_bytes(const struct hd_stage_spec *spec);

static inline uint32_t hd_cuda_blocks(uint64_t count, uint32_t each)
{
    return (uint32_t)((count + each - 1) / each);
}

/* --- the ops, by file ------------------------------------------------------------------------- */

#define HD_CUDA_OP(name, args) \
    hd_status hd_cuda_##name(struct hd_ops_device *device, const struct args *args_)
HD_CUDA_OP(embed, hd_embed_args); /* ops_block.c */
HD_CUDA_OP(embed_backward, hd_embed_args);
HD_CUDA_OP(rms_norm, hd_norm_args);
HD_CUDA_OP(rms_norm_backward, hd_norm_args);
HD_CUDA_OP(rope, hd_rope_args);
HD_CUDA_OP(attention, hd_attention_args);
HD_CUDA_OP(attention_backward, hd_attention_args);
HD_CUDA_OP(route, hd_route_args); /* ops_experts.c */
HD_CUDA_OP(route_backward, hd_route_args);
HD_CUDA_OP(assign, hd_rows_args);
HD_CUDA_OP(permute, hd_rows_args);
HD_CUDA_OP(permute_backward, hd_rows_args);
HD_CUDA_OP(combine, hd_rows_args);
HD_CUDA_OP(swiglu, hd_swiglu_args);
HD_CUDA_OP(swiglu_backward, hd_swiglu_args);
HD_CUDA_OP(quantise, hd_quantise_args);
HD_CUDA_OP(dequantise, hd_quantise_args);
HD_CUDA_OP(image, hd_image_args);
HD_CUDA_OP(head_loss, hd_head_args); /* ops_head.c */
HD_CUDA_OP(head_loss_backward, hd_head_args);
HD_CUDA_OP(convert, hd_optimizer_args); /* ops_optimizer.c */
HD_CUDA_OP(adamw, hd_optimizer_args);
HD_CUDA_OP(square_sum, hd_optimizer_args);
#undef HD_CUDA_OP

#endif /* HD_CUDA_DEVICE_H */
