/*
 * plugins/kernels/transformer/remote.h - what a stage needs of a device with its own memory.
 *
 * A plugin with ops that run on the host leaves hd_transformer_backend.remote NULL.  Otherwise
 * every address of a pass is the device's, and the host neither reads nor writes it.  What the
 * stage program itself does to a payload, to terms or to weights goes through this table, in the
 * order of the device's one stream.  Such a plugin exports `.ops =
 * &hd_transformer_remote_kernel_ops`.
 *
 * A stale payload cannot be refused when a pass is called, because its stamp is on the device.
 * The device writes the fault word, which is in host memory, and `reached` reports it (kernel.h,
 * K7).
 */
#ifndef HD_TRANSFORMER_REMOTE_H
#define HD_TRANSFORMER_REMOTE_H

#include "ops.h"
#include "refuse.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HD_STAMP_MAGIC 0x706d617473646821ull

/* The first bytes of every payload (K7).  row_count: of experts, in all blocks; 0 if only the
   device knows it. */
struct hd_stamp {
    uint64_t magic, generation, microbatch, spec_hash, row_count, half;
};

struct hd_stamp_args {
    void *payload;
    struct hd_stamp stamp;
};

/* The maps of rows.  In hd_check_args those of the first block. */
struct hd_routing {
    int32_t *offsets, *selected, *row_of, *source;
};

struct hd_check_args {
    const void *payload;
    struct hd_fault *fault; /* filled in by the plugin */
    struct hd_stamp expected;
    struct hd_routing maps;
    uint64_t block_stride, row_max, chosen; /* bytes; rows; entries of selected */
    uint32_t experts, block_count;          /* block_count 0: no maps are kept */
    uint32_t stage, first_block, checks_stamp;
};

struct hd_terms_args {
    double *terms;
    const double *more; /* terms[i] += more[i] */
    uint32_t count;
};

/* The first five are those of struct hd_kernel_ops, with the same laws. */
struct hd_remote {
    hd_status (*allocate)(struct hd_ops_device *device, uint64_t bytes, const char *tag,
                          void **out);
    hd_status (*copy)(struct hd_ops_device *device, void *target, const void *source,
                      uint64_t bytes, uint32_t fill);
    hd_status (*mark)(struct hd_ops_device *device, uint64_t *mark);
    hd_status (*reached)(struct hd_ops_device *device, uint64_t mark, uint64_t timeout_ns,
                         uint64_t *passed_ns);
    void (*abort)(struct hd_ops_device *device);
    /* Waits for all work so far; called outside of passes only. */
    hd_status (*drain)(struct hd_ops_device *device);
    hd_status (*write_stamp)(struct hd_ops_device *device, const struct hd_stamp_args *args);
    hd_status (*check_payload)(struct hd_ops_device *device, const struct hd_check_args *args);
    hd_status (*add_terms)(struct hd_ops_device *device, const struct hd_terms_args *args);
};

#ifdef __cplusplus
}
#endif

#endif /* HD_TRANSFORMER_REMOTE_H */
