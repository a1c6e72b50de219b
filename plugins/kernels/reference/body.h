/*
 * plugins/kernels/reference/body.h - one op table, for the types that the includer has named.
 *
 * Included once by each ops_*.c, after `act`, `stat`, `load`, `store` and the macros
 * ACT_DTYPE, STAT_DTYPE, OPS_TABLE, EXP, LOG and SQRT; so it has no include guard.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

static stat *own_scratch(const struct hd_ops_device *device)
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

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The largest need of any op, and the panels of the longest sum. */
static uint64_t scratch_bytes(const struct hd_stage_spec *spec)
{
    const uint64_t tokens = (uint64_t)spec->batch * spec->sequence;
    uint64_t values = attention_values(spec->sequence, spec->width / spec->heads);
    values = most(values, tokens * spec->experts);
    values = most(values, spec->width);
    values = most(values, spec->experts);
    values = most(values, head_values(tokens, spec->width, spec->vocabulary));
    return panel_bytes_of(spec) + (values * sizeof(stat) + 63) / 64 * 64;
}

#define MEMBER(name, args) .name = name,
const struct hd_ops OPS_TABLE = {.size = sizeof OPS_TABLE,
                                 .activation = ACT_DTYPE,
                                 .statistic = STAT_DTYPE,
                                 .scratch_bytes = scratch_bytes,
                                 .gemm = gemm,
                                 .expert_gemm = expert_gemm,
                                 HD_OPS_EACH(MEMBER)};
