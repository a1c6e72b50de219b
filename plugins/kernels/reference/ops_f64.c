/* plugins/kernels/reference/ops_f64.c - the ops in float64 throughout. */
#include "reference.h"

typedef double act;
typedef double stat;
#define ACT_DTYPE  HD_F64
#define STAT_DTYPE HD_F64
#define OPS_TABLE  reference_ops_f64
#define EXP        exp
#define LOG        log
#define SQRT       sqrt
#define ACT_IS_STAT

#include "body.h"
