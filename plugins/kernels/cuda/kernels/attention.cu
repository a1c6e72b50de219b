/*
 * plugins/kernels/cuda/kernels/attention.cu - causal attention in tiles of 64, by tensor cores.
 *
 *   s = q k / sqrt(c),  lse = log sum exp s,  p = exp(s - lse),  out = sum p v
 *   D = <dout, out>,  ds = p (<dout, v> - D),  dq = sum ds k / sqrt(c), ...
 *
 * Only a tile of s exists at a time.  The forward keeps each query's greatest score and sum.  The
 * backward computes p from lse twice: once per tile of keys for dk and dv, once per tile of queries
 * for dq.  So each sum has one owner and one order, without atomics.
 *
 * The rows of a tile are padded with zeros to 64 or 128 elements; attention_body.cuh is included
 * once for each.
 *
 * A product multiplies the masked zeros of the diagonal tile too, and 0 times NaN is NaN: a value
 * that is not finite reaches the queries before it that share its tile, and none further back.
 *
 * Sources: Dao et al. 2022 (arXiv:2205.14135) and Dao 2023 (arXiv:2307.08691) for the tiling.
 */
#include "arguments.h"
#include "language.cuh"
#include "shared.h"

#define HD_LOG2_E 1.4426950408889634f

/* One matrix of rows: token t of a head is at data + t x stride. */
struct hd_head_rows {
    const uint16_t *data;
    uint64_t stride;
    uint32_t limit, width; /* tokens, elements */
};

HD_INLINE struct hd_head_rows head_rows(const void *data, const struct hd_attention_args *op,
                                        uint32_t head, uint32_t heads)
{
    struct hd_head_rows rows;
    rows.stride = (uint64_t)heads * op->head_width;
    rows.data = (const uint16_t *)data + (uint64_t)hd_block_z() * op->sequence * rows.stride +
                (uint64_t)head * op->head_width;
    rows.limit = op->sequence;
    rows.width = op->head_width;
    return rows;
}

/* One warp per token and head: D. */
HD_KERNEL(attention_inner, 128, hd_attention_gradient)
{
    const uint64_t row = (uint64_t)hd_block_x() * (hd_threads() / HD_WARP) + hd_warp();
    const uint32_t heads = args.op.heads, width = args.op.head_width;
    const uint64_t tokens = (uint64_t)args.op.batch * args.op.sequence;
    float sum = 0;
    if (row >= tokens * heads) {
        return;
    }
    for (uint32_t i = hd_lane(); i < width; i += HD_WARP) {
        sum += hd_f32_of(((const uint16_t *)args.op.dout)[row * width + i]) *
               hd_f32_of(((const uint16_t *)args.op.out)[row * width + i]);
    }
    sum = hd_warp_sum(sum);
    if (hd_lane() == 0) {
        const uint64_t token = row / heads, head = row % heads;
        const uint64_t batch = token / args.op.sequence, position = token % args.op.sequence;
        args.inner[(batch * heads + head) * args.op.sequence + position] = sum;
    }
}

/* One tile of a backward: its slot, how far its queries are ahead of its keys, its number of
   queries. */
struct hd_gradient_step {
    uint32_t slot;
    int32_t ahead, limit;
    float scale;
};

#define HD_WIDTH           64u
#define HD_OF_WIDTH(name)  name##_64
#define HD_ATTENTION       hd_attention_64_shared
#define HD_GRADIENT_SHARED hd_gradient_64_shared
#include "attention_body.cuh"
#undef HD_WIDTH
#undef HD_OF_WIDTH
#undef HD_ATTENTION
#undef HD_GRADIENT_SHARED

#define HD_WIDTH           128u
#define HD_OF_WIDTH(name)  name##_128
#define HD_ATTENTION       hd_attention_128_shared
#define HD_GRADIENT_SHARED hd_gradient_128_shared
#include "attention_body.cuh"
#undef HD_WIDTH
#undef HD_OF_WIDTH
#undef HD_ATTENTION
#undef HD_GRADIENT_SHARED
