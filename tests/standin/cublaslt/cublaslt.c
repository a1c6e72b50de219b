/*
 * standin/cublaslt/cublaslt.c - a stand-in for cuBLASLt, over the CUDA stand-in's memory and
 * streams.
 *
 * It has the calls of plugins/cuda/cublaslt_library.h, for BF16 operands and float32 sums in
 * ascending order; what it does not know it refuses, as the library would with NOT_SUPPORTED or
 * INVALID_VALUE.  A matrix [rows, cols] is column-major with its ld.  Its environment:
 * STANDIN_CUBLASLT
 *
 *   algorithms=none   no shape has an algorithm
 *   algorithms=odd    every second shape that is asked for has none
 *   version=120800    what cublasLtGetVersion says (130100)
 */
#include <cublasLt.h>

#include "standin/standin.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHM_MAGIC 0x68646c74u

struct layout {
    uint64_t rows, cols;
    int64_t ld;
    cudaDataType_t type;
    int32_t batch_count;
    int64_t batch_stride; /* elements */
};

struct product {
    cublasOperation_t turn_a, turn_b;
};

/* One product under way, with everything by value, as cuBLASLt promises. */
struct job {
    struct product product;
    struct layout a, b, c;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
};

static int says(const char *word)
{
    const char *said = getenv("STANDIN_CUBLASLT");
    return said != NULL && strstr(said, word) != NULL;
}

size_t cublasLtGetVersion(void)
{
    return says("version=120800") ? 120800 : 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the stand-in of cuBLASLt";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = calloc(1, sizeof(uint64_t));
    return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (rows == 0 || cols == 0 || ld < (int64_t)rows ||
        (type != CUDA_R_16BF && type != CUDA_R_32F)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    struct layout *layout = malloc(sizeof *layout);
    if (layout == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *layout = (struct layout){rows, cols, ld, type, 1, 0};
    *out = (cublasLtMatrixLayout_t)(void *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    struct layout *layout = (struct layout *)(void *)handle;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof layout->batch_count) {
        memcpy(&layout->batch_count, value, bytes);
    } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET &&
               bytes == sizeof layout->batch_stride) {
        memcpy(&layout->batch_stride, value, bytes);
    } else {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    struct product *product = malloc(sizeof *product);
    if (product == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *product = (struct product){CUBLAS_OP_N, CUBLAS_OP_N};
    *out = (cublasLtMatmulDesc_t)(void *)product;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(const cublasLtMatmulDesc_t product)
{
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    struct product *product = (struct product *)(void *)description;
    cublasOperation_t *turn =
        attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &product->turn_a : &product->turn_b;
    if ((attribute != CUBLASLT_MATMUL_DESC_TRANSA && attribute != CUBLASLT_MATMUL_DESC_TRANSB) ||
        bytes != sizeof *turn) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(turn, value, sizeof *turn);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof(uint64_t));
    return *out != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(const cublasLtMatmulPreference_t wish)
{
    free(wish);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    (void)wish, (void)value;
    const size_t wanted =
        attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t);
    return bytes == wanted ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* --- products ----------------------------------------------------------------------------------
 */

static uint64_t rows_of(const struct layout *layout, cublasOperation_t turn)
{
    return turn == CUBLAS_OP_N ? layout->rows : layout->cols;
}

static uint64_t cols_of(const struct layout *layout, cublasOperation_t turn)
{
    return turn == CUBLAS_OP_N ? layout->cols : layout->rows;
}

static int fits(const struct job *job)
{
    return rows_of(&job->a, job->product.turn_a) == job->c.rows &&
           cols_of(&job->a, job->product.turn_a) == rows_of(&job->b, job->product.turn_b) &&
           cols_of(&job->b, job->product.turn_b) == job->c.cols &&
           job->a.batch_count == job->b.batch_count && job->a.batch_count == job->c.batch_count &&
           job->c.batch_count > 0 && job->a.type == CUDA_R_16BF && job->b.type == CUDA_R_16BF;
}

static struct job job_of(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c)
{
    return (struct job){.product = *(struct product *)(void *)product,
                        .a = *(struct layout *)(void *)a,
                        .b = *(struct layout *)(void *)b,
                        .c = *(struct layout *)(void *)c};
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *count)
{
    static _Atomic uint32_t asked_count;
    const struct job job = job_of(product, a, b, c);
    (void)handle, (void)wish;
    *count = 0;
    if (!fits(&job) || c != d || wanted < 1) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (says("algorithms=none") || (says("algorithms=odd") && asked_count++ % 2 == 1)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memset(&results[0], 0, sizeof results[0]);
    results[0].algo.data[0] = ALGORITHM_MAGIC;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *data, uint64_t at, cudaDataType_t type)
{
    float value;
    if (type == CUDA_R_32F) {
        return ((const float *)data)[at];
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void store(void *data, uint64_t at, cudaDataType_t type, float value)
{
    uint32_t bits;
    if (type == CUDA_R_32F) {
        ((float *)data)[at] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    ((uint16_t *)data)[at] =
        (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

static uint64_t at_of(const struct layout *layout, cublasOperation_t turn, uint64_t row,
                      uint64_t col)
{
    const uint64_t ld = (uint64_t)layout->ld;
    return turn == CUBLAS_OP_N ? row + col * ld : col + row * ld;
}

/* From the first element to the last, of all matrices of a batch. */
static uint64_t count_of(const struct layout *layout)
{
    const uint64_t others = (uint64_t)(layout->batch_count - 1) * (uint64_t)layout->batch_stride;
    return others + (layout->cols - 1) * (uint64_t)layout->ld + layout->rows;
}

static float *widened(const void *data, const struct layout *layout)
{
    const uint64_t count = count_of(layout);
    float *values = malloc(count * sizeof *values);
    for (uint64_t at = 0; values != NULL && at < count; at++) {
        values[at] = load(data, at, layout->type);
    }
    return values;
}

static uint64_t bytes_of(const struct layout *layout)
{
    return count_of(layout) * (layout->type == CUDA_R_32F ? sizeof(float) : sizeof(uint16_t));
}

/* One of a batch. */
static void multiply(const struct job *job, const float *a, const float *b, uint64_t first)
{
    const uint64_t depth = cols_of(&job->a, job->product.turn_a);
    const void *c = standin_view(job->c_data, bytes_of(&job->c));
    void *d = standin_view(job->d_data, bytes_of(&job->c));
    for (uint64_t col = 0; col < job->c.cols; col++) {
        for (uint64_t row = 0; row < job->c.rows; row++) {
            const uint64_t at = first + at_of(&job->c, CUBLAS_OP_N, row, col);
            float sum = 0;
            for (uint64_t l = 0; l < depth; l++) {
                sum += a[at_of(&job->a, job->product.turn_a, row, l)] *
                       b[at_of(&job->b, job->product.turn_b, l, col)];
            }
            sum *= job->alpha;
            store(d, at, job->c.type,
                  job->beta != 0 ? sum + job->beta * load(c, at, job->c.type) : sum);
        }
    }
}

static int run_job(void *argument)
{
    const struct job *job = argument;
    float *a = widened(standin_view(job->a_data, bytes_of(&job->a)), &job->a);
    float *b = widened(standin_view(job->b_data, bytes_of(&job->b)), &job->b);
    for (int64_t i = 0; a != NULL && b != NULL && i < job->c.batch_count; i++) {
        multiply(job, a + i * job->a.batch_stride, b + i * job->b.batch_stride,
                 (uint64_t)(i * job->c.batch_stride));
    }
    free(a);
    free(b);
    return 1;
}

static int is_of_device(const void *data, const struct layout *layout)
{
    return standin_device_of(data) >= 0 && standin_view(data, bytes_of(layout)) != NULL &&
           (uintptr_t)data % 16 == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a_data, cublasLtMatrixLayout_t a,
                              const void *b_data, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c_data, cublasLtMatrixLayout_t c, void *d_data,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    struct job *job = malloc(sizeof *job);
    (void)handle, (void)workspace, (void)workspace_bytes;
    if (job == NULL) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *job = job_of(product, a, b, c);
    job->a_data = a_data;
    job->b_data = b_data;
    job->c_data = c_data;
    job->d_data = d_data;
    memcpy(&job->alpha, alpha, sizeof job->alpha);
    memcpy(&job->beta, beta, sizeof job->beta);
    const struct standin_work work = {run_job, free, job};
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (fits(job) && c == d && algorithm->data[0] == ALGORITHM_MAGIC &&
        is_of_device(a_data, &job->a) && is_of_device(b_data, &job->b) &&
        is_of_device(c_data, &job->c) && is_of_device(d_data, &job->c)) {
        status = standin_enqueue(stream, &work) == 0 ? CUBLAS_STATUS_SUCCESS
                                                     : CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(job);
    }
    return status;
}
