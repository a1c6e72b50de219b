/* plugins/kernels/reference/ops_f32.c - the ops in float32 throughout. */
#include "reference.h"

typedef float act;
typedef float stat;
#define ACT_DTYPE  HD_F32
#define STAT_DTYPE HD_F32
#define OPS_TABLE  reference_ops_f32
#define EXP        expf
#define LOG        logf
#define SQRT       sqrtf
#define ACT_IS_STAT

#include "body.h"
