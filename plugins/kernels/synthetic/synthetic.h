/*
 * plugins/kernels/synthetic/synthetic.h - what its files share.
 *
 *   synthetic.c   the descriptor, what a stage needs, and where a pass goes
 *   pass.c        a pass, on memory that can be touched: what is checked, and what is written
 *   model.c       option model: what a run can be told by
 *   device.c, device_pass.c
 *                 memory = cuda: memory, stream and marks of CUDA's, and the same passes there;
 *                 empty without its headers
 */
#ifndef SYNTHETIC_H
#define SYNTHETIC_H

#include <heddle/kernel.h>

#include <stdatomic.h>

enum synthetic_option {
    OPTION_CHECK = 0,
    OPTION_BOUNDARY_BYTES = 1,
    OPTION_MODEL = 2,
    OPTION_MEMORY = 3, /* from here on only with CUDA */
    OPTION_CUDA_RUNTIME = 4,
};

enum { SYNTHETIC_TENSOR_VALUES = 16 };

struct synthetic_device;
struct synthetic_bounce;

/* What allocate has given. */
struct synthetic_region {
    struct synthetic_region *next;
    void *memory;
    uint64_t bytes;
    const char *tag;
};

struct hd_kernel {
    const struct hd_host *host;
    struct synthetic_device *device; /* NULL: the host's memory, at once */
    struct synthetic_region *regions;
    uint64_t mark_count; /* without a device all of them are passed */
};

/* With option model: [block_count, values] each, moments twice. */
struct synthetic_memory {
    float *parameters, *moments, *gradients;
};

struct hd_stage {
    const struct hd_host *host;
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    uint64_t boundary_words; /* of 8 bytes; a tail stays unwritten only when check is off */
    uint32_t is_checked, has_model;
    struct synthetic_memory memory;  /* the core's regions */
    struct synthetic_memory touch;   /* where this host can touch them, or their images */
    const atomic_int *is_aborted;    /* ends its sleep; NULL: nothing does */
    struct synthetic_bounce *bounce; /* device.c */
};

/* What a forward retains. */
struct synthetic_payload {
    uint64_t magic, generation;
    uint64_t input_word;    /* the input's word 0 */
    uint64_t gradient_word; /* of the output's gradient: kept by I for W */
};

/* Does all of it, and returns when it is over; kind is enum hd_action_kind.  [any-thread] */
hd_status synthetic_pass(const struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass);

/* model.c, on what can be touched. */
uint64_t synthetic_mix(uint64_t a, uint64_t b);
uint64_t synthetic_model_forward(const struct hd_stage *stage, uint64_t word, uint32_t block_count);
double synthetic_model_term(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint64_t word);
uint64_t synthetic_model_first_gradient(const struct hd_stage *stage, const struct hd_pass *pass,
                                        uint64_t input_word);
uint64_t synthetic_model_backward(const struct hd_stage *stage, uint64_t input_word,
                                  uint64_t gradient, float *gradients); /* NULL: none is added */
void synthetic_model_norms(const struct hd_stage *stage, double *squared);
void synthetic_model_update(const struct hd_stage *stage, const struct hd_update *update);
hd_status synthetic_model_tensor(const struct hd_stage *stage, uint32_t index,
                                 struct hd_tensor *out);
float *synthetic_model_copy(const struct synthetic_memory *memory, uint32_t block_count,
                            uint32_t index, uint32_t copy); /* NULL: there is none */

/* The device.  Its open reports, its pass enqueues; all others are as in struct hd_kernel_ops. */
hd_status synthetic_device_open(struct hd_kernel *kernel, uint32_t ordinal,
                                struct hd_device *device);
void synthetic_close(struct hd_kernel *kernel); /* all but the kernel itself */
uint64_t synthetic_device_stage_bytes(const struct hd_stage_spec *spec, uint64_t boundary_bytes,
                                      uint32_t has_model);
hd_status synthetic_device_norms(struct hd_stage *stage, double *squared);
hd_status synthetic_device_update(struct hd_stage *stage, const struct hd_update *update);
/* Waits. */
hd_status synthetic_device_values(struct hd_stage *stage, float *values, void *host, uint32_t into);
hd_status synthetic_device_stage_create(struct hd_stage *stage);
/* 0: after an abort the stream may still touch the stage, so it stays. */
uint32_t synthetic_device_stage_destroy(struct hd_stage *stage);
hd_status synthetic_device_pass(struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass);

void synthetic_abort(struct hd_kernel *kernel);
hd_status synthetic_allocate(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out);
hd_status synthetic_copy(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                         uint32_t fill);
hd_status synthetic_mark(struct hd_kernel *kernel, uint64_t *mark);
hd_status synthetic_reached(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                            uint64_t *passed_ns);

#endif /* SYNTHETIC_H */
