/*
 * plugins/kernels/reference/reference.h - what the typed op tables share.
 *
 * Each op is written once, in the body_*.h headers, over two types: `act`, what
 * activations and weight copies are stored in, and `stat`, what is computed,
 * summed and kept for statistics, masters and gradients.  A file ops_*.c names the
 * two, includes body.h and so compiles one table:
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

/* The ops keep no state but the scratch of the pass: theirs at its start, at its end the panels of
   the product that runs. */
struct hd_ops_device {
    const struct hd_host *host;
    char *scratch;
    uint64_t scratch_bytes;
};

extern const struct hd_ops reference_ops_bf16;
extern const struct hd_ops reference_ops_f32;
extern const struct hd_ops reference_ops_f64;

#endif /* HD_REFERENCE_H */
