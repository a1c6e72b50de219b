/*
 * plugins/kernels/transformer/ops.h - the ops that the stage program needs.
 *
 * transformer/ writes an OLMoE block once; reference, cpu and cuda each supply
 * this table.  The header is internal: a vendor with whole stages implements
 * heddle/kernel.h instead.  One struct per family carries both directions, so
 * that it shows what a forward saves beside what its backward reads.
 *
 * Shapes: T tokens = batch x sequence; d width; h heads of c = d/h; E experts, k
 * chosen per token, f expert_width; V vocabulary; R rows of the permuted tokens,
 * each expert's share padded to 32, R <= R_max = 32 floor((T k + 31 E) / 32).
 *
 * Dtypes:  A activation: BF16, or F32 / F64 (precision f32; the F64 reference)
 *          S statistic, master, gradient: F32, or F64 in the F64 reference
 *          Q expert operand: A, or E4M3 with E8M0 scales (MXFP8)
 *          G weight copy of dtype A; Q for experts (both copies, see `quantise`)
 *
 * Rules for every op:
 *   1 Results in A are computed in S and rounded once, to nearest even.
 *   2 Sums run in ascending index order, or in a fixed tree that depends on the
 *     shape alone; no float atomics.  GEMMs sum k in an order that is the same
 *     for every row, so that a token's bits do not depend on its row.
 *   3 "=" overwrites, "+=" adds to a gradient; an op with "+=" and no rows (an
 *     idle expert) changes nothing.
 *   4 Padding rows are zero in every row tensor and stay zero.
 *   5 NaN passes through; an index made from NaN is in range (kernel.h, K8).
 *   6 No op allocates; beside its arguments it has scratch_bytes of scratch.
 *   7 dx may be the same address as x or dy, dgate_up as gate_up.
 *
 * tests/test_gradients.c checks the formulas against central differences in float64.
 */
#ifndef HEDDLE_TRANSFORMER_OPS_H
#define HEDDLE_TRANSFORMER_OPS_H

#include <heddle/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HD_ROW_BLOCK  32u   /* rows per expert are padded to this; also the MXFP8 block */
#define HD_HEAD_CHUNK 8192u /* vocabulary columns of logits alive at once */

struct hd_ops_device; /* opaque: stream, library handles, scratch */

/* A matrix.  scales is NULL, or the E8M0 bytes of an E4M3 matrix: one per 32 along a row
   (rowwise, [rows, columns / 32]) or along a column (columnwise, [rows / 32, columns]). */
struct hd_matrix {
    void *data;
    uint8_t *scales;
    uint32_t dtype; /* enum hd_dtype */
    uint32_t rows, columns;
};

struct hd_embed_args {
    const int32_t *tokens; /* [T]                                            */
    const void *table;     /* G [V,d]                                        */
    void *x;               /* A [T,d]  = table[tokens]                       */
    const void *dx;        /* A [T,d]                                        */
    void *dtable;          /* S [V,d] += rows of dx, ascending t per token   */
    uint32_t token_count, width, vocabulary;
};

/* Also the QK-norm: over all d before the split into heads, as OLMoE has it, one row per token. */
struct hd_norm_args {
    const void *x, *weight; /* A [T,d], S [d]                                */
    void *y, *rstd;         /* A [T,d] = w x r;  S [T] r = 1/sqrt(mean x^2 + epsilon) */
    const void *dy, *add;   /* A [T,d]; add NULL or the residual's gradient  */
    void *dx;               /* A [T,d] = add + r (w dy - x r^2 mean(w dy x)) */
    void *dweight;          /* S [d]  += sum over t of dy x r                */
    uint32_t row_count, width;
    double epsilon;
};

/* FPROP C[m,n] = A[m,k] B[n,k]^T + add; DGRAD C[m,k] = A[m,n] B[n,k] + add; WGRAD C[n,k] +=
   A[m,n]^T B[m,k].  C is A or S (WGRAD: S), and so is add, with one rounding after `add`: the
   three DGRADs of q, k, v are summed in S and only the last is rounded. */
enum hd_gemm_form { HD_FPROP = 0, HD_DGRAD = 1, HD_WGRAD = 2 };

struct hd_gemm_args {
    struct hd_matrix a, b, c;
    struct hd_matrix add;   /* data NULL: none; else the residual, or the sum so far */
    uint32_t form;          /* enum hd_gemm_form                             */
    uint32_t expert_count;  /* expert_gemm: b (WGRAD: c) is [E] matrices ... */
    const int32_t *offsets; /* ... and expert e has rows offsets[e] .. offsets[e+1]-1 */
    uint32_t is_mxfp8;      /* gemm with native_mxfp8: quantise a and b (A) along the contraction */
    uint32_t scale_rule;    /* first; BUSY if the device has no such product  */
};

/* Half-rotation pairs (i, i + c/2); the host makes the tables [sequence, c/2] in float64. */
struct hd_rope_args {
    const void *x;             /* A [T,h,c]                                  */
    void *y;                   /* A [T,h,c]; may be x                        */
    const void *cosine, *sine; /* S [sequence, c/2]                          */
    uint32_t batch, sequence, heads, head_width;
    uint32_t inverse; /* 1: by the negative angle, the backward     */
};

/* Causal, scale 1/sqrt(c).  Probabilities are never stored: P = exp(scale q k - lse). */
struct hd_attention_args {
    const void *q, *k, *v; /* A [T,h,c], q and k after norm and RoPE         */
    void *out, *lse;       /* A [T,h,c]; S [batch,h,sequence]                */
    const void *dout;      /* A [T,h,c]                                      */
    void *dq, *dk, *dv;    /* A: D = sum_c dout out; dS = P (dout v^T - D);
                              dq = scale dS k; dk = scale dS^T q; dv = P^T dout */
    uint32_t batch, sequence, heads, key_value_heads, head_width; /* k, v: [T,key_value_heads,c] */
};

/* The router, all in S.  f_e = count_e / (T k) is a constant for the backward. */
struct hd_route_args {
    const void *x, *weight; /* A [T,d], S [E,d] (the master itself)          */
    void *probability;      /* S [T,E] p = softmax(x W^T)                    */
    void *lse;              /* S [T]                                         */
    int32_t *selected;      /* [T,k] largest p first; ties, NaN: lower index */
    void *gates;            /* S [T,k] p_sel, or p_sel / sum p_sel           */
    int32_t *counts;        /* [E]                                           */
    double *balance, *z;    /* one term each: balance_scale E sum_e f_e mean_t p_te;
                               z_scale mean_t lse^2                          */
    const void *dgates;     /* S [T,k]                                       */
    void *dx, *dweight;     /* S [T,d] = dl W; S [E,d] += dl^T x, where
                               dp_sel = dg, or (dg_j - sum_i g_i dg_i) / sum p_sel;
                               dp_e += balance_scale E f_e / T;
                               dl = p (dp - sum_e p dp) + 2 z_scale lse p / T */
    uint32_t token_count, width, experts, experts_per_token, normalize;
    double balance_scale; /* balance_weight / layers x auxiliary_scale     */
    double z_scale;       /* z_weight / layers x auxiliary_scale           */
};

/* Rows sorted by (expert, token); the same three maps serve every row op. */
struct hd_rows_args {
    const int32_t *selected; /* [T,k]                                        */
    int32_t *offsets;        /* [E+1] multiples of 32; R = offsets[E]        */
    int32_t *row_of;         /* [T,k]                                        */
    int32_t *source;         /* [R_max] t k + j, or -1 for padding           */
    const void *x;           /* A [T,d]: permute's source                    */
    struct hd_matrix rows;   /* permute: Q [R,d] = x[source/k], 0 if padding */
    const void *add;         /* S [T,d]: permute_backward, the router's part */
    void *dx;                /* A [T,d] = add + sum_j ascending rows[row_of[t,j]] */
    const void *gates;       /* S [T,k]: combine; NULL when dense            */
    const void *residual;    /* A [T,d]                                      */
    void *out;               /* A [T,d] = residual + sum_j gates rows[row_of[t,j]] */
    uint32_t token_count, width, experts, experts_per_token;
};

/* The activation, and in its backward the gradient of the gates, so that the experts' outputs y are
   not kept:  with dz = dout permuted, not yet weighted, and e = dz W_down,
   dgate = <dz, y> = <e, h>  and  dh = gate e. */
struct hd_swiglu_args {
    const void *gate_up;    /* A [R,2f]: g in columns 0 .. f-1, u after it   */
    void *h;                /* A [R,f] = silu(g) u                           */
    const void *e;          /* A [R,f]                                       */
    const void *gates;      /* S [T,k], or NULL for 1 (dense)                */
    const int32_t *source;  /* [R_max]                                       */
    void *dgates;           /* S [T,k] = sum_f e h                           */
    void *dgate_up;         /* A [R,2f]: with s = sigmoid(g):
                               gate e u s (1 + g (1 - s)),  gate e g s       */
    void *weighted;         /* A [R,f] = gate h; dW_down += dz^T weighted    */
    const int32_t *offsets; /* [E+1]; NULL when dense: then row_count rows   */
    uint32_t experts, expert_width, row_count;
};

/* Logits exist for HD_HEAD_CHUNK columns at a time, ascending, in the forward and again here. */
struct hd_head_args {
    const void *x, *weight; /* A [T,d] after the final norm, G [V,d]         */
    const int32_t *targets; /* [T], < 0: no label                            */
    void *lse;              /* S [T]                                         */
    double *loss;           /* one term: label_scale sum_t (lse - logit_target) */
    void *dx;               /* A [T,d] = dl W, summed over chunks in S       */
    void *dweight;          /* S [V,d] += dl^T x; dl = label_scale (softmax - onehot), A */
    uint32_t token_count, width, vocabulary;
    double label_scale;
};

/* RCEIL scale, nearest even, saturating; a non-finite block becomes scale FF, elements 7F.
   Elements are in the order of the source, [rows,columns], in both. */
struct hd_quantise_args {
    const void *source;                   /* A [rows,columns]: quantise        */
    void *target;                         /* A [rows,columns]: dequantise, from rowwise if given */
    struct hd_matrix rowwise, columnwise; /* data NULL: not wanted           */
    uint32_t rows, columns;               /* multiples of 32; rows of rowwise alone: any */
    uint32_t scale_rule;                  /* 0 rounds the scale up, 1 down    */
    const int32_t *row_limit;             /* NULL, or in a device's own memory: only the first
                                             *row_limit rows exist            */
};

/* A source, quantised in blocks along the rows or down the columns, and dequantised again, as an
   emulated MXFP8 GEMM reads it.  Either may be NULL, or the source itself. */
struct hd_image_args {
    const void *source;         /* A [rows,columns]                          */
    void *rowwise, *columnwise; /* A [rows,columns]                          */
    uint64_t rows, columns;     /* multiples of 32                           */
    uint32_t scale_rule;
    const int32_t *row_limit; /* as in hd_quantise_args                    */
};

struct hd_optimizer_args {
    void *master, *moment1, *moment2; /* S [count]                           */
    const void *gradient;             /* S [count]                           */
    void *copy;                       /* G [count] (adamw, convert) or NULL  */
    double *squared;                  /* square_sum: one value, summed in F64 */
    uint64_t count;
    uint32_t decays;
    const struct hd_update *update;
};

/* Every op but products and `image`.  The comment says what an op saves for its backward. */
#define HD_OPS_EACH(OP)                                                             \
    OP(embed, hd_embed_args) /* nothing */                                          \
    OP(embed_backward, hd_embed_args)                                               \
    OP(rms_norm, hd_norm_args) /* x, rstd */                                        \
    OP(rms_norm_backward, hd_norm_args)                                             \
    OP(rope, hd_rope_args)           /* nothing */                                  \
    OP(attention, hd_attention_args) /* q, k, v, out, lse */                        \
    OP(attention_backward, hd_attention_args)                                       \
    OP(route, hd_route_args) /* p, lse, selected, counts */                         \
    OP(route_backward, hd_route_args)                                               \
    OP(assign, hd_rows_args)  /* selected -> the three maps */                      \
    OP(permute, hd_rows_args) /* rows: the dispatch payload */                      \
    OP(permute_backward, hd_rows_args)                                              \
    OP(combine, hd_rows_args)  /* nothing: permute and swiglu go back through it */ \
    OP(swiglu, hd_swiglu_args) /* gate_up */                                        \
    OP(swiglu_backward, hd_swiglu_args)                                             \
    OP(head_loss, hd_head_args) /* lse */                                           \
    OP(head_loss_backward, hd_head_args)                                            \
    OP(quantise, hd_quantise_args)                                                  \
    OP(dequantise, hd_quantise_args) /* rowwise or columnwise -> target, exact */   \
    OP(convert, hd_optimizer_args)   /* master -> copy */                           \
    OP(adamw, hd_optimizer_args)     /* then copy, if any */                        \
    OP(square_sum, hd_optimizer_args)

/* Every op enqueues on the device's stream and returns; an error is sticky (kernel.h). */
struct hd_ops {
    uint32_t size;
    uint32_t activation, statistic; /* enum hd_dtype: A and S                */
    uint32_t native_mxfp8;          /* 1: gemm may be asked for is_mxfp8     */
    uint64_t (*scratch_bytes)(const struct hd_stage_spec *spec);
#define HD_OP(name, args) hd_status (*name)(struct hd_ops_device *, const struct args *);
    HD_OP(gemm, hd_gemm_args) /* its own backward, by form */
    HD_OP(expert_gemm, hd_gemm_args)
    HD_OP(image, hd_image_args) /* NULL: by quantise and dequantise, 32 rows at a time */
    HD_OPS_EACH(HD_OP)
#undef HD_OP
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_TRANSFORMER_OPS_H */
