/*
 * plugins/kernels/cuda/kernels/arguments.h - the kernels of the module, and their launches.
 *
 * nvcc, the host side and the tests' emulator read it.  Most kernels take the argument struct of
 * their op (ops.h), with addresses of the device; the others take a struct of shared.h.
 */
#ifndef HD_CUDA_ARGUMENTS_H
#define HD_CUDA_ARGUMENTS_H

#include "../../transformer/ops.h"

#include <stddef.h>

/* name, threads of a block, argument struct, shared struct (or none_shared) */
#define HD_CUDA_KERNELS(X)                                                       \
    X(embed, 256, hd_embed_args, hd_none_shared)                                 \
    X(embed_backward, 256, hd_embed_args, hd_match_shared)                       \
    X(rms_norm, 256, hd_norm_args, hd_sum_shared)                                \
    X(rms_norm_backward, 256, hd_norm_args, hd_sum_shared)                       \
    X(norm_weights, 256, hd_norm_weights, hd_none_shared)                        \
    X(sum_chunks, 256, hd_chunk_sum, hd_none_shared)                             \
    X(rope, 256, hd_rope_args, hd_none_shared)                                   \
    X(route, 128, hd_route_args, hd_none_shared)                                 \
    X(route_experts, 256, hd_route_sums, hd_sum_shared)                          \
    X(route_terms, 256, hd_route_sums, hd_sum_shared)                            \
    X(route_backward, 128, hd_route_gradient, hd_none_shared)                    \
    X(count_rows, 256, hd_assignment, hd_sum_shared)                             \
    X(place_experts, 32, hd_assignment, hd_none_shared)                          \
    X(place_rows, 256, hd_assignment, hd_match_shared)                           \
    X(permute, 128, hd_rows_args, hd_none_shared)                                \
    X(permute_backward, 128, hd_rows_args, hd_none_shared)                       \
    X(combine, 128, hd_rows_args, hd_none_shared)                                \
    X(swiglu, 256, hd_swiglu_args, hd_none_shared)                               \
    X(swiglu_backward, 256, hd_swiglu_args, hd_sum_shared)                       \
    X(head_begin, 256, hd_head_state, hd_none_shared)                            \
    X(head_chunk, 256, hd_head_state, hd_sum_shared)                             \
    X(head_end, 256, hd_head_state, hd_sum_shared)                               \
    X(head_gradient, 256, hd_head_state, hd_none_shared)                         \
    X(round, 256, hd_rounded, hd_none_shared)                                    \
    X(convert, 256, hd_optimizer_args, hd_none_shared)                           \
    X(adamw, 256, hd_adamw, hd_none_shared)                                      \
    X(square_sum, 256, hd_square_sum, hd_sum_shared)                             \
    X(square_end, 256, hd_square_sum, hd_sum_shared)                             \
    X(quantise_rows, 256, hd_quantise_args, hd_none_shared)                      \
    X(quantise_columns, 256, hd_quantise_args, hd_none_shared)                   \
    X(dequantise, 256, hd_quantise_args, hd_none_shared)                         \
    X(image, 128, hd_image_args, hd_image_shared)                                \
    X(pack_rows, 256, hd_pack, hd_none_shared)                                   \
    X(pack_columns, 128, hd_pack, hd_none_shared)                                \
    X(product, 256, hd_product, hd_product_shared)                               \
    X(tile_fprop, 256, hd_tile, hd_tile_shared)                                  \
    X(tile_dgrad, 256, hd_tile, hd_tile_shared)                                  \
    X(tile_wgrad, 256, hd_tile, hd_tile_shared)                                  \
    X(attention_64, 128, hd_attention_args, hd_attention_64_shared)              \
    X(attention_128, 128, hd_attention_args, hd_attention_128_shared)            \
    X(attention_inner, 128, hd_attention_gradient, hd_none_shared)               \
    X(attention_keys_64, 128, hd_attention_gradient, hd_gradient_64_shared)      \
    X(attention_keys_128, 128, hd_attention_gradient, hd_gradient_128_shared)    \
    X(attention_queries_64, 128, hd_attention_gradient, hd_gradient_64_shared)   \
    X(attention_queries_128, 128, hd_attention_gradient, hd_gradient_128_shared) \
    X(write_stamp, 32, hd_stamp_args, hd_none_shared)                            \
    X(check_payload, 256, hd_check_args, hd_match_shared)                        \
    X(add_terms, 32, hd_terms_args, hd_none_shared)

#define HD_CUDA_KERNEL_NAME(name, threads, type, shared) HD_CUDA_##name,
enum hd_cuda_kernel { HD_CUDA_KERNELS(HD_CUDA_KERNEL_NAME) HD_CUDA_KERNEL_COUNT };
#undef HD_CUDA_KERNEL_NAME

#endif /* HD_CUDA_ARGUMENTS_H */
