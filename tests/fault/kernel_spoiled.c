/*
 * The reference kernel, but for one step or several in a row whose loss, or one gradient norm, is
 * not a number; or but for input_gradient, which it leaves unwritten.  It lies over the plugin that
 * HD_PLUGIN_DIR holds: all else is computed.
 */
#include <heddle/kernel.h>

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first two are the reference kernel's own, in its order. */
enum { OPTION_FLOAT64, OPTION_STAMPS, OPTION_STEP, OPTION_COUNT, OPTION_DOES };

static struct hd_kernel_ops ops, inner;
static int64_t first, count, step; /* of this process: one rank */
static int spoils_loss, leaves_gradient;

static hd_status open_device(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                             struct hd_kernel **out)
{
    first = host->options[OPTION_STEP].integer;
    count = host->options[OPTION_COUNT].integer;
    spoils_loss = strcmp(host->options[OPTION_DOES].text, "loss") == 0;
    leaves_gradient = strcmp(host->options[OPTION_DOES].text, "unwritten") == 0;
    return inner.open(host, ordinal, device, out);
}

static int is_spoiled(void)
{
    return step >= first && step < first + count;
}

/* Where the loss is, it is the only term: the model has no experts to route to. */
static hd_status forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const hd_status status = inner.forward(stage, pass);

    step += pass->targets != NULL && pass->microbatch == 0;
    if (status == HD_OK && spoils_loss && pass->targets != NULL && pass->microbatch == 1 &&
        is_spoiled()) {
        pass->terms[0] = NAN;
    }
    return status;
}

/* The gradient goes to memory that nobody reads, and its slot stays as it was claimed. */
static hd_status backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    static _Alignas(64) unsigned char away[1 << 20];
    struct hd_pass other = *pass;

    other.input_gradient =
        leaves_gradient && pass->input_gradient != NULL ? away : pass->input_gradient;
    return inner.backward(stage, &other);
}

/* Once a step and stage; step counts where the loss is, so that one rank alone spoils its norm. */
static hd_status norms(struct hd_stage *stage, double *squared)
{
    const hd_status status = inner.norms(stage, squared);

    if (status == HD_OK && !spoils_loss && !leaves_gradient && is_spoiled()) {
        squared[0] = NAN;
    }
    return status;
}

__attribute__((constructor)) static void load(void)
{
    const char *const directory = getenv("HD_PLUGIN_DIR");
    char path[4096];

    snprintf(path, sizeof path, "%s/heddle_kernel_reference.so",
             directory != NULL ? directory : "");
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct hd_plugin *const reference = library != NULL ? dlsym(library, "hd_plugin") : NULL;
    if (reference == NULL) {
        return; /* the table is empty then, and the registry says so */
    }
    memcpy(&inner, reference->ops, sizeof inner);
    ops = inner;
    ops.open = open_device;
    ops.forward = forward;
    ops.backward = backward;
    ops.norms = norms;
}

static const struct hd_option options[] = {
    {"float64", "off", NULL, "as the reference kernel's", HD_OPTION_FLAG, 0},
    {"check_stamps", "on", NULL, "as the reference kernel's", HD_OPTION_FLAG, 0},
    {"step", "1", "1..1000000", "the first that it spoils", HD_OPTION_INTEGER, 0},
    {"count", "1", "0..1000000", "so many in a row", HD_OPTION_INTEGER, 0},
    {"does", "loss", "loss | norm | unwritten", "what is not a number then", HD_OPTION_TEXT, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_KERNEL),
    .name = "spoiled",
    .summary = "the reference kernel with steps that are not finite",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .ops = &ops,
};
