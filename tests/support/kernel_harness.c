/* tests/support/kernel_harness.c - a core of one thread for one kernel plugin. */
#include "support/kernel_harness.h"
#include "support/check.h"

#include "base/clock.h"
#include "base/memory.h"

#include <assert.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the host that a plugin sees ---------------------------------------------------------- */

static void *host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes, const char *tag)
{
    (void)context;
    return hd_memory_take(bytes, alignment_bytes, tag);
}

static void host_free(void *context, void *memory)
{
    (void)context;
    hd_memory_give(memory);
}

static uint64_t host_now(void *context)
{
    (void)context;
    return hd_now_ns();
}

static void host_log(void *context, uint32_t level, const char *text)
{
    (void)context;
    (void)level;
    (void)text;
}

static hd_status host_fail(void *context, const struct hd_error *error)
{
    struct hd_harness *harness = context;
    snprintf(harness->failure, sizeof harness->failure, "%s", error->text);
    return error->status;
}

static void set_option(struct hd_option_value *value, uint32_t type, const char *text)
{
    value->text = text;
    value->number = strtod(text, NULL);
    value->integer = strtoll(text, NULL, 10);
    if (type == HD_OPTION_FLAG) {
        value->integer = strcmp(text, "on") == 0;
    }
}

/* The value of `key` in "key=value,key=value"; storage of the harness lives as long as the test. */
static const char *find_option(const char *options, const char *key)
{
    static char values[HD_HARNESS_OPTION_MAX][64];
    static unsigned next;
    const size_t length = strlen(key);
    for (const char *at = options; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            char *value = values[next++ % HD_HARNESS_OPTION_MAX];
            const size_t span = strcspn(at + length + 1, ",");
            snprintf(value, sizeof values[0], "%.*s", (int)span, at + length + 1);
            return value;
        }
    }
    return NULL;
}

static void fill_host(struct hd_harness *harness, const char *options)
{
    const struct hd_plugin *plugin = harness->plugin;
    assert(plugin->option_count <= HD_HARNESS_OPTION_MAX);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const char *text = options ? find_option(options, plugin->options[i].name) : NULL;
        set_option(&harness->options[i], plugin->options[i].type,
                   text != NULL ? text : plugin->options[i].initial);
    }
    harness->host = (struct hd_host){.size = sizeof harness->host,
                                     .rank_count = 1,
                                     .option_count = plugin->option_count,
                                     .options = harness->options,
                                     .context = harness,
                                     .alloc = host_alloc,
                                     .free = host_free,
                                     .now_ns = host_now,
                                     .log = host_log,
                                     .fail = host_fail};
}

int hd_harness_open(struct hd_harness *harness, const char *name, const char *options)
{
    char file[256];
    memset(harness, 0, sizeof *harness);
    snprintf(file, sizeof file, "heddle_kernel_%s.so", name);
    harness->library = dlopen(hd_check_plugin(file), RTLD_NOW | RTLD_LOCAL);
    if (harness->library == NULL) {
        printf("%s\n", dlerror());
        return -1;
    }
    harness->plugin = dlsym(harness->library, "hd_plugin");
    assert(harness->plugin != NULL && harness->plugin->kind == HD_KIND_KERNEL);
    harness->ops = harness->plugin->ops;
    harness->device.size = sizeof harness->device;
    fill_host(harness, options);
    const hd_status status =
        harness->ops->open(&harness->host, 0, &harness->device, &harness->kernel);
    if (status != HD_OK) {
        printf("%s: open: %d %s\n", name, status, harness->failure);
        return -1;
    }
    return 0;
}

void hd_harness_close(struct hd_harness *harness)
{
    if (harness->ops != NULL) {
        harness->ops->close(harness->kernel);
    }
    memset(harness, 0, sizeof *harness);
}

/* --- the chain ------------------------------------------------------------------------------ */

struct hd_stage_spec hd_chain_model(void)
{
    return (struct hd_stage_spec){.size = sizeof(struct hd_stage_spec),
                                  .layers = 2,
                                  .width = 8,
                                  .heads = 2,
                                  .experts = 4,
                                  .experts_per_token = 2,
                                  .expert_width = 6,
                                  .vocabulary = 11,
                                  .sequence = 5,
                                  .batch = 2,
                                  .rope_theta = 1e4,
                                  .norm_epsilon = 1e-5,
                                  .init_std = 0.02,
                                  .balance_weight = 0.7,
                                  .z_weight = 0.3,
                                  .precision = HD_PRECISION_F32};
}

static void *take(const struct hd_chain *chain, uint64_t bytes)
{
    return hd_memory_take(bytes, chain->harness->device.alignment, "test");
}

static void take_regions(struct hd_chain *chain, struct hd_chain_stage *at)
{
    at->memory = (struct hd_stage_memory){.size = sizeof at->memory,
                                          .parameters = take(chain, at->needs.parameter_bytes),
                                          .optimizer = take(chain, at->needs.optimizer_bytes),
                                          .scratch = take(chain, at->needs.scratch_bytes),
                                          .gradients = {take(chain, at->needs.gradient_bytes[0]),
                                                        take(chain, at->needs.gradient_bytes[1])}};
    at->payload = take(chain, at->needs.payload_bytes);
    if (at->needs.acquisitions == 2) {
        at->second_payload = take(chain, at->needs.payload_bytes);
        memset(at->second_payload, 0xff, at->needs.payload_bytes);
    }
    /* What is unset must not matter: NaN in every float. */
    memset(at->memory.scratch, 0xff, at->needs.scratch_bytes);
    memset(at->payload, 0xff, at->needs.payload_bytes);
    if (!at->spec.has_embedding) {
        at->input = take(chain, at->needs.boundary_bytes);
        at->input_gradient = take(chain, at->needs.boundary_bytes);
    }
}

static hd_status open_stage(struct hd_chain *chain, uint32_t stage, uint32_t first_block,
                            uint32_t block_count)
{
    const struct hd_kernel_ops *ops = chain->harness->ops;
    struct hd_chain_stage *at = &chain->stages[stage];
    at->spec = chain->model;
    at->spec.stage = stage;
    at->spec.first_block = first_block;
    at->spec.block_count = block_count;
    at->spec.has_embedding = stage == 0;
    at->spec.has_head = first_block + block_count == chain->model.layers;
    at->needs.size = sizeof at->needs;
    at->generation = 1;
    const hd_status status = ops->stage_needs(&chain->harness->host, &at->spec, &at->needs);
    if (status != HD_OK) {
        return status;
    }
    take_regions(chain, at);
    at->first_tensor = chain->tensor_count;
    at->first_term = chain->term_count;
    chain->tensor_count += at->needs.tensor_count;
    chain->term_count += at->needs.term_count;
    assert(chain->term_count <= HD_CHAIN_TERM_MAX);
    return ops->stage_create(chain->harness->kernel, &at->spec, &at->memory, &at->stage);
}

hd_status hd_chain_open(struct hd_chain *chain, struct hd_harness *harness,
                        const struct hd_stage_spec *model, const uint32_t *blocks,
                        uint32_t stage_count)
{
    const uint64_t tokens = (uint64_t)model->batch * model->sequence;
    uint32_t first_block = 0;
    assert(stage_count >= 1 && stage_count <= HD_CHAIN_STAGE_MAX);
    *chain = (struct hd_chain){.harness = harness,
                               .model = *model,
                               .label_scale = 1.0 / (double)tokens,
                               .auxiliary_scale = 1};
    chain->tokens = take(chain, tokens * sizeof(int32_t));
    chain->targets = take(chain, tokens * sizeof(int32_t));
    for (uint32_t stage = 0; stage < stage_count; stage++) {
        chain->stage_count++;
        const hd_status status = open_stage(chain, stage, first_block, blocks[stage]);
        if (status != HD_OK) {
            return status;
        }
        first_block += blocks[stage];
    }
    assert(first_block == model->layers);
    return HD_OK;
}

void hd_chain_close(struct hd_chain *chain)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        chain->harness->ops->stage_destroy(at->stage);
        void *const blocks[] = {at->memory.parameters,   at->memory.optimizer,
                                at->memory.scratch,      at->memory.gradients[0],
                                at->memory.gradients[1], at->payload,
                                at->second_payload,      at->input,
                                at->input_gradient};
        for (unsigned i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            hd_memory_give(blocks[i]);
        }
    }
    hd_memory_give(chain->tokens);
    hd_memory_give(chain->targets);
    memset(chain, 0, sizeof *chain);
}

/* --- passes --------------------------------------------------------------------------------- */

static struct hd_pass pass_of(const struct hd_chain *chain, uint32_t stage)
{
    const struct hd_chain_stage *at = &chain->stages[stage];
    const int is_last = stage + 1 == chain->stage_count;
    return (struct hd_pass){.size = sizeof(struct hd_pass),
                            .microbatch = chain->microbatch,
                            .generation = at->generation,
                            .payload = {at->payload, at->second_payload},
                            .input = at->input,
                            .tokens = stage == 0 ? chain->tokens : NULL,
                            .targets = is_last ? chain->targets : NULL,
                            .output = is_last ? NULL : chain->stages[stage + 1].input,
                            .output_gradient =
                                is_last ? NULL : chain->stages[stage + 1].input_gradient,
                            .input_gradient = at->input_gradient,
                            .label_scale = chain->label_scale,
                            .auxiliary_scale = chain->auxiliary_scale};
}

hd_status hd_chain_forward(struct hd_chain *chain, int evaluate)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_pass pass = pass_of(chain, stage);
        pass.terms = &chain->terms[chain->stages[stage].first_term];
        pass.output_gradient = NULL;
        pass.input_gradient = NULL;
        if (evaluate) {
            pass.payload[0] = pass.payload[1] = NULL;
        }
        const hd_status status = chain->harness->ops->forward(chain->stages[stage].stage, &pass);
        if (status != HD_OK) {
            return status;
        }
    }
    chain->loss = 0;
    for (uint32_t term = 0; term < chain->term_count; term++) {
        chain->loss += chain->terms[term];
    }
    return HD_OK;
}

hd_status hd_chain_backward(struct hd_chain *chain)
{
    for (uint32_t stage = chain->stage_count; stage-- > 0;) {
        struct hd_pass pass = pass_of(chain, stage);
        pass.output = NULL;
        const hd_status status = chain->harness->ops->backward(chain->stages[stage].stage, &pass);
        if (status != HD_OK) {
            return status;
        }
    }
    return HD_OK;
}

void hd_chain_zero_gradients(struct hd_chain *chain)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        for (uint32_t group = 0; group < HD_GROUP_COUNT; group++) {
            memset(at->memory.gradients[group], 0, at->needs.gradient_bytes[group]);
        }
    }
}

/* --- tensors -------------------------------------------------------------------------------- */

static struct hd_chain_stage *stage_of(struct hd_chain *chain, uint32_t tensor)
{
    uint32_t stage = 0;
    assert(tensor < chain->tensor_count);
    while (stage + 1 < chain->stage_count && chain->stages[stage + 1].first_tensor <= tensor) {
        stage++;
    }
    return &chain->stages[stage];
}

uint64_t hd_chain_tensor(struct hd_chain *chain, uint32_t tensor, struct hd_tensor *out)
{
    struct hd_chain_stage *at = stage_of(chain, tensor);
    uint64_t count = 1;
    *out = (struct hd_tensor){.size = sizeof *out};
    const hd_status status = chain->harness->ops->tensor(at->stage, tensor - at->first_tensor, out);
    assert(status == HD_OK);
    for (uint32_t i = 0; i < out->dimension_count; i++) {
        count *= out->shape[i];
    }
    return count;
}

/* Both directions; `into` 1 writes the plugin's copy. */
static void exchange(struct hd_chain *chain, uint32_t tensor, uint32_t copy, uint32_t into,
                     double *values)
{
    struct hd_chain_stage *at = stage_of(chain, tensor);
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    float *narrow = malloc(count * sizeof *narrow);
    void *host = about.dtype == HD_F64 ? (void *)values : (void *)narrow;
    assert(narrow != NULL);
    for (uint64_t i = 0; into && i < count; i++) {
        narrow[i] = (float)values[i];
    }
    const hd_status status =
        chain->harness->ops->tensor_copy(at->stage, tensor - at->first_tensor, copy, into, host);
    assert(status == HD_OK);
    for (uint64_t i = 0; !into && about.dtype != HD_F64 && i < count; i++) {
        values[i] = (double)narrow[i];
    }
    free(narrow);
}

void hd_chain_read(struct hd_chain *chain, uint32_t tensor, uint32_t copy, double *values)
{
    exchange(chain, tensor, copy, 0, values);
}

void hd_chain_write(struct hd_chain *chain, uint32_t tensor, uint32_t copy, const double *values)
{
    exchange(chain, tensor, copy, 1, (double *)values);
}

int64_t hd_chain_find(struct hd_chain *chain, const char *name)
{
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(chain, tensor, &about);
        if (strcmp(about.name, name) == 0) {
            return tensor;
        }
    }
    return -1;
}

/* --- drawing and comparing ------------------------------------------------------------------ */

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static uint64_t hash_bytes(uint64_t hash, const void *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3ull;
    }
    return hash;
}

static void draw_tensor(struct hd_chain *chain, uint32_t tensor, uint64_t seed)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    const uint64_t key = hash_bytes(mix(seed), about.name, strlen(about.name));
    double *values = malloc(count * sizeof *values);
    assert(values != NULL);
    /* About 1 / sqrt(columns), as a power of two: what comes out stays of the size of what goes in.
     */
    double scale = 1;
    for (uint64_t columns = about.shape[about.dimension_count - 1]; columns >= 4; columns /= 4) {
        scale /= 2;
    }
    for (uint64_t i = 0; i < count; i++) {
        const int64_t step = (int64_t)(mix(key ^ i) % 255) - 127;
        const int is_norm = about.initial == HD_INITIAL_ONE;
        values[i] = is_norm ? 1 + (double)(step / 8) / 128 : 2 * scale * (double)step / 128;
    }
    hd_chain_write(chain, tensor, HD_MASTER, values);
    free(values);
}

void hd_chain_draw_tokens(struct hd_chain *chain, uint64_t seed)
{
    const uint64_t tokens = (uint64_t)chain->model.batch * chain->model.sequence;
    for (uint64_t i = 0; i < tokens; i++) {
        chain->tokens[i] = (int32_t)(mix(seed ^ (2 * i)) % chain->model.vocabulary);
        chain->targets[i] = (int32_t)(mix(seed ^ (2 * i + 1)) % chain->model.vocabulary);
    }
}

void hd_chain_draw(struct hd_chain *chain, uint64_t seed)
{
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        draw_tensor(chain, tensor, seed);
    }
    hd_chain_draw_tokens(chain, seed);
}

double hd_chain_residual(struct hd_chain *a, struct hd_chain *b, uint32_t tensor, uint32_t copy)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(a, tensor, &about);
    double *values = malloc(2 * count * sizeof *values), difference = 0, length = 0;
    assert(values != NULL);
    hd_chain_read(a, tensor, copy, values);
    hd_chain_read(b, tensor, copy, values + count);
    for (uint64_t i = 0; i < count; i++) {
        const double apart = values[i] - values[count + i];
        difference += apart * apart;
        length += values[count + i] * values[count + i];
    }
    free(values);
    return length > 0 ? sqrt(difference / length) : sqrt(difference);
}

uint64_t hd_chain_hash(struct hd_chain *chain, uint32_t copy)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(count * sizeof *values);
        assert(values != NULL);
        hd_chain_read(chain, tensor, copy, values);
        hash = hash_bytes(hash, values, count * sizeof *values);
        free(values);
    }
    return hash;
}
