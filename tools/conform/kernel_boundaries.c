#include "conform/kernel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- K1 ------------------------------------------------------------------------------------ */

/* Without a stream a call is over when it returns: what a backward adds is there, and the call
   after it, which only reads, changes nothing. */
static void kernel_boundaries_judge_ordered(struct hd_conform_case *check,
                                            const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    const struct hd_chain_stage *stage = &chain->stages[0];
    const uint64_t bytes = stage->needs.gradient_bytes[HD_DENSE];
    double *squared = calloc(stage->needs.tensor_count + 1, sizeof *squared);
    unsigned char *seen = malloc(bytes + 1);
    assert(seen != NULL && squared != NULL);
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
            "%s: a pass fails: %s", bench.precision, check->report.text);
    memcpy(seen, stage->memory.gradients[HD_DENSE], bytes);
    HD_HOLD(check, bench.harness.ops->norms(stage->stage, squared) == HD_OK, "norms fails: %s",
            check->report.text);
    HD_HOLD(check, memcmp(seen, stage->memory.gradients[HD_DENSE], bytes) == 0,
            "%s: a backward has returned, and the call after it changes the gradients",
            bench.precision);
    free(seen);
    free(squared);
    hd_bench_close(&bench);
}

void hd_conform_kernel_ordered(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_boundaries_judge_ordered);
}

/* --- K6 ------------------------------------------------------------------------------------ */

/* What the second stage is given was written by the first over three kinds of rubbish; if a byte is
   left or read, two of them differ. */
static void kernel_boundaries_judge_write_once(struct hd_conform_case *check,
                                               const struct hd_stage_spec *model)
{
    static const int fills[] = {0x00, 0xff, 0x3c};
    struct hd_bench bench;
    uint64_t bytes = 0;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    struct hd_chain_stage *last = &chain->stages[1];
    bytes = last->needs.boundary_bytes;
    unsigned char *seen = malloc(2 * bytes);
    assert(seen != NULL);
    for (uint32_t i = 0; i < 3; i++) {
        memset(last->input, fills[i], bytes);
        memset(last->input_gradient, fills[i], bytes);
        hd_chain_zero_gradients(chain);
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK && hd_chain_backward(chain) == HD_OK,
                "%s: a pass fails: %s", bench.precision, check->report.text);
        HD_HOLD(check, i == 0 || memcmp(seen, last->input, bytes) == 0,
                "%s: what lay in the output before changes it", bench.precision);
        HD_HOLD(check, i == 0 || memcmp(seen + bytes, last->input_gradient, bytes) == 0,
                "%s: what lay in the input's gradient before changes it", bench.precision);
        memcpy(seen, last->input, bytes);
        memcpy(seen + bytes, last->input_gradient, bytes);
    }
    free(seen);
    hd_bench_close(&bench);
}

void hd_conform_kernel_write_once(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_boundaries_judge_write_once);
}

/* Tokens and targets cannot be written at all; what boundaries hold is compared. */
static void kernel_boundaries_judge_read_only(struct hd_conform_case *check,
                                              const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    struct hd_chain_stage *last = &chain->stages[1];
    const uint64_t bytes = last->needs.boundary_bytes;
    unsigned char *given = malloc(bytes);
    assert(given != NULL);
    hd_guard_lock(chain->tokens, 1);
    hd_guard_lock(chain->targets, 1);
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    memcpy(given, last->input, bytes);
    hd_guard_lock(last->input, 1);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "a backward fails: %s", check->report.text);
    HD_HOLD(check, memcmp(given, last->input, bytes) == 0, "%s: a backward writes its input",
            bench.precision);
    hd_guard_lock(last->input, 0);
    hd_guard_lock(chain->tokens, 0);
    hd_guard_lock(chain->targets, 0);
    free(given);
    hd_bench_close(&bench);
}

void hd_conform_kernel_read_only(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_boundaries_judge_read_only);
}

/* --- evaluation ---------------------------------------------------------------------------- */

static void kernel_boundaries_judge_evaluation(struct hd_conform_case *check,
                                               const struct hd_stage_spec *model)
{
    double terms[HD_CHAIN_TERM_MAX];
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    memcpy(terms, chain->terms, sizeof terms);
    memset(chain->terms, 0, sizeof terms);
    HD_HOLD(check, hd_chain_forward(chain, 1) == HD_OK, "%s: an evaluation fails: %s",
            bench.precision, check->report.text);
    HD_HOLD(check, memcmp(terms, chain->terms, sizeof terms) == 0,
            "%s: an evaluation gives other bits than a forward", bench.precision);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK,
            "%s: after an evaluation the payload of the forward before it is no good: %s",
            bench.precision, check->report.text);
    hd_bench_close(&bench);
}

void hd_conform_kernel_evaluation(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_boundaries_judge_evaluation);
}
