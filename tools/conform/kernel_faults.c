#include "conform/kernel.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, TENSOR_MAX = 96 };

/* --- K7 ------------------------------------------------------------------------------------ */

/* A backward with the payload as it is now must be refused, by name, and add nothing. */
static void kernel_faults_expect_refusal(struct hd_bench *bench, const char *what)
{
    struct hd_conform_case *check = bench->check;
    struct hd_chain *chain = &bench->chain;
    /* On a device the failure stays with the kernel, and nothing can be read any more. */
    const int may_look = bench->harness.device.stream == NULL;
    const uint64_t before = may_look ? hd_chain_hash(chain, HD_GRADIENT) : 0;

    check->report = (struct hd_conform_report){0};
    const hd_status status = hd_chain_backward(chain);
    HD_HOLD(check, status == HD_PROTOCOL, "%s: %s: a backward returns %s, not HD_PROTOCOL",
            bench->precision, what, hd_status_name(status));
    HD_HOLD(check, check->report.count == 1 && check->report.text[0] != '\0',
            "%s: %s: it is refused without a sentence", bench->precision, what);
    HD_HOLD(check, !may_look || hd_chain_hash(chain, HD_GRADIENT) == before,
            "%s: %s: it is refused, and the gradients have changed", bench->precision, what);
}

/* What is wrong with the payload; each is asked of a kernel of its own, since an error stays. */
static const struct stale {
    const char *name; /* NULL: nothing is, and it must do */
    uint64_t generation;
    int fill; /* below 0: it is left as the forward wrote it */
} kernel_faults_stales[] = {
    {"the lease before", 39, -1},
    {"the lease after", 41, -1},
    {NULL, 40, -1},
    {"a released payload, poisoned", 40, 0xff},
    {"a payload that nobody has written", 40, 0x00},
};

static void kernel_faults_judge_one_stamp(struct hd_conform_case *check,
                                          const struct hd_stage_spec *model,
                                          const struct stale *stale)
{
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    struct hd_chain_stage *at = &chain->stages[0];
    at->generation = 40;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    at->generation = stale->generation;
    if (stale->fill >= 0) {
        memset(at->payload, stale->fill, at->needs.payload_bytes);
    }
    if (stale->name == NULL) {
        HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "%s: the right lease is refused: %s",
                bench.precision, check->report.text);
    } else {
        kernel_faults_expect_refusal(&bench, stale->name);
    }
    hd_bench_close(&bench);
}

static void kernel_faults_judge_stamp(struct hd_conform_case *check,
                                      const struct hd_stage_spec *model)
{
    for (unsigned i = 0; i < sizeof kernel_faults_stales / sizeof kernel_faults_stales[0] &&
                         !hd_conform_is_decided(check);
         i++) {
        kernel_faults_judge_one_stamp(check, model, &kernel_faults_stales[i]);
    }
}

void hd_conform_kernel_stamp(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_faults_judge_stamp);
}

/* --- K8 ------------------------------------------------------------------------------------ */

/* Behind the stamp the payload is rubbish: refused or not, no byte beside the regions is
   touched. */
static void kernel_faults_judge_garbage(struct hd_conform_case *check,
                                        const struct hd_stage_spec *model)
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
        if (status != HD_OK && bench.harness.device.stream != NULL) {
            break; /* refused, and there the refusal stays */
        }
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_garbage(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_faults_judge_garbage);
}

static double kernel_faults_gradient_length(struct hd_bench *bench)
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
static void kernel_faults_judge_one_nan(struct hd_bench *bench, uint32_t tensor)
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
    HD_HOLD(check, is_loud || !isfinite(kernel_faults_gradient_length(bench)),
            "%s: %s is NaN, and loss and norms are finite", bench->precision, about.name);
    HD_HOLD(check, hd_bench_is_whole(bench), "%s: %s of NaN makes it write beside a region",
            bench->precision, about.name);
    hd_chain_write(chain, tensor, HD_MASTER, values);
    free(values);
}

/* Of two blocks, for all tensors are asked one by one: the first has what ends at the embedding,
   the last what begins at the head. */
static void kernel_faults_judge_nan(struct hd_conform_case *check,
                                    const struct hd_stage_spec *given)
{
    struct hd_stage_spec model = *given;
    struct hd_bench bench;

    model.layers = 2;
    if (!hd_bench_open(&bench, check, &model, &hd_cut_of_two) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    for (uint32_t i = 0; i < bench.chain.tensor_count && !hd_conform_is_decided(check); i++) {
        struct hd_tensor about;
        hd_chain_tensor(&bench.chain, i, &about);
        if (about.group == HD_DENSE) {
            kernel_faults_judge_one_nan(&bench, i);
        }
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_nan(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_faults_judge_nan);
}
