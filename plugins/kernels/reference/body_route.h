/*
 * plugins/kernels/reference/body_route.h - the router, all in `stat` (see body.h).
 *
 *   p = softmax(x W^T), gates = the k largest p (or their shares), two terms
 */

static void route_softmax_row(stat *p, size_t count, stat *lse)
{
    stat greatest = -(stat)INFINITY, sum = 0;
    for (size_t e = 0; e < count; e++) {
        greatest = p[e] > greatest ? p[e] : greatest;
    }
    for (size_t e = 0; e < count; e++) {
        p[e] = EXP(p[e] - greatest);
        sum += p[e];
    }
    for (size_t e = 0; e < count; e++) {
        p[e] /= sum;
    }
    *lse = greatest + LOG(sum);
}

static bool route_is_taken(const int32_t *selected, size_t count, size_t expert)
{
    for (size_t j = 0; j < count; j++) {
        if ((size_t)selected[j] == expert) {
            return true;
        }
    }
    return false;
}

/* The largest p first; the lower index among equal ones, and if a NaN prevents an order. */
static void route_select_experts(const struct hd_route_args *args, const stat *p, int32_t *selected)
{
    for (size_t j = 0; j < args->experts_per_token; j++) {
        size_t best = args->experts;
        for (size_t e = 0; e < args->experts; e++) {
            if (!route_is_taken(selected, j, e) && (best == args->experts || p[e] > p[best])) {
                best = e;
            }
        }
        assert(best < args->experts);
        selected[j] = (int32_t)best;
    }
}

static void route_token(const struct hd_route_args *args, size_t token)
{
    const size_t chosen = args->experts_per_token;
    stat *p = (stat *)args->probability + token * args->experts;
    stat *gates = (stat *)args->gates + token * chosen;
    int32_t *selected = args->selected + token * chosen;
    stat total = 0;
    route_softmax_row(p, args->experts, (stat *)args->lse + token);
    route_select_experts(args, p, selected);
    for (size_t j = 0; j < chosen; j++) {
        gates[j] = p[selected[j]];
        total += gates[j];
        args->counts[selected[j]]++;
    }
    for (size_t j = 0; args->normalize && j < chosen; j++) {
        gates[j] /= total;
    }
}

/* f_e, the share of the chosen places that expert e got. */
static double route_load_of(const struct hd_route_args *args, size_t expert)
{
    return args->counts[expert] / ((double)args->token_count * args->experts_per_token);
}

static void route_add_terms(const struct hd_route_args *args)
{
    const stat *p = args->probability, *lse = args->lse;
    double balance = 0, z = 0;
    for (size_t e = 0; e < args->experts; e++) {
        double mean = 0;
        for (size_t t = 0; t < args->token_count; t++) {
            mean += (double)p[t * args->experts + e];
        }
        balance += route_load_of(args, e) * (mean / args->token_count);
    }
    for (size_t t = 0; t < args->token_count; t++) {
        z += (double)lse[t] * (double)lse[t];
    }
    *args->balance = args->balance_scale * args->experts * balance;
    *args->z = args->z_scale * (z / args->token_count);
}

static hd_status reference_route(struct hd_ops_device *device, const struct hd_route_args *args)
{
    const struct product logits = {.a = {args->x, ACT_DTYPE, args->width, 1},
                                   .b = {args->weight, STAT_DTYPE, args->width, 1},
                                   .rows = args->token_count,
                                   .columns = args->experts,
                                   .depth = args->width,
                                   .c = args->probability,
                                   .c_dtype = STAT_DTYPE};
    product_multiply(device, &logits);
    memset(args->counts, 0, args->experts * sizeof args->counts[0]);
    for (size_t token = 0; token < args->token_count; token++) {
        route_token(args, token);
    }
    route_add_terms(args);
    return HD_OK;
}

/* dl of one token, from the gradient of its gates and of the two terms. */
static void route_token_backward(const struct hd_route_args *args, size_t token, stat *dl)
{
    const uint32_t chosen = args->experts_per_token, experts = args->experts;
    const stat *p = (const stat *)args->probability + token * experts;
    const stat *gates = (const stat *)args->gates + token * chosen;
    const stat *dgates = (const stat *)args->dgates + token * chosen;
    const int32_t *selected = args->selected + token * chosen;
    const stat lse = ((const stat *)args->lse)[token];
    const stat z_part = (stat)(2 * args->z_scale / args->token_count) * lse;
    stat total = 0, inner = 0, mean = 0;
    for (size_t e = 0; e < experts; e++) {
        dl[e] = (stat)(args->balance_scale * experts * route_load_of(args, e) / args->token_count);
    }
    for (size_t j = 0; j < chosen; j++) {
        total += p[selected[j]];
        inner += gates[j] * dgates[j];
    }
    for (size_t j = 0; j < chosen; j++) {
        dl[selected[j]] += args->normalize ? (dgates[j] - inner) / total : dgates[j];
    }
    for (size_t e = 0; e < experts; e++) {
        mean += p[e] * dl[e];
    }
    for (size_t e = 0; e < experts; e++) {
        dl[e] = p[e] * (dl[e] - mean) + z_part * p[e];
    }
}

static hd_status reference_route_backward(struct hd_ops_device *device,
                                          const struct hd_route_args *args)
{
    stat *dl = body_own_scratch(device);
    for (size_t token = 0; token < args->token_count; token++) {
        route_token_backward(args, token, dl + token * args->experts);
    }
    const struct product dx = {.a = {dl, STAT_DTYPE, args->experts, 1},
                               .b = {args->weight, STAT_DTYPE, 1, args->width},
                               .rows = args->token_count,
                               .columns = args->width,
                               .depth = args->experts,
                               .c = args->dx,
                               .c_dtype = STAT_DTYPE};
    const struct product dweight = {.a = {dl, STAT_DTYPE, 1, args->experts},
                                    .b = {args->x, ACT_DTYPE, 1, args->width},
                                    .rows = args->experts,
                                    .columns = args->width,
                                    .depth = args->token_count,
                                    .c = args->dweight,
                                    .c_dtype = STAT_DTYPE,
                                    .adds_to_c = 1};
    product_multiply(device, &dx);
    product_multiply(device, &dweight);
    return HD_OK;
}
