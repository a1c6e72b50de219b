/*
 * plugins/kernels/transformer/stage.h - an opened kernel and one of its stages.
 *
 *   kernel.c   the table of kernel.h          spec.c    which models are served
 *   pass.c     a pass, by half batches        layout.c  tensors by name, and their offsets
 *   payload.c  the stamp and its checks       address.c from names to addresses
 *   forward.c, backward.c   one half          block.c   one call of an op each
 *   tensors.c  named weights, the optimizer   mxfp8.c   operands in MXFP8
 */
#ifndef HD_TRANSFORMER_STAGE_H
#define HD_TRANSFORMER_STAGE_H

#include "layout.h"
#include "transformer.h"

struct hd_kernel {
    const struct hd_host *host;
    struct hd_ops_device *device;
    bool checks_stamps; /* the option */
};

struct hd_stage {
    struct hd_kernel *kernel;
    const struct hd_ops *ops;
    struct hd_stage_spec spec; /* with its defaults filled in */
    struct hd_layout layout;
    struct hd_stage_memory memory;
    struct hd_work work;     /* addresses in scratch */
    struct hd_saved section; /* addresses in the section in scratch */
    uint64_t spec_hash;
    void *cosine, *sine; /* S [sequence, c/2], owned */
};

#endif /* HD_TRANSFORMER_STAGE_H */
