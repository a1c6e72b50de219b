/*
 * plugins/kernels/cuda/lt.c - dense products by cuBLASLt, an algorithm for each shape found
 * beforehand.
 *
 * cuBLASLt has columns where we have rows: a matrix [rows, columns] of ours is its [columns, rows],
 * so C = A B is asked for as C^T = B^T A^T:
 *
 *            A of ours     B of ours     cuBLASLt's A, turned   its B, turned     its m n k
 *   FPROP    [m, k]        [n, k]        B  yes                 A  no             n m k
 *   DGRAD    [m, n]        [n, k]        B  no                  A  no             k m n
 *   WGRAD    [m, n]        [m, k]        B  no                  A  yes            k n m
 *
 * Sums are float32 and never split over the depth by more than one order (no reduction scheme), so
 * that a shape has the same bits in every step, schedule and run.
 */
#include "driver.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PLAN_MAX 96u

struct shape {
    uint32_t form, rows, columns, depth; /* of C */
    uint32_t c_is_f32, has_add;          /* with WGRAD: adds to C */
};

struct plan {
    struct shape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* as cuBLASLt has them */
    cublasLtMatmulAlgo_t algorithm;
    uint32_t is_there; /* 0: no algorithm; our own kernel makes it */
};

struct hd_cuda_plans {
    cublasLtHandle_t handle;
    struct plan plans[PLAN_MAX];
    uint32_t count;
};

static hd_status fail(struct hd_cuda *driver, const char *call, cublasStatus_t error)
{
    char text[256];
    snprintf(text, sizeof text, "cuda:%d: %s: %s", driver->ordinal, call,
             driver->blas.cublasLtGetStatusString(error));
    return hd_cuda_fail(driver, HD_DEVICE, text);
}

hd_status hd_cuda_open_plans(struct hd_cuda *driver, const char *path)
{
    const struct hd_host *host = driver->host;
    if (cublaslt_load(&driver->blas, path) != HD_OK) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED, driver->blas.reason);
    }
    driver->plans = host->alloc(host->context, sizeof *driver->plans, 64, "kernel");
    if (driver->plans == NULL) {
        return hd_cuda_fail(driver, HD_NO_MEMORY, "no memory for the plans of products");
    }
    const cublasStatus_t error = driver->blas.cublasLtCreate(&driver->plans->handle);
    if (error != CUBLAS_STATUS_SUCCESS) {
        return fail(driver, "cublasLtCreate", error);
    }
    return hd_cuda_remote.allocate(&(struct hd_ops_device){.driver = driver, .host = host},
                                   HD_CUDA_WORKSPACE_BYTES, "workspace", &driver->workspace);
}

static void drop_plan(const struct cublaslt_library *blas, const struct plan *plan)
{
    const cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->c};
    for (uint32_t i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            blas->cublasLtMatrixLayoutDestroy(layouts[i]);
        }
    }
    if (plan->product != NULL) {
        blas->cublasLtMatmulDescDestroy(plan->product);
    }
}

void hd_cuda_close_plans(struct hd_cuda *driver)
{
    if (driver->plans == NULL) {
        return;
    }
    for (uint32_t i = 0; i < driver->plans->count; i++) {
        drop_plan(&driver->blas, &driver->plans->plans[i]);
    }
    if (driver->plans->handle != NULL) {
        driver->blas.cublasLtDestroy(driver->plans->handle);
    }
    driver->host->free(driver->host->context, driver->plans);
    driver->plans = NULL;
}

/* --- a plan ----------------------------------------------------------------------------------- */

/* [rows, columns] of ours. */
static cublasStatus_t lay_out(const struct cublaslt_library *blas, uint32_t is_f32, uint64_t rows,
                              uint64_t columns, cublasLtMatrixLayout_t *out)
{
    return blas->cublasLtMatrixLayoutCreate(out, is_f32 ? CUDA_R_32F : CUDA_R_16BF, columns, rows,
                                            (int64_t)columns);
}

static cublasStatus_t lay_out_all(const struct cublaslt_library *blas, struct plan *plan)
{
    const struct shape *s = &plan->shape;
    const int is_fprop = s->form == HD_FPROP, is_wgrad = s->form == HD_WGRAD;
    cublasStatus_t error = lay_out(blas, 0, is_fprop ? s->columns : s->depth,
                                   is_fprop ? s->depth : s->columns, &plan->a);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = lay_out(blas, 0, is_wgrad ? s->depth : s->rows, is_wgrad ? s->rows : s->depth,
                        &plan->b);
    }
    return error == CUBLAS_STATUS_SUCCESS
               ? lay_out(blas, s->c_is_f32, s->rows, s->columns, &plan->c)
               : error;
}

static cublasStatus_t describe(const struct cublaslt_library *blas, struct plan *plan)
{
    const cublasOperation_t turn_a = plan->shape.form == HD_FPROP ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t turn_b = plan->shape.form == HD_WGRAD ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t error =
        blas->cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                     &turn_a, sizeof turn_a);
    }
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSB,
                                                     &turn_b, sizeof turn_b);
    }
    return error == CUBLAS_STATUS_SUCCESS ? lay_out_all(blas, plan) : error;
}

static cublasStatus_t prefer(const struct cublaslt_library *blas, cublasLtMatmulPreference_t wish)
{
    const uint64_t workspace = HD_CUDA_WORKSPACE_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment},
    };
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; error == CUBLAS_STATUS_SUCCESS && i < sizeof rows / sizeof rows[0]; i++) {
        error = blas->cublasLtMatmulPreferenceSetAttribute(wish, rows[i].attribute, rows[i].value,
                                                           rows[i].bytes);
    }
    return error;
}

/* Asks for an algorithm; that there is none is an answer. */
static cublasStatus_t choose(struct hd_cuda *driver, struct plan *plan)
{
    const struct cublaslt_library *blas = &driver->blas;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t error = blas->cublasLtMatmulPreferenceCreate(&wish);
    if (error != CUBLAS_STATUS_SUCCESS) {
        return error;
    }
    memset(&found, 0, sizeof found);
    error = prefer(blas, wish);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulAlgoGetHeuristic(driver->plans->handle, plan->product, plan->a,
                                                     plan->b, plan->c, plan->c, wish, 1, &found,
                                                     &count);
    }
    blas->cublasLtMatmulPreferenceDestroy(wish);
    plan->is_there =
        error == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    plan->algorithm = found.algo;
    return error == CUBLAS_STATUS_NOT_SUPPORTED ? CUBLAS_STATUS_SUCCESS : error;
}

static const struct plan *find_plan(const struct hd_cuda_plans *plans, const struct shape *shape)
{
    for (uint32_t i = 0; i < plans->count; i++) {
        if (memcmp(&plans->plans[i].shape, shape, sizeof *shape) == 0) {
            return &plans->plans[i];
        }
    }
    return NULL;
}

/* Every line of the three matrices begins on 16 bytes. */
static int lines_fit(const struct shape *shape)
{
    const uint32_t other = shape->form == HD_WGRAD ? shape->rows : shape->depth;
    return shape->columns % 8 == 0 && other % 8 == 0;
}

static hd_status make_plan(struct hd_cuda *driver, const struct shape *shape)
{
    struct hd_cuda_plans *plans = driver->plans;
    char text[160];
    if (find_plan(plans, shape) != NULL || plans->count == PLAN_MAX || !lines_fit(shape)) {
        return HD_OK;
    }
    struct plan *plan = &plans->plans[plans->count++];
    *plan = (struct plan){.shape = *shape};
    cublasStatus_t error = describe(&driver->blas, plan);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = choose(driver, plan);
    }
    if (error != CUBLAS_STATUS_SUCCESS) {
        return fail(driver, "a plan of cuBLASLt", error);
    }
    if (!plan->is_there) {
        snprintf(text, sizeof text,
                 "cuda:%d: cuBLASLt has no algorithm for form %u, %u x %u x %u: our own kernel "
                 "makes this product",
                 driver->ordinal, shape->form, shape->rows, shape->columns, shape->depth);
        driver->host->log(driver->host->context, 1, text);
    }
    return HD_OK;
}

/* --- which products a stage has -----------------------------------------------------------------
 */

/* y = x W^T with W [rows, columns]: forward, input gradient and weight gradient. */
static hd_status plan_weight(struct hd_cuda *driver, uint32_t tokens, uint32_t rows,
                             uint32_t columns)
{
    hd_status status = HD_OK;
    for (uint32_t variant = 0; status == HD_OK && variant < 4; variant++) {
        /* The output in BF16 or float32, onto another or not. */
        const uint32_t is_f32 = variant % 2, has_add = variant / 2;
        status =
            make_plan(driver, &(struct shape){HD_FPROP, tokens, rows, columns, is_f32, has_add});
        if (status == HD_OK) {
            status = make_plan(driver,
                               &(struct shape){HD_DGRAD, tokens, columns, rows, is_f32, has_add});
        }
    }
    return status == HD_OK
               ? make_plan(driver, &(struct shape){HD_WGRAD, rows, columns, tokens, 1, 1})
               : status;
}

static hd_status plan_head(struct hd_cuda *driver, const struct hd_stage_spec *spec,
                           uint32_t tokens)
{
    const uint32_t rest = spec->vocabulary % HD_HEAD_CHUNK;
    hd_status status = HD_OK;
    if (spec->has_head && spec->vocabulary >= HD_HEAD_CHUNK) {
        status = plan_weight(driver, tokens, HD_HEAD_CHUNK, spec->width);
    }
    return status == HD_OK && spec->has_head && rest > 0
               ? plan_weight(driver, tokens, rest, spec->width)
               : status;
}

hd_status hd_cuda_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                          const struct hd_stage_spec *spec)
{
    struct hd_cuda *driver = device->driver;
    const uint32_t tokens = spec->batch * spec->sequence, width = spec->width;
    const uint32_t shared = width / spec->heads * spec->key_value_heads;
    hd_status status = hd_cuda_enter(driver);
    (void)ops;
    if (status != HD_OK || driver->plans == NULL) {
        return status;
    }
    status = plan_weight(driver, tokens, width, width);
    if (status == HD_OK) {
        status = plan_weight(driver, tokens, shared, width);
    }
    if (status == HD_OK && spec->experts == 0) {
        status = plan_weight(driver, tokens, 2 * spec->expert_width, width);
    }
    if (status == HD_OK && spec->experts == 0) {
        status = plan_weight(driver, tokens, width, spec->expert_width);
    }
    return status == HD_OK ? plan_head(driver, spec, tokens) : status;
}

/* --- a product ---------------------------------------------------------------------------------
 */

static struct shape shape_of(const struct hd_gemm_args *args)
{
    const uint32_t is_wgrad = args->form == HD_WGRAD;
    return (struct shape){.form = args->form,
                          .rows = is_wgrad ? args->a.columns : args->a.rows,
                          .columns = args->form == HD_FPROP ? args->b.rows : args->b.columns,
                          .depth = is_wgrad ? args->a.rows : args->a.columns,
                          .c_is_f32 = args->c.dtype == HD_F32,
                          .has_add = is_wgrad || args->add.data != NULL};
}

/* An addend of another type than C's is added, and the sum rounded, by a kernel of ours. */
static hd_status multiply_then_round(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    struct hd_cuda_arena arena = device->scratch;
    const struct shape shape = shape_of(args);
    const uint64_t count = (uint64_t)shape.rows * shape.columns;
    struct hd_gemm_args product = *args;
    product.c.data = hd_cuda_take(&arena, count * sizeof(float));
    product.c.dtype = HD_F32;
    product.add.data = NULL;
    const struct hd_rounded round = {product.c.data, args->add.data, args->c.data, count};
    const hd_status status = hd_cuda_multiply(device, &product);
    return status == HD_OK
               ? device->launch(device, HD_CUDA_round,
                                (struct hd_cuda_grid){hd_cuda_blocks(count, 256), 1, 1}, &round)
               : status;
}

hd_status hd_cuda_multiply(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    static const float one = 1, zero = 0;
    struct hd_cuda *driver = device->driver;
    const struct shape shape = shape_of(args);
    if (args->a.dtype != HD_BF16 || args->b.dtype != HD_BF16) {
        return HD_BUSY;
    }
    if (args->add.data != NULL && args->add.dtype != args->c.dtype) {
        assert(args->add.dtype == HD_F32 && args->c.dtype == HD_BF16);
        return multiply_then_round(device, args);
    }
    const struct plan *plan = find_plan(driver->plans, &shape);
    if (plan == NULL || !plan->is_there) {
        return HD_BUSY;
    }
    const void *c = args->add.data != NULL ? args->add.data : args->c.data;
    const hd_status status = hd_cuda_enter(driver);
    if (status != HD_OK) {
        return status;
    }
    const cublasStatus_t error = driver->blas.cublasLtMatmul(
        driver->plans->handle, plan->product, &one, args->b.data, plan->a, args->a.data, plan->b,
        shape.has_add ? &one : &zero, c, plan->c, args->c.data, plan->c, &plan->algorithm,
        driver->workspace, HD_CUDA_WORKSPACE_BYTES, driver->stream);
    return error == CUBLAS_STATUS_SUCCESS ? HD_OK : fail(driver, "cublasLtMatmul", error);
}
