/*
 * plugins/kernels/cuda/kernels/places.h - the place of a scale, and the rows of a tile.
 *
 * Pure functions, for the kernels, for the host side that sizes their memory and grids, and for the
 * tests.
 *
 *   scales    as cuBLASLt reads them: 512-byte tiles of 128 outer indices (rows of the operand) and
 *             4 inner ones (blocks of 32 along the contraction), row after row of tiles; the four
 *             quarters of a tile's outer indices are interleaved, 4 bytes each
 *
 *                 outer    0          32         64         96         1          33
 *                 byte     0 .. 3     4 .. 7     8 .. 11    12 .. 15   16 .. 19   20 .. 23  ..
 *
 *   tiles     rows of an expert are multiples of 32, a tile has 128: each expert's last tile may be
 *             three quarters empty
 *
 * Source: the cuBLAS library's documentation, "1D block scaling factors layout".
 */
#ifndef HD_CUDA_PLACES_H
#define HD_CUDA_PLACES_H

#include "shared.h"

#ifdef __CUDACC__
#define HD_ANYWHERE static __host__ __device__ __forceinline__
#else
#define HD_ANYWHERE static inline
#endif

#define HD_SCALE_OUTER 128u
#define HD_SCALE_INNER 4u

/* The byte of the scale of block `inner` (of `inner_count`) of row `outer`. */
HD_ANYWHERE uint64_t hd_scale_at(uint64_t outer, uint64_t inner, uint64_t inner_count)
{
    const uint64_t across = (inner_count + HD_SCALE_INNER - 1) / HD_SCALE_INNER;
    const uint64_t tile = outer / HD_SCALE_OUTER * across + inner / HD_SCALE_INNER;
    return tile * HD_SCALE_OUTER * HD_SCALE_INNER + outer % 32 * 16 +
           outer % HD_SCALE_OUTER / 32 * HD_SCALE_INNER + inner % HD_SCALE_INNER;
}

/* Bytes of all scales, with the padding of the last tiles. */
HD_ANYWHERE uint64_t hd_scale_bytes(uint64_t outer_count, uint64_t inner_count)
{
    return (outer_count + HD_SCALE_OUTER - 1) / HD_SCALE_OUTER * HD_SCALE_OUTER *
           ((inner_count + HD_SCALE_INNER - 1) / HD_SCALE_INNER * HD_SCALE_INNER);
}

/* Tiles that any routing of `row_count` rows over `expert_count` experts can need. */
HD_ANYWHERE uint32_t hd_tile_count(uint32_t row_count, uint32_t expert_count)
{
    return (row_count + (HD_TILE_ROWS - HD_ROW_BLOCK) * expert_count) / HD_TILE_ROWS;
}

/* Rows [first, end) of an expert; a tile has at most HD_TILE_ROWS of them. */
struct hd_tile_place {
    uint32_t expert; /* expert_count: the routing has no such tile */
    uint32_t first, end;
};

/* Tiles are counted expert by expert. */
HD_ANYWHERE struct hd_tile_place hd_tile_find(const int32_t *offsets, uint32_t expert_count,
                                              uint32_t tile)
{
    struct hd_tile_place place = {0, 0, 0};
    for (; place.expert < expert_count; place.expert++) {
        const uint32_t begin = (uint32_t)offsets[place.expert];
        place.end = (uint32_t)offsets[place.expert + 1];
        const uint32_t tiles = (place.end - begin + HD_TILE_ROWS - 1) / HD_TILE_ROWS;
        if (tile < tiles) {
            place.first = begin + tile * HD_TILE_ROWS;
            break;
        }
        tile -= tiles;
    }
    return place;
}

#endif /* HD_CUDA_PLACES_H */
