/*
 * rates/cuda_rate_lt.c - a product by cuBLASLt alone, with any algorithm of its heuristic, even
 * if it splits sums over the depth; experts are one batch of equal matrices.
 *
 * cuBLASLt is column-major, so C = A B is computed as C^T = B^T A^T: see plugins/kernels/cuda/lt.c.
 */
#include "cuda_rate.h"

#include <stdlib.h>
#include <string.h>

enum { ALGORITHM_MAX = 8 };

struct lt_product {
    const struct lt_alone *lt;
    struct hd_gemm_args args;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t layouts[3]; /* of our B, A and C */
    cublasLtMatmulHeuristicResult_t found[ALGORITHM_MAX];
    int found_count;
};

/* One of our matrices, or one of a batch. */
struct shape {
    uint64_t rows, columns;
    uint32_t dtype;
};

static cublasStatus_t cuda_rate_lt_set_batch(const struct cublaslt_library *blas,
                                             cublasLtMatrixLayout_t layout, uint32_t experts,
                                             const struct shape *shape)
{
    const int32_t count = (int32_t)experts;
    const int64_t stride = (int64_t)(shape->rows * shape->columns);

    CUBLASLT_TRY(blas->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                        &count, sizeof count));
    return blas->cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static cublasStatus_t cuda_rate_lt_lay_out(struct lt_product *product,
                                           const struct rate_product *wanted)
{
    const struct cublaslt_library *blas = &product->lt->driver->blas;
    const struct hd_gemm_args *args = &wanted->args;
    const uint64_t rows = wanted->rows, columns = wanted->columns, depth = wanted->depth;
    const int is_fprop = args->form == HD_FPROP, is_wgrad = args->form == HD_WGRAD;
    const struct shape shapes[3] = {
        {is_fprop ? columns : depth, is_fprop ? depth : columns, args->b.dtype},
        {is_wgrad ? depth : rows, is_wgrad ? rows : depth, args->a.dtype},
        {rows, columns, args->c.dtype},
    };

    for (uint32_t i = 0; i < 3; i++) {
        const cudaDataType_t type = shapes[i].dtype == HD_F32 ? CUDA_R_32F : CUDA_R_16BF;
        CUBLASLT_TRY(blas->cublasLtMatrixLayoutCreate(&product->layouts[i], type, shapes[i].columns,
                                                      shapes[i].rows, (int64_t)shapes[i].columns));
        if (wanted->experts > 0) {
            CUBLASLT_TRY(
                cuda_rate_lt_set_batch(blas, product->layouts[i], wanted->experts, &shapes[i]));
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t cuda_rate_lt_describe(struct lt_product *product)
{
    const struct cublaslt_library *blas = &product->lt->driver->blas;
    const uint32_t form = product->args.form;
    const cublasOperation_t turns[] = {form == HD_FPROP ? CUBLAS_OP_T : CUBLAS_OP_N,
                                       form == HD_WGRAD ? CUBLAS_OP_T : CUBLAS_OP_N};

    CUBLASLT_TRY(
        blas->cublasLtMatmulDescCreate(&product->description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLASLT_TRY(blas->cublasLtMatmulDescSetAttribute(
        product->description, CUBLASLT_MATMUL_DESC_TRANSA, &turns[0], sizeof turns[0]));
    return blas->cublasLtMatmulDescSetAttribute(product->description, CUBLASLT_MATMUL_DESC_TRANSB,
                                                &turns[1], sizeof turns[1]);
}

static cublasStatus_t cuda_rate_lt_ask(struct lt_product *product)
{
    const struct lt_alone *lt = product->lt;
    const struct cublaslt_library *blas = &lt->driver->blas;
    cublasLtMatmulPreference_t wish;

    CUBLASLT_TRY(blas->cublasLtMatmulPreferenceCreate(&wish));
    cublasStatus_t error = blas->cublasLtMatmulPreferenceSetAttribute(
        wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt->workspace_bytes,
        sizeof lt->workspace_bytes);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulAlgoGetHeuristic(
            lt->handle, product->description, product->layouts[0], product->layouts[1],
            product->layouts[2], product->layouts[2], wish, ALGORITHM_MAX, product->found,
            &product->found_count);
    }
    blas->cublasLtMatmulPreferenceDestroy(wish);
    return error;
}

struct lt_product *lt_product_make(const struct lt_alone *lt, const struct rate_product *wanted,
                                   const char **why)
{
    struct lt_product *product = calloc(1, sizeof *product);

    if (product == NULL) {
        *why = "out of memory";
        return NULL;
    }
    product->lt = lt;
    product->args = wanted->args;
    cublasStatus_t error = cuda_rate_lt_describe(product);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = cuda_rate_lt_lay_out(product, wanted);
    }
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = cuda_rate_lt_ask(product);
    }
    if (error != CUBLAS_STATUS_SUCCESS || product->found_count == 0) {
        *why = error != CUBLAS_STATUS_SUCCESS ? lt->driver->blas.cublasLtGetStatusString(error)
                                              : "no algorithm";
        lt_product_free(product);
        return NULL;
    }
    return product;
}

uint32_t lt_product_count(const struct lt_product *product)
{
    return (uint32_t)product->found_count;
}

hd_status lt_product_run(struct lt_product *product, uint32_t algorithm)
{
    static const float one = 1, zero = 0;
    const struct lt_alone *lt = product->lt;
    const struct hd_gemm_args *args = &product->args;
    const float *beta = args->form == HD_WGRAD ? &one : &zero;
    const cublasStatus_t error = lt->driver->blas.cublasLtMatmul(
        lt->handle, product->description, &one, args->b.data, product->layouts[0], args->a.data,
        product->layouts[1], beta, args->c.data, product->layouts[2], args->c.data,
        product->layouts[2], &product->found[algorithm].algo, lt->workspace, lt->workspace_bytes,
        lt->driver->stream);

    return error == CUBLAS_STATUS_SUCCESS ? HD_OK : HD_DEVICE;
}

void lt_product_free(struct lt_product *product)
{
    if (product == NULL) {
        return;
    }
    const struct cublaslt_library *blas = &product->lt->driver->blas;
    for (uint32_t i = 0; i < 3; i++) {
        if (product->layouts[i] != NULL) {
            blas->cublasLtMatrixLayoutDestroy(product->layouts[i]);
        }
    }
    if (product->description != NULL) {
        blas->cublasLtMatmulDescDestroy(product->description);
    }
    free(product);
}
