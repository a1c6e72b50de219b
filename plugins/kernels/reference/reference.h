/*
 * plugins/kernels/reference/reference.h - the op tables, by type.
 *
 * Each op is written once, in the body_*.h headers, over two types: `act` stores
 * activations and weight copies; `stat` is the type of all computation, and of
 * statistics, masters and gradients.  A file ops_*.c defines the two types and
 * includes body.h, which defines one table:
 *
 *   ops_bf16.c   act bf16 (its bits)   stat float
 *   ops_f32.c    act float             stat float
 *   ops_f64.c    act double            stat double
 *
 * Plain C: no intrinsics, every sum in ascending order.  The compiler may vectorise
 * across results, never within a sum.
 */
#ifndef HD_REFERENCE_H
#define HD_REFERENCE_H

#include <transformer.h>

/* The only state is the scratch of the pass: that of an op at its start, the panels of the running
   product at its end. */
struct hd_ops_device {
    const struct hd_host *host;
    char *scratch;
    uint64_t scratch_bytes;
};

extern const struct hd_ops reference_ops_bf16;
extern const struct hd_ops reference_ops_f32;
extern const struct hd_ops reference_ops_f64;

#endif /* HD_REFERENCE_H */
