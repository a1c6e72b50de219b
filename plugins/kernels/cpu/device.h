/*
 * plugins/kernels/cpu/device.h - the opened processor: oneDNN, its cached products, scratch.
 *
 * oneDNN does one thing here, a product of two plain matrices, on one thread.  A primitive costs
 * 0.2 to 2 ms to make and some microseconds to run, so each shape is made once and kept; rows
 * of an expert run in pieces of at most HD_CPU_ROW_PIECE, a multiple of 32, which bounds how many
 * shapes there are.  Everything else is written by us in isa/, once, and compiled for each
 * instruction set.
 *
 * Where the processor has no BF16 instructions, both operands are widened to float32 (exact) and
 * the product is oneDNN's float32 one; sums are float32 either way.
 */
#ifndef HEDDLE_CPU_DEVICE_H
#define HEDDLE_CPU_DEVICE_H

#include "../transformer/transformer.h"

#define HD_CPU_ROW_PIECE 512u /* most rows of one expert product */
#define HD_CPU_QUERIES   64u  /* rows of an attention tile */

/* A matrix, or a part of one: `stride` elements from row to row, as it lies in memory. */
struct hd_cpu_operand {
    void *data;
    uint32_t dtype; /* HD_BF16 or HD_F32 */
    uint32_t stride;
};

/* C[m,n] = op(A)[m,k] op(B)[k,n] + add, or += where `accumulate`; one rounding at the end.  Of
   `layout`, HD_CPU_A says that A lies as [k,m], HD_CPU_B that B lies as [n,k], HD_CPU_PACKED that
   B was packed by isa/pack.c. */
enum { HD_CPU_A = 1, HD_CPU_B = 2, HD_CPU_PACKED = 4 };
struct hd_cpu_product {
    struct hd_cpu_operand a, b, c; /* a and b of one dtype */
    struct hd_cpu_operand add;     /* data NULL: none; may be c itself */
    uint32_t m, n, k;
    uint32_t layout;     /* HD_CPU_A, HD_CPU_B, HD_CPU_PACKED */
    uint32_t accumulate; /* c is HD_F32, and no add */
};

/* What one instruction set supplies; see isa/. */
struct hd_cpu_isa {
    const char *name;
    struct hd_ops bf16, f32;
    /* NULL, or BF16 operands close together: k a multiple of 32; columns of the weights,
       which become a multiple of 64, and rows of a turned source multiples of 16.  `turned`: it
       lies as [n,k], or as [k,m]. */
    void (*pack_weights)(struct hd_cpu_operand from, uint32_t k_count, uint32_t column_count,
                         uint32_t turned, uint16_t *to);
    void (*pack_source)(struct hd_cpu_operand from, uint32_t row_count, uint32_t k_count,
                        uint32_t turned, uint16_t *to);
    /* rows x columns of BF16 at `from` to contiguous float32. */
    void (*widen)(struct hd_cpu_operand from, uint32_t rows, uint32_t columns, float *to);
    /* c = sums + add (or without), rounded once; sums is contiguous, [product.m, product.n]. */
    void (*finish)(const struct hd_cpu_product *product, const float *sums);
};

/* A run of scratch that one op divides among its needs; parts start on 64 bytes. */
struct hd_cpu_arena {
    char *at;
    uint64_t left_bytes;
};

struct hd_ops_device {
    const struct hd_host *host;
    const struct hd_cpu_isa *lane;
    struct hd_cpu_cache *cache; /* oneDNN's engine, stream and primitives */
    struct hd_cpu_arena scratch;
    uint32_t native_bf16;
    uint32_t only_make; /* while prepared: products are made, and not run */
    char effective[96];
};

/* The lane of that name, or the best for "auto"; NULL if this processor has it not. [any-thread] */
const struct hd_cpu_isa *hd_cpu_isa(const char *name);

/* 1 where oneDNN multiplies BF16 in hardware. [any-thread] */
uint32_t hd_cpu_native_bf16(void);

/* `bytes` of the arena; asserts that scratch_bytes counted them. */
void *hd_cpu_take(struct hd_cpu_arena *arena, uint64_t bytes);

/* What hd_cpu_take uses up for `bytes`. */
static inline uint64_t hd_cpu_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* NULL after host->fail. */
struct hd_cpu_cache *hd_cpu_cache_create(const struct hd_host *host);
void hd_cpu_cache_destroy(struct hd_cpu_cache *cache); /* takes NULL */

/* Makes or runs, in one precision, what hd_cpu_multiply lowers a product to. */
hd_status hd_cpu_make(struct hd_cpu_cache *cache, const struct hd_cpu_product *product);
hd_status hd_cpu_run(struct hd_cpu_cache *cache, const struct hd_cpu_product *product);

/* Runs the product.  `arena` is what is free of the scratch: widened operands go there. */
hd_status hd_cpu_multiply(struct hd_ops_device *device, struct hd_cpu_arena arena,
                          const struct hd_cpu_product *product);

/* The most scratch that a product of this size takes, whichever way is gone. */
uint64_t hd_cpu_product_bytes(uint64_t m, uint64_t n, uint64_t k);

hd_status hd_cpu_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);
hd_status hd_cpu_expert_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);

/* Makes every product of such a stage; hd_cpu_private_bytes estimates what they occupy. */
hd_status hd_cpu_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                         const struct hd_stage_spec *spec);
uint64_t hd_cpu_private_bytes(const struct hd_ops *ops, const struct hd_stage_spec *spec);

/* The sums of what the ops take: of both tables, for any routing. */
uint64_t hd_cpu_scratch_bytes(const struct hd_stage_spec *spec);

#endif /* HEDDLE_CPU_DEVICE_H */
