/*
 * rates/gemm_rate.c - heddle-gemm-rate: how fast oneDNN multiplies on this machine.
 *
 *   heddle-gemm-rate bf16|f32 SECONDS
 *
 * `heddle bench step` starts it as a child process (two at a time if ranks share two cores),
 * because the core does not link oneDNN, and a kernel plugin would measure its own products.  It
 * multiplies square matrices on one thread, from sizes that fit in the cache of a core to sizes
 * that do not, each with plain operands and with the right operand in the layout that oneDNN
 * prefers.  Each product runs for SECONDS and prints one line:
 *
 *   bf16 plain 512 213.4 220.9 41      type, layout, size, median and best GFLOP/s, samples
 *
 * It exits with 3 if oneDNN does not support the product on this processor.
 */
#include "samples.h"

#include <dnnl.h>

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_UNSUPPORTED = 3 };

/* One product, C = A B, with all that running it takes. */
struct product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[3];
    dnnl_exec_arg_t arguments[3];
};

static bool gemm_rate_is_good(dnnl_status_t status)
{
    return status == dnnl_success;
}

static dnnl_memory_desc_t gemm_rate_square(dnnl_data_type_t type, int64_t size,
                                           dnnl_format_tag_t tag)
{
    const dnnl_dims_t shape = {size, size};
    dnnl_memory_desc_t desc;
    const dnnl_status_t status = dnnl_memory_desc_init_by_tag(&desc, 2, shape, type, tag);
    assert(status == dnnl_success);
    return desc;
}

/* Small values that never become denormal or infinite; both bytes of 0x3c3c are 1.1e-2. */
static bool gemm_rate_fill(dnnl_memory_t memory, size_t bytes)
{
    void *data = NULL;

    if (!gemm_rate_is_good(dnnl_memory_get_data_handle(memory, &data)) || data == NULL) {
        return false;
    }
    memset(data, 0x3c, bytes);
    return true;
}

static bool gemm_rate_bind_memory(struct product *product, dnnl_primitive_desc_t desc)
{
    static const dnnl_query_t queries[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                           dnnl_query_dst_md};
    static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};

    for (int i = 0; i < 3; i++) {
        const dnnl_memory_desc_t *operand = dnnl_primitive_desc_query_md(desc, queries[i], 0);
        if (operand == NULL ||
            !gemm_rate_is_good(dnnl_memory_create(&product->memory[i], operand, product->engine,
                                                  DNNL_MEMORY_ALLOCATE))) {
            return false;
        }
        if (!gemm_rate_fill(product->memory[i], dnnl_memory_desc_get_size(operand))) {
            return false;
        }
        product->arguments[i] = (dnnl_exec_arg_t){names[i], product->memory[i]};
    }
    return true;
}

static bool gemm_rate_make(struct product *product, dnnl_data_type_t type, int64_t size,
                           bool is_packed)
{
    const dnnl_memory_desc_t left = gemm_rate_square(type, size, dnnl_ab);
    const dnnl_memory_desc_t right =
        gemm_rate_square(type, size, is_packed ? dnnl_format_tag_any : dnnl_ab);
    const dnnl_memory_desc_t result = gemm_rate_square(dnnl_f32, size, dnnl_ab);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc = NULL;

    if (!gemm_rate_is_good(dnnl_matmul_desc_init(&matmul, &left, &right, NULL, &result)) ||
        !gemm_rate_is_good(
            dnnl_primitive_desc_create(&desc, &matmul, NULL, product->engine, NULL))) {
        return false;
    }
    const bool is_made = gemm_rate_bind_memory(product, desc) &&
                         gemm_rate_is_good(dnnl_primitive_create(&product->primitive, desc));
    dnnl_primitive_desc_destroy(desc);
    return is_made;
}

static void gemm_rate_unmake(struct product *product)
{
    if (product->primitive != NULL) {
        dnnl_primitive_destroy(product->primitive);
    }
    product->primitive = NULL;
    for (int i = 0; i < 3; i++) {
        if (product->memory[i] != NULL) {
            dnnl_memory_destroy(product->memory[i]);
        }
        product->memory[i] = NULL;
    }
}

static void gemm_rate_run(const void *context)
{
    const struct product *product = context;
    const dnnl_status_t status =
        dnnl_primitive_execute(product->primitive, product->stream, 3, product->arguments);
    assert(status == dnnl_success);
    dnnl_stream_wait(product->stream);
}

static void gemm_rate_measure(const struct product *product, int64_t size, double seconds,
                              const char *names)
{
    const double flops = 2.0 * (double)size * (double)size * (double)size;
    const struct samples samples =
        samples_take(gemm_rate_run, product, seconds, size < 1024 ? 8 : 1, flops);

    printf("%s %lld %.2f %.2f %u\n", names, (long long)size, samples.median, samples.best,
           samples.count);
    fflush(stdout);
}

static int gemm_rate_measure_all(struct product *product, const char *type_name, double seconds)
{
    static const int64_t sizes[] = {256, 512, 1024, 2048};
    const dnnl_data_type_t type = strcmp(type_name, "bf16") == 0 ? dnnl_bf16 : dnnl_f32;
    char names[32];

    for (unsigned i = 0; i < 2 * sizeof sizes / sizeof sizes[0]; i++) {
        const bool is_packed = i % 2 == 1;
        const bool is_made = gemm_rate_make(product, type, sizes[i / 2], is_packed);
        if (is_made) {
            snprintf(names, sizeof names, "%s %s", type_name, is_packed ? "packed" : "plain");
            gemm_rate_measure(product, sizes[i / 2], seconds, names);
        }
        gemm_rate_unmake(product);
        if (!is_made) {
            return EXIT_UNSUPPORTED;
        }
    }
    return 0;
}

int main(int argument_count, char **arguments)
{
    struct product product = {0};
    const double seconds = argument_count == 3 ? strtod(arguments[2], NULL) : 0;

    if (!(seconds > 0 && seconds <= 60) ||
        (strcmp(arguments[1], "bf16") != 0 && strcmp(arguments[1], "f32") != 0)) {
        fprintf(stderr, "usage: heddle-gemm-rate bf16|f32 SECONDS\n");
        return EXIT_USAGE;
    }
    /* Before the library's OpenMP reads it. */
    if (getenv("OMP_NUM_THREADS") == NULL || strcmp(getenv("OMP_NUM_THREADS"), "1") != 0) {
        fprintf(stderr, "heddle-gemm-rate: OMP_NUM_THREADS is not 1: the rate is that of several "
                        "threads\n");
    }
    if (!gemm_rate_is_good(dnnl_engine_create(&product.engine, dnnl_cpu, 0)) ||
        !gemm_rate_is_good(
            dnnl_stream_create(&product.stream, product.engine, dnnl_stream_default_flags))) {
        return EXIT_UNSUPPORTED;
    }
    const int code = gemm_rate_measure_all(&product, arguments[1], seconds);
    dnnl_stream_destroy(product.stream);
    dnnl_engine_destroy(product.engine);
    return code;
}
