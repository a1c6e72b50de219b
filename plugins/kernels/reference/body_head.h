/*
 * plugins/kernels/reference/body_head.h - the loss over the vocabulary (see body.h).
 *
 * Logits exist for HD_HEAD_CHUNK columns at a time.  The forward keeps, per token, the
 * greatest logit so far and the sum of exponentials relative to it; the backward computes
 * the same logits again.
 */

static size_t head_chunk_of(size_t vocabulary)
{
    return vocabulary < HD_HEAD_CHUNK ? vocabulary : HD_HEAD_CHUNK;
}

/* Forward: logits and three values a token; backward: logits, dl, and dx in `stat`. */
static uint64_t head_values(uint64_t tokens, uint64_t width, uint64_t vocabulary)
{
    const uint64_t chunk = head_chunk_of(vocabulary);
    return tokens * (2 * chunk + (width > 3 ? width : 3));
}

/* Some columns of the vocabulary. */
struct chunk {
    size_t first, count;
    stat *logits; /* [T, count] */
    act *dl;      /* [T, count]; backward */
    stat *dx;     /* [T, d], the sum over the chunks so far; backward */
};

static struct chunk head_chunk_at(const struct hd_ops_device *device,
                                  const struct hd_head_args *args, size_t first)
{
    const size_t most_columns = head_chunk_of(args->vocabulary), left = args->vocabulary - first;
    struct chunk chunk = {.first = first, .logits = body_own_scratch(device)};
    chunk.count = left < most_columns ? left : most_columns;
    chunk.dx = chunk.logits + args->token_count * most_columns;
    chunk.dl = (act *)(void *)(chunk.dx + (size_t)args->token_count * args->width);
    return chunk;
}

static void head_make_logits(const struct hd_ops_device *device, const struct hd_head_args *args,
                             const struct chunk *chunk)
{
    const act *weight = (const act *)args->weight + chunk->first * args->width;
    const struct product p = {.a = {args->x, ACT_DTYPE, args->width, 1},
                              .b = {weight, ACT_DTYPE, args->width, 1},
                              .rows = args->token_count,
                              .columns = chunk->count,
                              .depth = args->width,
                              .c = chunk->logits,
                              .c_dtype = STAT_DTYPE};
    product_multiply(device, &p);
}

/* Takes a chunk of one token's logits into its running maximum and sum. */
static void head_extend_sum(const stat *logits, size_t count, stat *greatest, stat *sum)
{
    stat top = *greatest;
    for (size_t v = 0; v < count; v++) {
        top = logits[v] > top ? logits[v] : top;
    }
    stat total = *sum > 0 ? *sum * EXP(*greatest - top) : *sum;
    for (size_t v = 0; v < count; v++) {
        total += EXP(logits[v] - top);
    }
    *greatest = top;
    *sum = total;
}

/* The running maximum and sum of every token, and the logit of its target; forward only. */
struct running {
    stat *greatest, *sum, *wanted; /* [T] */
};

static void head_take_chunk(const struct hd_head_args *args, const struct chunk *chunk,
                            const struct running *running)
{
    for (size_t t = 0; t < args->token_count; t++) {
        const stat *logits = chunk->logits + t * chunk->count;
        const int64_t column = args->targets[t] - (int64_t)chunk->first;
        head_extend_sum(logits, chunk->count, &running->greatest[t], &running->sum[t]);
        if (column >= 0 && column < (int64_t)chunk->count) {
            running->wanted[t] = logits[column];
        }
    }
}

static hd_status reference_head_loss(struct hd_ops_device *device, const struct hd_head_args *args)
{
    const size_t tokens = args->token_count, columns = head_chunk_of(args->vocabulary);
    struct running running = {.greatest = body_own_scratch(device) + tokens * columns};
    running.sum = running.greatest + tokens;
    running.wanted = running.sum + tokens;
    stat *lse = args->lse;
    double loss = 0;
    for (size_t t = 0; t < tokens; t++) {
        running.greatest[t] = -(stat)INFINITY;
        running.sum[t] = running.wanted[t] = 0;
        assert(args->targets[t] < 0 || (uint32_t)args->targets[t] < args->vocabulary);
    }
    for (size_t first = 0; first < args->vocabulary; first += columns) {
        const struct chunk chunk = head_chunk_at(device, args, first);
        head_make_logits(device, args, &chunk);
        head_take_chunk(args, &chunk, &running);
    }
    for (size_t t = 0; t < tokens; t++) {
        lse[t] = running.greatest[t] + LOG(running.sum[t]);
        loss += args->targets[t] >= 0 ? (double)lse[t] - (double)running.wanted[t] : 0;
    }
    *args->loss = args->label_scale * loss;
    return HD_OK;
}

/* dl of one token; zero if it has no label. */
static void head_make_dlogits(const struct hd_head_args *args, const struct chunk *chunk,
                              size_t token)
{
    const stat *logits = chunk->logits + token * chunk->count;
    act *dl = chunk->dl + token * chunk->count;
    const int64_t column = args->targets[token] - (int64_t)chunk->first;
    const stat lse = ((const stat *)args->lse)[token], scale = (stat)args->label_scale;
    if (args->targets[token] < 0) {
        memset(dl, 0, chunk->count * sizeof(act));
        return;
    }
    for (size_t v = 0; v < chunk->count; v++) {
        const stat one = (int64_t)v == column ? 1 : 0;
        dl[v] = store(scale * (EXP(logits[v] - lse) - one));
    }
}

/* dx += dl W and dW += dl^T x of one chunk. */
static void head_spread_dlogits(const struct hd_ops_device *device, const struct hd_head_args *args,
                                const struct chunk *chunk)
{
    const size_t begin = chunk->first * args->width;
    const struct product input = {
        .a = {chunk->dl, ACT_DTYPE, chunk->count, 1},
        .b = {(const act *)args->weight + begin, ACT_DTYPE, 1, args->width},
        .rows = args->token_count,
        .columns = args->width,
        .depth = chunk->count,
        .c = chunk->dx,
        .c_dtype = STAT_DTYPE,
        .adds_to_c = 1};
    const struct product weight = {.a = {chunk->dl, ACT_DTYPE, 1, chunk->count},
                                   .b = {args->x, ACT_DTYPE, 1, args->width},
                                   .rows = chunk->count,
                                   .columns = args->width,
                                   .depth = args->token_count,
                                   .c = (stat *)args->dweight + begin,
                                   .c_dtype = STAT_DTYPE,
                                   .adds_to_c = 1};
    product_multiply(device, &input);
    product_multiply(device, &weight);
}

static hd_status reference_head_loss_backward(struct hd_ops_device *device,
                                              const struct hd_head_args *args)
{
    const size_t tokens = args->token_count, values = tokens * args->width;
    const size_t columns = head_chunk_of(args->vocabulary);
    stat *dx = head_chunk_at(device, args, 0).dx;
    memset(dx, 0, values * sizeof(stat));
    for (size_t first = 0; first < args->vocabulary; first += columns) {
        const struct chunk chunk = head_chunk_at(device, args, first);
        head_make_logits(device, args, &chunk);
        for (size_t t = 0; t < tokens; t++) {
            head_make_dlogits(args, &chunk, t);
        }
        head_spread_dlogits(device, args, &chunk);
    }
    attention_store_row(dx, values, args->dx);
    return HD_OK;
}
