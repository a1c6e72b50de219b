/* plugins/kernels/cuda/kernels/parts.cuh - functions of several kernels. */
#ifndef HD_CUDA_PARTS_CUH
#define HD_CUDA_PARTS_CUH

#include "language.cuh"
#include "shared.h"

HD_INLINE void copy_row(const uint16_t *from, uint16_t *to, uint32_t width)
{
    if (width % HD_VECTOR == 0) {
        for (uint32_t i = hd_thread() * HD_VECTOR; i < width; i += hd_threads() * HD_VECTOR) {
            *(struct hd_words *)(void *)(to + i) =
                *(const struct hd_words *)(const void *)(from + i);
        }
    } else {
        for (uint32_t i = hd_thread(); i < width; i += hd_threads()) {
            to[i] = from[i];
        }
    }
}

/* Leaves in shared->ballots a bit per thread of the block: its is_match. */
HD_INLINE void hd_match(struct hd_match_shared *shared, int is_match)
{
    const uint32_t ballot = hd_ballot(is_match);
    hd_sync();
    if (hd_lane() == 0) {
        shared->ballots[hd_warp()] = ballot;
    }
    hd_sync();
}

#endif /* HD_CUDA_PARTS_CUH */
