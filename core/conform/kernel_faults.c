#include "conform/kernel.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, TENSOR_MAX = 96 };

/* --- K7 ------------------------------------------------------------------------------------ */

/* A backward with the payload as it is now must be refused, by name, and add nothing. */
static void expect_refusal(struct hd_bench *bench, const char *what)
{
    struct hd_conform_case *check = bench->check;
    struct hd_chain *chain = &bench->chain;
    const uint64_t before = hd_chain_hash(chain, HD_GRADIENT);

    check->report = (struct hd_conform_report){0};
    const hd_status status = hd_chain_backward(chain);
    HD_HOLD(check, status == HD_PROTOCOL, "%s: %s: a backward returns %s, not HD_PROTOCOL",
            bench->precision, what, hd_status_name(status));
    HD_HOLD(check, check->report.count == 1 && check->report.text[0] != '\0',
            "%s: %s: it is refused without a sentence", bench->precision, what);
    HD_HOLD(check, hd_chain_hash(chain, HD_GRADIENT) == before,
            "%s: %s: it is refused, and the gradients have changed", bench->precision, what);
}

static void judge_stamp(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    struct hd_chain_stage *at = &chain->stages[0];
    at->generation = 40;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    at->generation = 39;
    expect_refusal(&bench, "the lease before");
    at->generation = 41;
    expect_refusal(&bench, "the lease after");
    if (hd_conform_is_decided(check)) {
        return;
    }
    at->generation = 40;
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "%s: the right lease is refused: %s",
            bench.precision, check->report.text);
    memset(at->payload, 0xff, at->needs.payload_bytes);
    expect_refusal(&bench, "a released payload, poisoned");
    memset(at->payload, 0x00, at->needs.payload_bytes);
    expect_refusal(&bench, "a payload that nobody has written");
    hd_bench_close(&bench);
}

void hd_conform_kernel_stamp(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, judge_stamp);
}

/* --- K8 ------------------------------------------------------------------------------------ */

/* Behind the stamp the payload is rubbish: refused or not, no byte beside the regions is touched.
 */
static void judge_garbage(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    for (uint32_t round = 0; round < ROUNDS && !hd_conform_is_decided(check); round++) {
        HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s",
                check->report.text);
        for (uint32_t stage = 0; stage < 2; stage++) {
            struct hd_chain_stage *at = &chain->stages[stage];
            unsigned char *bytes = at->payload;
            for (uint64_t i = 256; i < at->needs.payload_bytes; i++) {
                bytes[i] = (unsigned char)(round == 0 ? 0xff : hd_conform_draw(check));
            }
        }
        const hd_status status = hd_chain_backward(chain);
        HD_HOLD(check, status <= 0, "a backward returns %d", status);
        HD_HOLD(check, hd_bench_is_whole(&bench),
                "%s: a spoilt payload makes it write beside a region", bench.precision);
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_garbage(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, judge_garbage);
}

static double gradient_length(struct hd_bench *bench)
{
    struct hd_chain *chain = &bench->chain;
    double squared[2][TENSOR_MAX], length = 0;

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        const struct hd_chain_stage *at = &chain->stages[stage];
        assert(at->needs.tensor_count <= TENSOR_MAX);
        if (bench->harness.ops->norms(at->stage, squared[stage]) != HD_OK) {
            return 0;
        }
        for (uint32_t i = 0; i < at->needs.tensor_count; i++) {
            length += squared[stage][i];
        }
    }
    return length;
}

/* One NaN in the first element of a tensor that every token meets; expert tensors may be idle. */
static void judge_one_nan(struct hd_bench *bench, uint32_t tensor)
{
    struct hd_conform_case *check = bench->check;
    struct hd_chain *chain = &bench->chain;
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(chain, tensor, &about);
    double *values = malloc(2 * count * sizeof *values);

    assert(values != NULL);
    hd_chain_read(chain, tensor, HD_MASTER, values);
    for (uint64_t i = 0; i < count; i++) {
        values[count + i] = NAN;
    }
    hd_chain_write(chain, tensor, HD_MASTER, values + count);
    hd_chain_zero_gradients(chain);
    const hd_status status = hd_chain_forward(chain, 0);
    HD_HOLD(check, status == HD_OK, "%s: %s of NaN: a forward returns %s", bench->precision,
            about.name, hd_status_name(status));
    const int is_loud = !isfinite(chain->loss);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "%s: %s of NaN: a backward fails: %s",
            bench->precision, about.name, check->report.text);
    HD_HOLD(check, is_loud || !isfinite(gradient_length(bench)),
            "%s: %s is NaN, and loss and norms are finite", bench->precision, about.name);
    HD_HOLD(check, hd_bench_is_whole(bench), "%s: %s of NaN makes it write beside a region",
            bench->precision, about.name);
    hd_chain_write(chain, tensor, HD_MASTER, values);
    free(values);
}

static void judge_nan(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_in_two) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    for (uint32_t i = 0; i < bench.chain.tensor_count && !hd_conform_is_decided(check); i++) {
        struct hd_tensor about;
        hd_chain_tensor(&bench.chain, i, &about);
        if (about.group == HD_DENSE) {
            judge_one_nan(&bench, i);
        }
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_nan(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, judge_nan);
}
