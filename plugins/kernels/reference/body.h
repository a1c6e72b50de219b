/*
 * plugins/kernels/reference/body.h - one op table, for two types.
 *
 * Each ops_*.c includes it once, after it has defined `act`, `stat`, the macros ACT_DTYPE,
 * STAT_DTYPE, OPS_TABLE, EXP, LOG and SQRT, and unless the two types are one, `load` and `store`.
 * So it has no include guard.
 */
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#ifdef ACT_IS_STAT
static inline stat load(act value)
{
    return value;
}

static inline act store(stat value)
{
    return value;
}
#endif

static stat *body_own_scratch(const struct hd_ops_device *device)
{
    return (stat *)(void *)device->scratch;
}

#include "body_product.h"
#include "body_gemm.h"
#include "body_norm.h"
#include "body_attention.h"
#include "body_route.h"
#include "body_rows.h"
#include "body_head.h"
#include "body_optimizer.h"
#include "body_mxfp8.h"

static uint64_t body_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The largest scratch of any op, and the panels of the longest sum. */
static uint64_t body_scratch_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    uint64_t values = attention_values(spec->sequence, spec->width / spec->heads);
    values = body_most(values, tokens * spec->experts);
    values = body_most(values, spec->width);
    values = body_most(values, spec->experts);
    values = body_most(values, head_values(tokens, spec->width, spec->vocabulary));
    return product_panel_bytes_of(spec) + (values * sizeof(stat) + 63) / 64 * 64;
}

#define MEMBER(name, args) .name = reference_##name,
const struct hd_ops OPS_TABLE = {.size = sizeof OPS_TABLE,
                                 .activation = ACT_DTYPE,
                                 .statistic = STAT_DTYPE,
                                 .scratch_bytes = body_scratch_bytes,
                                 .gemm = reference_gemm,
                                 .expert_gemm = reference_expert_gemm,
                                 HD_OPS_EACH(MEMBER)};
