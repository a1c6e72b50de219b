/*
 * conform/chain.h - a model over one kernel plugin, cut into stages that run one after the other.
 *
 * A harness is one opened plugin; whoever opens it fills it.  A chain is one model over it:
 *
 *   struct hd_chain chain;
 *   hd_chain_open(&chain, &harness, &model, (uint32_t[]){1, 1}, 2);
 *   hd_chain_draw(&chain, 7);
 *   hd_chain_forward(&chain, 0);   fills chain.terms and chain.loss
 *   hd_chain_backward(&chain);     adds to the gradients
 *   hd_chain_read(&chain, tensor, HD_GRADIENT, values);
 *   hd_chain_close(&chain);
 *
 * Parameters are drawn by tensor name and element, on a grid that bf16 holds exactly: two
 * chains of one model have the same values, however they are cut and whatever they
 * compute in.  Values cross as double, whatever the plugin's dtype.
 *
 * Every region, payload and boundary ends before a page that cannot be touched (conform/check.h),
 * so what is taken is held against what stage_needs asked for, in every pass.
 *
 * The members may be changed between passes: another payload, generation or scale is
 * how a test asks its question.  For synchronous plugins in host memory;
 * any other has a mirror before it (conform/mirror.h).
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
    _Atomic uint32_t *moved; /* counted up behind every call of a stage; NULL: nobody counts */
    int fill; /* of parameters, scratch and payloads; 0: zero, and 0xff in the others */
};

struct hd_chain_stage {
    struct hd_stage_spec spec;
    struct hd_stage_needs needs;
    struct hd_stage_memory memory;
    struct hd_stage *stage;
    void *payload;         /* given to forward and backward; payload_bytes of needs */
    void *second_payload;  /* of the second half batch, else NULL */
    void *input;           /* boundary before; NULL for the first stage */
    void *input_gradient;  /* and its gradient */
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

/* A small OLMoE of 2 blocks for tests to change: 4 experts, 2 a token, width 8, 10 tokens. */
struct hd_stage_spec hd_chain_model(void);

/* Cuts `model` into stages of blocks[0], blocks[1], .. blocks; parameters are zero.  The scales are
   1 / tokens and 1.  HD_OK, or what the plugin refused with. */
hd_status hd_chain_open(struct hd_chain *chain, struct hd_harness *harness,
                        const struct hd_stage_spec *model, const uint32_t *blocks,
                        uint32_t stage_count);
void hd_chain_close(struct hd_chain *chain);

/* Draws every master, and tokens and targets; keyed by `seed`. */
void hd_chain_draw(struct hd_chain *chain, uint64_t seed);
/* Tokens and targets alone, for another microbatch of the same model. */
void hd_chain_draw_tokens(struct hd_chain *chain, uint64_t seed);

/* All stages, first to last; `evaluate` 1 passes no payload.  Stops at the first failure. */
hd_status hd_chain_forward(struct hd_chain *chain, int evaluate);
/* All stages, last to first. */
hd_status hd_chain_backward(struct hd_chain *chain);
/* The same by halves: all I, last to first, then all W. */
hd_status hd_chain_backward_split(struct hd_chain *chain);
void hd_chain_zero_gradients(struct hd_chain *chain);
/* Fills payloads and scratch, which a pass must overwrite or must not read, with 0xff. */
void hd_chain_poison(struct hd_chain *chain);

/* Elements of a tensor, in global order, and its description. */
uint64_t hd_chain_tensor(struct hd_chain *chain, uint32_t tensor, struct hd_tensor *out);
void hd_chain_read(struct hd_chain *chain, uint32_t tensor, uint32_t copy, double *values);
void hd_chain_write(struct hd_chain *chain, uint32_t tensor, uint32_t copy, const double *values);
/* -1 if there is no tensor of that name. */
int64_t hd_chain_find(struct hd_chain *chain, const char *name);

/* |a - b| / |b| in L2 over one copy of one tensor of two chains; |a| where b is zero. */
double hd_chain_residual(struct hd_chain *a, struct hd_chain *b, uint32_t tensor, uint32_t copy);
/* A hash of the bits of one copy of all tensors, in global order. */
uint64_t hd_chain_hash(struct hd_chain *chain, uint32_t copy);

#endif /* HEDDLE_CONFORM_CHAIN_H */
