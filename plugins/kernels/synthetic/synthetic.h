/*
 * plugins/kernels/synthetic/synthetic.h - the parts of the plugin.
 *
 *   synthetic.c   the descriptor, the needs of a stage, and the dispatch of a pass
 *   pass.c        a pass on host memory: its checks, and what it writes
 *   model.c       option model: numbers that tell two runs apart
 *   device.c, device_pass.c
 *                 memory = cuda: memory, stream and marks of CUDA, and the same passes there;
 *                 empty without the headers of CUDA
 */
#ifndef SYNTHETIC_H
#define SYNTHETIC_H

#include <heddle/kernel.h>

#include <stdatomic.h>
#include <stdbool.h>

enum synthetic_option {
    OPTION_CHECK = 0,
    OPTION_BOUNDARY_BYTES = 1,
    OPTION_MODEL = 2,
    OPTION_MEMORY = 3, /* this and the next only with CUDA */
    OPTION_CUDA_RUNTIME = 4,
};

enum { SYNTHETIC_TENSOR_VALUES = 16 };

struct synthetic_device;
struct synthetic_bounce;

/* The result of one allocate. */
struct synthetic_region {
    struct synthetic_region *next;
    void *memory;
    uint64_t bytes;
    const char *tag;
};

struct hd_kernel {
    const struct hd_host *host;
    struct synthetic_device *device; /* NULL: host memory, without a stream */
    struct synthetic_region *regions;
    uint64_t mark_count; /* without a device every mark has passed */
};

/* With option model: [block_count, values] each, moments twice. */
struct synthetic_memory {
    float *parameters, *moments, *gradients;
};

struct hd_stage {
    const struct hd_host *host;
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    uint64_t boundary_words; /* of 8 bytes */
    bool is_checked, has_model;
    struct synthetic_memory memory;  /* the core's regions */
    struct synthetic_memory touch;   /* the same, or their copies in host memory */
    const atomic_int *is_aborted;    /* ends a sleep; NULL: nothing does */
    struct synthetic_bounce *bounce; /* device.c */
};

/* What a forward saves for its backward. */
struct synthetic_payload {
    uint64_t magic, generation;
    uint64_t input_word;    /* the input's word 0 */
    uint64_t gradient_word; /* of the output's gradient: I saves it for W */
};

/* Leaves the function with the first status that is not OK. */
#define SYNTHETIC_TRY(step)             \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

/* Reports an error to the host, and returns its status. */
hd_status synthetic_report(const struct hd_host *host, hd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs a whole pass, and returns after it; kind is enum hd_action_kind.  [any-thread] */
hd_status synthetic_pass(const struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass);

/* model.c, on stage->touch. */
uint64_t synthetic_mix(uint64_t a, uint64_t b);
uint64_t synthetic_model_forward(const struct hd_stage *stage, uint64_t word, uint32_t block_count);
double synthetic_model_term(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint64_t word);
uint64_t synthetic_model_first_gradient(const struct hd_stage *stage, const struct hd_pass *pass,
                                        uint64_t input_word);
uint64_t synthetic_model_backward(const struct hd_stage *stage, uint64_t input_word,
                                  uint64_t gradient, float *gradients); /* NULL: adds none */
void synthetic_model_norms(const struct hd_stage *stage, double *squared);
void synthetic_model_update(const struct hd_stage *stage, const struct hd_update *update);
hd_status synthetic_model_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out);
float *synthetic_model_copy(const struct synthetic_memory *memory, uint32_t block_count,
                            uint32_t index, uint32_t copy); /* NULL: no such copy */

/* The device.  open reports its errors, a pass is enqueued; the others are as in hd_kernel_ops. */
hd_status synthetic_device_open(struct hd_kernel *kernel, uint32_t ordinal,
                                struct hd_device *device);
void synthetic_close(struct hd_kernel *kernel); /* does not free the kernel itself */
uint64_t synthetic_device_stage_bytes(const struct hd_stage_spec *spec, uint64_t boundary_bytes,
                                      bool has_model);
hd_status synthetic_device_norms(struct hd_stage *stage, double *squared);
hd_status synthetic_device_update(struct hd_stage *stage, const struct hd_update *update);
/* Waits. */
hd_status synthetic_device_values(struct hd_stage *stage, float *values, void *host, bool into);
hd_status synthetic_device_stage_create(struct hd_stage *stage);
/* False after an abort: the stream may still use the stage, which must not be freed. */
bool synthetic_device_stage_destroy(struct hd_stage *stage);
hd_status synthetic_device_pass(struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass);

void synthetic_abort(struct hd_kernel *kernel);
hd_status synthetic_allocate(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out);
hd_status synthetic_copy(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                         uint32_t fill);
hd_status synthetic_mark(struct hd_kernel *kernel, uint64_t *mark);
hd_status synthetic_reached(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                            uint64_t *passed_ns);

#endif /* SYNTHETIC_H */
