/*
 * plugins/kernels/reference/body_norm.h - embed, rms_norm and rope (see body.h).
 *
 *   y = w x r,  r = 1 / sqrt(mean x^2 + epsilon)
 *   dx = add + r (w dy - x r^2 mean(w dy x)),  dw += sum over rows of dy x r
 */

static hd_status reference_embed(struct hd_ops_device *device, const struct hd_embed_args *args)
{
    (void)device;
    for (size_t token = 0; token < args->token_count; token++) {
        const int32_t id = args->tokens[token];
        assert(id >= 0 && (uint32_t)id < args->vocabulary);
        memcpy((act *)args->x + token * args->width,
               (const act *)args->table + (size_t)id * args->width, args->width * sizeof(act));
    }
    return HD_OK;
}

static hd_status reference_embed_backward(struct hd_ops_device *device,
                                          const struct hd_embed_args *args)
{
    (void)device;
    for (size_t token = 0; token < args->token_count; token++) {
        const int32_t id = args->tokens[token];
        assert(id >= 0 && (uint32_t)id < args->vocabulary);
        const act *dx = (const act *)args->dx + token * args->width;
        stat *row = (stat *)args->dtable + (size_t)id * args->width;
        for (size_t i = 0; i < args->width; i++) {
            row[i] += load(dx[i]);
        }
    }
    return HD_OK;
}

static hd_status reference_rms_norm(struct hd_ops_device *device, const struct hd_norm_args *args)
{
    const size_t width = args->width;
    const stat *weight = args->weight;
    (void)device;
    for (size_t row = 0; row < args->row_count; row++) {
        const act *x = (const act *)args->x + row * width;
        act *y = (act *)args->y + row * width;
        stat sum = 0;
        for (size_t i = 0; i < width; i++) {
            sum += load(x[i]) * load(x[i]);
        }
        const stat rstd = 1 / SQRT(sum / (stat)width + (stat)args->epsilon);
        for (size_t i = 0; i < width; i++) {
            y[i] = store(weight[i] * load(x[i]) * rstd);
        }
        ((stat *)args->rstd)[row] = rstd;
    }
    return HD_OK;
}

/* One row; dx may be dy or x. */
static void norm_row_backward(const struct hd_norm_args *args, size_t row, stat *dweight)
{
    const size_t width = args->width;
    const stat *weight = args->weight;
    const act *x = (const act *)args->x + row * width, *dy = (const act *)args->dy + row * width;
    const act *add = args->add != NULL ? (const act *)args->add + row * width : NULL;
    act *dx = (act *)args->dx + row * width;
    const stat rstd = ((const stat *)args->rstd)[row];
    stat mean = 0;
    for (size_t i = 0; i < width; i++) {
        mean += weight[i] * load(dy[i]) * load(x[i]);
    }
    mean /= (stat)width;
    for (size_t i = 0; i < width; i++) {
        const stat value = load(x[i]), given = load(dy[i]);
        const stat own = rstd * (weight[i] * given - value * rstd * rstd * mean);
        dweight[i] += given * value * rstd;
        dx[i] = store(add != NULL ? load(add[i]) + own : own);
    }
}

static hd_status reference_rms_norm_backward(struct hd_ops_device *device,
                                             const struct hd_norm_args *args)
{
    stat *dweight = body_own_scratch(device);
    memset(dweight, 0, args->width * sizeof(stat));
    for (size_t row = 0; row < args->row_count; row++) {
        norm_row_backward(args, row, dweight);
    }
    for (size_t i = 0; i < args->width; i++) {
        ((stat *)args->dweight)[i] += dweight[i];
    }
    return HD_OK;
}

/* The pairs (i, i + c/2) of one head of one token. */
static void norm_rotate_head(const struct hd_rope_args *args, size_t token, size_t head)
{
    const size_t pairs = args->head_width / 2, position = token % args->sequence;
    const size_t at = (token * args->heads + head) * args->head_width;
    const act *x = (const act *)args->x + at;
    const stat *cosine = (const stat *)args->cosine + position * pairs;
    const stat *sine = (const stat *)args->sine + position * pairs;
    act *y = (act *)args->y + at;
    for (size_t i = 0; i < pairs; i++) {
        const stat first = load(x[i]), second = load(x[i + pairs]);
        const stat c = cosine[i], s = args->inverse ? -sine[i] : sine[i];
        y[i] = store(first * c - second * s);
        y[i + pairs] = store(second * c + first * s);
    }
}

static hd_status reference_rope(struct hd_ops_device *device, const struct hd_rope_args *args)
{
    (void)device;
    for (size_t token = 0; token < (size_t)args->batch * args->sequence; token++) {
        for (size_t head = 0; head < args->heads; head++) {
            norm_rotate_head(args, token, head);
        }
    }
    return HD_OK;
}
