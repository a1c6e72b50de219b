/*
 * plugins/kernels/cuda/kernels/attention_body.cuh - attention for heads of at most HD_WIDTH
 * elements.
 *
 * attention.cu includes it once per width, so it has no include guard.  A block of 4 warps owns 64
 * queries (or keys), a warp 16 of them.  Fragments are those of mma.m16n8k16: element i of fragment
 * f is row lane / 4 + i / 2 x 8, column 8 f + lane % 4 x 2 + i % 2.
 */
#define HD_ROW_STRIDE (HD_WIDTH + 8u) /* elements from row to row; padded against bank conflicts */

/* 64 rows from `first`, padded with zeros. */
HD_INLINE void HD_OF_WIDTH(load_rows)(const struct hd_head_rows *rows, uint32_t first, uint16_t *to)
{
    if (rows->width % HD_VECTOR == 0) {
        for (uint32_t i = hd_thread(); i < HD_QUERIES * HD_WIDTH / 8; i += hd_threads()) {
            const uint32_t row = i / (HD_WIDTH / 8), column = i % (HD_WIDTH / 8) * 8;
            const int is_there = first + row < rows->limit && column < rows->width;
            const uint64_t at = (uint64_t)(first + row) * rows->stride + column;
            hd_copy_async(to + row * HD_ROW_STRIDE + column, rows->data + (is_there ? at : 0),
                          is_there ? 16 : 0);
        }
    } else {
        for (uint32_t i = hd_thread(); i < HD_QUERIES * HD_WIDTH; i += hd_threads()) {
            const uint32_t row = i / HD_WIDTH, column = i % HD_WIDTH;
            const int is_there = first + row < rows->limit && column < rows->width;
            const uint64_t at = (uint64_t)(first + row) * rows->stride + column;
            to[row * HD_ROW_STRIDE + column] = is_there ? rows->data[at] : (uint16_t)0;
        }
    }
}

/* False for a warp past the end of the sequence: it only takes part in loads. */
HD_INLINE int HD_OF_WIDTH(is_there)(const struct hd_attention_args *args, uint32_t first)
{
    return first + hd_warp() * 16 < args->sequence;
}

/* scores[16, 16 x pairs] = A B^T: A the warp's 16 rows, B the rows from `first`. */
HD_INLINE void HD_OF_WIDTH(dot_rows)(const uint16_t *a, const uint16_t *b, uint32_t first,
                                     float (*scores)[4], const uint32_t pairs)
{
    const uint32_t lane = hd_lane();
    HD_UNROLL
    for (uint32_t f = 0; f < 2 * pairs; f++) {
        scores[f][0] = scores[f][1] = scores[f][2] = scores[f][3] = 0;
    }
    HD_UNROLL
    for (uint32_t column = 0; column < HD_WIDTH; column += 16) {
        uint32_t left[4];
        hd_load_matrices(left,
                         a + (hd_warp() * 16 + lane % 16) * HD_ROW_STRIDE + column + lane / 16 * 8);
        HD_UNROLL
        for (uint32_t pair = 0; pair < pairs; pair++) {
            uint32_t right[4];
            hd_load_matrices(right,
                             b + (first + pair * 16 + lane % 8 + lane / 16 * 8) * HD_ROW_STRIDE +
                                 column + lane / 8 % 2 * 8);
            hd_multiply(scores[2 * pair], left, right);
            hd_multiply(scores[2 * pair + 1], left, right + 2);
        }
    }
}

/* sums[16, width] += P B: P in the fragments of dot_rows, B the rows from `first`. */
HD_INLINE void HD_OF_WIDTH(add_rows)(float (*p)[4], const uint16_t *b, uint32_t first,
                                     float (*sums)[4], const uint32_t pairs)
{
    const uint32_t lane = hd_lane();
    HD_UNROLL
    for (uint32_t pair = 0; pair < pairs; pair++) {
        uint32_t left[4];
        HD_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const float *from = p[2 * pair + i / 2] + i % 2 * 2;
            left[i] = hd_bf16_pair(from[0], from[1]);
        }
        HD_UNROLL
        for (uint32_t column = 0; column < HD_WIDTH; column += 16) {
            uint32_t right[4];
            hd_load_transposed(
                right, b + (first + pair * 16 + lane % 8 + lane / 8 % 2 * 8) * HD_ROW_STRIDE +
                           column + lane / 16 * 8);
            hd_multiply(sums[column / 8], left, right);
            hd_multiply(sums[column / 8 + 1], left, right + 2);
        }
    }
}

HD_INLINE void HD_OF_WIDTH(clear_sums)(float (*sums)[4])
{
    HD_UNROLL
    for (uint32_t f = 0; f < HD_WIDTH / 8; f++) {
        sums[f][0] = sums[f][1] = sums[f][2] = sums[f][3] = 0;
    }
}

/* Stores the warp's 16 rows, each divided by the `divisor` of its half. */
HD_INLINE void HD_OF_WIDTH(store_rows)(const struct hd_head_rows *rows, uint32_t first,
                                       float (*sums)[4], const float *divisor)
{
    HD_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t row = first + hd_warp() * 16 + hd_lane() / 4 + half * 8;
        HD_UNROLL
        for (uint32_t f = 0; f < HD_WIDTH / 8; f++) {
            const uint32_t column = f * 8 + hd_lane() % 4 * 2;
            if (row < rows->limit && column < rows->width) {
                uint16_t *to = (uint16_t *)(uintptr_t)rows->data + row * rows->stride + column;
                *(uint32_t *)(void *)to = hd_bf16_pair(sums[f][2 * half] / divisor[half],
                                                       sums[f][2 * half + 1] / divisor[half]);
            }
        }
    }
}

/* --- forward ---------------------------------------------------------------------------------- */

/* The state of a warp's 16 queries, two of them per thread. */
struct HD_OF_WIDTH(hd_running) {
    float out[HD_WIDTH / 8][4];
    float most[2], sum[2];
};

/* Scales and masks a tile of scores, updates the running maximum and sum, and leaves p. */
HD_INLINE void HD_OF_WIDTH(take_scores)(struct HD_OF_WIDTH(hd_running) * running,
                                        float (*scores)[4], float scale, int is_diagonal)
{
    HD_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t query = hd_warp() * 16 + hd_lane() / 4 + half * 8;
        float most = running->most[half], sum = 0;
        HD_UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t key = i / 2 * 8 + hd_lane() % 4 * 2 + i % 2;
            float *score = &scores[i / 2][2 * half + i % 2];
            *score = is_diagonal && key > query ? hd_float_of(0xff800000u) : *score * scale;
            most = hd_larger(*score, most);
        }
        most = hd_larger(most, hd_xor_f32(most, 1));
        most = hd_larger(most, hd_xor_f32(most, 2));
        const float shrink = exp2f((running->most[half] - most) * HD_LOG2_E);
        HD_UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            float *score = &scores[i / 2][2 * half + i % 2];
            *score = exp2f((*score - most) * HD_LOG2_E);
            sum += *score;
        }
        running->most[half] = most;
        running->sum[half] = running->sum[half] * shrink + sum;
        HD_UNROLL
        for (uint32_t f = 0; f < HD_WIDTH / 8; f++) {
            running->out[f][2 * half] *= shrink;
            running->out[f][2 * half + 1] *= shrink;
        }
    }
}

/* Sums each query over the four threads that share it; writes lse and the output. */
HD_INLINE void HD_OF_WIDTH(end_queries)(const struct hd_attention_args *args, uint32_t first,
                                        struct HD_OF_WIDTH(hd_running) * running)
{
    const struct hd_head_rows out = head_rows(args->out, args, hd_block_y(), args->heads);
    float *lse =
        (float *)args->lse + ((uint64_t)hd_block_z() * args->heads + hd_block_y()) * args->sequence;
    HD_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t query = first + hd_warp() * 16 + hd_lane() / 4 + half * 8;
        running->sum[half] += hd_xor_f32(running->sum[half], 1);
        running->sum[half] += hd_xor_f32(running->sum[half], 2);
        if (hd_lane() % 4 == 0 && query < args->sequence) {
            lse[query] = running->most[half] + logf(running->sum[half]);
        }
    }
    HD_OF_WIDTH(store_rows)(&out, first, running->out, running->sum);
}

/* Block x is a tile of queries, the longest first; y is a head, z a sequence. */
HD_KERNEL(HD_OF_WIDTH(attention), 128, hd_attention_args)
{
    HD_SHARED(HD_ATTENTION, shared);
    const uint32_t tile = hd_blocks() - 1 - hd_block_x(), first = tile * HD_QUERIES;
    const uint32_t own = hd_block_y() / (args.heads / args.key_value_heads);
    const struct hd_head_rows queries = head_rows(args.q, &args, hd_block_y(), args.heads);
    const struct hd_head_rows keys = head_rows(args.k, &args, own, args.key_value_heads);
    const struct hd_head_rows values = head_rows(args.v, &args, own, args.key_value_heads);
    const float scale = 1 / sqrtf((float)args.head_width);
    struct HD_OF_WIDTH(hd_running) running;
    HD_OF_WIDTH(clear_sums)(running.out);
    running.most[0] = running.most[1] = hd_float_of(0xff800000u);
    running.sum[0] = running.sum[1] = 0;
    HD_OF_WIDTH(load_rows)(&queries, first, shared->queries);
    HD_OF_WIDTH(load_rows)(&keys, 0, shared->keys[0]);
    HD_OF_WIDTH(load_rows)(&values, 0, shared->values[0]);
    hd_copy_commit();
    for (uint32_t j = 0; j <= tile; j++) {
        float scores[8][4];
        if (j < tile) {
            HD_OF_WIDTH(load_rows)(&keys, (j + 1) * HD_QUERIES, shared->keys[(j + 1) % 2]);
            HD_OF_WIDTH(load_rows)(&values, (j + 1) * HD_QUERIES, shared->values[(j + 1) % 2]);
        }
        hd_copy_commit();
        hd_copy_wait(1);
        hd_sync();
        if (HD_OF_WIDTH(is_there)(&args, first)) {
            HD_OF_WIDTH(dot_rows)(shared->queries, shared->keys[j % 2], 0, scores, 4);
            HD_OF_WIDTH(take_scores)(&running, scores, scale, j == tile);
            HD_OF_WIDTH(add_rows)(scores, shared->values[j % 2], 0, running.out, 4);
        }
        hd_sync();
    }
    HD_OF_WIDTH(end_queries)(&args, first, &running);
}

/* --- backward --------------------------------------------------------------------------------- */

/* p and ds of one element, in place of the score and of <dout, v>. */
HD_INLINE void HD_OF_WIDTH(make_gradient)(float *score, float *given, float lse, float inner,
                                          float scale)
{
    const float p = exp2f((*score * scale - lse) * HD_LOG2_E);
    *given = p * (*given - inner) * scale;
    *score = p;
}

/* lse and D of 64 queries from `first` of one head, into shared memory. */
HD_INLINE void HD_OF_WIDTH(load_statistics)(const struct hd_attention_gradient *args, uint32_t head,
                                            uint32_t first, float *lse, float *inner)
{
    const uint64_t at = ((uint64_t)hd_block_z() * args->op.heads + head) * args->op.sequence;
    const uint32_t query = first + hd_thread() % HD_QUERIES;
    const float *from = hd_thread() < HD_QUERIES ? (const float *)args->op.lse : args->inner;
    float *to = hd_thread() < HD_QUERIES ? lse : inner;
    to[hd_thread() % HD_QUERIES] = query < args->op.sequence ? from[at + query] : 0;
}

/* Loads the queries of step `step` of a tile of keys: head by head, tile by tile. */
HD_INLINE void HD_OF_WIDTH(load_queries)(const struct hd_attention_gradient *args,
                                         struct HD_GRADIENT_SHARED *shared, uint32_t step)
{
    const uint32_t group = args->op.heads / args->op.key_value_heads;
    const uint32_t left = hd_blocks() - hd_block_x(), head = hd_block_y() * group + step / left;
    const uint32_t first = (hd_block_x() + step % left) * HD_QUERIES;
    if (step < group * left) {
        const struct hd_head_rows queries = head_rows(args->op.q, &args->op, head, args->op.heads);
        const struct hd_head_rows dout = head_rows(args->op.dout, &args->op, head, args->op.heads);
        HD_OF_WIDTH(load_rows)(&queries, first, shared->first[step % 2]);
        HD_OF_WIDTH(load_rows)(&dout, first, shared->second[step % 2]);
        HD_OF_WIDTH(load_statistics)
        (args, head, first, shared->lse[step % 2], shared->inner[step % 2]);
    }
    hd_copy_commit();
}

/* Adds to dk and dv the part of 32 queries from `half` of the tile. */
HD_INLINE void HD_OF_WIDTH(take_queries)(struct HD_GRADIENT_SHARED *shared,
                                         const struct hd_gradient_step *step, uint32_t half,
                                         float (*dk)[4], float (*dv)[4])
{
    const uint32_t slot = step->slot;
    float scores[4][4], given[4][4];
    HD_OF_WIDTH(dot_rows)(shared->own[0], shared->first[slot], half, scores, 2);
    HD_OF_WIDTH(dot_rows)(shared->own[1], shared->second[slot], half, given, 2);
    HD_UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t query = half + i / 4 * 8 + hd_lane() % 4 * 2 + i % 2;
        const int32_t key = (int32_t)(hd_warp() * 16 + hd_lane() / 4 + i / 2 % 2 * 8);
        float *score = &scores[i / 4][i % 4], *gradient = &given[i / 4][i % 4];
        HD_OF_WIDTH(make_gradient)
        (score, gradient, shared->lse[slot][query], shared->inner[slot][query], step->scale);
        if (key > (int32_t)query + step->ahead || (int32_t)query >= step->limit) {
            *score = *gradient = 0;
        }
    }
    HD_OF_WIDTH(add_rows)(scores, shared->second[slot], half, dv, 2);
    HD_OF_WIDTH(add_rows)(given, shared->first[slot], half, dk, 2);
}

/* Block x a tile of keys, y a key-value head, z a sequence: dk and dv, over its query heads in
 * order. */
HD_KERNEL(HD_OF_WIDTH(attention_keys), 128, hd_attention_gradient)
{
    HD_SHARED(HD_GRADIENT_SHARED, shared);
    const uint32_t first = hd_block_x() * HD_QUERIES, left = hd_blocks() - hd_block_x();
    const uint32_t steps = args.op.heads / args.op.key_value_heads * left;
    const uint32_t own = hd_block_y(), count = args.op.key_value_heads;
    const struct hd_head_rows keys = head_rows(args.op.k, &args.op, own, count);
    const struct hd_head_rows values = head_rows(args.op.v, &args.op, own, count);
    const float scale = 1 / sqrtf((float)args.op.head_width), one[2] = {1, 1};
    float dk[HD_WIDTH / 8][4], dv[HD_WIDTH / 8][4];
    HD_OF_WIDTH(clear_sums)(dk);
    HD_OF_WIDTH(clear_sums)(dv);
    HD_OF_WIDTH(load_rows)(&keys, first, shared->own[0]);
    HD_OF_WIDTH(load_rows)(&values, first, shared->own[1]);
    HD_OF_WIDTH(load_queries)(&args, shared, 0);
    for (uint32_t step = 0; step < steps; step++) {
        const int32_t ahead = (int32_t)(step % left * HD_QUERIES);
        const struct hd_gradient_step now = {step % 2, ahead,
                                             (int32_t)(args.op.sequence - first) - ahead, scale};
        HD_OF_WIDTH(load_queries)(&args, shared, step + 1);
        hd_copy_wait(1);
        hd_sync();
        /* At 128 every register is taken, and one more test spills. */
        if (HD_WIDTH > 64 || HD_OF_WIDTH(is_there)(&args.op, first)) {
            HD_OF_WIDTH(take_queries)(shared, &now, 0, dk, dv);
            HD_OF_WIDTH(take_queries)(shared, &now, 32, dk, dv);
        }
        hd_sync();
    }
    const struct hd_head_rows dkeys = head_rows(args.op.dk, &args.op, own, count);
    const struct hd_head_rows dvalues = head_rows(args.op.dv, &args.op, own, count);
    HD_OF_WIDTH(store_rows)(&dkeys, first, dk, one);
    HD_OF_WIDTH(store_rows)(&dvalues, first, dv, one);
}

/* 32 keys from `half` of the tile: adds their part of dq.  statistics: lse, then D, of the thread's
   two queries. */
HD_INLINE void HD_OF_WIDTH(take_keys)(struct HD_GRADIENT_SHARED *shared,
                                      const struct hd_gradient_step *step, uint32_t half,
                                      float (*dq)[4], const float *statistics)
{
    const uint32_t slot = step->slot;
    float scores[4][4], given[4][4];
    HD_OF_WIDTH(dot_rows)(shared->own[0], shared->first[slot], half, scores, 2);
    HD_OF_WIDTH(dot_rows)(shared->own[1], shared->second[slot], half, given, 2);
    HD_UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t key = half + i / 4 * 8 + hd_lane() % 4 * 2 + i % 2;
        const uint32_t query = hd_warp() * 16 + hd_lane() / 4 + i / 2 % 2 * 8;
        float *score = &scores[i / 4][i % 4], *gradient = &given[i / 4][i % 4];
        HD_OF_WIDTH(make_gradient)
        (score, gradient, statistics[i / 2 % 2], statistics[2 + i / 2 % 2], step->scale);
        if ((int32_t)key > (int32_t)query + step->ahead) {
            *gradient = 0;
        }
    }
    HD_OF_WIDTH(add_rows)(given, shared->first[slot], half, dq, 2);
}

HD_INLINE void HD_OF_WIDTH(load_keys)(const struct hd_attention_gradient *args,
                                      struct HD_GRADIENT_SHARED *shared, uint32_t tile,
                                      uint32_t last)
{
    const uint32_t own = hd_block_y() / (args->op.heads / args->op.key_value_heads);
    if (tile <= last) {
        const struct hd_head_rows keys =
            head_rows(args->op.k, &args->op, own, args->op.key_value_heads);
        const struct hd_head_rows values =
            head_rows(args->op.v, &args->op, own, args->op.key_value_heads);
        HD_OF_WIDTH(load_rows)(&keys, tile * HD_QUERIES, shared->first[tile % 2]);
        HD_OF_WIDTH(load_rows)(&values, tile * HD_QUERIES, shared->second[tile % 2]);
    }
    hd_copy_commit();
}

/* dq.  Block x is a tile of queries, the longest first; y is a head, z a sequence. */
HD_KERNEL(HD_OF_WIDTH(attention_queries), 128, hd_attention_gradient)
{
    HD_SHARED(HD_GRADIENT_SHARED, shared);
    const uint32_t tile = hd_blocks() - 1 - hd_block_x(), first = tile * HD_QUERIES;
    const uint32_t head = hd_block_y(), heads = args.op.heads;
    const struct hd_head_rows queries = head_rows(args.op.q, &args.op, head, heads);
    const struct hd_head_rows dout = head_rows(args.op.dout, &args.op, head, heads);
    const struct hd_head_rows dqueries = head_rows(args.op.dq, &args.op, head, heads);
    const float scale = 1 / sqrtf((float)args.op.head_width), one[2] = {1, 1};
    float dq[HD_WIDTH / 8][4], statistics[4];
    HD_OF_WIDTH(clear_sums)(dq);
    HD_OF_WIDTH(load_rows)(&queries, first, shared->own[0]);
    HD_OF_WIDTH(load_rows)(&dout, first, shared->own[1]);
    HD_OF_WIDTH(load_statistics)(&args, head, first, shared->lse[0], shared->inner[0]);
    HD_OF_WIDTH(load_keys)(&args, shared, 0, tile);
    hd_sync();
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t query = hd_warp() * 16 + hd_lane() / 4 + half * 8;
        statistics[half] = shared->lse[0][query];
        statistics[2 + half] = shared->inner[0][query];
    }
    for (uint32_t j = 0; j <= tile; j++) {
        const struct hd_gradient_step now = {j % 2, (int32_t)((tile - j) * HD_QUERIES), 0, scale};
        HD_OF_WIDTH(load_keys)(&args, shared, j + 1, tile);
        hd_copy_wait(1);
        hd_sync();
        if (HD_OF_WIDTH(is_there)(&args.op, first)) {
            HD_OF_WIDTH(take_keys)(shared, &now, 0, dq, statistics);
            HD_OF_WIDTH(take_keys)(shared, &now, 32, dq, statistics);
        }
        hd_sync();
    }
    HD_OF_WIDTH(store_rows)(&dqueries, first, dq, one);
}

#undef HD_ROW_STRIDE
