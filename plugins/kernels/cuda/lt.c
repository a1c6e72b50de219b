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
 * In MXFP8 there is FPROP only, of packed operands (mxfp8.c).  Whether a weight's three products
 * are made so is settled when its stage is made: where all three have an algorithm.
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
    uint32_t is_mxfp8;                   /* then form is FPROP */
};

/* y = x W^T with W [rows, columns]. */
struct weight {
    uint32_t tokens, rows, columns;
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

static hd_status cuda_fail(struct hd_cuda *driver, const char *call, cublasStatus_t error)
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
        return cuda_fail(driver, "cublasLtCreate", error);
    }
    return hd_cuda_remote.allocate(&(struct hd_ops_device){.driver = driver, .host = host},
                                   HD_CUDA_WORKSPACE_BYTES, "workspace", &driver->workspace);
}

static void cuda_drop_plan(const struct cublaslt_library *blas, const struct plan *plan)
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
        cuda_drop_plan(&driver->blas, &driver->plans->plans[i]);
    }
    if (driver->plans->handle != NULL) {
        driver->blas.cublasLtDestroy(driver->plans->handle);
    }
    driver->host->free(driver->host->context, driver->plans);
    driver->plans = NULL;
}

/* --- a plan ----------------------------------------------------------------------------------- */

/* [rows, columns] of ours. */
static cublasStatus_t cuda_lay_out(const struct cublaslt_library *blas, cudaDataType_t type,
                                   uint64_t rows, uint64_t columns, cublasLtMatrixLayout_t *out)
{
    return blas->cublasLtMatrixLayoutCreate(out, type, columns, rows, (int64_t)columns);
}

static cublasStatus_t cuda_lay_out_all(const struct cublaslt_library *blas, struct plan *plan)
{
    const struct shape *s = &plan->shape;
    const int is_fprop = s->form == HD_FPROP, is_wgrad = s->form == HD_WGRAD;
    const cudaDataType_t type = s->is_mxfp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    cublasStatus_t error = cuda_lay_out(blas, type, is_fprop ? s->columns : s->depth,
                                        is_fprop ? s->depth : s->columns, &plan->a);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = cuda_lay_out(blas, type, is_wgrad ? s->depth : s->rows,
                             is_wgrad ? s->rows : s->depth, &plan->b);
    }
    return error == CUBLAS_STATUS_SUCCESS
               ? cuda_lay_out(blas, s->c_is_f32 ? CUDA_R_32F : CUDA_R_16BF, s->rows, s->columns,
                              &plan->c)
               : error;
}

/* Scales are each product's own (point_to_scales); that there will be some is said beforehand. */
static cublasStatus_t cuda_lt_describe(const struct hd_cuda *driver, struct plan *plan)
{
    const struct cublaslt_library *blas = &driver->blas;
    const cublasOperation_t turn_a = plan->shape.form == HD_FPROP ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t turn_b = plan->shape.form == HD_WGRAD ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b},
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &driver->workspace, sizeof driver->workspace},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &driver->workspace, sizeof driver->workspace},
    };
    const uint32_t count = plan->shape.is_mxfp8 ? 6 : 2;
    cublasStatus_t error =
        blas->cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (uint32_t i = 0; error == CUBLAS_STATUS_SUCCESS && i < count; i++) {
        error = blas->cublasLtMatmulDescSetAttribute(plan->product, rows[i].attribute,
                                                     rows[i].value, rows[i].bytes);
    }
    return error == CUBLAS_STATUS_SUCCESS ? cuda_lay_out_all(blas, plan) : error;
}

static cublasStatus_t cuda_prefer(const struct cublaslt_library *blas,
                                  cublasLtMatmulPreference_t wish)
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

/* Asks for an algorithm; that there is none is an answer, which for operands that a library does
   not know may be that they are invalid. */
static cublasStatus_t cuda_choose(struct hd_cuda *driver, struct plan *plan)
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
    error = cuda_prefer(blas, wish);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulAlgoGetHeuristic(driver->plans->handle, plan->product, plan->a,
                                                     plan->b, plan->c, plan->c, wish, 1, &found,
                                                     &count);
    }
    blas->cublasLtMatmulPreferenceDestroy(wish);
    plan->is_there =
        error == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    plan->algorithm = found.algo;
    return error == CUBLAS_STATUS_NOT_SUPPORTED ||
                   (plan->shape.is_mxfp8 && error == CUBLAS_STATUS_INVALID_VALUE)
               ? CUBLAS_STATUS_SUCCESS
               : error;
}

static const struct plan *cuda_find_plan(const struct hd_cuda_plans *plans,
                                         const struct shape *shape)
{
    for (uint32_t i = 0; i < plans->count; i++) {
        if (memcmp(&plans->plans[i].shape, shape, sizeof *shape) == 0) {
            return &plans->plans[i];
        }
    }
    return NULL;
}

/* Every line of the three matrices begins on 16 bytes. */
static int cuda_lines_fit(const struct shape *shape)
{
    const uint32_t other = shape->form == HD_WGRAD ? shape->rows : shape->depth;
    return shape->columns % 8 == 0 && other % 8 == 0;
}

static hd_status cuda_make_plan(struct hd_cuda *driver, const struct shape *shape)
{
    struct hd_cuda_plans *plans = driver->plans;
    char text[160];
    if (cuda_find_plan(plans, shape) != NULL || plans->count == PLAN_MAX ||
        !cuda_lines_fit(shape)) {
        return HD_OK;
    }
    struct plan *plan = &plans->plans[plans->count++];
    *plan = (struct plan){.shape = *shape};
    cublasStatus_t error = cuda_lt_describe(driver, plan);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = cuda_choose(driver, plan);
    }
    if (error != CUBLAS_STATUS_SUCCESS) {
        return cuda_fail(driver, "a plan of cuBLASLt", error);
    }
    if (!plan->is_there) {
        snprintf(text, sizeof text,
                 "cuda:%d: cuBLASLt has no algorithm for form %u, %u x %u x %u%s", driver->ordinal,
                 shape->form, shape->rows, shape->columns, shape->depth,
                 shape->is_mxfp8 ? " in MXFP8" : ": our own kernel makes this product");
        driver->host->log(driver->host->context, 1, text);
    }
    return HD_OK;
}

/* --- which products a stage has --------------------------------------------------------------- */

/* y = x W^T with W [rows, columns]: forward, input gradient and weight gradient. */
static hd_status cuda_plan_weight(struct hd_cuda *driver, uint32_t tokens, uint32_t rows,
                                  uint32_t columns)
{
    hd_status status = HD_OK;
    for (uint32_t variant = 0; status == HD_OK && variant < 4; variant++) {
        /* The output in BF16 or float32, onto another or not. */
        const uint32_t is_f32 = variant % 2, has_add = variant / 2;
        status = cuda_make_plan(
            driver, &(struct shape){HD_FPROP, tokens, rows, columns, is_f32, has_add, 0});
        if (status == HD_OK) {
            status = cuda_make_plan(
                driver, &(struct shape){HD_DGRAD, tokens, columns, rows, is_f32, has_add, 0});
        }
    }
    return status == HD_OK
               ? cuda_make_plan(driver, &(struct shape){HD_WGRAD, rows, columns, tokens, 1, 1, 0})
               : status;
}

static hd_status cuda_plan_head(struct hd_cuda *driver, const struct hd_stage_spec *spec,
                                uint32_t tokens)
{
    const uint32_t rest = spec->vocabulary % HD_HEAD_CHUNK;
    hd_status status = HD_OK;
    if (spec->has_head && spec->vocabulary >= HD_HEAD_CHUNK) {
        status = cuda_plan_weight(driver, tokens, HD_HEAD_CHUNK, spec->width);
    }
    return status == HD_OK && spec->has_head && rest > 0
               ? cuda_plan_weight(driver, tokens, rest, spec->width)
               : status;
}

static hd_status cuda_plan_products(struct hd_cuda *driver, const struct hd_stage_spec *spec)
{
    const uint32_t tokens = spec->batch * spec->sequence, width = spec->width;
    const uint32_t shared = width / spec->heads * spec->key_value_heads;
    hd_status status = cuda_plan_weight(driver, tokens, width, width);
    if (status == HD_OK) {
        status = cuda_plan_weight(driver, tokens, shared, width);
    }
    if (status == HD_OK && spec->experts == 0) {
        status = cuda_plan_weight(driver, tokens, 2 * spec->expert_width, width);
    }
    if (status == HD_OK && spec->experts == 0) {
        status = cuda_plan_weight(driver, tokens, width, spec->expert_width);
    }
    return status == HD_OK ? cuda_plan_head(driver, spec, tokens) : status;
}

/* --- MXFP8, or not ---------------------------------------------------------------------------- */

/* The three products of a weight, C in BF16 but for the gradient; the forward's onto the residual
   or onto nothing. */
static void cuda_shape_mxfp8(const struct weight *w, uint32_t has_residual,
                             struct shape out[HD_CUDA_FORM_COUNT])
{
    out[HD_FPROP] = (struct shape){HD_FPROP, w->tokens, w->rows, w->columns, 0, has_residual, 1};
    out[HD_DGRAD] = (struct shape){HD_FPROP, w->tokens, w->columns, w->rows, 0, 0, 1};
    out[HD_WGRAD] = (struct shape){HD_FPROP, w->rows, w->columns, w->tokens, 1, 1, 1};
}

static uint32_t cuda_count_algorithms(const struct hd_cuda_plans *plans,
                                      const struct weight *weight, uint32_t has_residual)
{
    struct shape shapes[HD_CUDA_FORM_COUNT];
    uint32_t count = 0;
    cuda_shape_mxfp8(weight, has_residual, shapes);
    for (uint32_t form = 0; form < HD_CUDA_FORM_COUNT; form++) {
        const struct plan *plan = cuda_find_plan(plans, &shapes[form]);
        count += plan != NULL && plan->is_there;
    }
    return count;
}

static hd_status cuda_plan_mxfp8(struct hd_cuda *driver, const struct weight *weight,
                                 uint32_t has_residual)
{
    struct shape shapes[HD_CUDA_FORM_COUNT];
    hd_status status = HD_OK;
    cuda_shape_mxfp8(weight, has_residual, shapes);
    for (uint32_t form = 0; status == HD_OK && form < HD_CUDA_FORM_COUNT; form++) {
        status = cuda_make_plan(driver, &shapes[form]);
    }
    return status;
}

struct hd_cuda_mxfp8_facts hd_cuda_mxfp8_facts_of(const struct hd_cuda *driver)
{
    return (struct hd_cuda_mxfp8_facts){.has_cublaslt = driver->plans != NULL,
                                        .capability = driver->capability,
                                        .algorithm_count = HD_CUDA_FORM_COUNT};
}

/* Unless they are emulated anyway, finds algorithms for the products of one weight; `facts` gets
   how many have one. */
static hd_status cuda_choose_way(struct hd_cuda *driver, const struct weight *weight,
                                 uint32_t has_residual, struct hd_cuda_mxfp8_facts *facts)
{
    const char *missing = hd_cuda_mxfp8_missing(facts);
    if (hd_cuda_mxfp8_way(driver->mxfp8_wish, missing) != HD_CUDA_WAY_NATIVE) {
        return HD_OK;
    }
    const hd_status status = cuda_plan_mxfp8(driver, weight, has_residual);
    facts->algorithm_count = cuda_count_algorithms(driver->plans, weight, has_residual);
    return status;
}

/* Both weights of a dense feed-forward; those of experts are emulated. */
static hd_status cuda_choose_ways(struct hd_cuda *driver, const struct hd_stage_spec *spec)
{
    const uint32_t tokens = spec->batch * spec->sequence, inner = spec->expert_width;
    const struct weight weights[] = {{tokens, 2 * inner, spec->width},
                                     {tokens, spec->width, inner}};
    const char *missing = NULL;
    uint32_t native_count = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct hd_cuda_mxfp8_facts facts = hd_cuda_mxfp8_facts_of(driver);
        facts.experts = spec->experts;
        const hd_status status = cuda_choose_way(driver, &weights[i], i == 1, &facts);
        if (status != HD_OK) {
            return status;
        }
        const char *lacks = hd_cuda_mxfp8_missing(&facts);
        missing = lacks != NULL ? lacks : missing;
        native_count += hd_cuda_mxfp8_way(driver->mxfp8_wish, lacks) == HD_CUDA_WAY_NATIVE;
    }
    return hd_cuda_tell_mxfp8(driver, native_count, missing);
}

/* Where cuBLASLt serves the three products of these operands' weight. */
int hd_cuda_has_mxfp8(const struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    const struct hd_cuda_plans *plans = device->driver->plans;
    const struct weight weight = {
        args->a.rows, args->form == HD_WGRAD ? args->a.columns : args->b.rows, args->b.columns};
    const uint32_t has_residual = args->add.data != NULL;
    return cuda_count_algorithms(plans, &weight, has_residual) == HD_CUDA_FORM_COUNT ||
           (args->form != HD_FPROP &&
            cuda_count_algorithms(plans, &weight, !has_residual) == HD_CUDA_FORM_COUNT);
}

hd_status hd_cuda_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                          const struct hd_stage_spec *spec)
{
    struct hd_cuda *driver = device->driver;
    hd_status status = hd_cuda_enter(driver);
    (void)ops;
    if (status == HD_OK && driver->plans != NULL) {
        status = cuda_plan_products(driver, spec);
    }
    return status == HD_OK && spec->precision == HD_PRECISION_MXFP8 ? cuda_choose_ways(driver, spec)
                                                                    : status;
}

/* --- a product -------------------------------------------------------------------------------- */

static struct shape cuda_shape_of(const struct hd_gemm_args *args)
{
    const uint32_t is_wgrad = args->form == HD_WGRAD;
    return (struct shape){.form = args->form,
                          .rows = is_wgrad ? args->a.columns : args->a.rows,
                          .columns = args->form == HD_FPROP ? args->b.rows : args->b.columns,
                          .depth = is_wgrad ? args->a.rows : args->a.columns,
                          .c_is_f32 = args->c.dtype == HD_F32,
                          .has_add = is_wgrad || args->add.data != NULL,
                          .is_mxfp8 = args->a.dtype == HD_E4M3};
}

/* cuBLASLt's A is our b; the description is read when the product is enqueued. */
static cublasStatus_t cuda_point_to_scales(const struct cublaslt_library *blas,
                                           const struct plan *plan, const struct hd_gemm_args *args)
{
    const void *a = args->b.scales, *b = args->a.scales;
    const cublasStatus_t error = blas->cublasLtMatmulDescSetAttribute(
        plan->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, sizeof a);
    return error == CUBLAS_STATUS_SUCCESS
               ? blas->cublasLtMatmulDescSetAttribute(
                     plan->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b, sizeof b)
               : error;
}

hd_status hd_cuda_multiply(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    static const float one = 1, zero = 0;
    struct hd_cuda *driver = device->driver;
    const struct shape shape = cuda_shape_of(args);
    if (args->a.dtype != args->b.dtype || (args->a.dtype != HD_BF16 && !shape.is_mxfp8)) {
        return HD_BUSY;
    }
    assert(args->add.data == NULL || args->add.dtype == args->c.dtype);
    const struct plan *plan = cuda_find_plan(driver->plans, &shape);
    if (plan == NULL || !plan->is_there) {
        return HD_BUSY;
    }
    const void *c = args->add.data != NULL ? args->add.data : args->c.data;
    const hd_status status = hd_cuda_enter(driver);
    if (status != HD_OK) {
        return status;
    }
    cublasStatus_t error =
        shape.is_mxfp8 ? cuda_point_to_scales(&driver->blas, plan, args) : CUBLAS_STATUS_SUCCESS;
    if (error != CUBLAS_STATUS_SUCCESS) {
        return cuda_fail(driver, "cublasLtMatmulDescSetAttribute", error);
    }
    error = driver->blas.cublasLtMatmul(
        driver->plans->handle, plan->product, &one, args->b.data, plan->a, args->a.data, plan->b,
        shape.has_add ? &one : &zero, c, plan->c, args->c.data, plan->c, &plan->algorithm,
        driver->workspace, HD_CUDA_WORKSPACE_BYTES, driver->stream);
    return error == CUBLAS_STATUS_SUCCESS ? HD_OK : cuda_fail(driver, "cublasLtMatmul", error);
}
