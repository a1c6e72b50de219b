/*
 * plugins/kernels/cpu/device.h - the opened processor: oneDNN, its cached products, scratch.
 *
 * oneDNN computes the product of two plain matrices, on one thread.  To create a primitive costs
 * 0.2 to 2 ms, to run it some microseconds, so each shape is created once and kept.  The rows of an
 * expert run in pieces of at most HD_CPU_ROW_PIECE, a multiple of 32, which limits the number of
 * shapes.  All other ops are our own code in isa/, compiled once for each instruction set.
 *
 * If the processor has no BF16 instructions, both operands are widened to float32, which is exact,
 * and oneDNN multiplies in float32.  Sums are float32 in both cases.
 */
#ifndef HEDDLE_CPU_DEVICE_H
#define HEDDLE_CPU_DEVICE_H

#include "../transformer/transformer.h"

#include <stdbool.h>

#define HD_CPU_ROW_PIECE 512u /* rows of one expert product, at most */
#define HD_CPU_QUERIES   64u  /* rows of an attention tile */

/* A matrix in memory, or a part of one: `stride` elements from row to row. */
struct hd_cpu_operand {
    void *data;
    uint32_t dtype; /* HD_BF16 or HD_F32 */
    uint32_t stride;
};

/* C[m,n] = op(A)[m,k] op(B)[k,n] + add, or += if `accumulate`; one rounding at the end.  Bits of
   `layout`: with HD_CPU_A A is stored as [k,m], with HD_CPU_B B is stored as [n,k], with
   HD_CPU_PACKED isa/pack.c has packed B. */
enum { HD_CPU_A = 1, HD_CPU_B = 2, HD_CPU_PACKED = 4 };
struct hd_cpu_product {
    struct hd_cpu_operand a, b, c; /* a and b of one dtype */
    struct hd_cpu_operand add;     /* data NULL: none; may be c itself */
    uint32_t m, n, k;
    uint32_t layout;     /* HD_CPU_A, HD_CPU_B, HD_CPU_PACKED */
    uint32_t accumulate; /* then c is HD_F32, without add */
};

/* The functions of one instruction set; see isa/. */
struct hd_cpu_isa {
    const char *name;
    struct hd_ops bf16, f32;
    /* NULL, or copy BF16 operands without gaps.  k is a multiple of 32; columns of the weights,
       which are padded to a multiple of 64, and rows of a transposed source are multiples of 16.
       `is_transposed`: the weights are stored as [n,k], the source as [k,m]. */
    void (*pack_weights)(struct hd_cpu_operand from, uint32_t k_count, uint32_t column_count,
                         bool is_transposed, uint16_t *to);
    void (*pack_source)(struct hd_cpu_operand from, uint32_t row_count, uint32_t k_count,
                        bool is_transposed, uint16_t *to);
    /* Copies rows x columns of BF16 to contiguous float32. */
    void (*widen)(struct hd_cpu_operand from, uint32_t rows, uint32_t columns, float *to);
    /* c = sums + add (if any), rounded once; sums is contiguous, [product.m, product.n]. */
    void (*finish)(const struct hd_cpu_product *product, const float *sums);
};

/* A run of scratch that one op divides among its needs; parts start on 64 bytes. */
struct hd_cpu_arena {
    char *at;
    uint64_t left_bytes;
};

struct hd_ops_device {
    const struct hd_host *host;
    const struct hd_cpu_isa *isa;
    struct hd_cpu_cache *cache; /* oneDNN's engine, stream and primitives */
    struct hd_cpu_arena scratch;
    bool native_bf16;
    bool only_make; /* in prepare: primitives are created, but not run */
    char effective[96];
};

/* The instruction set of that name, or the best one for "auto"; NULL if this processor does not
   support it. [any-thread] */
const struct hd_cpu_isa *hd_cpu_isa(const char *name);

/* Whether oneDNN multiplies BF16 in hardware. [any-thread] */
bool hd_cpu_native_bf16(void);

/* `bytes` of the arena; asserts that scratch_bytes counted them. */
void *hd_cpu_take(struct hd_cpu_arena *arena, uint64_t bytes);

/* What the arena loses by hd_cpu_take. */
static inline uint64_t hd_cpu_round(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* NULL after host->fail. */
struct hd_cpu_cache *hd_cpu_cache_create(const struct hd_host *host);
void hd_cpu_cache_destroy(struct hd_cpu_cache *cache); /* takes NULL */
/* Primitives created so far. */
uint64_t hd_cpu_made_count(const struct hd_cpu_cache *cache);

/* Creates or runs one primitive of hd_cpu_multiply, without another change of precision. */
hd_status hd_cpu_make(struct hd_cpu_cache *cache, const struct hd_cpu_product *product);
hd_status hd_cpu_run(struct hd_cpu_cache *cache, const struct hd_cpu_product *product);

/* Runs the product.  `arena` is the free scratch, for widened and packed operands. */
hd_status hd_cpu_multiply(struct hd_ops_device *device, struct hd_cpu_arena arena,
                          const struct hd_cpu_product *product);

/* The largest scratch of a product of this size, for each of the three ways. */
uint64_t hd_cpu_product_bytes(uint64_t m, uint64_t n, uint64_t k);

hd_status hd_cpu_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);
hd_status hd_cpu_expert_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args);

/* Creates the primitives of all products of such a stage; hd_cpu_private_bytes estimates their
   memory. */
hd_status hd_cpu_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                         const struct hd_stage_spec *spec);
uint64_t hd_cpu_private_bytes(const struct hd_ops *ops, const struct hd_stage_spec *spec);

/* The scratch of the ops: of both tables, for any routing. */
uint64_t hd_cpu_scratch_bytes(const struct hd_stage_spec *spec);

#endif /* HEDDLE_CPU_DEVICE_H */
