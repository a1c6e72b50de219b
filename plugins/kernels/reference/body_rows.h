/*
 * plugins/kernels/reference/body_rows.h - rows of experts and their activation (see body.h).
 *
 *   selected   token 0: 2 0   token 1: 2 1          rows sorted by (expert, token),
 *   rows       expert 0: t0 + 31 zeros  expert 1: t1 + 31 zeros  expert 2: t0 t1 + 30
 */

static hd_status reference_assign(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    const size_t places = (size_t)args->token_count * args->experts_per_token;
    const size_t row_max =
        (places + (size_t)(HD_ROW_BLOCK - 1) * args->experts) / HD_ROW_BLOCK * HD_ROW_BLOCK;
    int32_t *next = (int32_t *)(void *)body_own_scratch(device), begin = 0;
    memset(next, 0, args->experts * sizeof next[0]);
    for (size_t place = 0; place < places; place++) {
        next[args->selected[place]]++;
    }
    for (size_t e = 0; e < args->experts; e++) {
        const int32_t rows = (next[e] + (int32_t)HD_ROW_BLOCK - 1) / (int32_t)HD_ROW_BLOCK;
        args->offsets[e] = next[e] = begin;
        begin += rows * (int32_t)HD_ROW_BLOCK;
    }
    args->offsets[args->experts] = begin;
    assert((size_t)begin <= row_max);
    for (size_t row = 0; row < row_max; row++) {
        args->source[row] = -1;
    }
    for (size_t place = 0; place < places; place++) {
        const int32_t row = next[args->selected[place]]++;
        args->row_of[place] = row;
        args->source[row] = (int32_t)place;
    }
    return HD_OK;
}

static hd_status reference_permute(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    const size_t width = args->width, row_count = (size_t)args->offsets[args->experts];
    (void)device;
    for (size_t row = 0; row < row_count; row++) {
        act *to = (act *)args->rows.data + row * width;
        const int32_t place = args->source[row];
        if (place < 0) {
            memset(to, 0, width * sizeof(act));
        } else {
            const size_t token = (size_t)place / args->experts_per_token;
            memcpy(to, (const act *)args->x + token * width, width * sizeof(act));
        }
    }
    return HD_OK;
}

/* The row of choice j of a token. */
static const act *rows_row_at(const struct hd_rows_args *args, size_t token, size_t j)
{
    const int32_t row = args->row_of[token * args->experts_per_token + j];
    return (const act *)args->rows.data + (size_t)row * args->width;
}

static hd_status reference_permute_backward(struct hd_ops_device *device,
                                            const struct hd_rows_args *args)
{
    const size_t width = args->width;
    (void)device;
    for (size_t token = 0; token < args->token_count; token++) {
        const stat *add = (const stat *)args->add + token * width;
        act *dx = (act *)args->dx + token * width;
        for (size_t i = 0; i < width; i++) {
            stat sum = add[i];
            for (size_t j = 0; j < args->experts_per_token; j++) {
                sum += load(rows_row_at(args, token, j)[i]);
            }
            dx[i] = store(sum);
        }
    }
    return HD_OK;
}

static hd_status reference_combine(struct hd_ops_device *device, const struct hd_rows_args *args)
{
    const size_t width = args->width;
    (void)device;
    for (size_t token = 0; token < args->token_count; token++) {
        const stat *gates = (const stat *)args->gates + token * args->experts_per_token;
        const act *residual = (const act *)args->residual + token * width;
        act *out = (act *)args->out + token * width;
        for (size_t i = 0; i < width; i++) {
            stat sum = load(residual[i]);
            for (size_t j = 0; j < args->experts_per_token; j++) {
                sum += gates[j] * load(rows_row_at(args, token, j)[i]);
            }
            out[i] = store(sum);
        }
    }
    return HD_OK;
}

static size_t rows_swiglu_rows(const struct hd_swiglu_args *args)
{
    return args->offsets != NULL ? (size_t)args->offsets[args->experts] : args->row_count;
}

static stat rows_sigmoid(stat x)
{
    return 1 / (1 + EXP(-x));
}

static hd_status reference_swiglu(struct hd_ops_device *device, const struct hd_swiglu_args *args)
{
    const size_t width = args->expert_width, row_count = rows_swiglu_rows(args);
    (void)device;
    for (size_t row = 0; row < row_count; row++) {
        const act *gate = (const act *)args->gate_up + row * 2 * width, *up = gate + width;
        act *h = (act *)args->h + row * width;
        for (size_t i = 0; i < width; i++) {
            const stat g = load(gate[i]);
            h[i] = store(g * rows_sigmoid(g) * load(up[i]));
        }
    }
    return HD_OK;
}

/* One row with its gate; returns the gate's gradient.  dgate_up may be gate_up. */
static stat rows_swiglu_row_backward(const struct hd_swiglu_args *args, size_t row, stat gate)
{
    const size_t width = args->expert_width;
    const act *gates = (const act *)args->gate_up + row * 2 * width, *ups = gates + width;
    const act *e = (const act *)args->e + row * width;
    act *dgates = (act *)args->dgate_up + row * 2 * width, *dups = dgates + width;
    act *weighted = (act *)args->weighted + row * width;
    stat sum = 0;
    for (size_t i = 0; i < width; i++) {
        const stat g = load(gates[i]), u = load(ups[i]), given = load(e[i]);
        const stat s = rows_sigmoid(g), h = g * s * u;
        sum += given * h;
        weighted[i] = store(gate * h);
        dgates[i] = store(gate * given * u * s * (1 + g * (1 - s)));
        dups[i] = store(gate * given * g * s);
    }
    return sum;
}

static void rows_clear_row(const struct hd_swiglu_args *args, size_t row)
{
    const size_t width = args->expert_width;
    memset((act *)args->weighted + row * width, 0, width * sizeof(act));
    memset((act *)args->dgate_up + row * 2 * width, 0, 2 * width * sizeof(act));
}

static hd_status reference_swiglu_backward(struct hd_ops_device *device,
                                           const struct hd_swiglu_args *args)
{
    const size_t row_count = rows_swiglu_rows(args);
    (void)device;
    for (size_t row = 0; row < row_count; row++) {
        if (args->gates == NULL) {
            rows_swiglu_row_backward(args, row, 1);
        } else if (args->source[row] < 0) {
            rows_clear_row(args, row);
        } else {
            const size_t place = (size_t)args->source[row];
            const stat gate = ((const stat *)args->gates)[place];
            ((stat *)args->dgates)[place] = rows_swiglu_row_backward(args, row, gate);
        }
    }
    return HD_OK;
}
