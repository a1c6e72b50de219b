/* plugins/kernels/synthetic/pass.c - one pass: its checks, its outputs, its sleep. */
#include "synthetic.h"

#include <heddle/schedule.h>

#include <stddef.h>
#include <string.h>
#include <time.h>

#define STAMP_MAGIC     0x7274737468747973ull
#define DURATION_NS_MAX 1000000000000000000u /* 30 years: the limit of a pass */
#define SLICE_NS        500000u

static uint64_t synthetic_derived(uint64_t first, uint64_t index)
{
    return index == 0 ? first : synthetic_mix(first, index);
}

static uint64_t synthetic_now_ns(const struct hd_stage *stage)
{
    return stage->host->now_ns(stage->host->context);
}

/* Sleeps until `duration_us` after the begin of the pass.  On a device an abort must end the sleep,
   so it is checked every half millisecond. */
static void synthetic_sleep(const struct hd_stage *stage, uint64_t begin_ns, double duration_us)
{
    const double duration_ns = duration_us * 1e3;
    const uint64_t end_ns =
        begin_ns + (duration_ns < DURATION_NS_MAX ? (uint64_t)duration_ns : DURATION_NS_MAX);
    uint64_t until_ns = duration_us > 0 ? synthetic_now_ns(stage) : end_ns;

    while (until_ns < end_ns && !(stage->is_aborted != NULL && atomic_load(stage->is_aborted))) {
        const uint64_t slice_ns = stage->is_aborted != NULL ? SLICE_NS : DURATION_NS_MAX;
        until_ns = end_ns - until_ns < slice_ns ? end_ns : until_ns + slice_ns;
        const struct timespec until = {(time_t)(until_ns / 1000000000u),
                                       (long)(until_ns % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
        }
    }
}

static hd_status synthetic_complain(const struct hd_stage *stage, uint32_t microbatch,
                                    const char *what, uint64_t index)
{
    return synthetic_report(stage->host, HD_PROTOCOL, "stage %u, microbatch %u: %s (word %llu)",
                            stage->spec.stage, microbatch, what, (unsigned long long)index);
}

static void synthetic_write_words(const struct hd_stage *stage, void *target, uint64_t first)
{
    uint64_t *words = target;

    for (uint64_t i = 0; stage->is_checked && target != NULL && i < stage->boundary_words; i++) {
        words[i] = synthetic_derived(first, i);
    }
}

static hd_status synthetic_check_words(const struct hd_stage *stage, const struct hd_pass *pass,
                                       const void *source, const char *what)
{
    const uint64_t *words = source;

    for (uint64_t i = 1; stage->is_checked && source != NULL && i < stage->boundary_words; i++) {
        if (words[i] != synthetic_derived(words[0], i)) {
            return synthetic_complain(stage, pass->microbatch, what, i);
        }
    }
    return HD_OK;
}

/* Word 0 of the input: of the boundary, or a hash of the tokens. */
static uint64_t synthetic_input_word(const struct hd_stage *stage, const struct hd_pass *pass)
{
    uint64_t word = 0;

    if (pass->input != NULL) {
        memcpy(&word, pass->input, sizeof word);
        return word;
    }
    const uint64_t token_count = (uint64_t)stage->spec.batch * stage->spec.sequence;
    for (uint64_t i = 0; pass->tokens != NULL && i < token_count; i++) {
        word = synthetic_mix(word, (uint64_t)(uint32_t)pass->tokens[i]);
    }
    return word;
}

static uint64_t synthetic_output_word(const struct hd_stage *stage, const struct hd_pass *pass,
                                      uint64_t word)
{
    if (!stage->has_model) {
        return synthetic_mix(stage->spec.stage, word);
    }
    const uint64_t output = synthetic_model_forward(stage, word, stage->spec.block_count);
    if (pass->terms != NULL && stage->spec.has_head) {
        *pass->terms = synthetic_model_term(stage, pass, output);
    }
    return output;
}

static hd_status synthetic_forward(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = synthetic_now_ns(stage);
    const uint64_t word = synthetic_input_word(stage, pass);

    const hd_status status =
        synthetic_check_words(stage, pass, pass->input, "the activation is torn or stale");
    for (uint32_t half = 0; half < HD_ACQUISITION_MAX && pass->payload[half] != NULL; half++) {
        struct synthetic_payload *payload = pass->payload[half];
        *payload = (struct synthetic_payload){STAMP_MAGIC, pass->generation, word, 0};
    }
    synthetic_write_words(stage, pass->output, synthetic_output_word(stage, pass, word));
    synthetic_sleep(stage, begin_ns, stage->spec.forward_us);
    return status;
}

/* Checks the stamp of this lease, and that the input is unchanged since the forward. */
static hd_status synthetic_check_half(const struct hd_stage *stage, const struct hd_pass *pass,
                                      const struct synthetic_payload *payload)
{
    if (payload->magic != STAMP_MAGIC || payload->generation != pass->generation) {
        return synthetic_complain(stage, pass->microbatch, "the payload belongs to another lease",
                                  payload->generation);
    }
    if (stage->is_checked && payload->input_word != synthetic_input_word(stage, pass)) {
        return synthetic_complain(stage, pass->microbatch,
                                  "the activation changed before its backward", 0);
    }
    return HD_OK;
}

static hd_status synthetic_check_payload(const struct hd_stage *stage, const struct hd_pass *pass)
{
    SYNTHETIC_TRY(synthetic_check_half(stage, pass, pass->payload[0]));
    return pass->payload[1] != NULL ? synthetic_check_half(stage, pass, pass->payload[1]) : HD_OK;
}

static uint64_t synthetic_gradient_word(const struct hd_stage *stage,
                                        const struct synthetic_payload *payload)
{
    if (!stage->has_model) {
        return synthetic_mix(synthetic_mix(stage->spec.stage, payload->gradient_word),
                             payload->input_word);
    }
    return synthetic_model_backward(stage, payload->input_word, payload->gradient_word, NULL);
}

/* The sums of W, from the words that I saved in the payload. */
static void synthetic_add_gradients(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct synthetic_payload *payload = pass->payload[0];

    if (stage->has_model) {
        synthetic_model_backward(stage, payload->input_word, payload->gradient_word,
                                 stage->touch.gradients);
    }
}

static hd_status synthetic_backward_input(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = synthetic_now_ns(stage);
    struct synthetic_payload *payload = pass->payload[0];
    uint64_t gradient = 0;

    hd_status status = synthetic_check_payload(stage, pass);
    if (status == HD_OK) {
        status = synthetic_check_words(stage, pass, pass->output_gradient,
                                       "the gradient is torn or stale");
    }
    if (pass->output_gradient != NULL) {
        memcpy(&gradient, pass->output_gradient, sizeof gradient);
    }
    if (stage->has_model && stage->spec.has_head) {
        gradient = synthetic_model_first_gradient(stage, pass, payload->input_word);
    }
    payload->gradient_word = gradient;
    synthetic_write_words(stage, pass->input_gradient, synthetic_gradient_word(stage, payload));
    synthetic_sleep(stage, begin_ns, stage->spec.input_gradient_us);
    return status;
}

static hd_status synthetic_backward_weight(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = synthetic_now_ns(stage);
    const hd_status status = synthetic_check_payload(stage, pass);

    if (status == HD_OK) {
        synthetic_add_gradients(stage, pass);
    }
    synthetic_sleep(stage, begin_ns, stage->spec.weight_gradient_us);
    return status;
}

static hd_status synthetic_backward(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const uint64_t begin_ns = synthetic_now_ns(stage);
    struct hd_stage instant = *stage;

    instant.spec.input_gradient_us = 0;
    const hd_status status = synthetic_backward_input(&instant, pass);
    if (status == HD_OK) {
        synthetic_add_gradients(stage, pass);
    }
    synthetic_sleep(stage, begin_ns, stage->spec.backward_us);
    return status;
}

hd_status synthetic_pass(const struct hd_stage *stage, uint32_t kind, const struct hd_pass *pass)
{
    switch (kind) {
    case HD_FORWARD:
        return synthetic_forward(stage, pass);
    case HD_BACKWARD:
        return synthetic_backward(stage, pass);
    case HD_BACKWARD_INPUT:
        return synthetic_backward_input(stage, pass);
    default:
        return synthetic_backward_weight(stage, pass);
    }
}
