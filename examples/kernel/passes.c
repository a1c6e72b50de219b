/*
 * passes.c - the forward and the backward of a stage.
 */
#include "tiny_mlp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TINY_STAMP 0x796e69742d6c6470ull

struct tiny_stamp {
    uint64_t magic, generation;
};

/* Where a pass keeps what its backward needs: in the payload, or in scratch for an evaluation. */
struct tiny_kept {
    float *blocks; /* [block_count, 2, tokens, width]: x and t */
    float *head_x; /* [tokens, width] */
    float *lse;    /* [tokens] */
};

/* --- passes -------------------------------------------------------------------------------- */

static struct tiny_kept tiny_kept_at(const struct hd_stage *stage, void *place)
{
    const uint64_t activation = stage->tokens * stage->width;
    float *floats = place;

    return (struct tiny_kept){
        .blocks = floats,
        .head_x = floats + 2 * stage->spec.block_count * activation,
        .lse = floats + (2 * stage->spec.block_count + 1) * activation,
    };
}

/* Scratch: the activation or its gradient [tokens, width], a row of logits, a row of width. */
static float *tiny_logits(const struct hd_stage *stage)
{
    return (float *)stage->memory.scratch + stage->tokens * stage->width;
}

static float *tiny_row(const struct hd_stage *stage)
{
    return tiny_logits(stage) + stage->vocabulary;
}

static void tiny_read_input(const struct hd_stage *stage, const struct hd_pass *pass, float *x)
{
    const float *table = tiny_parameter(stage, 0);

    if (!stage->spec.has_embedding) {
        memcpy(x, pass->input, stage->tokens * stage->width * sizeof(float));
        return;
    }
    for (uint64_t token = 0; token < stage->tokens; token++) {
        memcpy(x + token * stage->width, table + (uint64_t)pass->tokens[token] * stage->width,
               stage->width * sizeof(float));
    }
}

/* out[row] = sum over column of weight[row, column] x[column] */
static void tiny_multiply(const float *weight, const float *x, uint64_t rows, uint64_t columns,
                          float *out)
{
    for (uint64_t row = 0; row < rows; row++) {
        float sum = 0;
        for (uint64_t column = 0; column < columns; column++) {
            sum += weight[row * columns + column] * x[column];
        }
        out[row] = sum;
    }
}

/* x and t [tokens, width] are kept; x becomes x + t. */
static void tiny_forward_block(const struct hd_stage *stage, uint32_t block, float *x,
                               float *kept_x, float *kept_t)
{
    const float *weight = tiny_parameter(stage, tiny_block_index(stage, block));

    memcpy(kept_x, x, stage->tokens * stage->width * sizeof(float));
    for (uint64_t token = 0; token < stage->tokens; token++) {
        float *t = kept_t + token * stage->width;
        tiny_multiply(weight, kept_x + token * stage->width, stage->width, stage->width, t);
        for (uint64_t i = 0; i < stage->width; i++) {
            t[i] = tanhf(t[i]);
            x[token * stage->width + i] += t[i];
        }
    }
}

/* The largest logit, or NaN if one is NaN (law K8). */
static float tiny_largest(const float *logits, uint64_t count)
{
    float largest = logits[0];

    for (uint64_t i = 1; i < count; i++) {
        largest = logits[i] > largest || isnan(logits[i]) ? logits[i] : largest;
    }
    return largest;
}

/* Keeps the log-sum-exp of every token's logits; returns the sum of the labels' losses. */
static double tiny_head_loss(const struct hd_stage *stage, const int32_t *targets, const float *x,
                             float *lse)
{
    float *logits = tiny_logits(stage);
    double loss = 0;

    for (uint64_t token = 0; token < stage->tokens; token++) {
        double sum = 0;
        tiny_multiply(tiny_parameter(stage, tiny_head_index(stage)), x + token * stage->width,
                      stage->vocabulary, stage->width, logits);
        const float largest = tiny_largest(logits, stage->vocabulary);
        for (uint64_t i = 0; i < stage->vocabulary; i++) {
            sum += exp((double)(logits[i] - largest));
        }
        lse[token] = (float)(largest + log(sum));
        if (targets[token] >= 0) {
            loss += (double)(lse[token] - logits[targets[token]]);
        }
    }
    return loss;
}

hd_status tiny_forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t activation = stage->tokens * stage->width;
    const struct tiny_stamp stamp = {TINY_STAMP, pass->generation};
    unsigned char *payload = pass->payload[0];
    float *x = stage->memory.scratch;
    void *place = payload != NULL ? (void *)(payload + TINY_STAMP_BYTES)
                                  : (void *)(tiny_row(stage) + stage->width);
    const struct tiny_kept kept = tiny_kept_at(stage, place);

    if (payload != NULL) {
        memcpy(payload, &stamp, sizeof stamp);
    }
    tiny_read_input(stage, pass, x);
    for (uint32_t block = 0; block < stage->spec.block_count; block++) {
        float *kept_x = kept.blocks + 2 * block * activation;
        tiny_forward_block(stage, block, x, kept_x, kept_x + activation);
    }
    if (stage->spec.has_head) {
        memcpy(kept.head_x, x, activation * sizeof(float));
        pass->terms[0] = tiny_head_loss(stage, pass->targets, x, kept.lse) * pass->label_scale;
    } else {
        memcpy(pass->output, x, activation * sizeof(float)); /* once (law K6) */
    }
    return HD_OK;
}

/* Adds a token's part to the gradient of a tensor of `rows` rows, and to dx [width]. */
static void tiny_backward_row(const struct hd_stage *stage, uint32_t index, const float *x,
                              const float *dout, float *dx)
{
    const uint64_t rows = tiny_rows(&stage->spec, index), width = stage->width;
    const float *weight = tiny_parameter(stage, index);
    float *gradient = tiny_gradient(stage, index);

    for (uint64_t row = 0; row < rows; row++) {
        for (uint64_t i = 0; i < width; i++) {
            gradient[row * width + i] += dout[row] * x[i];
            dx[i] += dout[row] * weight[row * width + i];
        }
    }
}

/* dx [tokens, width] = the gradient of the loss at the last block's output. */
static void tiny_backward_head(const struct hd_stage *stage, const struct hd_pass *pass,
                               const struct tiny_kept *kept, float *dx)
{
    const uint32_t index = tiny_head_index(stage);
    const float scale = (float)pass->label_scale;
    float *logits = tiny_logits(stage);

    memset(dx, 0, stage->tokens * stage->width * sizeof(float));
    for (uint64_t token = 0; token < stage->tokens; token++) {
        const float *x = kept->head_x + token * stage->width;
        const int32_t target = pass->targets[token];
        if (target < 0) {
            continue; /* without a label it adds nothing to the loss */
        }
        tiny_multiply(tiny_parameter(stage, index), x, stage->vocabulary, stage->width, logits);
        for (uint64_t i = 0; i < stage->vocabulary; i++) {
            const float probability = expf(logits[i] - kept->lse[token]);
            logits[i] = scale * (probability - (i == (uint64_t)target));
        }
        tiny_backward_row(stage, index, x, logits, dx + token * stage->width);
    }
}

/* dx is the gradient of the block's output, and becomes that of its input: the residual passes it
   on, and the layer adds to it. */
static void tiny_backward_block(const struct hd_stage *stage, uint32_t block, const float *x,
                                const float *t, float *dx)
{
    float *dz = tiny_row(stage);

    for (uint64_t token = 0; token < stage->tokens; token++) {
        const uint64_t at = token * stage->width;
        for (uint64_t i = 0; i < stage->width; i++) {
            dz[i] = dx[at + i] * (1 - t[at + i] * t[at + i]);
        }
        tiny_backward_row(stage, tiny_block_index(stage, block), x + at, dz, dx + at);
    }
}

static hd_status tiny_check_stamp(const struct hd_stage *stage, const struct hd_pass *pass)
{
    struct tiny_stamp stamp;
    char text[160];

    memcpy(&stamp, pass->payload[0], sizeof stamp);
    if (stamp.magic == TINY_STAMP && stamp.generation == pass->generation) {
        return HD_OK;
    }
    snprintf(text, sizeof text, "the payload has the stamp of lease %llu, not of %llu",
             (unsigned long long)stamp.generation, (unsigned long long)pass->generation);
    return tiny_fail(stage->kernel->host, HD_PROTOCOL, text);
}

hd_status tiny_backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t activation = stage->tokens * stage->width;
    float *dx = stage->memory.scratch;
    const hd_status status = tiny_check_stamp(stage, pass);

    if (status != HD_OK) {
        return status;
    }
    const struct tiny_kept kept =
        tiny_kept_at(stage, (unsigned char *)pass->payload[0] + TINY_STAMP_BYTES);
    if (stage->spec.has_head) {
        tiny_backward_head(stage, pass, &kept, dx);
    } else {
        memcpy(dx, pass->output_gradient, activation * sizeof(float));
    }
    for (uint32_t block = stage->spec.block_count; block-- > 0;) {
        const float *x = kept.blocks + 2 * block * activation;
        tiny_backward_block(stage, block, x, x + activation, dx);
    }
    if (!stage->spec.has_embedding) {
        memcpy(pass->input_gradient, dx, activation * sizeof(float));
        return HD_OK;
    }
    for (uint64_t i = 0; i < activation; i++) {
        const uint64_t token = (uint64_t)pass->tokens[i / stage->width];
        tiny_gradient(stage, 0)[token * stage->width + i % stage->width] += dx[i];
    }
    return HD_OK;
}
