/*
 * plugins/kernels/reference/body_attention.h - causal attention (see body.h).
 *
 *   s = q k / sqrt(c),  lse = log sum exp s,  p = exp(s - lse),  out = sum p v
 *   D = <dout, out>,  ds = p (<dout, v> - D),  dq = sum ds k / sqrt(c), ...
 *
 * Per sequence and key-value head, k and v are copied as `stat`, also transposed, so
 * that the inner loops run over contiguous positions or channels; each sum still
 * ascends.  Several query heads may share a key-value head: their dk and dv are
 * summed in ascending order of head, then position.
 */

/* One key-value head of one sequence, in scratch. */
struct heads {
    stat *keys, *values;           /* [sequence, c] */
    stat *keys_across;             /* [c, sequence] */
    stat *values_across;           /* [c, sequence] */
    stat *dkeys, *dvalues;         /* [sequence, c] */
    stat *probability, *dscore;    /* [sequence] */
    stat *query, *dout, *out_row;  /* [c]; out_row: out or dq */
    size_t sequence, width, limit; /* limit: positions that the query may see */
    stat scale;
};

static uint64_t attention_values(uint64_t sequence, uint64_t head_width)
{
    return 6 * sequence * head_width + 2 * sequence + 3 * head_width;
}

static struct heads attention_lay_out_heads(const struct hd_ops_device *device,
                                            const struct hd_attention_args *args)
{
    const size_t sequence = args->sequence, width = args->head_width, area = sequence * width;
    struct heads heads = {.keys = body_own_scratch(device), .sequence = sequence, .width = width};
    heads.values = heads.keys + area;
    heads.keys_across = heads.values + area;
    heads.values_across = heads.keys_across + area;
    heads.dkeys = heads.values_across + area;
    heads.dvalues = heads.dkeys + area;
    heads.probability = heads.dvalues + area;
    heads.dscore = heads.probability + sequence;
    heads.query = heads.dscore + sequence;
    heads.dout = heads.query + width;
    heads.out_row = heads.dout + width;
    heads.scale = 1 / SQRT((stat)width);
    return heads;
}

static void attention_load_row(const act *from, size_t count, stat *to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = load(from[i]);
    }
}

static void attention_store_row(const stat *from, size_t count, act *to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = store(from[i]);
    }
}

/* Loads the keys and values of one head; token t of it is at from + t * stride. */
static void attention_load_heads(struct heads *heads, const act *keys, const act *values,
                                 size_t stride)
{
    for (size_t t = 0; t < heads->sequence; t++) {
        attention_load_row(keys + t * stride, heads->width, heads->keys + t * heads->width);
        attention_load_row(values + t * stride, heads->width, heads->values + t * heads->width);
        for (size_t i = 0; i < heads->width; i++) {
            heads->keys_across[i * heads->sequence + t] = heads->keys[t * heads->width + i];
            heads->values_across[i * heads->sequence + t] = heads->values[t * heads->width + i];
        }
    }
}

/* result[t] = <row, across[., t]> for t < limit. */
static void attention_dot_across(const struct heads *heads, const stat *restrict row,
                                 const stat *restrict across, stat *restrict result)
{
    memset(result, 0, heads->limit * sizeof(stat));
    for (size_t i = 0; i < heads->width; i++) {
        const stat factor = row[i];
        const stat *row_across = across + i * heads->sequence;
        for (size_t t = 0; t < heads->limit; t++) {
            result[t] += factor * row_across[t];
        }
    }
}

/* result[i] = sum over t < limit of weight[t] rows[t, i]. */
static void attention_sum_rows(const struct heads *heads, const stat *restrict weight,
                               const stat *restrict rows, stat *restrict result)
{
    memset(result, 0, heads->width * sizeof(stat));
    for (size_t t = 0; t < heads->limit; t++) {
        const stat factor = weight[t];
        const stat *row = rows + t * heads->width;
        for (size_t i = 0; i < heads->width; i++) {
            result[i] += factor * row[i];
        }
    }
}

/* rows[t, i] += weight[t] row[i] for t < limit. */
static void attention_add_outer(const struct heads *heads, const stat *restrict weight,
                                const stat *restrict row, stat *restrict rows)
{
    for (size_t t = 0; t < heads->limit; t++) {
        const stat factor = weight[t];
        stat *sums = rows + t * heads->width;
        for (size_t i = 0; i < heads->width; i++) {
            sums[i] += factor * row[i];
        }
    }
}

/* The scores of the query in heads->probability, scaled; returns the greatest. */
static stat attention_score_query(struct heads *heads)
{
    stat greatest = -(stat)INFINITY;
    attention_dot_across(heads, heads->query, heads->keys_across, heads->probability);
    for (size_t t = 0; t < heads->limit; t++) {
        heads->probability[t] *= heads->scale;
        greatest = heads->probability[t] > greatest ? heads->probability[t] : greatest;
    }
    return greatest;
}

static void attention_attend_query(struct heads *heads, const act *query, act *out, stat *lse)
{
    stat sum = 0;
    attention_load_row(query, heads->width, heads->query);
    const stat greatest = attention_score_query(heads);
    for (size_t t = 0; t < heads->limit; t++) {
        heads->probability[t] = EXP(heads->probability[t] - greatest);
        sum += heads->probability[t];
    }
    attention_sum_rows(heads, heads->probability, heads->values, heads->out_row);
    for (size_t i = 0; i < heads->width; i++) {
        out[i] = store(heads->out_row[i] / sum);
    }
    *lse = greatest + LOG(sum);
}

/* Element offset of (sequence, position 0, head) in [T, heads, c]. */
static size_t attention_head_offset(const struct hd_attention_args *args, size_t batch, size_t head,
                                    size_t heads)
{
    return (batch * args->sequence * heads + head) * args->head_width;
}

/* Loads key-value head `shared` of `batch`. */
static void attention_load_shared(const struct hd_attention_args *args, struct heads *heads,
                                  size_t batch, size_t shared)
{
    const size_t at = attention_head_offset(args, batch, shared, args->key_value_heads);
    attention_load_heads(heads, (const act *)args->k + at, (const act *)args->v + at,
                         (size_t)args->key_value_heads * args->head_width);
}

static hd_status reference_attention(struct hd_ops_device *device,
                                     const struct hd_attention_args *args)
{
    const size_t group = args->heads / args->key_value_heads;
    const size_t stride = (size_t)args->heads * args->head_width;
    struct heads heads = attention_lay_out_heads(device, args);
    for (size_t batch = 0; batch < args->batch; batch++) {
        for (size_t head = 0; head < args->heads; head++) {
            const size_t at = attention_head_offset(args, batch, head, args->heads);
            stat *lse = (stat *)args->lse + (batch * args->heads + head) * args->sequence;
            if (head % group == 0) {
                attention_load_shared(args, &heads, batch, head / group);
            }
            for (size_t t = 0; t < args->sequence; t++) {
                heads.limit = t + 1;
                attention_attend_query(&heads, (const act *)args->q + at + t * stride,
                                       (act *)args->out + at + t * stride, &lse[t]);
            }
        }
    }
    return HD_OK;
}

/* One query: dq, and its parts of dk and dv.  heads->query and heads->dout are loaded. */
static void attention_attend_query_backward(struct heads *heads, const act *out, stat lse, act *dq)
{
    stat inner = 0;
    for (size_t i = 0; i < heads->width; i++) {
        inner += heads->dout[i] * load(out[i]);
    }
    attention_score_query(heads);
    attention_dot_across(heads, heads->dout, heads->values_across, heads->dscore);
    for (size_t t = 0; t < heads->limit; t++) {
        heads->probability[t] = EXP(heads->probability[t] - lse);
        heads->dscore[t] = heads->probability[t] * (heads->dscore[t] - inner) * heads->scale;
    }
    attention_sum_rows(heads, heads->dscore, heads->keys, heads->out_row);
    attention_store_row(heads->out_row, heads->width, dq);
    attention_add_outer(heads, heads->dscore, heads->query, heads->dkeys);
    attention_add_outer(heads, heads->probability, heads->dout, heads->dvalues);
}

static void attention_attend_head_backward(const struct hd_attention_args *args,
                                           struct heads *heads, size_t batch, size_t head)
{
    const size_t stride = (size_t)args->heads * args->head_width;
    const size_t begin = attention_head_offset(args, batch, head, args->heads);
    const stat *lse = (const stat *)args->lse + (batch * args->heads + head) * args->sequence;
    for (size_t t = 0; t < args->sequence; t++) {
        const size_t at = begin + t * stride;
        heads->limit = t + 1;
        attention_load_row((const act *)args->q + at, heads->width, heads->query);
        attention_load_row((const act *)args->dout + at, heads->width, heads->dout);
        attention_attend_query_backward(heads, (const act *)args->out + at, lse[t],
                                        (act *)args->dq + at);
    }
}

static hd_status reference_attention_backward(struct hd_ops_device *device,
                                              const struct hd_attention_args *args)
{
    const size_t group = args->heads / args->key_value_heads;
    const size_t stride = (size_t)args->key_value_heads * args->head_width;
    struct heads heads = attention_lay_out_heads(device, args);
    const size_t area = heads.sequence * heads.width * sizeof(stat);
    for (size_t index = 0; index < (size_t)args->batch * args->key_value_heads; index++) {
        const size_t batch = index / args->key_value_heads, shared = index % args->key_value_heads;
        const size_t begin = attention_head_offset(args, batch, shared, args->key_value_heads);
        attention_load_shared(args, &heads, batch, shared);
        memset(heads.dkeys, 0, area);
        memset(heads.dvalues, 0, area);
        for (size_t head = shared * group; head < (shared + 1) * group; head++) {
            attention_attend_head_backward(args, &heads, batch, head);
        }
        for (size_t t = 0; t < heads.sequence; t++) {
            const size_t at = begin + t * stride;
            attention_store_row(heads.dkeys + t * heads.width, heads.width, (act *)args->dk + at);
            attention_store_row(heads.dvalues + t * heads.width, heads.width, (act *)args->dv + at);
        }
    }
    return HD_OK;
}
