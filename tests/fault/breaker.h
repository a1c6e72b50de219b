/*
 * tests/fault/breaker.h - the tensors of kernel_breaker.c: where they lie, their norms, their
 * update.
 */
#ifndef HD_TESTS_FAULT_BREAKER_H
#define HD_TESTS_FAULT_BREAKER_H

#include <heddle/kernel.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct hd_kernel {
    const struct hd_host *host;
    uint32_t pass_count; /* the state that a result must not depend on */
    float *late_place;   /* "lingers": one number of a backward comes with the next call */
    float late_value;
};

/* Elements of every tensor lie one after the other: the embedding, where it is, then the blocks. */
struct hd_stage {
    struct hd_kernel *kernel;
    struct hd_stage_spec spec;
    struct hd_stage_memory memory;
    uint64_t embedding_count, element_count;
};

static uint32_t does(const struct hd_host *host, const char *what)
{
    return strcmp(host->options[0].text, what) == 0 ? 1 : 0;
}

static void catch_up(struct hd_stage *stage)
{
    if (stage->kernel->late_place != NULL) {
        *stage->kernel->late_place = stage->kernel->late_value;
    }
    stage->kernel->late_place = NULL;
}

static uint32_t stage_does(const struct hd_stage *stage, const char *what)
{
    return does(stage->kernel->host, what);
}

static hd_status fail(const struct hd_host *host, hd_status status, const char *text)
{
    const struct hd_error error = {.size = sizeof error,
                                   .status = status,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};
    return host->fail(host->context, &error);
}

static uint64_t tokens_of(const struct hd_stage_spec *spec)
{
    return (uint64_t)spec->batch * spec->sequence;
}

/* --- tensors ------------------------------------------------------------------------------- */

static hd_status tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    const uint32_t has_embedding = stage->spec.has_embedding ? 1 : 0;
    const int is_embedding = has_embedding && index == 0;
    struct hd_tensor filled = {
        .size = sizeof filled,
        .dtype = HD_F32,
        .initial = is_embedding ? HD_INITIAL_NORMAL : HD_INITIAL_ONE,
        .decays = is_embedding ? 1 : 0,
        .dimension_count = is_embedding ? 2 : 1,
        .shape = {is_embedding ? stage->spec.vocabulary : stage->spec.width, stage->spec.width}};

    if (index >= stage->spec.block_count + has_embedding) {
        return HD_INVALID;
    }
    const uint32_t block = index - has_embedding;
    if (is_embedding) {
        snprintf(filled.name, sizeof filled.name, "model.embed_tokens.weight");
    } else {
        filled.gradient_offset =
            (stage->embedding_count + (uint64_t)block * stage->spec.width) * sizeof(float);
        filled.gradient_offset -= stage_does(stage, "overlap") && block > 0 ? sizeof(float) : 0;
        snprintf(filled.name, sizeof filled.name, "model.layers.%u.scale.weight",
                 stage_does(stage, "namesake") ? 0 : stage->spec.first_block + block);
    }
    memcpy(out, &filled, out->size < sizeof filled ? out->size : sizeof filled);
    return HD_OK;
}

static float *copy_of(struct hd_stage *stage, uint32_t copy)
{
    float *moments = stage->memory.optimizer;
    return copy == HD_MASTER     ? stage->memory.parameters
           : copy == HD_GRADIENT ? stage->memory.gradients[HD_DENSE]
           : copy == HD_MOMENT1  ? moments
                                 : moments + stage->element_count;
}

static hd_status tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                             void *host)
{
    struct hd_tensor about = {.size = sizeof about};
    const hd_status status = tensor(stage, index, &about);

    catch_up(stage);
    if (status != HD_OK) {
        return status;
    }
    float *device = copy_of(stage, copy) + about.gradient_offset / sizeof(float);
    const uint64_t count = about.shape[0] * (about.dimension_count > 1 ? about.shape[1] : 1);
    const int is_lost = stage_does(stage, "forgetful") && copy == HD_MOMENT2;
    if (!is_lost) {
        memcpy(into ? device : host, into ? host : device, count * sizeof(float));
    }
    return HD_OK;
}

/* --- norms and update ----------------------------------------------------------------------- */

static hd_status norms(struct hd_stage *stage, double *squared)
{
    const uint32_t has_embedding = stage->spec.has_embedding ? 1 : 0;
    const float *gradient = copy_of(stage, HD_GRADIENT);
    const double scale = stage_does(stage, "loud") ? 1.001 : 1;

    catch_up(stage);
    memset(squared, 0, (stage->spec.block_count + has_embedding) * sizeof *squared);
    for (uint64_t i = 0; i < stage->element_count; i++) {
        const uint64_t block =
            i < stage->embedding_count
                ? 0
                : has_embedding + (i - stage->embedding_count) / stage->spec.width;
        squared[block] += scale * (double)gradient[i] * (double)gradient[i];
    }
    return HD_OK;
}

static hd_status update(struct hd_stage *stage, const struct hd_update *given)
{
    float *master = copy_of(stage, HD_MASTER), *gradient = copy_of(stage, HD_GRADIENT);
    float *moment1 = copy_of(stage, HD_MOMENT1), *moment2 = copy_of(stage, HD_MOMENT2);
    const uint32_t is_plain = stage_does(stage, "unbiased");

    catch_up(stage);
    for (uint64_t i = 0; i < stage->element_count; i++) {
        const double scaled = (double)gradient[i] * given->gradient_scale;
        const double decay =
            i < stage->embedding_count ? given->weight_decay * (double)master[i] : 0;
        moment1[i] = (float)(given->beta1 * (double)moment1[i] + (1 - given->beta1) * scaled);
        moment2[i] =
            (float)(given->beta2 * (double)moment2[i] + (1 - given->beta2) * scaled * scaled);
        const double bias1 = is_plain ? 1 : 1 - pow(given->beta1, given->step);
        const double bias2 = is_plain ? 1 : 1 - pow(given->beta2, given->step);
        const double step =
            (double)moment1[i] / bias1 / (sqrt((double)moment2[i] / bias2) + given->epsilon);
        master[i] = (float)((double)master[i] - given->learning_rate * (step + decay));
        gradient[i] = stage_does(stage, "tidy") ? 0 : gradient[i];
    }
    return HD_OK;
}

#endif /* HD_TESTS_FAULT_BREAKER_H */
