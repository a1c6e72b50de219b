/* plugins/kernels/reference/ops_bf16.c - the ops with bf16 activations, summed in float32. */
#include "reference.h"

#include <string.h>

typedef uint16_t act;
typedef float stat;
#define ACT_DTYPE  HD_BF16
#define STAT_DTYPE HD_F32
#define OPS_TABLE  reference_ops_bf16
#define EXP        expf
#define LOG        logf
#define SQRT       sqrtf

static inline stat load(act bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* To nearest even; NaN stays NaN. */
static inline act store(stat value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const uint32_t quiet = (word >> 16) | 0x40u;
    return (act)((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#include "body.h"
