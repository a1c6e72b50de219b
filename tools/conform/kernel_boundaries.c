#include "conform/kernel_checks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* K1: without a stream a call is over when it returns.  What a backward adds is there, and the next
   call, which only reads, changes nothing. */
void hd_conform_kernel_ordered(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    const struct hd_chain_stage *stage = &rig->chain.stages[0];
    const uint64_t bytes = stage->needs.gradient_bytes[HD_DENSE];
    double *squared = calloc(stage->needs.tensor_count + 1, sizeof *squared);
    unsigned char *seen = malloc(bytes + 1);

    assert(seen != NULL && squared != NULL);
    if (!hd_kernel_rig_pass(rig)) {
        return;
    }
    memcpy(seen, stage->memory.gradients[HD_DENSE], bytes);
    HD_HOLD(check, rig->harness.ops->norms(stage->stage, squared) == HD_OK, "norms fails: %s",
            check->report.text);
    HD_HOLD(check, memcmp(seen, stage->memory.gradients[HD_DENSE], bytes) == 0,
            "%s: the gradients change after the backward has returned", rig->variant);
    free(seen);
    free(squared);
}

/* K6: the first stage writes what the second is given over three fill patterns.  If a byte is left
   unwritten or read, two of the results differ. */
void hd_conform_kernel_write_once(struct hd_kernel_rig *rig)
{
    static const int fills[] = {0x00, 0xff, 0x3c};
    struct hd_conform_case *check = rig->check;
    struct hd_chain_stage *last = &rig->chain.stages[1];
    const uint64_t bytes = last->needs.boundary_bytes;
    unsigned char *seen = malloc(2 * bytes);

    assert(seen != NULL);
    for (uint32_t i = 0; i < 3; i++) {
        memset(last->input, fills[i], bytes);
        memset(last->input_gradient, fills[i], bytes);
        hd_chain_zero_gradients(&rig->chain);
        if (!hd_kernel_rig_pass(rig)) {
            return;
        }
        HD_HOLD(check, i == 0 || memcmp(seen, last->input, bytes) == 0,
                "%s: the old contents of the output change its new ones", rig->variant);
        HD_HOLD(check, i == 0 || memcmp(seen + bytes, last->input_gradient, bytes) == 0,
                "%s: the old contents of the input's gradient change its new ones", rig->variant);
        memcpy(seen, last->input, bytes);
        memcpy(seen + bytes, last->input_gradient, bytes);
    }
    free(seen);
}

/* Inputs are locked against writing while they must not be written. */
void hd_conform_kernel_read_only(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    struct hd_chain_stage *last = &chain->stages[1];
    const uint64_t bytes = last->needs.boundary_bytes;
    unsigned char *given = malloc(bytes);

    assert(given != NULL);
    hd_guard_lock(chain->tokens, true);
    hd_guard_lock(chain->targets, true);
    hd_status status = hd_chain_forward_stage(chain, 0, 0);
    memcpy(given, last->input, bytes);
    hd_guard_lock(last->input, true);
    status = status == HD_OK ? hd_chain_forward_stage(chain, 1, 0) : status;
    HD_HOLD(check, status == HD_OK, "a forward fails: %s", check->report.text);
    status = hd_chain_backward_stage(chain, 1);
    HD_HOLD(check, memcmp(given, last->input, bytes) == 0, "%s: a pass writes its input",
            rig->variant);
    memcpy(given, last->input_gradient, bytes);
    hd_guard_lock(last->input_gradient, true);
    status = status == HD_OK ? hd_chain_backward_stage(chain, 0) : status;
    HD_HOLD(check, status == HD_OK, "a backward fails: %s", check->report.text);
    HD_HOLD(check, memcmp(given, last->input_gradient, bytes) == 0,
            "%s: a backward writes the gradient of its output", rig->variant);
    hd_guard_lock(last->input_gradient, false);
    hd_guard_lock(last->input, false);
    hd_guard_lock(chain->tokens, false);
    hd_guard_lock(chain->targets, false);
    free(given);
}

void hd_conform_kernel_evaluation(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    double terms[HD_CHAIN_TERM_MAX];

    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    memcpy(terms, chain->terms, sizeof terms);
    memset(chain->terms, 0, sizeof terms);
    HD_HOLD(check, hd_chain_forward(chain, 1) == HD_OK, "%s: an evaluation fails: %s", rig->variant,
            check->report.text);
    HD_HOLD(check, memcmp(terms, chain->terms, sizeof terms) == 0,
            "%s: an evaluation gives other bits than a forward", rig->variant);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK,
            "%s: after an evaluation, the backward of the forward before it fails: %s",
            rig->variant, check->report.text);
}
