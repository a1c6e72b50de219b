/* plugins/kernels/transformer/forward.h - F of one half batch; a backward repeats parts of it. */
#ifndef HD_TRANSFORMER_FORWARD_H
#define HD_TRANSFORMER_FORWARD_H

#include "address.h"

/* payload[0] is the half's own; `row_count` gets the rows of experts in all blocks. */
hd_status hd_forward_half(const struct hd_stage *stage, const struct hd_pass *pass,
                          uint64_t *row_count);
/* The input of a block.  That of the first one is not in the payload: it is the input slot, or with
   an embedding it is computed, for each pass anew. */
hd_status hd_block_input(const struct hd_block *block, const void **x);
/* Computes again what recomputation dropped, and always xn, the normed input of the experts. */
hd_status hd_recompute_block(const struct hd_block *block, const void *x, void *xn);

#endif /* HD_TRANSFORMER_FORWARD_H */
