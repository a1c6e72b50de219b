/*
 * plugins/kernels/synthetic/model.c - option model: numbers to compare two runs by.
 *
 * A correct pattern shows that a message is correct, but not that two runs did the same.  So a
 * block may have a tensor of a few values, which is mixed into the word that passes through it.
 * The word of the backward adds to the tensor's gradient, and the last stage computes a loss:
 *
 *   forward    w -> mix(block, w, tensor) -> ..             loss: the last word, and the targets
 *   backward   g -> mix(block, g, w) -> ..                  gradient of the tensor += f(g, w)
 *
 * The gradient is not the slope of that loss, so nothing is learnt.  As with a real model, every
 * order and every cut gives the same bits (K3 to K5).
 */
#include "synthetic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUES = SYNTHETIC_TENSOR_VALUES };

#define UNIT 0x1p-53

uint64_t synthetic_mix(uint64_t a, uint64_t b)
{
    uint64_t word = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6))) * 0xff51afd7ed558ccdull;
    return word ^ (word >> 33);
}

/* In [0, 1). */
static double synthetic_unit_of(uint64_t word)
{
    return (double)(word >> 11) * UNIT;
}

uint64_t synthetic_model_forward(const struct hd_stage *stage, uint64_t word, uint32_t block_count)
{
    for (uint32_t block = 0; block < block_count; block++) {
        word = synthetic_mix(stage->spec.first_block + block, word);
        for (uint32_t i = 0; i < VALUES; i++) {
            uint32_t bits;
            memcpy(&bits, &stage->touch.parameters[block * VALUES + i], sizeof bits);
            word = synthetic_mix(word, bits);
        }
    }
    return word;
}

static uint64_t synthetic_head_word(const struct hd_stage *stage, const struct hd_pass *pass,
                                    uint64_t word)
{
    const uint64_t count = (uint64_t)stage->spec.batch * stage->spec.sequence;

    for (uint64_t i = 0; pass->targets != NULL && i < count; i++) {
        word = synthetic_mix(word, (uint64_t)(uint32_t)pass->targets[i]);
    }
    return word;
}

double synthetic_model_term(const struct hd_stage *stage, const struct hd_pass *pass, uint64_t word)
{
    const double count = (double)stage->spec.batch * stage->spec.sequence;
    return synthetic_unit_of(synthetic_head_word(stage, pass, word)) * count * pass->label_scale;
}

uint64_t synthetic_model_first_gradient(const struct hd_stage *stage, const struct hd_pass *pass,
                                        uint64_t input_word)
{
    const uint64_t word = synthetic_model_forward(stage, input_word, stage->spec.block_count);
    return synthetic_mix(synthetic_head_word(stage, pass, word), 1);
}

uint64_t synthetic_model_backward(const struct hd_stage *stage, uint64_t input_word,
                                  uint64_t gradient, float *gradients)
{
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        const uint64_t word = synthetic_model_forward(stage, input_word, block);
        gradient = synthetic_mix(synthetic_mix(stage->spec.first_block + block, gradient), word);
        for (uint32_t i = 0; gradients != NULL && i < VALUES; i++) {
            /* A tensor that is not finite must show (K8); the pattern alone would hide it. */
            gradients[block * VALUES + i] +=
                (float)(synthetic_unit_of(synthetic_mix(gradient, i)) - 0.5) +
                0 * stage->touch.parameters[block * VALUES + i];
        }
    }
    return gradient;
}

void synthetic_model_norms(const struct hd_stage *stage, double *squared)
{
    for (uint32_t block = 0; block < stage->spec.block_count; block++) {
        squared[block] = 0;
        for (uint32_t i = 0; i < VALUES; i++) {
            const double value = (double)stage->touch.gradients[block * VALUES + i];
            squared[block] += value * value;
        }
    }
}

void synthetic_model_update(const struct hd_stage *stage, const struct hd_update *update)
{
    const uint32_t count = stage->spec.block_count * VALUES;
    const double left1 = 1 - pow(update->beta1, update->step);
    const double left2 = 1 - pow(update->beta2, update->step);

    for (uint32_t i = 0; i < count; i++) {
        float *first = &stage->touch.moments[i], *second = &stage->touch.moments[count + i];
        const double gradient = (double)stage->touch.gradients[i] * update->gradient_scale;
        *first = (float)(update->beta1 * (double)*first + (1 - update->beta1) * gradient);
        *second =
            (float)(update->beta2 * (double)*second + (1 - update->beta2) * gradient * gradient);
        const double step =
            (double)*first / left1 / (sqrt((double)*second / left2) + update->epsilon);
        stage->touch.parameters[i] -= (float)(update->learning_rate * step);
    }
}

hd_status synthetic_model_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    struct hd_tensor own = {
        .size = sizeof own,
        .dtype = HD_F32,
        .group = HD_DENSE,
        .initial = HD_INITIAL_NORMAL,
        .dimension_count = 1,
        .shape = {VALUES},
        .gradient_offset = (uint64_t)index * VALUES * sizeof(float),
    };
    const uint32_t room = out->size;

    if (!stage->has_model || index >= stage->spec.block_count) {
        return HD_INVALID;
    }
    snprintf(own.name, sizeof own.name, "model.layers.%u.synthetic.weight",
             stage->spec.first_block + index);
    memcpy(out, &own, room < own.size ? room : own.size);
    return HD_OK;
}

/* The values of one copy, in `memory`. */
float *synthetic_model_copy(const struct synthetic_memory *memory, uint32_t block_count,
                            uint32_t index, uint32_t copy)
{
    const uint32_t count = block_count * VALUES;
    float *const begins[] = {memory->parameters, memory->moments, memory->moments + count,
                             memory->gradients};

    return copy <= HD_GRADIENT ? begins[copy] + index * VALUES : NULL;
}
