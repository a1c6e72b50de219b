/* plugins/kernels/cpu/gemm.c - the two GEMM ops, as products of parts of matrices. */
#include "device.h"

#include <assert.h>
#include <stddef.h>

static uint64_t cpu_size_of(uint32_t dtype)
{
    return dtype == HD_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static struct hd_cpu_operand cpu_operand_of(const struct hd_matrix *matrix, uint64_t element,
                                            uint32_t stride)
{
    struct hd_cpu_operand operand = {.dtype = matrix->dtype, .stride = stride};
    if (matrix->data != NULL) {
        operand.data = (char *)matrix->data + element * cpu_size_of(matrix->dtype);
    }
    return operand;
}

/* Rows [first, first + count) of a; `expert` counts whole matrices of b (WGRAD: of c). */
static struct hd_cpu_product cpu_product_of(const struct hd_gemm_args *args, uint32_t first,
                                            uint32_t count, uint32_t expert)
{
    const uint64_t inner = args->a.columns;
    const uint64_t outer = args->form == HD_WGRAD ? args->b.columns : args->c.columns;
    const uint64_t matrix = (uint64_t)expert * inner * outer;
    struct hd_cpu_product product = {.a = cpu_operand_of(&args->a, first * inner, args->a.columns),
                                     .n = (uint32_t)outer};
    if (args->form == HD_WGRAD) {
        product.b = cpu_operand_of(&args->b, first * outer, args->b.columns);
        product.c = cpu_operand_of(&args->c, matrix, (uint32_t)outer);
        product.m = args->a.columns;
        product.k = count;
        product.layout = HD_CPU_A;
        product.accumulate = 1;
        return product;
    }
    product.b =
        cpu_operand_of(&args->b, matrix, (uint32_t)(args->form == HD_FPROP ? inner : outer));
    product.c = cpu_operand_of(&args->c, first * outer, (uint32_t)outer);
    product.add = cpu_operand_of(&args->add, first * outer, (uint32_t)outer);
    product.m = count;
    product.k = args->a.columns;
    product.layout = args->form == HD_FPROP ? HD_CPU_B : 0;
    return product;
}

hd_status hd_cpu_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    const struct hd_cpu_product product = cpu_product_of(args, 0, args->a.rows, 0);
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
            const struct hd_cpu_product product = cpu_product_of(args, first, count, expert);
            HD_TRY(hd_cpu_multiply(device, device->scratch, &product));
            first += count;
        }
    }
    return HD_OK;
}
