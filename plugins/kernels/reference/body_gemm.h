/*
 * plugins/kernels/reference/body_gemm.h - gemm and expert_gemm (see body.h).
 *
 * The three forms as one product:
 *
 *            A(i,l)          B(l,j)         rows  columns  depth
 *   FPROP    a[i,l]          b[j,l]          m      n        k
 *   DGRAD    a[i,l]          b[l,j]          m      k        n
 *   WGRAD    a[l,i]          b[l,j]          n      k        m
 */

/* A product of the rows [begin, end) of a (WGRAD: and of b), with the matrices of one expert. */
static struct product gemm_product_of(const struct hd_gemm_args *args, size_t begin, size_t end)
{
    const size_t wide = args->a.columns, other = args->b.columns;
    struct product p = {.a = {args->a.data, args->a.dtype, wide, 1},
                        .b = {args->b.data, args->b.dtype, 1, other},
                        .rows = end - begin,
                        .columns = other,
                        .depth = wide,
                        .c = args->c.data,
                        .c_dtype = args->c.dtype,
                        .add = args->add.data,
                        .add_dtype = args->add.dtype};
    if (args->form == HD_FPROP) {
        p.b.step = other;
        p.b.depth_step = 1;
        p.columns = args->b.rows;
        p.depth = other;
    } else if (args->form == HD_WGRAD) {
        p.a.step = 1;
        p.a.depth_step = wide;
        p.rows = wide;
        p.depth = end - begin;
        p.adds_to_c = 1;
    }
    return p;
}

static hd_status reference_gemm(struct hd_ops_device *device, const struct hd_gemm_args *args)
{
    const struct product p = gemm_product_of(args, 0, args->a.rows);
    product_multiply(device, &p);
    return HD_OK;
}

static const void *gemm_advance(const void *data, uint32_t dtype, size_t count)
{
    return (const char *)data + count * (dtype == STAT_DTYPE ? sizeof(stat) : sizeof(act));
}

static hd_status reference_expert_gemm(struct hd_ops_device *device,
                                       const struct hd_gemm_args *args)
{
    for (uint32_t expert = 0; expert < args->expert_count; expert++) {
        const size_t begin = (size_t)args->offsets[expert];
        const size_t end = (size_t)args->offsets[expert + 1];
        if (begin == end) {
            continue; /* rule 3: an idle expert changes nothing */
        }
        struct product p = gemm_product_of(args, begin, end);
        p.a.data = gemm_advance(p.a.data, p.a.dtype, begin * args->a.columns);
        if (args->form == HD_WGRAD) {
            p.b.data = gemm_advance(p.b.data, p.b.dtype, begin * args->b.columns);
            p.c = (stat *)p.c + expert * p.rows * p.columns;
        } else {
            p.b.data =
                gemm_advance(p.b.data, p.b.dtype, (size_t)expert * args->b.rows * args->b.columns);
            p.c = (void *)gemm_advance(p.c, p.c_dtype, begin * p.columns);
        }
        product_multiply(device, &p);
    }
    return HD_OK;
}
