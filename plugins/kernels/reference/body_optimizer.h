/*
 * plugins/kernels/reference/body_optimizer.h - AdamW, copies and norms (see body.h).
 *
 * Loshchilov and Hutter 2019: the decay is decoupled, it does not enter the moments.
 */

static hd_status reference_convert(struct hd_ops_device *device,
                                   const struct hd_optimizer_args *args)
{
    (void)device;
    attention_store_row(args->master, args->count, args->copy);
    return HD_OK;
}

static hd_status reference_adamw(struct hd_ops_device *device, const struct hd_optimizer_args *args)
{
    const struct hd_update *u = args->update;
    const stat beta1 = (stat)u->beta1, beta2 = (stat)u->beta2;
    const stat rest1 = (stat)(1 - u->beta1), rest2 = (stat)(1 - u->beta2);
    const stat step = (stat)(u->learning_rate / (1 - pow(u->beta1, u->step)));
    const stat root = (stat)sqrt(1 - pow(u->beta2, u->step));
    const stat keep = (stat)(args->decays ? 1 - u->learning_rate * u->weight_decay : 1);
    const stat clip = (stat)u->gradient_scale, epsilon = (stat)u->epsilon;
    stat *master = args->master, *moment1 = args->moment1, *moment2 = args->moment2;
    const stat *gradient = args->gradient;
    for (uint64_t i = 0; i < args->count; i++) {
        const stat g = gradient[i] * clip;
        moment1[i] = beta1 * moment1[i] + rest1 * g;
        moment2[i] = beta2 * moment2[i] + rest2 * g * g;
        master[i] = keep * master[i] - step * moment1[i] / (SQRT(moment2[i]) / root + epsilon);
    }
    return args->copy != NULL ? reference_convert(device, args) : HD_OK;
}

static hd_status reference_square_sum(struct hd_ops_device *device,
                                      const struct hd_optimizer_args *args)
{
    const stat *gradient = args->gradient;
    double sum = 0;
    (void)device;
    for (uint64_t i = 0; i < args->count; i++) {
        sum += (double)gradient[i] * (double)gradient[i];
    }
    *args->squared = sum;
    return HD_OK;
}
