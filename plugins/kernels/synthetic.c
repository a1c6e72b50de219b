/*
 * plugins/kernels/synthetic.c - computes nothing, lasts as long as it is told, and can be checked.
 *
 * A stage sleeps until its cost of [cost] is over, so that dozens of ranks fit on two cores, and
 * a schedule or a transport is measured without a model in the way.  What crosses a boundary is a
 * pattern, and every pass looks at what it is given:
 *
 *   forward    input  w0 d1 d2 ...   are d1, d2, ... derived from w0?
 *              output v0 d1 d2 ...   v0 mixes the stage with w0; the payload keeps w0
 *   backward   input                 still w0 (else its slot was reused before its backward)
 *              output_gradient       g0 and what derives from it
 *              input_gradient        mixes the stage, g0 and the payload's w0
 *
 * So a message that is torn, stale, of another microbatch's slot or overwritten under its lease is
 * an error, not a wrong number.  No tensors, no terms.  With check = off only the time is kept: the
 * null transport fills its slots with a pattern of its own.
 *
 * tests/test_engine.c and heddle bench step use it.
 */
#include <heddle/kernel.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { OPTION_CHECK = 0, OPTION_BOUNDARY_BYTES = 1 };

#define STAMP_MAGIC     0x7274737468747973ull
#define DURATION_NS_MAX 1000000000000000000u /* 30 years: a longer pass lasts no longer */

struct hd_kernel {
    const struct hd_host *host;
};

struct hd_stage {
    const struct hd_host *host;
    struct hd_stage_spec spec;
    uint64_t boundary_words; /* of 8 bytes; a tail stays unwritten only when check is off */
    uint32_t is_checked;
};

/* What a forward retains. */
struct payload {
    uint64_t magic, generation;
    uint64_t input_word;    /* the input's word 0 */
    uint64_t gradient_word; /* of the output's gradient: kept by I for W */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t word = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6))) * 0xff51afd7ed558ccdull;
    return word ^ (word >> 33);
}

static uint64_t derived(uint64_t first, uint64_t index)
{
    return index == 0 ? first : mix(first, index);
}

static uint64_t now_ns(const struct hd_stage *stage)
{
    return stage->host->now_ns(stage->host->context);
}

/* Sleeps until the pass has lasted `duration_us` since it began; what it did meanwhile counts. */
static void last(uint64_t begin_ns, double duration_us)
{
    const double duration_ns = duration_us * 1e3;
    const uint64_t until_ns =
        begin_ns + (duration_ns < DURATION_NS_MAX ? (uint64_t)duration_ns : DURATION_NS_MAX);
    const struct timespec until = {(time_t)(until_ns / 1000000000u),
                                   (long)(until_ns % 1000000000u)};

    if (duration_us > 0) {
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
        }
    }
}

static hd_status complain(const struct hd_stage *stage, uint32_t microbatch, const char *what,
                          uint64_t index)
{
    char text[192];
    const struct hd_error error = {
        .size = sizeof error,
        .status = HD_PROTOCOL,
        .rank = UINT32_MAX,
        .channel = UINT32_MAX,
        .text = text,
    };

    snprintf(text, sizeof text, "stage %u, microbatch %u: %s (word %llu)", stage->spec.stage,
             microbatch, what, (unsigned long long)index);
    return stage->host->fail(stage->host->context, &error);
}

static void write_words(const struct hd_stage *stage, void *target, uint64_t first)
{
    uint64_t *words = target;

    for (uint64_t i = 0; stage->is_checked && target != NULL && i < stage->boundary_words; i++) {
        words[i] = derived(first, i);
    }
}

static hd_status check_words(const struct hd_stage *stage, const struct hd_pass *pass,
                             const void *source, const char *what)
{
    const uint64_t *words = source;

    for (uint64_t i = 1; stage->is_checked && source != NULL && i < stage->boundary_words; i++) {
        if (words[i] != derived(words[0], i)) {
            return complain(stage, pass->microbatch, what, i);
        }
    }
    return HD_OK;
}

/* Word 0 of what the stage reads: the boundary's, or one made of the tokens. */
static uint64_t input_word(const struct hd_stage *stage, const struct hd_pass *pass)
{
    uint64_t word = 0;

    if (pass->input != NULL) {
        memcpy(&word, pass->input, sizeof word);
        return word;
    }
    const uint64_t token_count = (uint64_t)stage->spec.batch * stage->spec.sequence;
    for (uint64_t i = 0; pass->tokens != NULL && i < token_count; i++) {
        word = mix(word, (uint64_t)(uint32_t)pass->tokens[i]);
    }
    return word;
}

static hd_status forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = now_ns(stage);
    const uint64_t word = input_word(stage, pass);

    const hd_status status = check_words(stage, pass, pass->input, "the activation is not whole");
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX && pass->payload[half] != NULL; half++) {
        struct payload *payload = pass->payload[half];
        *payload = (struct payload){STAMP_MAGIC, pass->generation, word, 0};
    }
    write_words(stage, pass->output, mix(stage->spec.stage, word));
    last(begin_ns, stage->spec.forward_us);
    return status;
}

/* The stamp of this lease, and an input that is still what the forward read. */
static hd_status check_half(const struct hd_stage *stage, const struct hd_pass *pass,
                            const struct payload *payload)
{
    if (payload->magic != STAMP_MAGIC || payload->generation != pass->generation) {
        return complain(stage, pass->microbatch, "the payload belongs to another lease",
                        payload->generation);
    }
    if (stage->is_checked && payload->input_word != input_word(stage, pass)) {
        return complain(stage, pass->microbatch, "the activation changed before its backward", 0);
    }
    return HD_OK;
}

static hd_status check_payload(const struct hd_stage *stage, const struct hd_pass *pass)
{
    hd_status status = check_half(stage, pass, pass->payload[0]);
    if (status == HD_OK && pass->payload[1] != NULL) {
        status = check_half(stage, pass, pass->payload[1]);
    }
    return status;
}

static hd_status backward_input(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = now_ns(stage);
    struct payload *payload = pass->payload[0];
    uint64_t gradient = 0;

    hd_status status = check_payload(stage, pass);
    if (status == HD_OK) {
        status = check_words(stage, pass, pass->output_gradient, "the gradient is not whole");
    }
    if (pass->output_gradient != NULL) {
        memcpy(&gradient, pass->output_gradient, sizeof gradient);
    }
    payload->gradient_word = gradient;
    write_words(stage, pass->input_gradient,
                mix(mix(stage->spec.stage, gradient), payload->input_word));
    last(begin_ns, stage->spec.input_gradient_us);
    return status;
}

static hd_status backward_weight(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = now_ns(stage);
    const hd_status status = check_payload(stage, pass);

    last(begin_ns, stage->spec.weight_gradient_us);
    return status;
}

static hd_status backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = now_ns(stage);
    struct hd_stage instant = *stage;

    instant.spec.input_gradient_us = 0;
    const hd_status status = backward_input(&instant, pass);
    last(begin_ns, stage->spec.backward_us);
    return status;
}

static uint64_t boundary_bytes_of(const struct hd_host *host, const struct hd_stage_spec *spec)
{
    const int64_t asked = host->option_count > OPTION_BOUNDARY_BYTES
                              ? host->options[OPTION_BOUNDARY_BYTES].integer
                              : 0;
    const uint64_t bytes =
        asked > 0 ? (uint64_t)asked : 2ull * spec->batch * spec->sequence * spec->width;
    return (bytes + 7) / 8 * 8;
}

static hd_status stage_needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                             struct hd_stage_needs *needs)
{
    const struct hd_stage_needs own = {
        .size = sizeof own,
        .boundary_dtype = HD_BF16,
        .boundary_bytes = boundary_bytes_of(host, spec),
        .payload_bytes = sizeof(struct payload),
        .acquisitions = spec->half_batches > 1 ? HD_ACQUISITION_MAX : 1,
    };
    const uint32_t room = needs->size;

    memcpy(needs, &own, room < own.size ? room : own.size);
    return HD_OK;
}

static hd_status stage_create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                              const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "synthetic");

    (void)memory;
    if (stage == NULL) {
        return HD_NO_MEMORY;
    }
    memcpy(&stage->spec, spec, spec->size < sizeof *spec ? spec->size : sizeof *spec);
    stage->host = host;
    stage->boundary_words = boundary_bytes_of(host, spec) / 8;
    stage->is_checked = host->options[OPTION_CHECK].integer != 0;
    *out = stage;
    return HD_OK;
}

static void stage_destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        stage->host->free(stage->host->context, stage);
    }
}

static hd_status tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    (void)stage;
    (void)index;
    (void)out;
    return HD_INVALID; /* there is none */
}

static hd_status tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host)
{
    (void)stage;
    (void)index;
    (void)copy;
    (void)into;
    (void)host;
    return HD_INVALID;
}

static hd_status norms(struct hd_stage *stage, double *squared)
{
    (void)stage;
    (void)squared;
    return HD_OK;
}

static hd_status update(struct hd_stage *stage, const struct hd_update *parameters)
{
    (void)stage;
    (void)parameters;
    return HD_OK;
}

static hd_status open_kernel(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "synthetic");
    const struct hd_device own = {
        .size = sizeof own,
        .memory = HD_MEMORY_HOST,
        .alignment = 64,
        .effective = "synthetic: sleeps and fills patterns",
    };

    (void)ordinal;
    if (kernel == NULL) {
        return HD_NO_MEMORY;
    }
    kernel->host = host;
    /* The default slack of 50 us would be part of every stage. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    memcpy(device, &own, device->size < own.size ? device->size : own.size);
    *out = kernel;
    return HD_OK;
}

static void close_kernel(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
        kernel->host->free(kernel->host->context, kernel);
    }
}

static const struct hd_kernel_ops ops = {
    .size = sizeof ops,
    .open = open_kernel,
    .close = close_kernel,
    .stage_needs = stage_needs,
    .stage_create = stage_create,
    .stage_destroy = stage_destroy,
    .tensor = tensor,
    .tensor_copy = tensor_copy,
    .forward = forward,
    .backward = backward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .norms = norms,
    .update = update,
};

static const struct hd_option options[] = {
    {"check", "on", NULL, "check every message's pattern and every payload's stamp", HD_OPTION_FLAG,
     0},
    {"boundary_bytes", "0", "0..1073741824", "bytes of a message; 0: as the model would send",
     HD_OPTION_BYTES, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .name = "synthetic",
    .summary = "sleeps as long as [cost] says and fills checkable patterns; no model",
    .vendor = "heddle",
    .version = "0.1.0",
    .licence = "Apache-2.0",
    .source = "report, section 6.5: what a schedule costs without its kernels",
    .ops = &ops,
};
