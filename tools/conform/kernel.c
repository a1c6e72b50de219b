#include "conform/kernel_checks.h"

static const struct hd_cut kernel_uneven = {{1, 3}, 2};
static const struct hd_cut kernel_of_two = {{1, 1}, 2}; /* a model of two blocks */

/* A law whose judges each get a new rig, cut in the given way. */
#define KERNEL_LAW(cut_, needs_tensors_, first_, second_) \
    hd_kernel_rig_judge, &(const struct hd_kernel_law)    \
    {                                                     \
        &(cut_), (needs_tensors_),                        \
        {                                                 \
            (first_), (second_)                           \
        }                                                 \
    }

const struct hd_conform_check hd_conform_kernels[] = {
    {"descriptor", HD_CONFORM_LOAD, 10, "plugin.h", "the descriptor is valid",
     hd_conform_descriptor, NULL},
    {"options", HD_CONFORM_LOAD, 10, "plugin.h",
     "every option has a type, a range, a default and a help text", hd_conform_options, NULL},
    {"device", HD_CONFORM_API, 30, "open, close",
     "the kernel opens, describes its device, and close frees everything", hd_conform_kernel_device,
     NULL},
    {"needs", HD_CONFORM_API, 30, "stage_needs",
     "stage_needs is deterministic, and the needs of the parts add up", hd_conform_kernel_needs,
     NULL},
    {"refusal", HD_CONFORM_API, 30, "stage_needs",
     "an unsupported model is refused with a sentence", hd_conform_kernel_refusal, NULL},
    {"tensors", HD_CONFORM_API, 30, "tensor", "every tensor has its own name and its own place",
     KERNEL_LAW(kernel_uneven, true, hd_conform_kernel_tensors, NULL)},
    {"copies", HD_CONFORM_API, 30, "tensor_copy", "a tensor reads back as it was written",
     KERNEL_LAW(hd_cut_whole, true, hd_conform_kernel_copies, NULL)},
    {"regions", HD_CONFORM_SEMANTICS, 60, "stage_needs",
     "no pass writes outside of the memory that the stage asked for",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_regions, NULL)},
    {"ordered", HD_CONFORM_SEMANTICS, 60, "K1", "a call has done its work when it returns",
     KERNEL_LAW(hd_cut_whole, false, hd_conform_kernel_ordered, NULL)},
    {"stream", HD_CONFORM_SEMANTICS, 60, "K1, mark, reached",
     "the stream keeps the order of the calls, and marks report when they were passed",
     hd_conform_kernel_stream, NULL},
    {"frugal", HD_CONFORM_SEMANTICS, 60, "K2", "no pass allocates memory",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_frugal, NULL)},
    {"repeatable", HD_CONFORM_SEMANTICS, 60, "K3",
     "addresses, slots, old contents and other microbatches do not change a bit",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_repeatable, NULL)},
    {"splittable", HD_CONFORM_SEMANTICS, 60, "K4",
     "cutting the model into stages does not change a bit", hd_conform_kernel_splittable, NULL},
    {"additive", HD_CONFORM_SEMANTICS, 60, "K5",
     "only a backward writes gradients, and it adds to them",
     KERNEL_LAW(hd_cut_in_two, true, hd_conform_kernel_writers, hd_conform_kernel_doubling)},
    {"halves", HD_CONFORM_SEMANTICS, 60, "K5", "I followed by W gives the same bits as B",
     hd_conform_kernel_halves, NULL},
    {"write_once", HD_CONFORM_SEMANTICS, 60, "K6",
     "a pass writes every byte of its outputs and never reads them",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_write_once, NULL)},
    {"read_only", HD_CONFORM_SEMANTICS, 60, "K6", "a pass never writes its inputs",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_read_only, NULL)},
    {"evaluation", HD_CONFORM_SEMANTICS, 60, "hd_pass",
     "an evaluation gives the same bits as a forward",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_evaluation, NULL)},
    {"gradient", HD_CONFORM_SEMANTICS, 90, "backward",
     "gradients agree with finite differences of the loss", hd_conform_kernel_gradient, NULL},
    {"norms", HD_CONFORM_SEMANTICS, 30, "norms", "norms are the sums of the squared gradients",
     KERNEL_LAW(hd_cut_whole, true, hd_conform_kernel_norms, NULL)},
    {"update", HD_CONFORM_SEMANTICS, 60, "update",
     "an update is a step of AdamW and does not change the gradients",
     KERNEL_LAW(hd_cut_whole, true, hd_conform_kernel_update, NULL)},
    {"stamp", HD_CONFORM_FAULT, 60, "K7", "a stale, foreign or poisoned payload is refused",
     hd_conform_kernel_stamp, NULL},
    {"garbage", HD_CONFORM_FAULT, 60, "K8",
     "an index read from a corrupt payload never leaves its range",
     KERNEL_LAW(hd_cut_in_two, false, hd_conform_kernel_garbage, NULL)},
    {"nan", HD_CONFORM_FAULT, 90, "K8", "a NaN in any tensor reaches the loss or a norm",
     KERNEL_LAW(kernel_of_two, true, hd_conform_kernel_nan, NULL)},
    {"passes", HD_CONFORM_SPEED, 90, "-", "time of a forward and a backward",
     hd_conform_kernel_speed, NULL},
    {0},
};
