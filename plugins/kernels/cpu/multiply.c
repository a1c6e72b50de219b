/*
 * plugins/kernels/cpu/multiply.c - three ways to compute a product.
 *
 *   packed    BF16 in hardware: isa/pack.c stores the operands in the layout that oneDNN is fastest
 *             with, in pieces that stay in the second-level cache.  oneDNN has half that speed if
 *             rows are a multiple of 4 KiB apart, or if it must transpose an operand itself.
 *   plain     x W^T, if both are contiguous along k; sizes that cannot be packed; float32, where
 *             an addend is added afterwards: oneDNN keeps partial sums in a float32 result, and a
 *             stage's output is written once (K6)
 *   widened   BF16 without hardware: operands widened to float32, which is exact, then plain
 *
 * The order of every sum depends on the shape alone.
 */
#include "device.h"

#include <assert.h>
#include <stddef.h>

#define ROWS    512u  /* of a piece: 512 x 512 of source, and 512 rows of sums */
#define K_CHUNK 512u  /* of k, where k is ... */
#define K_WHOLE 1024u /* ... longer than this */

static uint32_t cpu_lesser(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

static uint64_t cpu_multiply_size_of(uint32_t dtype)
{
    return dtype == HD_BF16 ? sizeof(uint16_t) : sizeof(float);
}

/* Scratch.  While primitives are only created there is none, and any address will do. */
static void *cpu_take(const struct hd_ops_device *device, struct hd_cpu_arena *arena,
                      uint64_t bytes)
{
    return device->only_make ? (void *)(uintptr_t)device : hd_cpu_take(arena, bytes);
}

static hd_status cpu_run(const struct hd_ops_device *device, const struct hd_cpu_product *product)
{
    return device->only_make ? hd_cpu_make(device->cache, product)
                             : hd_cpu_run(device->cache, product);
}

/* The part that begins at `row` and `column`. */
static struct hd_cpu_operand cpu_part_of(struct hd_cpu_operand operand, uint64_t row,
                                         uint64_t column)
{
    if (operand.data != NULL) {
        operand.data = (char *)operand.data +
                       (row * operand.stride + column) * cpu_multiply_size_of(operand.dtype);
    }
    return operand;
}

/* --- packed --------------------------------------------------------------------------------- */

/* A packed product: its weights are stored chunk after chunk of k. */
struct packing {
    struct hd_ops_device *device;
    const struct hd_cpu_product *product;
    uint16_t *weights;
    uint16_t *source; /* one piece */
    float *sums;      /* NULL: directly into c */
    uint32_t chunk;   /* of k */
};

static bool cpu_packs(const struct hd_ops_device *device, const struct hd_cpu_product *product)
{
    const bool is_transposed = (product->layout & HD_CPU_A) != 0;
    const bool is_contiguous = product->layout == HD_CPU_B && product->a.stride == product->k &&
                               product->b.stride == product->k;
    return product->a.dtype == HD_BF16 && device->native_bf16 &&
           device->isa->pack_weights != NULL && !is_contiguous && product->n % 16 == 0 &&
           product->k % 32 == 0 && product->c.stride == product->n &&
           (!is_transposed || product->m % 16 == 0);
}

/* n, padded as in packed weights. */
static uint64_t cpu_wide(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

static void cpu_pack_weights(const struct packing *packing)
{
    const struct hd_cpu_product *product = packing->product;
    const bool is_transposed = (product->layout & HD_CPU_B) != 0;
    for (uint32_t k = 0; k < product->k; k += packing->chunk) {
        const uint32_t count = cpu_lesser(packing->chunk, product->k - k);
        const struct hd_cpu_operand from =
            cpu_part_of(product->b, is_transposed ? 0 : k, is_transposed ? k : 0);
        packing->device->isa->pack_weights(from, count, product->n, is_transposed,
                                           packing->weights + k * cpu_wide(product->n));
    }
}

/* Rows [first ..) and k's [k ..) of A without gaps: in place, or copied as a packed piece. */
static struct hd_cpu_operand cpu_source_of(const struct packing *packing, uint32_t first,
                                           uint32_t k, const uint32_t shape[2])
{
    const struct hd_cpu_product *product = packing->product;
    const bool is_transposed = (product->layout & HD_CPU_A) != 0;
    const struct hd_cpu_operand from =
        cpu_part_of(product->a, is_transposed ? k : first, is_transposed ? first : k);
    if (!is_transposed && from.stride == shape[1]) {
        return from;
    }
    if (!packing->device->only_make) {
        packing->device->isa->pack_source(from, shape[0], shape[1], is_transposed, packing->source);
    }
    return (struct hd_cpu_operand){.data = packing->source, .dtype = HD_BF16, .stride = shape[1]};
}

/* `rows` rows of the result, all of k. */
static hd_status multiply_piece(const struct packing *packing, uint32_t first, uint32_t rows)
{
    const struct hd_cpu_product *whole = packing->product;
    struct hd_cpu_product piece = *whole;
    piece.m = rows;
    piece.layout = HD_CPU_PACKED;
    piece.c = cpu_part_of(whole->c, first, 0);
    piece.add = cpu_part_of(whole->add, first, 0);
    struct hd_cpu_product part = piece;
    if (packing->sums != NULL) {
        part.c = (struct hd_cpu_operand){packing->sums, HD_F32, whole->n};
        part.add.data = NULL;
    }
    for (uint32_t k = 0; k < whole->k; k += packing->chunk) {
        const uint32_t shape[2] = {rows, cpu_lesser(packing->chunk, whole->k - k)};
        part.a = cpu_source_of(packing, first, k, shape);
        part.b = (struct hd_cpu_operand){packing->weights + k * cpu_wide(whole->n), HD_BF16, 0};
        part.k = shape[1];
        part.accumulate = whole->accumulate || k > 0;
        HD_TRY(cpu_run(packing->device, &part));
    }
    if (packing->sums != NULL && !packing->device->only_make) {
        packing->device->isa->finish(&piece, packing->sums);
    }
    return HD_OK;
}

static hd_status multiply_packed(struct hd_ops_device *device, struct hd_cpu_arena arena,
                                 const struct hd_cpu_product *product)
{
    const uint64_t n = product->n, k = product->k;
    struct packing packing = {.device = device, .product = product};
    packing.chunk = product->k > K_WHOLE ? K_CHUNK : product->k;
    packing.weights = cpu_take(device, &arena, k * cpu_wide(n) * sizeof(uint16_t));
    packing.source = cpu_take(device, &arena, (uint64_t)ROWS * packing.chunk * sizeof(uint16_t));
    const bool adds_later = product->c.dtype == HD_BF16 || product->add.data != NULL;
    if (packing.chunk < product->k && adds_later) {
        packing.sums = cpu_take(device, &arena, ROWS * n * sizeof(float));
    }
    if (!device->only_make) {
        cpu_pack_weights(&packing);
    }
    for (uint32_t first = 0; first < product->m; first += ROWS) {
        HD_TRY(multiply_piece(&packing, first, cpu_lesser(ROWS, product->m - first)));
    }
    return HD_OK;
}

/* --- widened and plain ---------------------------------------------------------------------- */

static struct hd_cpu_operand cpu_widen(const struct hd_ops_device *device,
                                       struct hd_cpu_arena *arena, struct hd_cpu_operand operand,
                                       const uint32_t shape[2])
{
    float *floats = cpu_take(device, arena, (uint64_t)shape[0] * shape[1] * sizeof(float));
    if (!device->only_make) {
        device->isa->widen(operand, shape[0], shape[1], floats);
    }
    return (struct hd_cpu_operand){.data = floats, .dtype = HD_F32, .stride = shape[1]};
}

/* The same product of float32 operands. */
static void cpu_widen_operands(const struct hd_ops_device *device, struct hd_cpu_arena *arena,
                               struct hd_cpu_product *product)
{
    const uint32_t m = product->m, n = product->n, k = product->k;
    const uint32_t shapes[2][2] = {{m, k}, {k, n}}, transposed[2][2] = {{k, m}, {n, k}};
    product->a = cpu_widen(device, arena, product->a,
                           product->layout & HD_CPU_A ? transposed[0] : shapes[0]);
    product->b = cpu_widen(device, arena, product->b,
                           product->layout & HD_CPU_B ? transposed[1] : shapes[1]);
}

static hd_status multiply_plain(struct hd_ops_device *device, struct hd_cpu_arena arena,
                                const struct hd_cpu_product *product)
{
    const bool rounds = product->a.dtype == HD_F32 && product->c.dtype == HD_BF16;
    if (!rounds && (product->a.dtype == HD_BF16 || product->add.data == NULL)) {
        return cpu_run(device, product);
    }
    struct hd_cpu_product plain = *product;
    float *sums = cpu_take(device, &arena, (uint64_t)product->m * product->n * sizeof(float));
    plain.c = (struct hd_cpu_operand){.data = sums, .dtype = HD_F32, .stride = product->n};
    plain.add.data = NULL;
    HD_TRY(cpu_run(device, &plain));
    if (!device->only_make) {
        device->isa->finish(product, sums);
    }
    return HD_OK;
}

hd_status hd_cpu_multiply(struct hd_ops_device *device, struct hd_cpu_arena arena,
                          const struct hd_cpu_product *given)
{
    struct hd_cpu_product product = *given;
    assert(product.a.dtype == product.b.dtype);
    if (product.add.data == product.c.data && product.add.data != NULL) {
        assert(product.c.dtype == HD_F32 && product.add.dtype == HD_F32);
        product.add.data = NULL;
        product.accumulate = 1;
    }
    if (cpu_packs(device, &product)) {
        return multiply_packed(device, arena, &product);
    }
    if (product.a.dtype == HD_BF16 && !device->native_bf16) {
        cpu_widen_operands(device, &arena, &product);
    }
    return multiply_plain(device, arena, &product);
}

uint64_t hd_cpu_product_bytes(uint64_t m, uint64_t n, uint64_t k)
{
    const uint64_t widened =
        m * k + k * cpu_wide(n) + m * n; /* floats; packed operands need half */
    const uint64_t piece = ROWS * (uint64_t)K_WHOLE / 2 + ROWS * n;
    return (widened + piece) * sizeof(float) + 256;
}
