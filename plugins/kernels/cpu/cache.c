/*
 * plugins/kernels/cpu/cache.c - products by oneDNN; the primitive of a shape is created once.
 *
 * The key of a primitive is all that shapes it.  The table is an open hash table; if it is full it
 * is emptied.  All primitives share one scratchpad, which grows only when a primitive is created.
 */
#include "device.h"

#include <assert.h>
#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_COUNT  4096u
#define SLOT_MAX    3072u /* filled before the table is emptied */
#define OPERAND_MAX 5u    /* source, weights, result, scratchpad, addend */

/* Of the OpenMP that oneDNN was built with; absent in a sequential build. */
extern void omp_set_num_threads(int count) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

struct key {
    uint32_t m, n, k;
    uint32_t a_stride, b_stride, c_stride, add_stride;
    uint8_t layout, operand_dtype, result_dtype, add_dtype;
    uint8_t accumulate, adds;
    uint16_t zero;
};

struct slot {
    struct key key;
    dnnl_primitive_t primitive; /* NULL: free */
    dnnl_memory_t memory[OPERAND_MAX];
    dnnl_exec_arg_t arguments[OPERAND_MAX];
};

struct hd_cpu_cache {
    const struct hd_host *host;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratchpad;
    uint64_t scratchpad_bytes;
    uint64_t made_count;
    uint32_t used;
    struct slot slots[SLOT_COUNT];
};

/* The thread count is a property of the calling thread, and the blocking of a primitive depends on
   it. */
static void cpu_keep_to_one_thread(void)
{
    if (omp_get_max_threads != NULL && omp_set_num_threads != NULL && omp_get_max_threads() != 1) {
        omp_set_num_threads(1);
    }
}

struct hd_cpu_cache *hd_cpu_cache_create(const struct hd_host *host)
{
    struct hd_cpu_cache *cache = host->alloc(host->context, sizeof *cache, 64, "kernel");
    if (cache == NULL) {
        hd_refuse(host, HD_NO_MEMORY, "cannot allocate the table of oneDNN primitives");
        return NULL;
    }
    cache->host = host;
    cpu_keep_to_one_thread();
    if (dnnl_engine_create(&cache->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags) !=
            dnnl_success) {
        hd_refuse(host, HD_DEVICE,
                  "oneDNN cannot create a CPU engine: check the installed library");
        hd_cpu_cache_destroy(cache);
        return NULL;
    }
    return cache;
}

static void cpu_empty_slot(struct slot *slot)
{
    for (uint32_t operand = 0; operand < OPERAND_MAX; operand++) {
        if (slot->memory[operand] != NULL) {
            dnnl_memory_destroy(slot->memory[operand]);
        }
    }
    if (slot->primitive != NULL) {
        dnnl_primitive_destroy(slot->primitive);
    }
    memset(slot, 0, sizeof *slot);
}

static void cpu_empty(struct hd_cpu_cache *cache)
{
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        cpu_empty_slot(&cache->slots[slot]);
    }
    cache->used = 0;
}

void hd_cpu_cache_destroy(struct hd_cpu_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    cpu_empty(cache);
    if (cache->stream != NULL) {
        dnnl_stream_destroy(cache->stream);
    }
    if (cache->engine != NULL) {
        dnnl_engine_destroy(cache->engine);
    }
    cache->host->free(cache->host->context, cache->scratchpad);
    cache->host->free(cache->host->context, cache);
}

static struct key cpu_key_of(const struct hd_cpu_product *product)
{
    struct key key;
    memset(&key, 0, sizeof key);
    key.m = product->m;
    key.n = product->n;
    key.k = product->k;
    key.a_stride = product->a.stride;
    key.b_stride = product->b.stride;
    key.c_stride = product->c.stride;
    key.layout = (uint8_t)product->layout;
    key.operand_dtype = (uint8_t)product->a.dtype;
    key.result_dtype = (uint8_t)product->c.dtype;
    key.accumulate = (uint8_t)product->accumulate;
    if (product->add.data != NULL) {
        key.adds = 1;
        key.add_dtype = (uint8_t)product->add.dtype;
        key.add_stride = product->add.stride;
    }
    return key;
}

static uint32_t cpu_hash_of(const struct key *key)
{
    uint32_t words[sizeof *key / sizeof(uint32_t)];
    memcpy(words, key, sizeof words);
    uint64_t hash = 0x9e3779b97f4a7c15ull;
    for (uint32_t word = 0; word < sizeof words / sizeof words[0]; word++) {
        hash = (hash ^ words[word]) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash % SLOT_COUNT;
}

static dnnl_data_type_t cpu_type_of(uint32_t dtype)
{
    return dtype == HD_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* [rows, columns]; `is_transposed`: stored as [columns, rows]. */
static dnnl_memory_desc_t cpu_describe(uint32_t rows, uint32_t columns,
                                       struct hd_cpu_operand operand, bool is_transposed)
{
    const dnnl_dims_t shape = {rows, columns};
    const dnnl_dims_t strides = {is_transposed ? 1 : operand.stride,
                                 is_transposed ? operand.stride : 1};
    dnnl_memory_desc_t desc;
    const dnnl_status_t status =
        dnnl_memory_desc_init_by_strides(&desc, 2, shape, cpu_type_of(operand.dtype), strides);
    assert(status == dnnl_success);
    return desc;
}

static dnnl_memory_desc_t cpu_describe_packed(uint32_t k, uint32_t n)
{
    const dnnl_dims_t shape = {k, n};
    dnnl_memory_desc_t desc;
    const dnnl_status_t status =
        dnnl_memory_desc_init_by_tag(&desc, 2, shape, dnnl_bf16, dnnl_BA16a64b2a);
    assert(status == dnnl_success);
    return desc;
}

/* += is a sum post-op, an addend is a binary post-op: both come before the rounding. */
static dnnl_status_t cpu_attributes_of(const struct hd_cpu_product *product,
                                       dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success) {
        status = dnnl_post_ops_create(&ops);
    }
    if (status == dnnl_success && product->accumulate) {
        status = dnnl_post_ops_append_sum(ops, 1.0f);
    } else if (status == dnnl_success && product->add.data != NULL) {
        const dnnl_memory_desc_t add = cpu_describe(product->m, product->n, product->add, false);
        status = dnnl_post_ops_append_binary(ops, dnnl_binary_add, &add);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_post_ops(*out, ops);
    }
    if (ops != NULL) {
        dnnl_post_ops_destroy(ops);
    }
    return status;
}

static dnnl_status_t cpu_make_primitive(struct hd_cpu_cache *cache,
                                        const struct hd_cpu_product *product, struct slot *slot,
                                        dnnl_memory_desc_t descs[OPERAND_MAX])
{
    descs[0] = cpu_describe(product->m, product->k, product->a, (product->layout & HD_CPU_A) != 0);
    descs[1] = product->layout & HD_CPU_PACKED ? cpu_describe_packed(product->k, product->n)
                                               : cpu_describe(product->k, product->n, product->b,
                                                              (product->layout & HD_CPU_B) != 0);
    descs[2] = cpu_describe(product->m, product->n, product->c, false);
    descs[4] = product->add.data == NULL
                   ? descs[2]
                   : cpu_describe(product->m, product->n, product->add, false);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &descs[0], &descs[1], NULL, &descs[2]);
    if (status == dnnl_success) {
        status = cpu_attributes_of(product, &attributes);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&desc, &matmul, attributes, cache->engine, NULL);
    }
    if (status == dnnl_success) {
        descs[3] = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
        status = dnnl_primitive_create(&slot->primitive, desc);
    }
    if (desc != NULL) {
        dnnl_primitive_desc_destroy(desc);
    }
    if (attributes != NULL) {
        dnnl_primitive_attr_destroy(attributes);
    }
    return status;
}

static bool cpu_grow_scratchpad(struct hd_cpu_cache *cache, uint64_t bytes)
{
    if (bytes <= cache->scratchpad_bytes) {
        return true;
    }
    void *grown = cache->host->alloc(cache->host->context, bytes, 4096, "kernel");
    if (grown == NULL) {
        return false;
    }
    cache->host->free(cache->host->context, cache->scratchpad);
    cache->scratchpad = grown;
    cache->scratchpad_bytes = bytes;
    return true;
}

static dnnl_status_t cpu_fill_slot(struct hd_cpu_cache *cache, const struct hd_cpu_product *product,
                                   struct slot *slot)
{
    static const int names[OPERAND_MAX] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                           DNNL_ARG_SCRATCHPAD,
                                           DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1};
    dnnl_memory_desc_t descs[OPERAND_MAX];
    dnnl_status_t status = cpu_make_primitive(cache, product, slot, descs);
    for (uint32_t operand = 0; status == dnnl_success && operand < OPERAND_MAX; operand++) {
        status = dnnl_memory_create(&slot->memory[operand], &descs[operand], cache->engine,
                                    DNNL_MEMORY_NONE);
        slot->arguments[operand] = (dnnl_exec_arg_t){names[operand], slot->memory[operand]};
    }
    if (status == dnnl_success &&
        !cpu_grow_scratchpad(cache, dnnl_memory_desc_get_size(&descs[3]))) {
        status = dnnl_out_of_memory;
    }
    return status;
}

static hd_status cpu_refuse(const struct hd_cpu_cache *cache, const struct hd_cpu_product *product,
                            dnnl_status_t status)
{
    return hd_refuse(cache->host, status == dnnl_out_of_memory ? HD_NO_MEMORY : HD_DEVICE,
                     "oneDNN cannot multiply [%u, %u] by [%u, %u] (status %d): use kernels.name = "
                     "reference, or another version of oneDNN",
                     product->m, product->k, product->k, product->n, (int)status);
}

/* The slot of this shape, filled if it is new; NULL after `status` was set. */
static struct slot *cpu_find(struct hd_cpu_cache *cache, const struct hd_cpu_product *product,
                             hd_status *status)
{
    const struct key key = cpu_key_of(product);
    if (cache->used >= SLOT_MAX) {
        cpu_empty(cache);
    }
    uint32_t place = cpu_hash_of(&key);
    for (uint32_t probe = 0; cache->slots[place].primitive != NULL; probe++) {
        assert(probe < SLOT_COUNT);
        if (memcmp(&cache->slots[place].key, &key, sizeof key) == 0) {
            return &cache->slots[place];
        }
        place = (place + 1) % SLOT_COUNT;
    }
    struct slot *slot = &cache->slots[place];
    const dnnl_status_t made = cpu_fill_slot(cache, product, slot);
    if (made != dnnl_success) {
        cpu_empty_slot(slot);
        *status = cpu_refuse(cache, product, made);
        return NULL;
    }
    slot->key = key;
    cache->used++;
    cache->made_count++;
    return slot;
}

uint64_t hd_cpu_made_count(const struct hd_cpu_cache *cache)
{
    return cache->made_count;
}

hd_status hd_cpu_make(struct hd_cpu_cache *cache, const struct hd_cpu_product *product)
{
    hd_status status = HD_OK;
    cpu_keep_to_one_thread();
    (void)cpu_find(cache, product, &status);
    return status;
}

hd_status hd_cpu_run(struct hd_cpu_cache *cache, const struct hd_cpu_product *product)
{
    hd_status status = HD_OK;
    cpu_keep_to_one_thread();
    const uint64_t made_before = cache->made_count;
    struct slot *slot = cpu_find(cache, product, &status);
    if (slot == NULL) {
        return status;
    }
    if (cache->made_count != made_before) {
        /* prepare.c has missed this shape, and a pass has spent the time instead (K2). */
        hd_tell(cache->host, HD_TELL_INFO,
                "oneDNN: a product of [%u, %u] and [%u, %u] was created within a pass", product->m,
                product->k, product->k, product->n);
    }
    const bool adds = product->add.data != NULL;
    dnnl_memory_set_data_handle(slot->memory[0], product->a.data);
    dnnl_memory_set_data_handle(slot->memory[1], product->b.data);
    dnnl_memory_set_data_handle(slot->memory[2], product->c.data);
    dnnl_memory_set_data_handle(slot->memory[3], cache->scratchpad);
    if (adds) {
        dnnl_memory_set_data_handle(slot->memory[4], product->add.data);
    }
    const dnnl_status_t done = dnnl_primitive_execute(
        slot->primitive, cache->stream, adds ? OPERAND_MAX : OPERAND_MAX - 1, slot->arguments);
    return done == dnnl_success ? HD_OK : cpu_refuse(cache, product, done);
}
