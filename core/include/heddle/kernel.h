/*
 * heddle/kernel.h - the contract between the core and a kernel plugin.
 *
 * A kernel plugin answers one question: what does a stage compute?  It knows blocks, element types
 * and one device; it knows no rank, no schedule and no neighbour.  The core decides which pass runs
 * on which buffers, and when a buffer is free again.  The same ops table serves a plain C
 * reference, a CPU library, a device with streams, a vendor's binary that implements whole stages,
 * and a synthetic plugin that sleeps and fills patterns (no tensors, no terms, a payload of a few
 * bytes).
 *
 *   kernel    one opened device, with one compute stream
 *   region    device memory that the plugin allocates and the core hands out: parameters, optimizer
 *             state, gradients, scratch, payload pools
 *   payload   what a forward retains for its backward; the plugin defines the content, the core the
 *             lifetime (a lease on a slot)
 *   boundary  the tensor between two blocks, [batch, sequence, width]
 *   term      one weighted addend of the loss
 *   mark      a point in the compute stream that the host can wait for
 *
 * The laws, which `heddle conform` tests:
 *
 *   K1 ordered      operations take effect on the compute stream in the order of the calls, and may
 *                   return earlier; only open, close, allocate, stage_create, tensor_copy and
 *                   reached may block
 *   K2 frugal       nothing is allocated after stage_create
 *   K3 repeatable   the bits of a result depend on the spec, the parameters and the content of the
 *                   arguments; never on an address, a slot, another microbatch, a thread count or a
 *                   clock
 *   K4 splittable   blocks [a,c) give the same bits as [a,b) and then [b,c): activation and
 *                   gradient are rounded to the boundary's type after every block, and terms and
 *                   tensors are listed per block and never summed across blocks; so every split
 *                   adds in one order
 *   K5 additive     a backward adds to the gradients; B gives the same bits as I and then W;
 *                   nothing else writes gradients; the core zeroes them before every step and runs
 *                   the backwards of a stage in ascending microbatch order
 *   K6 write-once   output and input_gradient may be memory of a peer: each byte is written exactly
 *                   once and never read; input, tokens, targets and output_gradient are never
 *                   written
 *   K7 leased       payload and input belong to the microbatch until its B (or W; forward-only: its
 *                   F) ends, output_gradient until its B (or I) ends; no address is kept beyond its
 *                   pass, so I copies what W needs into the payload; forward stamps the payload
 *                   with the generation of the lease, and every later pass checks the stamp
 *   K8 loud         a non-finite value is not an error and is never repaired: it reaches a term or
 *                   a norm, which the core checks; an index that is computed from a NaN, or read
 *                   from a payload, stays in range
 *
 * Growth.  Structs and the ops table only get new members at their end.  The first member, `size`,
 * is the size that the caller knows (in the table: the plugin).  The other side reads or writes
 * min(size, its own size) bytes; the rest counts as zero, which means the default or "not
 * implemented".  A change of meaning raises HD_ABI_MAJOR.
 *
 * Sources: the report, sections 6.3 and 6.4 (docs/sources.md says which report that is);
 * Muennighoff et al. 2024 (OLMoE).
 */
#ifndef HEDDLE_KERNEL_H
#define HEDDLE_KERNEL_H

#include <heddle/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The precision of the GEMMs of the feed-forward, dense or experts. */
enum hd_precision {
    HD_PRECISION_BF16 = 0,  /* operands in bfloat16 */
    HD_PRECISION_MXFP8 = 1, /* operands in E4M3 with one E8M0 scale for 32 elements */
    HD_PRECISION_F32 = 2,   /* float32 */
};

struct hd_kernel; /* one opened device; the plugin defines it */
struct hd_stage;  /* one stage on that device; the plugin defines it */

#define HD_ACQUISITION_MAX 2u    /* payload slots that one forward may lease */
#define HD_DIMENSION_MAX   4u    /* dimensions of a named tensor */
#define HD_TENSOR_NAME_MAX 128u  /* bytes of a name, with the final zero */
#define HD_MARK_MAX        4096u /* marks that are not yet passed */

/* Groups of gradients.  Each group is one contiguous region, reduced over its own ranks. */
enum hd_group {
    HD_DENSE = 0,       /* every tensor but those of the experts */
    HD_EXPERT = 1,      /* the tensors of the experts */
    HD_GROUP_COUNT = 2, /* the number of groups */
};

/* What a backward computes again instead of reading it from the payload. */
enum hd_recompute {
    HD_RECOMPUTE_NONE = 0,    /* nothing */
    HD_RECOMPUTE_FULL = 1,    /* everything: the payload keeps only the input of each block */
    HD_RECOMPUTE_EXPERTS = 2, /* the pre-activations of the experts */
};

/* The initial value of a tensor.  The core draws it, keyed by tensor name and element index. */
enum hd_initial {
    HD_INITIAL_ZERO = 0,
    HD_INITIAL_ONE = 1,
    HD_INITIAL_NORMAL = 2, /* normal with deviation init_std */
};

/* The copies of a tensor that a checkpoint, an import or a test reads or writes. */
enum hd_copy {
    HD_MASTER = 0,   /* the parameter in full precision */
    HD_MOMENT1 = 1,  /* the first moment of AdamW */
    HD_MOMENT2 = 2,  /* the second moment of AdamW */
    HD_GRADIENT = 3, /* the gradient */
};

/* In hd_plugin.capabilities: what the binary can do.  In hd_device: what it does on this device. */
enum hd_kernel_capability {
    HD_KERNEL_STREAM = 1,       /* asynchronous: hd_device.stream is not NULL */
    HD_KERNEL_PEER_OUTPUT = 2,  /* writes output directly into mapped memory of a peer (K6) */
    HD_KERNEL_RECOMPUTE = 4,    /* all values of enum hd_recompute */
    HD_KERNEL_MXFP8_NATIVE = 8, /* block-scaled GEMMs; with the next bit, only for some products */
    HD_KERNEL_MXFP8_EMULATED = 16 /* dequantises to BF16, which the run header says */
};

/* What open reports about a device. */
struct hd_device {
    uint32_t size;         /* sizeof(struct hd_device) in the core */
    uint32_t memory;       /* enum hd_memory, of every address in a pass */
    uint64_t capabilities; /* enum hd_kernel_capability */
    uint64_t alignment;    /* in bytes, of every address that the core passes; a power of two, at
                              most 4096 */
    void *stream;          /* the compute stream, owned by the plugin, which a transport orders its
                              work against; NULL without HD_KERNEL_STREAM */
    const char *effective; /* "cuda:0 sm_90, MXFP8 emulated in BF16"; static */
};

/* One stage of one model.  The core has checked ranges and divisibility.  The names are those of
   OLMoE (Muennighoff et al. 2024). */
struct hd_stage_spec {
    uint32_t size;                                  /* sizeof(struct hd_stage_spec) in the core */
    uint32_t layers, width, heads, key_value_heads; /* key_value_heads 0: equal to heads */
    uint32_t experts, experts_per_token;            /* experts 0: a dense SwiGLU */
    uint32_t expert_width, vocabulary, sequence, batch;
    uint32_t normalize_gates;                  /* OLMoE: 0 */
    double rope_theta, norm_epsilon, init_std; /* OLMoE: 1e4, 1e-5, 0.02 */
    double balance_weight, z_weight;           /* OLMoE: 0.01, 0.001 */
    uint32_t precision;                        /* enum hd_precision, of the feed-forward */
    uint32_t recompute;                        /* enum hd_recompute */
    uint32_t stage, first_block, block_count;  /* blocks [first_block, first + count) */
    uint32_t has_embedding, has_head;          /* by the stage's identity, never by rank */
    uint32_t split_backward;                   /* 1: I and W run instead of B */
    uint32_t expert_first, expert_count;       /* this rank's shard; in v1: 0 and experts */
    uint32_t scale_rule;                       /* MXFP8: 0 rounds a scale up, 1 down */
    uint32_t half_batches;                     /* 1; 2: two-batch overlap, two acquisitions */
    double forward_us, backward_us;            /* how long a pass of this stage should last, in */
    double input_gradient_us, weight_gradient_us; /* us, for a kernel that only sleeps; else 0 */
};

/* Exact sizes, from arithmetic alone: `heddle run --dry-run` prints what a run allocates. */
struct hd_stage_needs {
    uint32_t size;                     /* sizeof(struct hd_stage_needs) in the core */
    uint32_t tensor_count, term_count; /* named tensors; terms of one forward */
    uint32_t boundary_dtype;           /* HD_BF16; HD_F32 or HD_F64 only with HD_PRECISION_F32 */
    uint64_t boundary_bytes, parameter_bytes, optimizer_bytes;
    uint64_t gradient_bytes[HD_GROUP_COUNT];
    uint64_t payload_bytes; /* of one slot, with the worst routing; never 0, because of the stamp */
    uint64_t scratch_bytes; /* one region serves all stages of a rank: no pass leaves data in it */
    uint64_t private_bytes; /* what the plugin allocates beyond the regions, for the report */
    double forward_flops, backward_flops; /* of one microbatch */
    uint32_t acquisitions; /* slots that one forward leases: 1, or 2 with two-batch overlap */
    uint32_t reserved;     /* 0 */
    uint64_t memory;       /* enum hd_memory, as open will report it, so that a run can choose its
                              transport before open; since 1.2 */
};

/* The regions of one stage, each at least as large as needed, borrowed until stage_destroy.  The
   core fills optimizer (zero moments) and gradients with zeros; the rest is uninitialised. */
struct hd_stage_memory {
    uint32_t size; /* sizeof(struct hd_stage_memory) in the core */
    void *parameters, *optimizer, *scratch;
    void *gradients[HD_GROUP_COUNT];
};

/*
 * The arguments of one pass; every address is borrowed under the lease of K7.  If a stage does not
 * have a tensor, its address is NULL: a stage with has_embedding has no input and no
 * input_gradient, a stage with has_head no output and no output_gradient.  If all payloads are
 * NULL, the pass is an evaluation: it gives the same bits and retains nothing.
 */
struct hd_pass {
    uint32_t size;       /* sizeof(struct hd_pass) in the core */
    uint32_t microbatch; /* for messages; no result depends on it (K3) */
    uint64_t generation; /* of the payload's lease (K7) */
    void *payload[HD_ACQUISITION_MAX];
    const void *input;           /* [batch, sequence, width] in boundary_dtype, in the transport's
                                    slot */
    const int32_t *tokens;       /* [batch, sequence], if has_embedding */
    const int32_t *targets;      /* [batch, sequence], if has_head; negative: no label */
    void *output;                /* [batch, sequence, width]; forward only */
    double *terms;               /* [term_count], forward only: balance and z of each routed block,
                                    then, if has_head, the cross-entropy; the loss is their sum
                                    over blocks, then over microbatches, in ascending order */
    const void *output_gradient; /* [batch, sequence, width]; B and I */
    void *input_gradient;        /* [batch, sequence, width]; B and I */
    double label_scale;          /* 1 / the labels of the whole step, all ranks and microbatches */
    double auxiliary_scale;      /* 1 / the microbatches of the whole step, all ranks */
};

/* One named tensor, as checkpoint, import, initialisation and norm see it.  The global order of
   tensors is by stage, then by index. */
struct hd_tensor {
    uint32_t size;           /* sizeof(struct hd_tensor) in the core */
    uint32_t dtype;          /* of all four copies at the host: HD_F32 or HD_F64 */
    uint32_t group, initial; /* enum hd_group, enum hd_initial */
    uint32_t decays;         /* 1: weight decay applies */
    uint32_t dimension_count;
    uint64_t shape[HD_DIMENSION_MAX]; /* [dimension_count], row-major */
    uint64_t gradient_offset;         /* in bytes, in the group's region; rows are contiguous */
    char name[HD_TENSOR_NAME_MAX];    /* global, "model.layers.3.self_attn.q_proj.weight" */
};

/* The arguments of one AdamW update. */
struct hd_update {
    uint32_t size; /* sizeof(struct hd_update) in the core */
    uint32_t step; /* counts from 1, for the bias correction */
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; /* the factor of clipping; 1: not clipped */
};

/*
 * What a kernel plugin supplies as hd_plugin.ops.  One thread at a time calls it, except for abort.
 * A synchronous plugin that computes in host memory leaves abort, allocate, copy, mark and reached
 * NULL: the core then allocates, copies and reads the clock itself.
 */
struct hd_kernel_ops {
    uint32_t size; /* sizeof(struct hd_kernel_ops), as the plugin was compiled */

    /* Opens device `ordinal`, the local rank, and fills `device`.  Sets *out only on success.
       HD_UNSUPPORTED if there is no such device. [setup] */
    hd_status (*open)(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                      struct hd_kernel **out);
    /* Waits for the compute stream, then frees kernel and regions; leaks them after abort.  Takes
       NULL. [setup] */
    void (*close)(struct hd_kernel *kernel);
    /* Makes every wait return an error within 1 ms.  Never blocks. [any-thread] */
    void (*abort)(struct hd_kernel *kernel);

    /* Allocates a region of the device's memory, accounted under `tag` (static), owned by the
       plugin until close.  A transport may allocate its arenas itself.  HD_NO_MEMORY. [setup] */
    hd_status (*allocate)(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out);
    /* Copies `bytes` within or between host and device.  If `source` is NULL, fills `target` with
       the byte `fill`: 0 zeroes gradients, 0xFF poisons (NaN in every float type here).  Host
       memory must stay valid until a later mark.  The core uses few host buffers, which begin at a
       page and stay the same, so that a plugin can pin them when it first sees them. */
    hd_status (*copy)(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                      uint32_t fill);
    /* Enqueues a mark behind all work so far; marks count from 1.  HD_BUSY if HD_MARK_MAX marks are
       not yet passed. */
    hd_status (*mark)(struct hd_kernel *kernel, uint64_t *mark);
    /* Waits until `mark` is passed.  HD_OK with the time when it was passed, on the host's clock,
       for the trace; HD_IN_PROGRESS after timeout_ns (0 only tests).  If an earlier pass has failed
       on the device, reports that. */
    hd_status (*reached)(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                         uint64_t *passed_ns);

    /* Computes the sizes of a stage.  Pure, and needs no device, so that dry runs can use it: the
       worst case over all devices that the plugin supports.  If it does not support the model, it
       refuses with a sentence and the remedy: HD_UNSUPPORTED. [setup] [any-thread] */
    hd_status (*stage_needs)(const struct hd_host *host, const struct hd_stage_spec *spec,
                             struct hd_stage_needs *needs);
    /* Binds the regions and chooses algorithms by shape.  The parameters stay uninitialised until
       tensor_copy writes them. [setup] */
    hd_status (*stage_create)(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                              const struct hd_stage_memory *memory, struct hd_stage **out);
    /* Destroys a stage.  Takes NULL. [setup] */
    void (*stage_destroy)(struct hd_stage *stage);

    /* Describes tensor `index`, 0 .. tensor_count-1. */
    hd_status (*tensor)(struct hd_stage *stage, uint32_t index, struct hd_tensor *out);
    /* Reads (into = 0) or writes (into = 1) one whole copy, enum hd_copy, in row-major order, and
       waits.  Writing a master also renews what is derived from it (BF16 and MXFP8 copies). 
       Initial values are written this way too: the core draws them, so all plugins start from the
       same bits. */
    hd_status (*tensor_copy)(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host);

    /* forward retains the payload and writes output and terms; backward computes both gradients in
       one pass.  `pass` is borrowed for the call. [step] */
    hd_status (*forward)(struct hd_stage *stage, const struct hd_pass *pass);
    hd_status (*backward)(struct hd_stage *stage, const struct hd_pass *pass);
    /* The input gradient (I) and the weight gradients (W).  Both are set or both NULL; if NULL, a
       plan with I or W is refused (exit code 4). [step] */
    hd_status (*backward_input)(struct hd_stage *stage, const struct hd_pass *pass);
    hd_status (*backward_weight)(struct hd_stage *stage, const struct hd_pass *pass);

    /* Writes the sum of the squared gradients of each tensor, in float64, to device memory
       `squared`, [tensor_count]. [step] */
    hd_status (*norms)(struct hd_stage *stage, double *squared);
    /* Applies AdamW to the masters and renews what is derived from them; leaves the gradients
       unchanged. [step] */
    hd_status (*update)(struct hd_stage *stage, const struct hd_update *update);
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_KERNEL_H */
