/*
 * plugins/kernels/transformer/layout.h - the tensors of a stage by name, and where each one is.
 *
 * One block, forward.  A name in brackets is in scratch and is lost when the pass ends; every
 * other name is saved in the payload for the backward.  Letters and dtypes are those of ops.h.
 *
 *   x ---norm1--> [xn] --W_q--> q --qnorm--> [qn] --rope--> [qn] --+
 *   |    (r1)      |               (rq)                            |
 *   |              +---W_k--> k --knorm--> [kn] --rope--> [kn] ----+-- attention --> o
 *   |              |               (rk)                            |      (lse)      |
 *   |              +---W_v--> v -----------------------------------+                W_o
 *   +----------------------------------------------------------------------> + -> x1 (x + ..)
 *
 *   x1 --norm2--> [xn] --router--> p, z --> selected, gates, counts --> offsets, row_of, source
 *   |    (r2)      |                                                          |
 *   |              +--permute---> rows --W_gate_up--> gate_up --swiglu--> [h] --W_down--> [y]
 *   |                                                                                     |
 *   +---------------------------------------------------------------------> + <--combine--+
 *                                                                           |
 *                                                    x of the next block, or the stage's output
 *
 * A dense block (experts = 0) has neither router nor maps: W_gate_up reads [xn] itself, and the
 * product with W_down adds x1.
 *
 * Every region of the core is laid out by arithmetic on the spec:
 *
 *   parameters   per weight a master, and a copy where the GEMMs read another dtype
 *   optimizer    per weight two moments
 *   gradients    two regions, by group
 *   payload      the stamp, then the saved tensors of each block, then those of the head
 *   scratch      one section with room for all saved tensors of a block, the tensors of the
 *                phase that runs, the ops' own scratch
 *
 *   payload | stamp | r1 rq .. gate_up | x r1 rq .. gate_up | .. | x r lse |
 *           0      256      block 0           block 1              has_head
 *
 * The payload has no x of the first block, which is the input slot or is embedded again.
 *
 * A tensor that recomputation drops from the payload has its place in the section in scratch: a
 * forward writes it there and forgets it, and a backward computes it again.  An evaluation has
 * all tensors there.
 *
 * With two half batches everything here is of one half: the spec's batch, the tensors, the
 * payload.  pass.c runs one half after the other.
 */
#ifndef HD_TRANSFORMER_LAYOUT_H
#define HD_TRANSFORMER_LAYOUT_H

#include "ops.h"

#include <stdbool.h>
#include <stddef.h>

#define HD_TENSOR_ALIGNMENT 256u /* of a tensor's offset in payload and scratch */
#define HD_STAMP_BYTES      256u /* at the start of a payload */
#define HD_NOT_KEPT         UINT64_MAX

/* What a forward saves of one block for its backward, in the order of the payload. */
struct hd_saved {
    void *x;        /* A [T,d]: the block's input */
    void *r1;       /* S [T]: 1 / rms of the rows of x (norm1) */
    void *rq;       /* S [T]: 1 / rms of the rows of q */
    void *rk;       /* S [T]: 1 / rms of the rows of k */
    void *r2;       /* S [T]: 1 / rms of the rows of x1 (norm2) */
    void *q;        /* A [T,d]: queries, before their norm and RoPE */
    void *k;        /* A [T,key_value_heads c]: keys, before their norm and RoPE */
    void *v;        /* A [T,key_value_heads c]: values */
    void *o;        /* A [T,d]: output of attention, before W_o */
    void *lse;      /* S [batch,h,sequence]: logsumexp of the attention's scores */
    void *x1;       /* A [T,d]: the residual stream after attention */
    void *p;        /* S [T,E]: the router's probabilities */
    void *z;        /* S [T]: logsumexp of the router's logits */
    void *gates;    /* S [T,k]: weight of each chosen expert */
    void *selected; /* int32 [T,k]: chosen experts */
    void *row_of;   /* int32 [T,k]: row of each choice among `rows` */
    void *counts;   /* int32 [E]: tokens of each expert */
    void *offsets;  /* int32 [E+1]: first row of each expert */
    void *source;   /* int32 [R_max]: choice that a row came from, or -1 for padding */
    void *rows;     /* A [R_max,d]: the experts' input; E4M3 in MXFP8 */
    void *scales;   /* E8M0 [R_max,d/32]: scales of the rows, in MXFP8 only */
    void *gate_up;  /* A [R_max,2f]: input of SwiGLU; dense: [T,2f] */
};

/* What a forward saves of the head, after all blocks. */
struct hd_head {
    void *x;   /* A [T,d]: output of the last block */
    void *r;   /* S [T]: 1 / rms of the rows of x */
    void *lse; /* S [T]: logsumexp of the logits */
};

/* Tensors of one pass only, in scratch.  Those of attention and those of the experts share memory:
   none of them is read after its phase. */
struct hd_work {
    void *terms; /* double [terms]: of the second half batch, or computed again */
    void *slab;  /* MXFP8: 32 quantised rows with their scales, see mxfp8.c */
    void *g;     /* A [T,d]: gradient of the residual stream between two blocks */
    void *dx1;   /* A [T,d]: gradient of x1 */
    void *xn;    /* A [T,d]: normed x, x1 or input of the head */

    /* Attention. */
    void *qn;   /* A [T,d]: q after norm and RoPE */
    void *kn;   /* A [T,key_value_heads c]: k after norm and RoPE */
    void *dout; /* A [T,d]: gradient of o, then that of xn */
    void *dq;   /* A [T,d]: gradient of qn, then that of q */
    void *dk;   /* A [T,key_value_heads c]: gradient of kn, then that of k */
    void *dv;   /* A [T,key_value_heads c]: gradient of v */
    void *sum;  /* S [T,d]: gradient of xn, the parts of q and k */

    /* Experts, or a dense feed-forward, and the head. */
    void *dxr;              /* S [T,d]: gradient of xn, the router's part */
    void *dxn;              /* A [T,d]: gradient of xn */
    void *dgates;           /* S [T,k]: gradient of the gates */
    void *wide;             /* A [R,d]: y, the output of W_down; dz, its gradient; then drows */
    void *inner;            /* A [R,f]: h, the output of SwiGLU; or e = dz W_down */
    void *weighted;         /* A [R,f]: gate x h */
    void *dgate_up;         /* A [R,2f]: gradient of gate_up */
    void *wide_columns;     /* MXFP8, A [R,d]: dz, then rows, quantised down the columns */
    void *dgate_up_columns; /* MXFP8, A [R,2f]: dgate_up quantised down the columns */
    void *image_a;          /* MXFP8 of a dense block: first operand of a product ... */
    void *image_b;          /* ... and the second */
};

/* The structs above have pointers only, so that a member has an index. */
#define HD_SAVED(member) (offsetof(struct hd_saved, member) / sizeof(void *))
#define HD_HEAD(member)  (offsetof(struct hd_head, member) / sizeof(void *))
#define HD_WORK(member)  (offsetof(struct hd_work, member) / sizeof(void *))
#define HD_SAVED_COUNT   (sizeof(struct hd_saved) / sizeof(void *))
#define HD_HEAD_COUNT    (sizeof(struct hd_head) / sizeof(void *))
#define HD_WORK_COUNT    (sizeof(struct hd_work) / sizeof(void *))

/* A weight as it is stored: all experts of a block are one. */
enum hd_weight {
    HD_WEIGHT_EMBED,   /* [V,d] */
    HD_WEIGHT_NORM1,   /* [d] */
    HD_WEIGHT_Q,       /* [d,d] */
    HD_WEIGHT_K,       /* [key_value_heads c,d] */
    HD_WEIGHT_V,       /* [key_value_heads c,d] */
    HD_WEIGHT_QNORM,   /* [d] */
    HD_WEIGHT_KNORM,   /* [key_value_heads c] */
    HD_WEIGHT_O,       /* [d,d] */
    HD_WEIGHT_NORM2,   /* [d] */
    HD_WEIGHT_ROUTER,  /* [E,d] */
    HD_WEIGHT_GATE_UP, /* [E,2f,d], the rows of the gate first */
    HD_WEIGHT_DOWN,    /* [E,d,f] */
    HD_WEIGHT_NORM,    /* [d]: the final norm */
    HD_WEIGHT_HEAD,    /* [V,d] */
    HD_WEIGHT_COUNT
};

/* Shape and place of a weight: byte offsets of block 0, to which each block adds the strides. */
struct hd_weight_place {
    uint64_t experts, rows, columns;
    uint32_t group; /* enum of kernel.h: HD_DENSE or HD_EXPERT */
    bool is_matrix, has_copy, in_block;
    uint64_t count; /* elements; 0: this stage does not have the weight */
    uint64_t master, copy, dgrad_copy, moment1, moment2, gradient;
};

struct hd_layout {
    uint64_t activation_bytes, statistic_bytes; /* of one element */
    bool is_mxfp8;                              /* the experts are in MXFP8 */
    bool is_mxfp8_dense;                        /* the feed-forward of a dense block is */
    uint32_t term_count;
    uint64_t tokens, key_value_width, row_max;
    struct hd_weight_place weights[HD_WEIGHT_COUNT];
    uint64_t parameter_stride, optimizer_stride, gradient_stride[HD_GROUP_COUNT];
    uint64_t parameter_bytes, optimizer_bytes, gradient_bytes[HD_GROUP_COUNT];
    uint64_t section[HD_SAVED_COUNT]; /* offsets in the section, at the start of scratch */
    uint64_t kept[HD_SAVED_COUNT];    /* offsets in a block of the payload, or HD_NOT_KEPT */
    uint64_t section_bytes, kept_stride;
    uint64_t first_shift;         /* bytes of x, which the first block does not have */
    uint64_t head[HD_HEAD_COUNT]; /* offsets in the payload */
    uint64_t payload_bytes;
    uint64_t work[HD_WORK_COUNT]; /* offsets in scratch */
    uint64_t ops_scratch, ops_scratch_bytes, scratch_bytes;
};

void hd_layout_make(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                    struct hd_layout *out);

#endif /* HD_TRANSFORMER_LAYOUT_H */
