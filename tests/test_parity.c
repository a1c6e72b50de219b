/*
 * tests/test_parity.c - the reference kernel against OLMoE in Hugging Face's transformers.
 *
 * The golden files hold weights, tokens and what the PyTorch model made of them in
 * float32: log-probabilities, losses, every gradient, and every weight after three
 * AdamW steps.  tests/parity/olmoe_parity.py made them and describes their format.
 * The contract shows no logits, so they are asked for one at a time: with a single label
 * the cross-entropy is minus its log-probability.
 *
 * Source: transformers, models/olmoe/modeling_olmoe.py, by names and numbers only.
 */
#include "support/check.h"
#include "support/kernel_harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARRAY_MAX = 256, NAME_BYTES = 160 };

struct array {
    char name[NAME_BYTES];
    uint64_t count;
    const void *values; /* float or int32_t, within file.bytes */
};

struct golden {
    char *bytes;
    struct hd_stage_spec model;
    uint32_t steps, array_count;
    double learning_rate;
    struct array arrays[ARRAY_MAX];
};

/* --- reading a golden file ------------------------------------------------------------------- */

static void set_config(struct golden *golden, const char *key, double value)
{
    struct hd_stage_spec *model = &golden->model;
    const struct {
        const char *key;
        uint32_t *integer;
        double *number;
    } rows[] = {
        {"layers", &model->layers, NULL},
        {"width", &model->width, NULL},
        {"heads", &model->heads, NULL},
        {"key_value_heads", &model->key_value_heads, NULL},
        {"experts", &model->experts, NULL},
        {"experts_per_token", &model->experts_per_token, NULL},
        {"expert_width", &model->expert_width, NULL},
        {"vocabulary", &model->vocabulary, NULL},
        {"sequence", &model->sequence, NULL},
        {"batch", &model->batch, NULL},
        {"normalize_gates", &model->normalize_gates, NULL},
        {"balance_weight", NULL, &model->balance_weight},
        {"z_weight", NULL, &model->z_weight},
        {"steps", &golden->steps, NULL},
        {"learning_rate", NULL, &golden->learning_rate},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].key, key) != 0) {
            continue;
        }
        if (rows[i].integer != NULL) {
            *rows[i].integer = (uint32_t)value;
        } else {
            *rows[i].number = value;
        }
        return;
    }
    CU_FAIL_FATAL("a golden file with a config line that this test does not know");
}

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)size + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    CU_ASSERT_EQUAL_FATAL(fread(bytes, 1, (size_t)size, file), (size_t)size);
    bytes[size] = '\0';
    fclose(file);
    return bytes;
}

/* One line of the index; returns whether it was the last. */
static int take_line(struct golden *golden, char *line)
{
    char key[NAME_BYTES], value[NAME_BYTES];
    struct array *array = &golden->arrays[golden->array_count];
    unsigned long long count;
    if (strcmp(line, "end") == 0) {
        return 1;
    }
    if (sscanf(line, "config %159s %159s", key, value) == 2) {
        set_config(golden, key, strtod(value, NULL));
    } else if (sscanf(line, "%*[if]32 %159s %llu", array->name, &count) == 2) {
        array->count = count;
        golden->array_count++;
        CU_ASSERT_FATAL(golden->array_count < ARRAY_MAX);
    } else {
        CU_ASSERT_EQUAL_FATAL(line[0], '#');
    }
    return 0;
}

static void read_golden(struct golden *golden, const char *name)
{
    char path[128];
    int is_last = 0;
    memset(golden, 0, sizeof *golden);
    snprintf(path, sizeof path, "tests/golden/olmoe_parity_%s.bin", name);
    golden->bytes = read_whole(hd_check_source(path));
    golden->model = (struct hd_stage_spec){.size = sizeof golden->model,
                                           .rope_theta = 1e4,
                                           .norm_epsilon = 1e-5,
                                           .precision = HD_PRECISION_F32};
    char *line = golden->bytes;
    while (!is_last) {
        char *end = strchr(line, '\n');
        CU_ASSERT_PTR_NOT_NULL_FATAL(end);
        *end = '\0';
        is_last = take_line(golden, line);
        line = end + 1;
    }
    for (uint32_t i = 0; i < golden->array_count; i++) {
        golden->arrays[i].values = line;
        line += 4 * golden->arrays[i].count;
    }
}

static const struct array *find_array(const struct golden *golden, const char *kind,
                                      const char *name)
{
    char wanted[2 * NAME_BYTES];
    snprintf(wanted, sizeof wanted, "%s%s", kind, name);
    for (uint32_t i = 0; i < golden->array_count; i++) {
        if (strcmp(golden->arrays[i].name, wanted) == 0) {
            return &golden->arrays[i];
        }
    }
    printf("\n    no %s", wanted);
    CU_FAIL_FATAL("an array that the golden file lacks");
    return NULL;
}

/* The values lie at odd places in the file. */
static double float_at(const struct array *array, uint64_t index)
{
    float value;
    CU_ASSERT_FATAL(index < array->count);
    memcpy(&value, (const char *)array->values + index * sizeof value, sizeof value);
    return (double)value;
}

/* --- running the model ------------------------------------------------------------------------ */

struct fixture {
    struct golden golden;
    struct hd_harness harness;
    struct hd_chain chain;
};

static void load_weights(struct fixture *fixture)
{
    for (uint32_t tensor = 0; tensor < fixture->chain.tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(&fixture->chain, tensor, &about);
        const struct array *weight = find_array(&fixture->golden, "weight/", about.name);
        double *values = malloc(count * sizeof *values);
        CU_ASSERT_PTR_NOT_NULL_FATAL(values);
        CU_ASSERT_EQUAL_FATAL(weight->count, count);
        for (uint64_t i = 0; i < count; i++) {
            values[i] = float_at(weight, i);
        }
        hd_chain_write(&fixture->chain, tensor, HD_MASTER, values);
        free(values);
    }
}

/* Writes the golden tokens and targets; returns how many labels there are. */
static uint64_t load_batch(struct fixture *fixture)
{
    const struct array *tokens = find_array(&fixture->golden, "", "tokens");
    const struct array *targets = find_array(&fixture->golden, "", "targets");
    uint64_t labels = 0;
    memcpy(fixture->chain.tokens, tokens->values, tokens->count * sizeof(int32_t));
    memcpy(fixture->chain.targets, targets->values, targets->count * sizeof(int32_t));
    for (uint64_t i = 0; i < targets->count; i++) {
        labels += fixture->chain.targets[i] >= 0;
    }
    return labels;
}

static void open_fixture(struct fixture *fixture, const char *name)
{
    read_golden(&fixture->golden, name);
    const uint32_t blocks[] = {fixture->golden.model.layers};
    CU_ASSERT_EQUAL_FATAL(hd_harness_open(&fixture->harness, "reference", NULL), 0);
    CU_ASSERT_EQUAL_FATAL(
        hd_chain_open(&fixture->chain, &fixture->harness, &fixture->golden.model, blocks, 1),
        HD_OK);
    load_weights(fixture);
    fixture->chain.label_scale = 1.0 / (double)load_batch(fixture);
}

static void close_fixture(struct fixture *fixture)
{
    hd_chain_close(&fixture->chain);
    hd_harness_close(&fixture->harness);
    free(fixture->golden.bytes);
}

/* |ours - golden| / |golden| in L2. */
static double residual(struct fixture *fixture, uint32_t tensor, uint32_t copy, const char *kind)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(&fixture->chain, tensor, &about);
    const struct array *golden = find_array(&fixture->golden, kind, about.name);
    double *values = malloc(count * sizeof *values), apart = 0, length = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(values);
    hd_chain_read(&fixture->chain, tensor, copy, values);
    for (uint64_t i = 0; i < count; i++) {
        const double wanted = float_at(golden, i);
        apart += (values[i] - wanted) * (values[i] - wanted);
        length += wanted * wanted;
    }
    free(values);
    CU_ASSERT(length > 0);
    return sqrt(apart / length);
}

/* The worst residual of a copy of all tensors. */
static double worst_residual(struct fixture *fixture, uint32_t copy, const char *kind)
{
    double worst = 0;
    for (uint32_t tensor = 0; tensor < fixture->chain.tensor_count; tensor++) {
        worst = fmax(worst, residual(fixture, tensor, copy, kind));
    }
    return worst;
}

static void check_steps(struct fixture *fixture)
{
    const struct array *losses = find_array(&fixture->golden, "", "losses");
    struct hd_update update = {.size = sizeof update,
                               .learning_rate = fixture->golden.learning_rate,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .epsilon = 1e-8,
                               .gradient_scale = 1};
    CU_ASSERT_EQUAL_FATAL(losses->count, fixture->golden.steps);
    for (update.step = 1; update.step <= fixture->golden.steps; update.step++) {
        hd_chain_zero_gradients(&fixture->chain);
        CU_ASSERT_EQUAL_FATAL(hd_chain_forward(&fixture->chain, 0), HD_OK);
        CU_ASSERT_EQUAL_FATAL(hd_chain_backward(&fixture->chain), HD_OK);
        const double wanted = float_at(losses, update.step - 1);
        CU_ASSERT_DOUBLE_EQUAL(fixture->chain.loss, wanted, 1e-5 * wanted);
        if (update.step == 1) {
            const double worst = worst_residual(fixture, HD_GRADIENT, "gradient/");
            printf("\n    worst gradient %.1e", worst);
            CU_ASSERT(worst < 1e-4);
        }
        CU_ASSERT_EQUAL(fixture->harness.ops->update(fixture->chain.stages[0].stage, &update),
                        HD_OK);
    }
    const double worst = worst_residual(fixture, HD_MASTER, "updated/");
    printf(", worst weight after %u steps %.1e ", fixture->golden.steps, worst);
    CU_ASSERT(worst < 1e-4);
}

static void check_case(const char *name)
{
    static struct fixture fixture;
    open_fixture(&fixture, name);
    check_steps(&fixture);
    close_fixture(&fixture);
}

static void test_plain(void)
{
    check_case("plain");
}

static void test_normalized(void)
{
    check_case("normalized");
}

static void test_terms(void)
{
    check_case("terms");
}

static void test_log_probabilities(void)
{
    static struct fixture fixture;
    open_fixture(&fixture, "plain");
    struct hd_chain *chain = &fixture.chain;
    const uint32_t vocabulary = chain->model.vocabulary;
    const struct array *wanted = find_array(&fixture.golden, "", "log_softmax");
    const uint64_t tokens = wanted->count / vocabulary;
    double worst = 0;
    chain->label_scale = 1;
    for (uint64_t i = 0; i < wanted->count; i++) {
        memset(chain->targets, 0xff, tokens * sizeof(int32_t));
        chain->targets[i / vocabulary] = (int32_t)(i % vocabulary);
        CU_ASSERT_EQUAL_FATAL(hd_chain_forward(chain, 1), HD_OK);
        /* The last term is the cross-entropy; this case has no other. */
        worst = fmax(worst, fabs(chain->terms[chain->term_count - 1] + float_at(wanted, i)));
    }
    printf("\n    worst of %llu: %.1e ", (unsigned long long)wanted->count, worst);
    CU_ASSERT(worst < 1e-4);
    close_fixture(&fixture);
}

static const struct hd_check checks[] = {
    {"plain: loss, every gradient, three AdamW steps", test_plain},
    {"gates normalised, shared key-value head: the same", test_normalized},
    {"balance and z terms at one layer: the same", test_terms},
    {"every log-probability of every token", test_log_probabilities},
};

int main(void)
{
    return hd_check_main("parity", checks, HD_CHECK_COUNT(checks));
}
