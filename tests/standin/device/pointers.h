/*
 * tests/standin/device/pointers.h - where the addresses lie in each kernel's arguments.
 *
 * The stand-in of the driver makes those of the device ones that the host can touch.  It cannot
 * guess: padding between two members, or two numbers side by side, may look like an address.  One
 * that is missing here is found at once: the kernel then touches memory of the device, which has no
 * permission.
 */
#ifndef HD_TESTS_STANDIN_POINTERS_H
#define HD_TESTS_STANDIN_POINTERS_H

#include "plugins/kernels/cuda/kernels/arguments.h"
#include "plugins/kernels/cuda/kernels/shared.h"

#define AT(member) offsetof(struct ARGS, member)
#define NO_MORE    UINT16_MAX

#define ARGS hd_embed_args
static const uint16_t hd_embed_args_pointers[] = {AT(tokens), AT(table),  AT(x),
                                                  AT(dx),     AT(dtable), NO_MORE};
#undef ARGS
#define ARGS hd_norm_args
static const uint16_t hd_norm_args_pointers[] = {AT(x),   AT(weight), AT(y),       AT(rstd), AT(dy),
                                                 AT(add), AT(dx),     AT(dweight), NO_MORE};
#undef ARGS
#define ARGS hd_norm_weights
static const uint16_t hd_norm_weights_pointers[] = {AT(op.x), AT(op.dy), AT(op.rstd), AT(partial),
                                                    NO_MORE};
#undef ARGS
#define ARGS hd_chunk_sum
static const uint16_t hd_chunk_sum_pointers[] = {AT(partial), AT(target), NO_MORE};
#undef ARGS
#define ARGS hd_rope_args
static const uint16_t hd_rope_args_pointers[] = {AT(x), AT(y), AT(cosine), AT(sine), NO_MORE};
#undef ARGS
#define ARGS hd_route_args
static const uint16_t hd_route_args_pointers[] = {AT(probability), AT(lse), AT(selected), AT(gates),
                                                  NO_MORE};
#undef ARGS
#define ARGS hd_route_sums
static const uint16_t hd_route_sums_pointers[] = {
    AT(op.probability), AT(op.lse), AT(op.selected), AT(op.counts),
    AT(op.balance),     AT(op.z),   AT(partial),     NO_MORE};
#undef ARGS
#define ARGS hd_route_gradient
static const uint16_t hd_route_gradient_pointers[] = {
    AT(op.probability), AT(op.lse),    AT(op.selected), AT(op.gates),
    AT(op.counts),      AT(op.dgates), AT(dl),          NO_MORE};
#undef ARGS
#define ARGS hd_assignment
static const uint16_t hd_assignment_pointers[] = {AT(op.selected), AT(op.offsets), AT(op.row_of),
                                                  AT(op.source),   AT(counts),     NO_MORE};
#undef ARGS
#define ARGS hd_rows_args
static const uint16_t hd_rows_args_pointers[] = {
    AT(selected), AT(offsets), AT(row_of), AT(source),   AT(x),   AT(rows.data),
    AT(add),      AT(dx),      AT(gates),  AT(residual), AT(out), NO_MORE};
#undef ARGS
#define ARGS hd_swiglu_args
static const uint16_t hd_swiglu_args_pointers[] = {
    AT(gate_up), AT(h),        AT(e),        AT(gates),   AT(source),
    AT(dgates),  AT(dgate_up), AT(weighted), AT(offsets), NO_MORE};
#undef ARGS
#define ARGS hd_head_state
static const uint16_t hd_head_state_pointers[] = {AT(op.targets), AT(op.lse),  AT(op.loss),
                                                  AT(logits),     AT(dlogits), AT(greatest),
                                                  AT(sum),        AT(wanted),  NO_MORE};
#undef ARGS
#define ARGS hd_rounded
static const uint16_t hd_rounded_pointers[] = {AT(from), AT(add), AT(to), NO_MORE};
#undef ARGS
#define ARGS hd_optimizer_args
static const uint16_t hd_optimizer_args_pointers[] = {AT(master), AT(copy), NO_MORE};
#undef ARGS
#define ARGS hd_adamw
static const uint16_t hd_adamw_pointers[] = {AT(op.master),   AT(op.moment1), AT(op.moment2),
                                             AT(op.gradient), AT(op.copy),    NO_MORE};
#undef ARGS
#define ARGS hd_square_sum
static const uint16_t hd_square_sum_pointers[] = {AT(gradient), AT(partial), AT(squared), NO_MORE};
#undef ARGS
#define ARGS hd_quantise_args
static const uint16_t hd_quantise_args_pointers[] = {AT(source),          AT(target),
                                                     AT(rowwise.data),    AT(rowwise.scales),
                                                     AT(columnwise.data), AT(columnwise.scales),
                                                     AT(row_limit),       NO_MORE};
#undef ARGS
#define ARGS hd_image_args
static const uint16_t hd_image_args_pointers[] = {AT(source), AT(rowwise), AT(columnwise),
                                                  AT(row_limit), NO_MORE};
#undef ARGS
#define ARGS hd_pack
static const uint16_t hd_pack_pointers[] = {AT(source), AT(data), AT(scales), NO_MORE};
#undef ARGS
#define ARGS hd_product
static const uint16_t hd_product_pointers[] = {AT(a), AT(b), AT(add), AT(c), AT(offsets), NO_MORE};
#undef ARGS
#define ARGS hd_tile
static const uint16_t hd_tile_pointers[] = {AT(a), AT(b), AT(add), AT(c), AT(offsets), NO_MORE};
#undef ARGS
#define ARGS hd_attention_args
static const uint16_t hd_attention_args_pointers[] = {AT(q),   AT(k),   AT(v),
                                                      AT(out), AT(lse), NO_MORE};
#undef ARGS
#define ARGS hd_attention_gradient
static const uint16_t hd_attention_gradient_pointers[] = {
    AT(op.q),  AT(op.k),  AT(op.v),  AT(op.out), AT(op.lse), AT(op.dout),
    AT(op.dq), AT(op.dk), AT(op.dv), AT(inner),  NO_MORE};
#undef ARGS
#define ARGS hd_stamp_args
static const uint16_t hd_stamp_args_pointers[] = {AT(payload), NO_MORE};
#undef ARGS
#define ARGS hd_check_args
static const uint16_t hd_check_args_pointers[] = {
    AT(payload),     AT(fault),       AT(maps.offsets), AT(maps.selected),
    AT(maps.row_of), AT(maps.source), NO_MORE};
#undef ARGS
#define ARGS hd_terms_args
static const uint16_t hd_terms_args_pointers[] = {AT(terms), AT(more), NO_MORE};
#undef ARGS
#undef AT
#undef NO_MORE

#endif /* HD_TESTS_STANDIN_POINTERS_H */
