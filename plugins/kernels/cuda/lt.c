/*
 * plugins/kernels/cuda/lt.c - dense products by cuBLASLt; the algorithm of a shape is chosen once.
 *
 * cuBLASLt is column-major: our matrix [rows, columns] is its [columns, rows], so we ask for
 * C = A B as C^T = B^T A^T:
 *
 *            our A         our B         cuBLASLt's A, transposed   its B         its m n k
 *   FPROP    [m, k]        [n, k]        B  yes                 A  no             n m k
 *   DGRAD    [m, n]        [n, k]        B  no                  A  no             k m n
 *   WGRAD    [m, n]        [m, k]        B  no                  A  yes            k n m
 *
 * In MXFP8 there is only FPROP, of packed operands (mxfp8.c).  stage_create decides whether a
 * weight's three products are native: only if all three have an algorithm.
 *
 * Sums are float32.  Algorithms that split the depth are excluded (no reduction scheme), so that a
 * shape has the same bits in every step, schedule and run.
 */
#include "driver.h"

#include <assert.h>
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
    bool has_algorithm; /* false: our own kernel computes the product */
};

struct hd_cuda_plans {
    cublasLtHandle_t handle;
    struct plan plans[PLAN_MAX];
    uint32_t count;
};

static hd_status cuda_fail(struct hd_cuda *driver, const char *call, cublasStatus_t error)
{
    return hd_cuda_fail(driver, HD_DEVICE, "cuda:%d: %s: %s", driver->ordinal, call,
                        driver->blas.cublasLtGetStatusString(error));
}

hd_status hd_cuda_open_plans(struct hd_cuda *driver, const char *path)
{
    const struct hd_host *host = driver->host;
    if (cublaslt_load(&driver->blas, path) != HD_OK) {
        return hd_cuda_fail(driver, HD_UNSUPPORTED, "%s", driver->blas.reason);
    }
    driver->plans = host->alloc(host->context, sizeof *driver->plans, 64, "kernel");
    if (driver->plans == NULL) {
        return hd_cuda_fail(driver, HD_NO_MEMORY, "cannot allocate the table of cuBLASLt products");
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

/* Our [rows, columns]. */
static cublasStatus_t cuda_lay_out(const struct cublaslt_library *blas, cudaDataType_t type,
                                   uint64_t rows, uint64_t columns, cublasLtMatrixLayout_t *out)
{
    return blas->cublasLtMatrixLayoutCreate(out, type, columns, rows, (int64_t)columns);
}

static cublasStatus_t cuda_lay_out_all(const struct cublaslt_library *blas, struct plan *plan)
{
    const struct shape *s = &plan->shape;
    const bool is_fprop = s->form == HD_FPROP, is_wgrad = s->form == HD_WGRAD;
    const cudaDataType_t type = s->is_mxfp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    CUBLASLT_TRY(cuda_lay_out(blas, type, is_fprop ? s->columns : s->depth,
                              is_fprop ? s->depth : s->columns, &plan->a));
    CUBLASLT_TRY(cuda_lay_out(blas, type, is_wgrad ? s->depth : s->rows,
                              is_wgrad ? s->rows : s->depth, &plan->b));
    return cuda_lay_out(blas, s->c_is_f32 ? CUDA_R_32F : CUDA_R_16BF, s->rows, s->columns,
                        &plan->c);
}

/* Each product sets its own scales (cuda_point_to_scales); an algorithm is chosen with a
   placeholder. */
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
    CUBLASLT_TRY(blas->cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    for (uint32_t i = 0; i < count; i++) {
        CUBLASLT_TRY(blas->cublasLtMatmulDescSetAttribute(plan->product, rows[i].attribute,
                                                          rows[i].value, rows[i].bytes));
    }
    return cuda_lay_out_all(blas, plan);
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
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CUBLASLT_TRY(blas->cublasLtMatmulPreferenceSetAttribute(wish, rows[i].attribute,
                                                                rows[i].value, rows[i].bytes));
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Asks for an algorithm.  "None" is a valid answer; a library that does not know the operands'
   type reports them as invalid. */
static cublasStatus_t cuda_choose(struct hd_cuda *driver, struct plan *plan)
{
    const struct cublaslt_library *blas = &driver->blas;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CUBLASLT_TRY(blas->cublasLtMatmulPreferenceCreate(&wish));
    memset(&found, 0, sizeof found);
    cublasStatus_t error = cuda_prefer(blas, wish);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = blas->cublasLtMatmulAlgoGetHeuristic(driver->plans->handle, plan->product, plan->a,
                                                     plan->b, plan->c, plan->c, wish, 1, &found,
                                                     &count);
    }
    blas->cublasLtMatmulPreferenceDestroy(wish);
    plan->has_algorithm =
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

/* Every row of the three matrices begins on 16 bytes. */
static bool cuda_rows_are_aligned(const struct shape *shape)
{
    const uint32_t other = shape->form == HD_WGRAD ? shape->rows : shape->depth;
    return shape->columns % 8 == 0 && other % 8 == 0;
}

static hd_status cuda_make_plan(struct hd_cuda *driver, const struct shape *shape)
{
    struct hd_cuda_plans *plans = driver->plans;
    if (cuda_find_plan(plans, shape) != NULL || plans->count == PLAN_MAX ||
        !cuda_rows_are_aligned(shape)) {
        return HD_OK;
    }
    struct plan *plan = &plans->plans[plans->count++];
    *plan = (struct plan){.shape = *shape};
    cublasStatus_t error = cuda_lt_describe(driver, plan);
    if (error == CUBLAS_STATUS_SUCCESS) {
        error = cuda_choose(driver, plan);
    }
    if (error != CUBLAS_STATUS_SUCCESS) {
        return cuda_fail(driver, "cuBLASLt does not describe a product", error);
    }
    if (!plan->has_algorithm) {
        hd_tell(driver->host, HD_TELL_WARN,
                "cuda:%d: cuBLASLt has no algorithm for form %u, %u x %u x %u%s", driver->ordinal,
                shape->form, shape->rows, shape->columns, shape->depth,
                shape->is_mxfp8 ? " in MXFP8" : ": our own kernel computes this product");
    }
    return HD_OK;
}

/* --- the products of a stage ------------------------------------------------------------------ */

/* y = x W^T with W [rows, columns]: forward, input gradient and weight gradient. */
static hd_status cuda_plan_weight(struct hd_cuda *driver, uint32_t tokens, uint32_t rows,
                                  uint32_t columns)
{
    for (uint32_t variant = 0; variant < 4; variant++) {
        /* The output in BF16 or float32, with an addend or without. */
        const uint32_t is_f32 = variant % 2, has_add = variant / 2;
        HD_TRY(cuda_make_plan(
            driver, &(struct shape){HD_FPROP, tokens, rows, columns, is_f32, has_add, 0}));
        HD_TRY(cuda_make_plan(
            driver, &(struct shape){HD_DGRAD, tokens, columns, rows, is_f32, has_add, 0}));
    }
    return cuda_make_plan(driver, &(struct shape){HD_WGRAD, rows, columns, tokens, 1, 1, 0});
}

static hd_status cuda_plan_head(struct hd_cuda *driver, const struct hd_stage_spec *spec,
                                uint32_t tokens)
{
    const uint32_t rest = spec->vocabulary % HD_HEAD_CHUNK;
    if (spec->has_head && spec->vocabulary >= HD_HEAD_CHUNK) {
        HD_TRY(cuda_plan_weight(driver, tokens, HD_HEAD_CHUNK, spec->width));
    }
    return spec->has_head && rest > 0 ? cuda_plan_weight(driver, tokens, rest, spec->width) : HD_OK;
}

static hd_status cuda_plan_products(struct hd_cuda *driver, const struct hd_stage_spec *spec)
{
    const uint32_t tokens = spec->batch * spec->sequence, width = spec->width;
    const uint32_t shared = width / spec->heads * spec->key_value_heads;
    HD_TRY(cuda_plan_weight(driver, tokens, width, width));
    HD_TRY(cuda_plan_weight(driver, tokens, shared, width));
    if (spec->experts == 0) {
        HD_TRY(cuda_plan_weight(driver, tokens, 2 * spec->expert_width, width));
        HD_TRY(cuda_plan_weight(driver, tokens, width, spec->expert_width));
    }
    return cuda_plan_head(driver, spec, tokens);
}

/* --- MXFP8 ------------------------------------------------------------------------------------ */

/* The three products of a weight.  C is BF16, or float32 for the weight's gradient; the forward
   may add the residual. */
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
        count += plan != NULL && plan->has_algorithm;
    }
    return count;
}

static hd_status cuda_plan_mxfp8(struct hd_cuda *driver, const struct weight *weight,
                                 uint32_t has_residual)
{
    struct shape shapes[HD_CUDA_FORM_COUNT];
    cuda_shape_mxfp8(weight, has_residual, shapes);
    for (uint32_t form = 0; form < HD_CUDA_FORM_COUNT; form++) {
        HD_TRY(cuda_make_plan(driver, &shapes[form]));
    }
    return HD_OK;
}

struct hd_cuda_mxfp8_facts hd_cuda_mxfp8_facts_of(const struct hd_cuda *driver)
{
    return (struct hd_cuda_mxfp8_facts){.has_cublaslt = driver->plans != NULL,
                                        .capability = driver->capability,
                                        .algorithm_count = HD_CUDA_FORM_COUNT};
}

/* Finds algorithms for the products of one weight, unless they are emulated anyway; `facts` gets
   the number of products that have one. */
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
        HD_TRY(cuda_choose_way(driver, &weights[i], i == 1, &facts));
        const char *lacks = hd_cuda_mxfp8_missing(&facts);
        missing = lacks != NULL ? lacks : missing;
        native_count += hd_cuda_mxfp8_way(driver->mxfp8_wish, lacks) == HD_CUDA_WAY_NATIVE;
    }
    return hd_cuda_tell_mxfp8(driver, native_count, missing);
}

/* Whether cuBLASLt computes the three products of these operands' weight. */
bool hd_cuda_has_mxfp8(const struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    const struct hd_cuda_plans *plans = device->driver->plans;
    const struct weight weight = {
        args->a.rows, args->form == HD_WGRAD ? args->a.columns : args->b.rows, args->b.columns};
    const uint32_t has_residual = args->add.data != NULL;
    return cuda_count_algorithms(plans, &weight, has_residual) == HD_CUDA_FORM_COUNT ||
           (args->form != HD_FPROP &&
            cuda_count_algorithms(plans, &weight, !has_residual) == HD_CUDA_FORM_COUNT);
}

static void cuda_tell_plans(const struct hd_cuda *driver, uint32_t stage)
{
    const struct hd_cuda_plans *plans = driver->plans;
    uint32_t count = 0;
    for (uint32_t i = 0; i < plans->count; i++) {
        count += plans->plans[i].has_algorithm;
    }
    hd_tell(driver->host, HD_TELL_DEBUG,
            "cuda:%d: stage %u: cuBLASLt has an algorithm for %u of %u shapes; workspace %u bytes",
            driver->ordinal, stage, count, plans->count, HD_CUDA_WORKSPACE_BYTES);
}

hd_status hd_cuda_prepare(struct hd_ops_device *device, const struct hd_ops *ops,
                          const struct hd_stage_spec *spec)
{
    struct hd_cuda *driver = device->driver;
    (void)ops;
    HD_TRY(hd_cuda_enter(driver));
    if (driver->plans != NULL) {
        HD_TRY(cuda_plan_products(driver, spec));
        cuda_tell_plans(driver, spec->stage);
    }
    return spec->precision == HD_PRECISION_MXFP8 ? cuda_choose_ways(driver, spec) : HD_OK;
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

/* cuBLASLt's A is our b.  cuBLASLt reads the description when the product is enqueued. */
static cublasStatus_t cuda_point_to_scales(const struct cublaslt_library *blas,
                                           const struct plan *plan, const struct hd_gemm_args *args)
{
    const void *a = args->b.scales, *b = args->a.scales;
    CUBLASLT_TRY(blas->cublasLtMatmulDescSetAttribute(
        plan->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a, sizeof a));
    return blas->cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                &b, sizeof b);
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
    if (plan == NULL || !plan->has_algorithm) {
        return HD_BUSY;
    }
    const void *c = args->add.data != NULL ? args->add.data : args->c.data;
    HD_TRY(hd_cuda_enter(driver));
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
