/* A kernel with I and without W, otherwise whole; for kernel_boaster.c one that has neither, and
   says that it is asynchronous, and nobody can wait for it. */
#include <heddle/kernel.h>

#include <stddef.h>

static hd_status pass(struct hd_stage *stage, const struct hd_pass *given)
{
    (void)stage;
    (void)given;
    return HD_UNSUPPORTED;
}
static hd_status open_device(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    (void)host;
    (void)ordinal;
    (void)device;
    (void)out;
    return HD_UNSUPPORTED;
}
static void close_device(struct hd_kernel *kernel)
{
    (void)kernel;
}
static hd_status needs(const struct hd_host *host, const struct hd_stage_spec *spec,
                       struct hd_stage_needs *out)
{
    (void)host;
    (void)spec;
    (void)out;
    return HD_UNSUPPORTED;
}
static hd_status create(struct hd_kernel *kernel, const struct hd_stage_spec *spec,
                        const struct hd_stage_memory *memory, struct hd_stage **out)
{
    (void)kernel;
    (void)spec;
    (void)memory;
    (void)out;
    return HD_UNSUPPORTED;
}
static void destroy(struct hd_stage *stage)
{
    (void)stage;
}
static hd_status tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    (void)stage;
    (void)index;
    (void)out;
    return HD_UNSUPPORTED;
}
static hd_status tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host)
{
    (void)stage;
    (void)index;
    (void)copy;
    (void)into;
    (void)host;
    return HD_UNSUPPORTED;
}
static hd_status norms(struct hd_stage *stage, double *squared)
{
    (void)stage;
    (void)squared;
    return HD_UNSUPPORTED;
}
static hd_status update(struct hd_stage *stage, const struct hd_update *given)
{
    (void)stage;
    (void)given;
    return HD_UNSUPPORTED;
}

static const struct hd_kernel_ops ops = {.size = sizeof ops,
                                         .open = open_device,
                                         .close = close_device,
                                         .stage_needs = needs,
                                         .stage_create = create,
                                         .stage_destroy = destroy,
                                         .tensor = tensor,
                                         .tensor_copy = tensor_copy,
                                         .forward = pass,
                                         .backward = pass,
#ifdef BOASTS
                                         .abort = close_device,
#else
                                         .backward_input = pass,
#endif
                                         .norms = norms,
                                         .update = update};

#ifdef BOASTS
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_KERNEL), .name = "boaster",
                                              .summary = "may be aborted, and never waits",
                                              .capabilities = HD_KERNEL_STREAM, .ops = &ops};
#else
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_KERNEL), .name = "half",
                                              .ops = &ops};
#endif
