/*
 * plugins/kernels/transformer/transformer.h - what a plugin supplies to the stage program.
 *
 * The stage program implements every member of struct hd_kernel_ops: for a device with host
 * memory and ops that are done when they return, or for a device with its own memory and stream
 * (remote.h). A plugin links the object library hd_transformer, defines one constant
 *
 *     const struct hd_transformer_backend hd_transformer_backend = { ... };
 *
 * and exports hd_plugin with `.ops = &hd_transformer_kernel_ops`, or if it has `.remote` with
 * `.ops = &hd_transformer_remote_kernel_ops`.  All symbols are hidden: each plugin has its own copy
 * of the program.
 *
 *   ini -> core -> hd_transformer_kernel_ops -> stage program -> struct hd_ops
 *                                                    |             of the plugin
 *                                                    +-> hd_transformer_backend
 *
 * Order of the calls: ops (any time, any thread), open, prepare once per stage, then per pass one
 * bind followed by ops, at last close.  All but `ops` and `private_bytes` are called by one
 * thread at a time.
 *
 * Dtypes: struct hd_matrix of gemm and expert_gemm has its own (an S gradient, an A activation, a
 * G weight); every other address has the dtype that ops.h gives.  The tables of rope and every
 * address of an argument struct are valid during the call only.  Device addresses are in the
 * core's regions and have the alignment that open reported (except the second half of a
 * boundary); tensors of payload and scratch start on 256 bytes within their region.
 */
#ifndef HD_TRANSFORMER_H
#define HD_TRANSFORMER_H

#include "remote.h"

/* An option of every plugin.  If it is off, the stamp of a payload is not checked, which shows the
   effect of a stale payload on the numbers (see debug.fault). */
#define HD_STAMP_OPTION                                                                            \
    {                                                                                              \
        .name = "check_stamps", .initial = "on", .help = "refuse a payload of another microbatch", \
        .type = HD_OPTION_FLAG                                                                     \
    }

struct hd_transformer_backend {
    /* The op table for `precision` (enum hd_precision) and the plugin's options in `host`; NULL if
       the plugin does not support it.  For mxfp8 the table has bf16 for A, and quantise and
       dequantise.  Pure: also called without a device. */
    const struct hd_ops *(*ops)(const struct hd_host *host, uint32_t precision);

    /* Index of `HD_STAMP_OPTION` among the plugin's options. */
    uint32_t stamp_option;

    /* As open of kernel.h: fills `device` (except its size) and creates the first argument of the
       ops.  Errors are returned after host->fail, and leave `out` unset. */
    hd_status (*open)(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                      struct hd_ops_device **out);
    void (*close)(struct hd_ops_device *device); /* takes NULL */

    /* NULL, or called by stage_create: the last chance to allocate (K2), to choose algorithms and
       to fill caches by shape.  `spec` has its defaults filled in, and is valid during the call. */
    hd_status (*prepare)(struct hd_ops_device *device, const struct hd_ops *ops,
                         const struct hd_stage_spec *spec);

    /* Lends `bytes` of scratch, ops->scratch_bytes(spec) of the stage, to the ops of one pass.
       Their contents are undefined, and lost when the pass ends. */
    void (*bind)(struct hd_ops_device *device, void *scratch, uint64_t bytes);

    /* NULL, or an estimate of what prepare allocates for such a stage, for the report. */
    uint64_t (*private_bytes)(const struct hd_ops *ops, const struct hd_stage_spec *spec);

    /* NULL, or access to a device's own memory. */
    const struct hd_remote *remote;

    /* NULL, or refuses after host->fail a spec that the ops do not support.  Pure, as `ops`. */
    hd_status (*check)(const struct hd_host *host, const struct hd_stage_spec *spec);
};

extern const struct hd_transformer_backend hd_transformer_backend;  /* defined by the plugin */
extern const struct hd_kernel_ops hd_transformer_kernel_ops;        /* defined by the program */
extern const struct hd_kernel_ops hd_transformer_remote_kernel_ops; /* with abort .. reached */

#endif /* HD_TRANSFORMER_H */
