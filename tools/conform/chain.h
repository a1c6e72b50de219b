/*
 * conform/chain.h - a model over one kernel plugin, cut into stages that run one after the other.
 *
 * A harness is one opened plugin; the caller opens it and fills it.  A chain is one model over it:
 *
 *   struct hd_chain chain;
 *   hd_chain_open(&chain, &harness, &model, (uint32_t[]){1, 1}, 2);
 *   hd_chain_draw(&chain, 7);
 *   hd_chain_forward(&chain, 0);   fills chain.terms and chain.loss
 *   hd_chain_backward(&chain);     adds to the gradients
 *   hd_chain_read(&chain, tensor, HD_GRADIENT, values);
 *   hd_chain_close(&chain);
 *
 * Parameters are drawn by tensor name and element, on a grid that bf16 represents exactly: two
 * chains of one model have the same values, for every cut and every precision.  Values are read
 * and written as double, for every dtype.
 *
 * Every region, payload and boundary ends before an inaccessible page (conform/check.h), so a pass
 * that uses more memory than stage_needs asked for is found.
 *
 * A test may change the members between passes: another payload, generation or scale.  A chain
 * needs a synchronous plugin in host memory; for other plugins use a mirror (conform/mirror.h).
 */
#ifndef HEDDLE_CONFORM_CHAIN_H
#define HEDDLE_CONFORM_CHAIN_H

#include <heddle/kernel.h>

#define HD_HARNESS_OPTION_MAX 16u
#define HD_CHAIN_STAGE_MAX    8u
#define HD_CHAIN_TERM_MAX     64u

struct hd_harness {
    void *library; /* of dlopen */
    const struct hd_plugin *plugin;
    const struct hd_kernel_ops *ops;
    struct hd_host host;
    struct hd_option_value options[HD_HARNESS_OPTION_MAX];
    struct hd_device device;
    struct hd_kernel *kernel;
    char failure[1024];      /* the last sentence given to host.fail */
    _Atomic uint32_t *moved; /* incremented after every call of a stage; or NULL */
    int fill; /* of all memory at first; 0: parameters are zero, scratch and payloads 0xff */
};

struct hd_chain_stage {
    struct hd_stage_spec spec;
    struct hd_stage_needs needs;
    struct hd_stage_memory memory;
    struct hd_stage *stage;
    void *payload;         /* given to forward and backward; payload_bytes of needs */
    void *second_payload;  /* of the second half batch, else NULL */
    void *input;           /* the boundary before; NULL for the first stage */
    void *input_gradient;  /* its gradient */
    uint64_t generation;   /* of both passes */
    uint32_t first_tensor; /* global index of the stage's tensor 0 */
    uint32_t first_term;
};

struct hd_chain {
    struct hd_harness *harness;
    struct hd_stage_spec model;
    struct hd_chain_stage stages[HD_CHAIN_STAGE_MAX];
    uint32_t stage_count, tensor_count, term_count, microbatch;
    int32_t *tokens, *targets; /* [batch, sequence] */
    double label_scale, auxiliary_scale;
    double terms[HD_CHAIN_TERM_MAX]; /* of the last forward, by stage */
    double loss;                     /* their sum, ascending */
};

/* Cuts `model` into stages of blocks[0], blocks[1], .. blocks; parameters are zero.  The scales are
   1 / tokens and 1.  HD_OK, or the status of the plugin. */
hd_status hd_chain_open(struct hd_chain *chain, struct hd_harness *harness,
                        const struct hd_stage_spec *model, const uint32_t *blocks,
                        uint32_t stage_count);
void hd_chain_close(struct hd_chain *chain);

/* Every block of guarded memory of a stage; NULL: the stage has no such block. */
#define HD_CHAIN_BLOCK_COUNT 9u
void hd_chain_blocks(const struct hd_chain_stage *stage, void *blocks[HD_CHAIN_BLOCK_COUNT]);

/* Draws every master, and tokens and targets; keyed by `seed`. */
void hd_chain_draw(struct hd_chain *chain, uint64_t seed);
/* Tokens and targets alone, for another microbatch of the same model. */
void hd_chain_draw_tokens(struct hd_chain *chain, uint64_t seed);

/* All stages, first to last; `evaluate` 1 passes no payload.  Stops at the first failure. */
hd_status hd_chain_forward(struct hd_chain *chain, int evaluate);
hd_status hd_chain_forward_stage(struct hd_chain *chain, uint32_t stage, int evaluate);
/* All stages, last to first. */
hd_status hd_chain_backward(struct hd_chain *chain);
hd_status hd_chain_backward_stage(struct hd_chain *chain, uint32_t stage);
/* The same with a split backward: all I, last to first, then all W. */
hd_status hd_chain_backward_split(struct hd_chain *chain);
void hd_chain_zero_gradients(struct hd_chain *chain);

/* The number of elements of a tensor, and its description; tensors count in global order. */
uint64_t hd_chain_tensor(struct hd_chain *chain, uint32_t tensor, struct hd_tensor *out);
void hd_chain_read(struct hd_chain *chain, uint32_t tensor, uint32_t copy, double *values);
void hd_chain_write(struct hd_chain *chain, uint32_t tensor, uint32_t copy, const double *values);

/* A hash of the bits of one copy of all tensors, in global order. */
uint64_t hd_chain_hash(struct hd_chain *chain, uint32_t copy);

#endif /* HEDDLE_CONFORM_CHAIN_H */
