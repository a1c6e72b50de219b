/*
 * plugins/kernels/transformer/block.h - the ops of a block, one call each.
 *
 * The arguments are the tensors that an op reads, then those that it writes; where there are many,
 * the op's own struct (ops.h) with its tensors filled in.  Shapes, weights, maps and constants are
 * added here.
 */
#ifndef HD_TRANSFORMER_BLOCK_H
#define HD_TRANSFORMER_BLOCK_H

#include "address.h"

/* tokens of the pass -> x; and dx -> += the table's gradient. */
hd_status hd_embed(const struct hd_stage *stage, const struct hd_pass *pass, void *x);
hd_status hd_embed_backward(const struct hd_stage *stage, const struct hd_pass *pass,
                            const void *dx);

/* x -> y, and 1 / rms of each row -> r.  A backward calls it again: the bits of r are the same. */
hd_status hd_norm(const struct hd_block *block, enum hd_weight weight, const void *x, void *y,
                  void *r);
/* x, rstd, dy, add -> dx. */
hd_status hd_norm_backward(const struct hd_block *block, enum hd_weight weight,
                           struct hd_norm_args tensors);

/* y = x W^T + add (or NULL).  The experts' two weights multiply their own rows each; with experts 0
   and for every other weight there is one product over all tokens. */
hd_status hd_project(const struct hd_block *block, enum hd_weight weight, const void *x,
                     const void *add, void *y);
/* dx = dy W. */
hd_status hd_input_gradient(const struct hd_block *block, enum hd_weight weight, const void *dy,
                            void *dx);
/* dx = dq W_q + dk W_k + dv W_v of attention: summed in S, rounded once. */
hd_status hd_input_gradient_of_attention(const struct hd_block *block, const struct hd_work *from,
                                         void *dx);
/* W's gradient += dy^T x. */
hd_status hd_weight_gradient(const struct hd_block *block, enum hd_weight weight, const void *dy,
                             const void *x);

/* Rotates x [T,heads,c] in place; backward by the negative angle. */
hd_status hd_rope(const struct hd_stage *stage, void *x, uint32_t heads, bool is_backward);
/* q, k -> qn, kn and rq, rk: norm, then RoPE. */
hd_status hd_rotate(const struct hd_block *block, void *qn, void *kn);
/* q, k, v -> out, lse; and with dout -> dq, dk, dv. */
hd_status hd_attention(const struct hd_stage *stage, struct hd_attention_args tensors);
hd_status hd_attention_backward(const struct hd_stage *stage, struct hd_attention_args tensors);

/* xn -> p, z, selected, gates, counts of the block, and two terms; dgates -> dx. */
hd_status hd_route(const struct hd_block *block, const void *xn, double *terms);
hd_status hd_route_backward(const struct hd_block *block, const void *xn, const void *dgates,
                            void *dx);
/* selected -> offsets, row_of, source: the maps of the ops that follow. */
hd_status hd_assign(const struct hd_block *block);
/* x [T,d] -> rows [R,d]. */
hd_status hd_permute(const struct hd_block *block, const void *x, void *rows);
/* rows, add [T,d] -> dx [T,d]. */
hd_status hd_permute_backward(const struct hd_block *block, const void *rows, const void *add,
                              void *dx);
/* rows weighted by the gates, residual -> out. */
hd_status hd_combine(const struct hd_block *block, const void *rows, const void *residual,
                     void *out);
/* gate_up -> h; and gate_up, e -> dgates, dgate_up, weighted. */
hd_status hd_swiglu(const struct hd_block *block, const void *gate_up, void *h);
hd_status hd_swiglu_backward(const struct hd_block *block, struct hd_swiglu_args tensors);

/* x, targets of the pass, lse -> loss; and lse -> dx, += the head's gradient. */
hd_status hd_head_loss(const struct hd_stage *stage, const struct hd_pass *pass,
                       struct hd_head_args tensors);
hd_status hd_head_loss_backward(const struct hd_stage *stage, const struct hd_pass *pass,
                                struct hd_head_args tensors);

#endif /* HD_TRANSFORMER_BLOCK_H */
