/*
 * A kernel that computes nothing and goes wrong where it is told: in one action of one step it
 * dies, stops, fails, leaves, spoils the rounding mode; or its stages disagree about a boundary.
 */
#include <heddle/kernel.h>

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { OPTION_ACTION, OPTION_STEP, OPTION_DOES, OPTION_PASS_US, OPTION_OTHER_BOUNDARY };
enum { BOUNDARY_BYTES = 16384, PAYLOAD_BYTES = 64, FLUSH_TO_ZERO = 0x8000 };

struct hd_kernel {
    const struct hd_host *host;
};

struct hd_stage {
    const struct hd_host *host;
    uint32_t stage;
    int64_t step;
};

static hd_status open_device(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    struct hd_kernel *kernel = host->alloc(host->context, sizeof *kernel, 64, "faulty");

    (void)ordinal;
    if (kernel == NULL) {
        return HD_NO_MEMORY;
    }
    kernel->host = host;
    device->alignment = 64;
    device->effective =
        host->rank == 3 ? "nothing, with faults, on rank 3" : "nothing, with faults";
    *out = kernel;
    return HD_OK;
}

static void close_device(struct hd_kernel *kernel)
{
    if (kernel != NULL) {
        kernel->host->free(kernel->host->context, kernel);
    }
}

/* other_boundary = 1: stage 1 wants twice the bytes, as if it read float32 for BF16. */
static hd_status needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                       struct hd_stage_needs *out)
{
    const int64_t other = host->options[OPTION_OTHER_BOUNDARY].integer;

    out->boundary_dtype = other == spec->stage ? HD_F32 : HD_BF16;
    out->boundary_bytes = other == spec->stage ? 2 * BOUNDARY_BYTES : BOUNDARY_BYTES;
    out->payload_bytes = PAYLOAD_BYTES;
    out->acquisitions = 1;
    return HD_OK;
}

static hd_status create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                        const struct hd_stage_memory *memory, struct hd_stage **out)
{
    const struct hd_host *host = kernel->host;
    struct hd_stage *stage = host->alloc(host->context, sizeof *stage, 64, "faulty");

    (void)memory;
    if (stage == NULL) {
        return HD_NO_MEMORY;
    }
    stage->host = host;
    stage->stage = spec->stage;
    *out = stage;
    return HD_OK;
}

static void destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        stage->host->free(stage->host->context, stage);
    }
}

static hd_status spoil_rounding(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO);
#endif
    return HD_OK;
}

static hd_status fail(const struct hd_stage *stage, const char *action)
{
    char text[64];
    const struct hd_error error = {.size = sizeof error,
                                   .status = HD_DEVICE,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};

    snprintf(text, sizeof text, "thrown on purpose in %s", action);
    return stage->host->fail(stage->host->context, &error);
}

static hd_status go_wrong(const struct hd_stage *stage, const char *does, const char *action)
{
    if (strcmp(does, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(does, "stop") == 0) {
        raise(SIGSTOP);
    } else if (strcmp(does, "leave") == 0) {
        _exit(0);
    } else if (strcmp(does, "silent") == 0) {
        return HD_DEVICE;
    } else if (strcmp(does, "fail") == 0) {
        return fail(stage, action);
    }
    return strcmp(does, "flush") == 0 ? spoil_rounding() : HD_OK;
}

/* Microbatch 0's forward begins a step: every schedule is ascending there. */
static hd_status pass(struct hd_stage *stage, const struct hd_pass *given, char kind)
{
    const struct hd_option_value *options = stage->host->options;
    const struct timespec duration = {0, (long)options[OPTION_PASS_US].integer * 1000};
    char action[32];

    if (kind == 'F' && given->microbatch == 0) {
        stage->step++;
    }
    if (duration.tv_nsec > 0) {
        nanosleep(&duration, NULL);
    }
    snprintf(action, sizeof action, "%u%c%u", stage->stage, kind, given->microbatch);
    if (stage->step == options[OPTION_STEP].integer &&
        strcmp(action, options[OPTION_ACTION].text) == 0) {
        return go_wrong(stage, options[OPTION_DOES].text, action);
    }
    return HD_OK;
}

static hd_status forward(struct hd_stage *stage, const struct hd_pass *given)
{
    if (given->output != NULL) {
        memset(given->output, (int)(given->microbatch + 1), BOUNDARY_BYTES);
    }
    return pass(stage, given, 'F');
}

static hd_status backward(struct hd_stage *stage, const struct hd_pass *given)
{
    if (given->input_gradient != NULL) {
        memset(given->input_gradient, (int)(given->microbatch + 1), BOUNDARY_BYTES);
    }
    return pass(stage, given, 'B');
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

static hd_status update(struct hd_stage *stage, const struct hd_update *given)
{
    (void)stage;
    (void)given;
    return HD_OK;
}

static const struct hd_option options[] = {
    {"action", "none", NULL, "where it goes wrong: 1F2", HD_OPTION_TEXT, 0},
    {"step", "1", "1..1000000", "in which step", HD_OPTION_INTEGER, 0},
    {"does", "fail", "kill | stop | leave | silent | fail | flush", "what it does there",
     HD_OPTION_TEXT, 0},
    {"pass_us", "0", "0..900000", "how long every pass lasts", HD_OPTION_INTEGER, 0},
    {"other_boundary", "-1", "-1..1000", "the stage that expects other bytes", HD_OPTION_INTEGER,
     0},
};

static const struct hd_kernel_ops ops = {
    .size = sizeof ops,
    .open = open_device,
    .close = close_device,
    .stage_needs = needs,
    .stage_create = create,
    .stage_destroy = destroy,
    .tensor = tensor,
    .tensor_copy = tensor_copy,
    .forward = forward,
    .backward = backward,
    .norms = norms,
    .update = update,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .name = "faulty",
    .summary = "goes wrong where it is told",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .ops = &ops,
};
