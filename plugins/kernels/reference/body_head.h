/*
 * plugins/kernels/reference/body_head.h - the loss over the vocabulary (see body.h).
 *
 * Logits exist for HD_HEAD_CHUNK columns at a time.  The forward carries, per token, the
 * greatest logit so far and the sum of exponentials below it; the backward makes the
 * same logits again.
 */

static size_t chunk_of(size_t vocabulary)
{
    return vocabulary < HD_HEAD_CHUNK ? vocabulary : HD_HEAD_CHUNK;
}

/* Forward: logits and three values a token; backward: logits, dl, and dx in `stat`. */
static uint64_t head_values(uint64_t tokens, uint64_t width, uint64_t vocabulary)
{
    const uint64_t chunk = chunk_of(vocabulary);
    return tokens * (2 * chunk + (width > 3 ? width : 3));
}

/* The logits of the columns [first, first + count), as [T, count]. */
static void make_logits(const struct hd_ops_device *device, const struct hd_head_args *args,
                        size_t first, size_t count, stat *logits)
{
    const struct product p = {
        .a = {args->x, ACT_DTYPE, args->width, 1},
        .b = {(const act *)args->weight + first * args->width, ACT_DTYPE, args->width, 1},
        .rows = args->token_count,
        .columns = count,
        .depth = args->width,
        .c = logits,
        .c_dtype = STAT_DTYPE};
    multiply(device, &p);
}

/* Takes a chunk of one token's logits into its running maximum and sum. */
static void extend_sum(const stat *logits, size_t count, stat *greatest, stat *sum)
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

static hd_status head_loss(struct hd_ops_device *device, const struct hd_head_args *args)
{
    const size_t tokens = args->token_count, chunk = chunk_of(args->vocabulary);
    stat *logits = own_scratch(device), *greatest = logits + tokens * chunk;
    stat *sum = greatest + tokens, *wanted = sum + tokens, *lse = args->lse;
    double loss = 0;
    for (size_t t = 0; t < tokens; t++) {
        greatest[t] = -(stat)INFINITY;
        sum[t] = wanted[t] = 0;
        assert(args->targets[t] < 0 || (uint32_t)args->targets[t] < args->vocabulary);
    }
    for (size_t first = 0; first < args->vocabulary; first += chunk) {
        const size_t left = args->vocabulary - first, count = left < chunk ? left : chunk;
        make_logits(device, args, first, count, logits);
        for (size_t t = 0; t < tokens; t++) {
            const int64_t column = args->targets[t] - (int64_t)first;
            extend_sum(logits + t * count, count, &greatest[t], &sum[t]);
            if (column >= 0 && column < (int64_t)count) {
                wanted[t] = logits[t * count + (size_t)column];
            }
        }
    }
    for (size_t t = 0; t < tokens; t++) {
        lse[t] = greatest[t] + LOG(sum[t]);
        loss += args->targets[t] >= 0 ? (double)lse[t] - (double)wanted[t] : 0;
    }
    *args->loss = args->label_scale * loss;
    return HD_OK;
}

/* dl of one token's chunk; zero where it has no label. */
static void make_dlogits(const struct hd_head_args *args, size_t token, size_t first, size_t count,
                         const stat *logits, act *dl)
{
    const int64_t column = args->targets[token] - (int64_t)first;
    const stat lse = ((const stat *)args->lse)[token], scale = (stat)args->label_scale;
    if (args->targets[token] < 0) {
        memset(dl, 0, count * sizeof(act));
        return;
    }
    for (size_t v = 0; v < count; v++) {
        const stat one = (int64_t)v == column ? 1 : 0;
        dl[v] = store(scale * (EXP(logits[v] - lse) - one));
    }
}

/* dx += dl W and dW += dl^T x of one chunk. */
static void spread_dlogits(const struct hd_ops_device *device, const struct hd_head_args *args,
                           size_t first, size_t count, const act *dl, stat *dx)
{
    const struct product input = {
        .a = {dl, ACT_DTYPE, count, 1},
        .b = {(const act *)args->weight + first * args->width, ACT_DTYPE, 1, args->width},
        .rows = args->token_count,
        .columns = args->width,
        .depth = count,
        .c = dx,
        .c_dtype = STAT_DTYPE,
        .adds_to_c = 1};
    const struct product weight = {.a = {dl, ACT_DTYPE, 1, count},
                                   .b = {args->x, ACT_DTYPE, 1, args->width},
                                   .rows = count,
                                   .columns = args->width,
                                   .depth = args->token_count,
                                   .c = (stat *)args->dweight + first * args->width,
                                   .c_dtype = STAT_DTYPE,
                                   .adds_to_c = 1};
    multiply(device, &input);
    multiply(device, &weight);
}

static hd_status head_loss_backward(struct hd_ops_device *device, const struct hd_head_args *args)
{
    const size_t tokens = args->token_count, chunk = chunk_of(args->vocabulary);
    stat *logits = own_scratch(device), *dx = logits + tokens * chunk;
    act *dl = (act *)(void *)(dx + tokens * args->width);
    memset(dx, 0, tokens * args->width * sizeof(stat));
    for (size_t first = 0; first < args->vocabulary; first += chunk) {
        const size_t left = args->vocabulary - first, count = left < chunk ? left : chunk;
        make_logits(device, args, first, count, logits);
        for (size_t t = 0; t < tokens; t++) {
            make_dlogits(args, t, first, count, logits + t * count, dl + t * count);
        }
        spread_dlogits(device, args, first, count, dl, dx);
    }
    store_row(dx, tokens * args->width, args->dx);
    return HD_OK;
}
