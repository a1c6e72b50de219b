#include "train/step.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846264338327950288

static_assert(sizeof(struct hd_exchange_header) % sizeof(double) == 0, "values follow the header");

struct sums {
    double loss, balance, z;
};

hd_status hd_exchange_layout(struct hd_exchange *exchange, uint32_t rank_count,
                             uint32_t stage_count, const struct hd_exchange_stage *stages)
{
    const size_t stages_bytes = stage_count * sizeof *stages;
    uint32_t largest = 0;

    assert(rank_count > 0 && stage_count > 0);
    struct hd_exchange_stage *const owned = malloc(stages_bytes);
    uint32_t *const used = calloc(rank_count, sizeof *used);
    if (owned == NULL || used == NULL) {
        free(owned);
        free(used);
        return HD_NO_MEMORY;
    }
    memcpy(owned, stages, stages_bytes);
    for (uint32_t i = 0; i < stage_count; i++) {
        struct hd_exchange_stage *const stage = &owned[i];
        assert(stage->rank < rank_count && stage->has_head <= stage->term_count);
        assert((stage->term_count - stage->has_head) % 2 == 0);
        stage->term_offset = used[stage->rank];
        stage->square_offset = stage->term_offset + stage->term_count;
        used[stage->rank] = stage->square_offset + stage->tensor_count;
        largest = used[stage->rank] > largest ? used[stage->rank] : largest;
    }
    free(used);
    *exchange = (struct hd_exchange){.rank_count = rank_count,
                                     .stage_count = stage_count,
                                     .stages = owned,
                                     .value_count = largest,
                                     .block_bytes = sizeof(struct hd_exchange_header) +
                                                    (uint64_t)largest * sizeof(double)};
    return HD_OK;
}

void hd_exchange_finish(struct hd_exchange *exchange)
{
    free(exchange->stages);
    *exchange = (struct hd_exchange){0};
}

void hd_exchange_sum_terms(const double *terms, uint32_t microbatch_count, uint32_t term_count,
                           double *out)
{
    for (uint32_t term = 0; term < term_count; term++) {
        double sum = 0.0;
        for (uint32_t microbatch = 0; microbatch < microbatch_count; microbatch++) {
            sum += terms[(uint64_t)microbatch * term_count + term];
        }
        out[term] = sum;
    }
}

static const void *step_block_of(const struct hd_exchange *exchange, const void *blocks,
                                 uint32_t rank)
{
    return (const unsigned char *)blocks + rank * exchange->block_bytes;
}

static const double *step_values_of(const struct hd_exchange *exchange, const void *blocks,
                                    uint32_t rank)
{
    const unsigned char *const block = step_block_of(exchange, blocks, rank);
    return (const double *)(const void *)(block + sizeof(struct hd_exchange_header));
}

/* A vote of a rank for another step does not count for this one. */
static bool step_is_unanimous(const struct hd_exchange *exchange, const void *blocks)
{
    const struct hd_exchange_header *const first = step_block_of(exchange, blocks, 0);
    bool sound = true;

    for (uint32_t rank = 0; rank < exchange->rank_count; rank++) {
        const struct hd_exchange_header *const header = step_block_of(exchange, blocks, rank);
        sound = sound && header->vote == 1 && header->step == first->step;
    }
    return sound;
}

/* One sum of each kind over all stages: sums by stage would depend on where the model is cut. */
static struct sums step_sum_terms(const struct hd_exchange *exchange, const void *blocks)
{
    struct sums sums = {0.0, 0.0, 0.0};

    for (uint32_t i = 0; i < exchange->stage_count; i++) {
        const struct hd_exchange_stage *const stage = &exchange->stages[i];
        const double *const terms =
            step_values_of(exchange, blocks, stage->rank) + stage->term_offset;
        const uint32_t routed = stage->term_count - stage->has_head;
        for (uint32_t term = 0; term < routed; term++) {
            if (term % 2 == 0) {
                sums.balance += terms[term];
            } else {
                sums.z += terms[term];
            }
        }
        if (stage->has_head) {
            sums.loss += terms[routed];
        }
    }
    return sums;
}

static double step_sum_squares(const struct hd_exchange *exchange, const void *blocks)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < exchange->stage_count; i++) {
        const struct hd_exchange_stage *const stage = &exchange->stages[i];
        const double *const squares =
            step_values_of(exchange, blocks, stage->rank) + stage->square_offset;
        for (uint32_t tensor = 0; tensor < stage->tensor_count; tensor++) {
            sum += squares[tensor];
        }
    }
    return sum;
}

void hd_step_judge(const struct hd_exchange *exchange, const void *blocks, double clip_norm,
                   struct hd_step_result *result)
{
    assert(exchange->stages != NULL && clip_norm >= 0.0);
    if (!step_is_unanimous(exchange, blocks)) {
        *result = (struct hd_step_result){
            .loss = NAN, .balance_loss = NAN, .z_loss = NAN, .grad_norm = NAN};
        return;
    }
    const struct sums sums = step_sum_terms(exchange, blocks);
    const double norm = sqrt(step_sum_squares(exchange, blocks));
    const bool is_finite =
        isfinite(sums.loss) && isfinite(sums.balance) && isfinite(sums.z) && isfinite(norm);
    const double scale = clip_norm > 0.0 && norm > clip_norm ? clip_norm / norm : 1.0;

    *result = (struct hd_step_result){.is_sound = true,
                                      .is_finite = is_finite,
                                      .loss = sums.loss,
                                      .balance_loss = sums.balance,
                                      .z_loss = sums.z,
                                      .grad_norm = norm,
                                      .gradient_scale = is_finite ? scale : 0.0};
}

double hd_rate_at(const struct hd_rate *rate, uint32_t step)
{
    assert(step >= 1);
    if (step < rate->warmup_steps) {
        return rate->learning_rate * step / rate->warmup_steps;
    }
    if (!rate->is_cosine || step == rate->warmup_steps || rate->steps <= rate->warmup_steps) {
        return rate->learning_rate;
    }
    const uint32_t last = step < rate->steps ? step : rate->steps;
    const double progress =
        (double)(last - rate->warmup_steps) / (rate->steps - rate->warmup_steps);
    const double left =
        rate->final_rate + (1.0 - rate->final_rate) * 0.5 * (1.0 + cos(PI * progress));
    return rate->learning_rate * left;
}
