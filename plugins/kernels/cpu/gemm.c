/*
 * plugins/kernels/cpu/gemm.c - the two GEMM ops, and where each product is computed.
 *
 *   BF16 in hardware      oneDNN, addend and rounding in its post-op
 *   BF16, not in hardware operands widened to float32, oneDNN, then addend and rounding
 *   float32               oneDNN; an addend is added afterwards, because oneDNN keeps its partial
 *                         sums in a float32 result, and a stage's output is written once (K6)
 */
#include "device.h"

#include <assert.h>
#include <stddef.h>

/* `rows` x `columns` floats of scratch; while products are only made there is none. */
static float *take(const struct hd_ops_device *device, struct hd_cpu_arena *arena, uint64_t rows,
                   uint64_t columns)
{
    return device->only_make ? NULL : hd_cpu_take(arena, rows * columns * sizeof(float));
}

static struct hd_cpu_operand widen(const struct hd_ops_device *device, struct hd_cpu_arena *arena,
                                   struct hd_cpu_operand operand, const uint32_t shape[2])
{
    float *floats = take(device, arena, shape[0], shape[1]);
    if (!device->only_make) {
        device->lane->widen(operand, shape[0], shape[1], floats);
    }
    return (struct hd_cpu_operand){.data = floats, .dtype = HD_F32, .stride = shape[1]};
}

/* The same product of float32 operands. */
static void widen_operands(const struct hd_ops_device *device, struct hd_cpu_arena *arena,
                           struct hd_cpu_product *product)
{
    const uint32_t m = product->m, n = product->n, k = product->k;
    const uint32_t shapes[2][2] = {{m, k}, {k, n}}, turned[2][2] = {{k, m}, {n, k}};
    product->a =
        widen(device, arena, product->a, product->transposed & HD_CPU_A ? turned[0] : shapes[0]);
    product->b =
        widen(device, arena, product->b, product->transposed & HD_CPU_B ? turned[1] : shapes[1]);
}

static hd_status run(const struct hd_ops_device *device, const struct hd_cpu_product *product)
{
    return device->only_make ? hd_cpu_make(device->cache, product)
                             : hd_cpu_run(device->cache, product);
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
    if (product.a.dtype == HD_BF16 && !device->native_bf16) {
        widen_operands(device, &arena, &product);
    }
    const int rounds = product.a.dtype == HD_F32 && product.c.dtype == HD_BF16;
    if (!rounds && (product.a.dtype == HD_BF16 || product.add.data == NULL)) {
        return run(device, &product);
    }
    float *sums = take(device, &arena, product.m, product.n);
    struct hd_cpu_product plain = product;
    plain.c = (struct hd_cpu_operand){.data = sums, .dtype = HD_F32, .stride = product.n};
    plain.add.data = NULL;
    const hd_status status = run(device, &plain);
    if (status == HD_OK && !device->only_make) {
        device->lane->finish(&product, sums);
    }
    return status;
}

static uint64_t size_of(uint32_t dtype)
{
    return dtype == HD_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static struct hd_cpu_operand operand_of(const struct hd_matrix *matrix, uint64_t element,
                                        uint32_t stride)
{
    struct hd_cpu_operand operand = {.dtype = matrix->dtype, .stride = stride};
    if (matrix->data != NULL) {
        operand.data = (char *)matrix->data + element * size_of(matrix->dtype);
    }
    return operand;
}

/* Rows [first, first + count) of a; `expert` counts whole matrices of b (WGRAD: of c). */
static struct hd_cpu_product product_of(const struct hd_gemm_args *args, uint32_t first,
                                        uint32_t count, uint32_t expert)
{
    const uint64_t inner = args->a.columns;
    const uint64_t outer = args->form == HD_WGRAD ? args->b.columns : args->c.columns;
    const uint64_t matrix = (uint64_t)expert * inner * outer;
    struct hd_cpu_product product = {.a = operand_of(&args->a, first * inner, args->a.columns),
                                     .n = (uint32_t)outer};
    if (args->form == HD_WGRAD) {
        product.b = operand_of(&args->b, first * outer, args->b.columns);
        product.c = operand_of(&args->c, matrix, (uint32_t)outer);
        product.m = args->a.columns;
        product.k = count;
        product.transposed = HD_CPU_A;
        product.accumulate = 1;
        return product;
    }
    product.b = operand_of(&args->b, matrix, (uint32_t)(args->form == HD_FPROP ? inner : outer));
    product.c = operand_of(&args->c, first * outer, (uint32_t)outer);
    product.add = operand_of(&args->add, first * outer, (uint32_t)outer);
    product.m = count;
    product.k = args->a.columns;
    product.transposed = args->form == HD_FPROP ? HD_CPU_B : 0;
    return product;
}

hd_status hd_cpu_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    const struct hd_cpu_product product = product_of(args, 0, args->a.rows, 0);
    return hd_cpu_multiply(device, device->scratch, &product);
}

hd_status hd_cpu_expert_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    for (uint32_t expert = 0; expert < args->expert_count; expert++) {
        uint32_t first = (uint32_t)args->offsets[expert];
        const uint32_t end = (uint32_t)args->offsets[expert + 1];
        assert(first <= end && end <= args->a.rows);
        while (first < end) {
            const uint32_t left = end - first;
            const uint32_t count = left < HD_CPU_ROW_PIECE ? left : HD_CPU_ROW_PIECE;
            const struct hd_cpu_product product = product_of(args, first, count, expert);
            const hd_status status = hd_cpu_multiply(device, device->scratch, &product);
            if (status != HD_OK) {
                return status;
            }
            first += count;
        }
    }
    return HD_OK;
}
