/*
 * plugins/kernels/transformer/stage.h - the inside of the stage program.
 *
 * Everything that lies in a region of the core is found by arithmetic on the spec:
 *
 *   parameters   per weight a master, and a copy where the GEMMs want another dtype
 *   optimizer    per weight two moments
 *   gradients    two regions, by group
 *   payload      the stamp, then a section a block, then what the head keeps
 *   scratch      a section (for evaluation), lines of the phase that runs, the ops'
 *
 *   payload | stamp | r1 rq .. gate_up | x r1 rq .. gate_up | .. | x_n rf lse |
 *           0      256      block 0           block 1               has_head
 *
 * The first block has no x of its own: its input is the input slot, or is embedded
 * again.  So section i starts where its x would be; block 0's x is never touched.
 *
 * What recomputation drops from the payload has its line in scratch, in the one section
 * there that has all lines: a forward writes it and forgets it, a backward makes it again.
 *
 * With two half batches everything here is of one half: the spec's batch, the tensors,
 * the payload.  pass.c runs the halves one after the other.
 */
#ifndef HD_TRANSFORMER_STAGE_H
#define HD_TRANSFORMER_STAGE_H

#include "transformer.h"

#include <stddef.h>

#define HD_LINE_BYTES  256u /* where a line of payload or scratch starts */
#define HD_STAMP_MAGIC 0x706d617473646821ull
#define HD_NOT_KEPT    UINT64_MAX

/* What a forward retains of one block, in the order of the payload. */
enum hd_line {
    HD_LINE_X,
    HD_LINE_R1,
    HD_LINE_RQ,
    HD_LINE_RK,
    HD_LINE_R2,
    HD_LINE_Q,
    HD_LINE_K,
    HD_LINE_V,
    HD_LINE_O,
    HD_LINE_LSE,
    HD_LINE_X1,
    HD_LINE_P,
    HD_LINE_Z,
    HD_LINE_GATES,
    HD_LINE_SELECTED,
    HD_LINE_ROW_OF,
    HD_LINE_COUNTS,
    HD_LINE_OFFSETS,
    HD_LINE_SOURCE,
    HD_LINE_ROWS,   /* A, or E4M3 ... */
    HD_LINE_SCALES, /* ... with its E8M0, rowwise */
    HD_LINE_GATE_UP,
    HD_LINE_COUNT
};

/* What the head retains, once, behind the blocks. */
enum hd_head_line { HD_HEAD_X, HD_HEAD_RSTD, HD_HEAD_LSE, HD_HEAD_COUNT };

/* What lives within one pass only.  The phases after DX1 lie over each other. */
enum hd_work {
    HD_WORK_TERMS, /* of the second half batch */
    HD_WORK_SLAB,  /* MXFP8: 32 quantised rows, see mxfp8.c */
    HD_WORK_G,     /* gradient of the residual stream, between blocks */
    HD_WORK_DX1,   /* and between the two halves of a block */
    HD_WORK_XN,    /* normed input of attention, experts or head */
    HD_WORK_QN,    /* attention */
    HD_WORK_KN,
    HD_WORK_DO,
    HD_WORK_DQ,
    HD_WORK_DK,
    HD_WORK_DV,
    HD_WORK_SUM, /* S: the input gradients of q, k and v, so far */
    HD_WORK_DXR, /* experts: S, the router's part of dxn */
    HD_WORK_DXN,
    HD_WORK_DGATES,
    HD_WORK_WIDE,         /* [R,d]: y, dz, drows */
    HD_WORK_E,            /* [R,f]: h, e */
    HD_WORK_WEIGHTED,     /* [R,f] */
    HD_WORK_DGATE_UP,     /* [R,2f] */
    HD_WORK_WIDE_COLUMNS, /* MXFP8, quantised down the rows: dz, then the rows */
    HD_WORK_DGATE_UP_COLUMNS,
    HD_WORK_IMAGE_A, /* MXFP8 of a dense block: both operands of one product */
    HD_WORK_IMAGE_B,
    HD_WORK_COUNT
};

/* One weight as it is stored: the experts of a block are one. */
enum hd_weight {
    HD_WEIGHT_EMBED,
    HD_WEIGHT_NORM1,
    HD_WEIGHT_Q,
    HD_WEIGHT_K,
    HD_WEIGHT_V,
    HD_WEIGHT_QNORM,
    HD_WEIGHT_KNORM,
    HD_WEIGHT_O,
    HD_WEIGHT_NORM2,
    HD_WEIGHT_ROUTER,
    HD_WEIGHT_GATE_UP, /* [E, 2f, d], the gate's rows first */
    HD_WEIGHT_DOWN,    /* [E, d, f] */
    HD_WEIGHT_NORM,
    HD_WEIGHT_HEAD,
    HD_WEIGHT_COUNT
};

/* Shape and place of a weight; byte offsets of block 0, each block adds the strides. */
struct hd_weight_place {
    uint64_t experts, rows, columns; /* count 0: this stage has no such weight */
    uint32_t group, is_matrix, has_copy, in_block;
    uint64_t count; /* elements */
    uint64_t master, copy, dgrad_copy, moment1, moment2, gradient;
};

/* All arithmetic of a stage, once. */
struct hd_layout {
    uint64_t activation_bytes, statistic_bytes; /* of one element */
    uint32_t is_mxfp8, is_mxfp8_dense; /* experts in MXFP8; or the feed-forward of a dense block */
    uint32_t term_count;
    uint64_t tokens, key_value_width, row_max;
    struct hd_weight_place weights[HD_WEIGHT_COUNT];
    uint64_t parameter_stride, optimizer_stride, gradient_stride[HD_GROUP_COUNT];
    uint64_t parameter_bytes, optimizer_bytes, gradient_bytes[HD_GROUP_COUNT];
    uint64_t line[HD_LINE_COUNT]; /* offsets in the section in scratch */
    uint64_t kept[HD_LINE_COUNT]; /* and in those of the payload, or HD_NOT_KEPT */
    uint64_t section_bytes, kept_stride, first_shift;
    uint64_t head[HD_HEAD_COUNT]; /* offsets in the payload */
    uint64_t payload_bytes;
    uint64_t work[HD_WORK_COUNT]; /* offsets in scratch; the section is at 0 */
    uint64_t ops_scratch, ops_scratch_bytes, scratch_bytes;
};

struct hd_kernel {
    const struct hd_host *host;
    struct hd_ops_device *device;
    int checks_stamps; /* the option */
};

struct hd_stage {
    struct hd_kernel *kernel;
    const struct hd_ops *ops;
    struct hd_stage_spec spec; /* defaults filled in */
    struct hd_layout layout;
    struct hd_stage_memory memory;
    uint64_t spec_hash;
    void *cosine, *sine; /* S [sequence, c/2], owned */
};

/* One block of one pass. */
struct hd_frame {
    const struct hd_stage *stage;
    const struct hd_pass *pass;
    char *kept;     /* the block's lines in the payload; NULL when evaluating */
    char *section;  /* all lines, in scratch */
    uint32_t block; /* within the stage */
};

/* --- spec.c ------------------------------------------------------------------------------ */

/* Reads min(size, own), fills in defaults; UNSUPPORTED after host->fail if not served.  `batch` of
   the result is that of a half where there are two. */
hd_status hd_spec_read(const struct hd_host *host, const struct hd_stage_spec *given,
                       struct hd_stage_spec *out);
uint64_t hd_spec_hash(const struct hd_stage_spec *spec, const struct hd_ops *ops);
/* Addends of the loss: two a routed block, one with the head. */
uint32_t hd_term_count(const struct hd_stage_spec *spec);
/* Multiply-adds of a forward, times two; a backward has twice as many.  The formula, and what it
   leaves out: docs/benchmarks.md. */
double hd_spec_forward_flops(const struct hd_stage_spec *spec);
/* What the payload of a pass begins with. */
struct hd_stamp hd_stamp_of(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half,
                            uint64_t row_count);
/* Reports and returns `status`. */
hd_status hd_refuse(const struct hd_host *host, hd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- layout.c ---------------------------------------------------------------------------- */

void hd_layout_make(const struct hd_stage_spec *spec, const struct hd_ops *ops,
                    struct hd_layout *out);

/* --- tensors.c --------------------------------------------------------------------------- */

uint32_t hd_tensor_count(const struct hd_stage_spec *spec);
hd_status hd_stage_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out);
hd_status hd_stage_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                               void *host);
hd_status hd_stage_norms(struct hd_stage *stage, double *squared);
hd_status hd_stage_update(struct hd_stage *stage, const struct hd_update *update);

/* --- pass.c: a pass is read, checked, and run by halves ----------------------------------- */

hd_status hd_stage_forward(struct hd_stage *stage, const struct hd_pass *given);
hd_status hd_stage_backward(struct hd_stage *stage, const struct hd_pass *given);

/* --- forward.c, backward.c --------------------------------------------------------------- */

/* payload[0] is the half's own; `row_count` gets the rows of experts in all blocks. */
hd_status hd_forward_half(struct hd_stage *stage, const struct hd_pass *pass, uint64_t *row_count);
hd_status hd_backward_half(struct hd_stage *stage, const struct hd_pass *pass);
/* Makes again what recomputation dropped, from the block's input; leaves the normed input of the
   experts in [xn]. */
hd_status hd_recompute_block(const struct hd_frame *frame, const void *x);

/* x [T,d] -> [xn], with its statistic in `rstd`; the same call serves forward and backward. */
hd_status hd_norm_rows(const struct hd_frame *frame, enum hd_weight weight, const void *x, void *y,
                       void *rstd);
/* q, k of the section -> [qn], [kn] after norm and RoPE. */
hd_status hd_rotate(const struct hd_frame *frame);
struct hd_rope_args hd_rope_of(const struct hd_stage *stage, void *x, uint32_t heads,
                               uint32_t inverse);
struct hd_attention_args hd_attention_of(const struct hd_frame *frame);
struct hd_route_args hd_route_of(const struct hd_frame *frame);
struct hd_rows_args hd_rows_of(const struct hd_frame *frame);
struct hd_swiglu_args hd_swiglu_of(const struct hd_frame *frame);
/* The experts' GEMM, or with experts 0 the one of the dense block, over all tokens. */
hd_status hd_gemm_experts(const struct hd_frame *frame, struct hd_gemm_args *args);

/* Addresses. */
void *hd_line_at(const struct hd_frame *frame, enum hd_line line);
void *hd_work_at(const struct hd_stage *stage, enum hd_work work);
void *hd_head_at(const struct hd_stage *stage, const struct hd_pass *pass, enum hd_head_line line);
void *hd_master_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);
void *hd_copy_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);
void *hd_gradient_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);
struct hd_frame hd_frame_at(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint32_t block);

/* Matrices: an activation, a statistic, a weight's copy, a weight's gradient. */
struct hd_matrix hd_activation(const struct hd_stage *stage, const void *data, uint64_t rows,
                               uint64_t columns);
struct hd_matrix hd_statistic(const struct hd_stage *stage, const void *data, uint64_t rows,
                              uint64_t columns);
struct hd_matrix hd_weight_matrix(const struct hd_frame *frame, enum hd_weight weight);
/* The copy that a DGRAD contracts over: another one than FPROP's in MXFP8. */
struct hd_matrix hd_dgrad_matrix(const struct hd_frame *frame, enum hd_weight weight);
struct hd_matrix hd_gradient_matrix(const struct hd_frame *frame, enum hd_weight weight);

#endif /* HD_TRANSFORMER_STAGE_H */
