/*
 * plugins/kernels/transformer/transformer.h - what a plugin adds to the stage program.
 *
 * The stage program serves every member of struct hd_kernel_ops: for a device whose
 * memory is the host's and whose ops are done when they return, or for one with memory
 * and a stream of its own (remote.h).  A plugin links the object library hd_transformer,
 * defines one constant
 *
 *     const struct hd_transformer_backend hd_transformer_backend = { ... };
 *
 * and exports hd_plugin with `.ops = &hd_transformer_kernel_ops`, or where it has
 * `.remote` with `.ops = &hd_transformer_remote_kernel_ops`.  All symbols are hidden:
 * each plugin has its own copy of the program.
 *
 *   ini -> core -> hd_transformer_kernel_ops -> stage program -> struct hd_ops
 *                                                    |             of the plugin
 *                                                    +-> hd_transformer_backend
 *
 * Order of the calls: ops (any time, any thread), open, prepare once a stage, then
 * per pass one bind followed by ops, at last close.  All but `ops` and
 * `private_bytes` come from one thread at a time.
 *
 * Which op sees which dtype: struct hd_matrix of gemm and expert_gemm carries its
 * own (a S gradient, an A activation, a G weight); every other address has the
 * dtype that ops.h writes beside it.  The tables of rope and every address of an
 * argument struct stay valid for the call only; device addresses are those of the
 * core's regions and keep the alignment that open reported (but for the second half of a
 * boundary), lines of payload and scratch start on 256 bytes within their region.
 */
#ifndef HD_TRANSFORMER_H
#define HD_TRANSFORMER_H

#include "remote.h"

/* The row that every plugin has among its options: with it off the stamp of a payload is not looked
   at, which shows what a stale one does to the numbers (see debug.fault). */
#define HD_STAMP_OPTION                                                                   \
    {                                                                                     \
        .name = "check_stamps", .initial = "on",                                          \
        .help = "refuse a payload that is not of this microbatch", .type = HD_OPTION_FLAG \
    }

struct hd_transformer_backend {
    /* The op table for `precision` (enum hd_precision) and the plugin's options, which are in
       `host`; NULL if this plugin does not serve it.  For mxfp8 the table has bf16 for A, and
       quantise and dequantise.  Pure: also called without a device. */
    const struct hd_ops *(*ops)(const struct hd_host *host, uint32_t precision);

    /* Index of `HD_STAMP_OPTION` among the plugin's options. */
    uint32_t stamp_option;

    /* As open of kernel.h: fills `device` (but for its size) and makes what the ops are given.
       NO_MEMORY and the like are returned after host->fail.  `out` is unset on failure. */
    hd_status (*open)(const struct hd_host *host, uint32_t ordinal, struct hd_device *device,
                      struct hd_ops_device **out);
    void (*close)(struct hd_ops_device *device); /* takes NULL */

    /* NULL, or called by stage_create: the last chance to allocate (K2), to choose algorithms and
       to fill caches by shape.  `spec` has its defaults filled in, and dies with the call. */
    hd_status (*prepare)(struct hd_ops_device *device, const struct hd_ops *ops,
                         const struct hd_stage_spec *spec);

    /* Lends `bytes` of scratch, ops->scratch_bytes(spec) of the stage, to the ops of one pass.
       What they hold is undefined, and dead when the pass ends. */
    void (*bind)(struct hd_ops_device *device, void *scratch, uint64_t bytes);

    /* NULL, or what prepare allocates for such a stage: an estimate for the report. */
    uint64_t (*private_bytes)(const struct hd_ops *ops, const struct hd_stage_spec *spec);

    /* NULL, or how a device's own memory is reached. */
    const struct hd_remote *remote;

    /* NULL, or refuses after host->fail what the ops cannot serve.  Pure, as `ops`. */
    hd_status (*check)(const struct hd_host *host, const struct hd_stage_spec *spec);
};

extern const struct hd_transformer_backend hd_transformer_backend;  /* the plugin's */
extern const struct hd_kernel_ops hd_transformer_kernel_ops;        /* the program's */
extern const struct hd_kernel_ops hd_transformer_remote_kernel_ops; /* with abort .. reached */

#endif /* HD_TRANSFORMER_H */
