/*
 * heddle/kernel.h - the contract between the core and a kernel plugin.
 *
 * A kernel plugin answers one question: what does a stage compute?  It knows
 * blocks, dtypes and one device; it knows no rank, schedule or neighbour.  The
 * core says which pass to run on which buffers, and when a buffer is free again.
 * One table serves a plain C reference, a CPU library, a stream-ordered device,
 * a vendor's binary that has whole stages, and a synthetic plugin that sleeps
 * and fills patterns (no tensors, no terms, a payload of a few bytes).
 *
 *   kernel    one opened device, with one compute stream
 *   region    device memory that the plugin allocates and the core hands out:
 *             parameters, optimizer state, gradients, scratch, payload pools
 *   payload   what a forward retains for its backward; the inside is the
 *             plugin's, the lifetime (a lease on a slot) is the core's
 *   boundary  the tensor between two blocks, [batch, sequence, width]
 *   term      one weighted addend of the loss
 *   mark      a point in the compute stream for which the host can wait
 *
 * The laws, which `heddle conform` judges:
 *
 *   K1 ordered      operations take effect in the order of the calls, on the
 *                   compute stream, and may return before; only open, close,
 *                   allocate, stage_create, tensor_copy and reached may block
 *   K2 frugal       nothing is allocated after stage_create
 *   K3 repeatable   the bits of a result depend on the spec, the parameters and
 *                   the contents of the arguments; never on an address, a slot,
 *                   another microbatch, a thread count or a clock
 *   K4 splittable   blocks [a,c) give the bits of [a,b) then [b,c): activation
 *                   and gradient are rounded to the boundary's dtype after every
 *                   block, terms and tensors are listed per block and never
 *                   summed across blocks; so every split adds in one order
 *   K5 additive     a backward adds to the gradients, B the same bits as I then
 *                   W, and nothing else writes them; the core zeroes them before
 *                   every step and runs a stage's backwards in ascending microbatch
 *                   order
 *   K6 write-once   output and input_gradient may lie in a peer's memory: each
 *                   byte is written exactly once and never read; input, tokens,
 *                   targets and output_gradient are never written
 *   K7 leased       payload and input belong to the microbatch until its B (or
 *                   W; forward-only: its F) is over, output_gradient until its B (or I); no address
 *                   outlives its pass, so what W needs, I puts in the payload;
 *                   forward stamps the payload with the generation of the lease
 *                   and every later pass checks the stamp
 *   K8 loud         a non-finite value is no error and is never repaired: it
 *                   reaches a term or a norm, where the core looks.  An index
 *                   computed from a NaN, or read from a payload, stays in range
 *
 * Growth: structs and table are only appended to.  `size` comes first and is
 * the room of the caller (of the table: the plugin); the other side reads or
 * writes min(size, its own), the rest counts as zero, and zero or NULL means
 * the default or not implemented.  Another meaning raises HD_ABI_MAJOR.
 *
 * Sources: the report, sections 6.3 and 6.4; Muennighoff et al. 2024 (OLMoE).
 */
#ifndef HEDDLE_KERNEL_H
#define HEDDLE_KERNEL_H

#include <heddle/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the GEMMs of the feed-forward, experts or dense, are computed in. */
enum hd_precision { HD_PRECISION_BF16 = 0, HD_PRECISION_MXFP8 = 1, HD_PRECISION_F32 = 2 };
struct hd_kernel; /* the plugin's own: one opened device ... */
struct hd_stage;  /* ... and one stage on it */

#define HD_ACQUISITION_MAX 2u    /* payload slots that one forward may lease */
#define HD_DIMENSION_MAX   4u    /* of a named tensor */
#define HD_TENSOR_NAME_MAX 128u  /* bytes, with the final zero */
#define HD_MARK_MAX        4096u /* marks not yet reached */

/* Each is one contiguous gradient region, reduced over its own ranks. */
enum hd_group { HD_DENSE = 0, HD_EXPERT = 1, HD_GROUP_COUNT = 2 };
/* FULL keeps each block's input; EXPERTS drops the experts' pre-activations only. */
enum hd_recompute { HD_RECOMPUTE_NONE = 0, HD_RECOMPUTE_FULL = 1, HD_RECOMPUTE_EXPERTS = 2 };
/* Normal has deviation init_std; the core draws it, keyed by name and element index. */
enum hd_initial { HD_INITIAL_ZERO = 0, HD_INITIAL_ONE = 1, HD_INITIAL_NORMAL = 2 };
/* The copies of a tensor that a checkpoint, an import or a test asks for. */
enum hd_copy { HD_MASTER = 0, HD_MOMENT1 = 1, HD_MOMENT2 = 2, HD_GRADIENT = 3 };
/* In the descriptor what the binary can do, in hd_device what it will do here. */
enum hd_kernel_capability {
    HD_KERNEL_STREAM = 1,         /* asynchronous: hd_device.stream is not NULL */
    HD_KERNEL_PEER_OUTPUT = 2,    /* writes output straight into a mapped peer (K6) */
    HD_KERNEL_RECOMPUTE = 4,      /* all of enum hd_recompute */
    HD_KERNEL_MXFP8_NATIVE = 8,   /* block-scaled GEMM; with the next one: for some products */
    HD_KERNEL_MXFP8_EMULATED = 16 /* dequantised to BF16, which the run header says */
};

/* What open reports.  No CUDA type crosses: a stream is its handle, as a void pointer. */
struct hd_device {
    uint32_t size;
    uint32_t memory;       /* enum hd_memory: the kind of every address in a pass */
    uint64_t capabilities; /* enum hd_kernel_capability */
    uint64_t alignment;    /* of every address the core passes; a power of two <= 4096 */
    void *stream;          /* the compute stream, against which a transport orders itself */
    const char *effective; /* "cuda:0 sm_90, MXFP8 emulated in BF16"; static */
};

/* One stage of one model.  The core has checked ranges and divisibility. */
struct hd_stage_spec {
    uint32_t size;
    uint32_t layers, width, heads, key_value_heads; /* key_value_heads 0: as heads */
    uint32_t experts, experts_per_token;            /* experts 0: a dense SwiGLU */
    uint32_t expert_width, vocabulary, sequence, batch;
    uint32_t normalize_gates;                     /* OLMoE: 0 */
    double rope_theta, norm_epsilon, init_std;    /* OLMoE: 1e4, 1e-5, 0.02 */
    double balance_weight, z_weight;              /* OLMoE: 0.01, 0.001 */
    uint32_t precision;                           /* enum hd_precision, of the feed-forward */
    uint32_t recompute;                           /* enum hd_recompute */
    uint32_t stage, first_block, block_count;     /* blocks [first, first + count) */
    uint32_t has_embedding, has_head;             /* by stage identity, never by rank */
    uint32_t split_backward;                      /* I and W will run in place of B */
    uint32_t expert_first, expert_count;          /* this rank's shard; v1: 0, experts */
    uint32_t scale_rule;                          /* MXFP8: 0 rounds the scale up, 1 down */
    uint32_t half_batches;                        /* 1; 2: two-batch overlap, two acquisitions */
    double forward_us, backward_us;               /* what a pass of this stage should last, */
    double input_gradient_us, weight_gradient_us; /* for a kernel that only lasts; else 0 */
};

/* Exact bytes, from arithmetic alone: what `heddle run --dry-run` prints is what a run takes. */
struct hd_stage_needs {
    uint32_t size;
    uint32_t tensor_count, term_count;
    uint32_t boundary_dtype; /* HD_BF16; HD_F32 or HD_F64 only for precision f32 */
    uint64_t boundary_bytes, parameter_bytes, optimizer_bytes;
    uint64_t gradient_bytes[HD_GROUP_COUNT];
    uint64_t payload_bytes; /* of one slot, at the worst routing; never 0 (the stamp) */
    uint64_t scratch_bytes; /* one region serves all stages of a rank: no pass leaves data in it */
    uint64_t private_bytes; /* what the plugin allocates beyond the regions, for the report */
    double forward_flops, backward_flops;
    uint32_t acquisitions; /* slots that one forward leases: 1; 2 under two-batch overlap */
    uint32_t reserved;
    uint64_t memory; /* enum hd_memory, as open will say it: so a run knows its transports (1.2) */
};

/* The regions of one stage, each at least as large as needed; borrowed until stage_destroy.
   The core zero-fills optimizer (zero moments) and gradients; the rest is unset. */
struct hd_stage_memory {
    uint32_t size;
    void *parameters, *optimizer, *scratch;
    void *gradients[HD_GROUP_COUNT];
};

/*
 * One pass.  Where a stage has no such tensor the address is NULL: no input or
 * input_gradient where has_embedding, no output or output_gradient where
 * has_head.  All payloads NULL means evaluation: same bits, nothing retained.
 */
struct hd_pass {
    uint32_t size;
    uint32_t microbatch; /* for messages; no result depends on it (K3) */
    uint64_t generation; /* of the payload's lease (K7) */
    void *payload[HD_ACQUISITION_MAX];
    const void *input;           /* boundary; in the transport's arena, leased (K7) */
    const int32_t *tokens;       /* [batch, sequence], where has_embedding */
    const int32_t *targets;      /* [batch, sequence], where has_head; < 0: no label */
    void *output;                /* boundary; forward only */
    double *terms;               /* [term_count], forward only: per routed block balance and z,
                                    where has_head then the cross-entropy; the loss is
                                    their sum over blocks, then microbatches, ascending */
    const void *output_gradient; /* boundary; B and I */
    void *input_gradient;        /* boundary; B and I */
    double label_scale;          /* 1 / labels of the whole step, all ranks and microbatches */
    double auxiliary_scale;      /* 1 / microbatches of the whole step, all ranks */
};

/* What checkpoint, import, initialisation and norm share.  By stage, then index: global order. */
struct hd_tensor {
    uint32_t size;
    uint32_t dtype;          /* of all four copies on the host side: HD_F32, or HD_F64 */
    uint32_t group, initial; /* enum hd_group, enum hd_initial */
    uint32_t decays;         /* 1: weight decay applies */
    uint32_t dimension_count;
    uint64_t shape[HD_DIMENSION_MAX];
    uint64_t gradient_offset;      /* bytes into the group's region; rows are contiguous */
    char name[HD_TENSOR_NAME_MAX]; /* global, "model.layers.3.self_attn.q_proj.weight" */
};

struct hd_update {
    uint32_t size;
    uint32_t step; /* from 1, for bias correction */
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double gradient_scale; /* the clip factor; 1 if not clipped */
};

/* Called by one thread at a time, but for abort; the descriptor in plugin.h has name and options.
   A synchronous plugin in host memory leaves the five from abort to reached NULL: the core
   allocates, copies and reads the clock itself. */
struct hd_kernel_ops {
    uint32_t size; /* sizeof(struct hd_kernel_ops), as the plugin was compiled */

    /* Opens device `ordinal` (the local rank), fills `device`; error if there is none. [setup] */
    hd_status (*open)(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                      struct hd_kernel **out);
    /* Waits for the stream, then frees kernel and regions; leaks them after abort.  Takes NULL. */
    void (*close)(struct hd_kernel *kernel);
    /* Makes every wait return an error within 1 ms.  Never blocks. [any-thread] */
    void (*abort)(struct hd_kernel *kernel);

    /* A region in the device's memory, freed by close; arenas may be a transport's own. [setup] */
    hd_status (*allocate)(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out);
    /* Copies within or between host and device; source NULL fills with the byte `fill`: 0 zeroes
       gradients, 0xFF poisons (NaN in every float here).  A host side stays until a later mark;
       the core's are few, begin at a page and stay the same, to be pinned when first seen. */
    hd_status (*copy)(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                      uint32_t fill);
    /* Enqueues a mark behind all work so far; marks count from 1.  BUSY past HD_MARK_MAX. */
    hd_status (*mark)(struct hd_kernel *kernel, uint64_t *mark);
    /* OK once `mark` is passed, with the host-clock time of it (for the trace); IN_PROGRESS after
       timeout_ns, 0 tests.  An earlier pass that failed on the device is reported here. */
    hd_status (*reached)(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                         uint64_t *passed_ns);

    /* Pure, and without a device, for dry runs: the worst case of the devices it serves.  A model
       that it cannot serve is refused with a sentence and a remedy. [setup] [any-thread] */
    hd_status (*stage_needs)(const struct hd_host *host, const struct hd_stage_spec *spec,
                             struct hd_stage_needs *needs);
    /* Binds the regions, chooses algorithms by shape; parameters stay unset until written. */
    hd_status (*stage_create)(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                              const struct hd_stage_memory *memory, struct hd_stage **out);
    void (*stage_destroy)(struct hd_stage *stage); /* takes NULL */

    hd_status (*tensor)(struct hd_stage *stage, uint32_t index, struct hd_tensor *out);
    /* Reads (into = 0) or writes (into = 1) one whole copy, row-major, and waits.  Writing a
       master also renews what derives from it (BF16 and MXFP8 copies).  Initial values come
       this way too: the core draws them, so all plugins start from the same bits. */
    hd_status (*tensor_copy)(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host);

    /* F retains, writes output and terms; B does both halves, unsplit. [step] */
    hd_status (*forward)(struct hd_stage *stage, const struct hd_pass *pass);
    hd_status (*backward)(struct hd_stage *stage, const struct hd_pass *pass);
    /* I and W, together or both NULL: a plan with I or W is then refused (exit 4). */
    hd_status (*backward_input)(struct hd_stage *stage, const struct hd_pass *pass);
    hd_status (*backward_weight)(struct hd_stage *stage, const struct hd_pass *pass);

    /* Writes each tensor's sum of squared gradients, in float64, to device memory. */
    hd_status (*norms)(struct hd_stage *stage, double *squared); /* [tensor_count] */
    /* AdamW on the masters, renews what derives from them; leaves the gradients. */
    hd_status (*update)(struct hd_stage *stage, const struct hd_update *update);
};

#ifdef __cplusplus
}
#endif

#endif /* HEDDLE_KERNEL_H */
