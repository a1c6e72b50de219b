/*
 * plugins/kernels/transformer/mxfp8.h - operands of the feed-forward's products in MXFP8.
 *
 * Called within a pass or an update; uses `slab` of the scratch.
 */
#ifndef HD_TRANSFORMER_MXFP8_H
#define HD_TRANSFORMER_MXFP8_H

#include "address.h"

/* A source and its images as an MXFP8 GEMM reads them, in A: quantised in blocks along the rows, or
   along the columns.  Either may be NULL, or the source itself. */
struct hd_rounding {
    void *source, *rowwise, *columnwise;
    uint64_t rows, columns;   /* multiples of 32 */
    const int32_t *row_limit; /* NULL, or where the device finds the number of rows */
};

hd_status hd_round(const struct hd_stage *stage, const struct hd_rounding *rounding);
/* Fills in rows and row_limit for the block's rows of experts. */
hd_status hd_round_rows(const struct hd_block *block, struct hd_rounding rounding);
/* Rows of experts in use, a multiple of 32; the largest possible number if only the device knows
   them. */
uint64_t hd_row_count(const struct hd_block *block);
/* [R,d] -> the payload's rows, and back (exact). */
hd_status hd_store_rows(const struct hd_block *block, const void *source);
hd_status hd_load_rows(const struct hd_block *block, void *target);
/* A product of a dense block: the device's own in MXFP8, or the BF16 one of both images. */
hd_status hd_gemm_mxfp8(const struct hd_stage *stage, const struct hd_gemm_args *args);

#endif /* HD_TRANSFORMER_MXFP8_H */
