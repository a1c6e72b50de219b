/*
 * tiny_mlp.h - what the two files of the example share: tiny_mlp.c answers the core, passes.c
 * computes.
 */
#ifndef TINY_MLP_H
#define TINY_MLP_H

#include <heddle/kernel.h>

#define TINY_STAMP_BYTES 64u /* at the beginning of a payload */

struct hd_kernel {
    const struct hd_host *host;
};

struct hd_stage {
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    struct hd_stage_memory memory;
    uint64_t tokens, width, vocabulary; /* tokens: batch x sequence */
};

hd_status tiny_fail(const struct hd_host *host, hd_status status, const char *text);

/* Tensors of a stage by index: the embedding if it has one, its blocks, the head if it has one. */
uint64_t tiny_rows(const struct hd_stage_spec *spec, uint32_t index);
float *tiny_parameter(const struct hd_stage *stage, uint32_t index);
float *tiny_gradient(const struct hd_stage *stage, uint32_t index);
uint32_t tiny_block_index(const struct hd_stage *stage, uint32_t block);
uint32_t tiny_head_index(const struct hd_stage *stage);

/* passes.c */
hd_status tiny_forward(struct hd_stage *stage, const struct hd_pass *pass);
hd_status tiny_backward(struct hd_stage *stage, const struct hd_pass *pass);

#endif /* TINY_MLP_H */
