#include "conform/kernel_checks.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, TENSOR_MAX = 96 };

/* --- K7 ------------------------------------------------------------------------------------ */

/* A backward with the present payload must be refused with a sentence, and must add nothing. */
static void kernel_faults_expect_refusal(struct hd_kernel_rig *rig, const char *what)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    /* On a device the kernel keeps the failure, and its memory can no longer be read. */
    const bool may_look = rig->harness.device.stream == NULL;
    const uint64_t before = may_look ? hd_chain_hash(chain, HD_GRADIENT) : 0;

    check->report = (struct hd_conform_report){0};
    const hd_status status = hd_chain_backward(chain);
    HD_HOLD(check, status == HD_PROTOCOL, "%s: %s: a backward returns %s, not HD_PROTOCOL",
            rig->variant, what, hd_status_name(status));
    HD_HOLD(check, check->report.count == 1 && check->report.text[0] != '\0',
            "%s: %s: a backward is refused without a sentence", rig->variant, what);
    HD_HOLD(check, !may_look || hd_chain_hash(chain, HD_GRADIENT) == before,
            "%s: %s: a backward is refused, but changes the gradients", rig->variant, what);
}

/* What is wrong with the payload.  Each gets a kernel of its own, because errors are permanent. */
static const struct stale {
    const char *name; /* NULL: nothing is wrong, and the backward must succeed */
    uint64_t generation;
    int fill; /* of the payload; below 0: leave what the forward wrote */
} kernel_faults_stales[] = {
    {"the lease before", 39, -1},
    {"the lease after", 41, -1},
    {NULL, 40, -1},
    {"a released payload, poisoned", 40, 0xff},
    {"a payload that was never written", 40, 0x00},
};

static void kernel_faults_judge_one_stamp(struct hd_conform_case *check,
                                          const struct hd_stage_spec *model,
                                          const struct stale *stale)
{
    struct hd_kernel_rig rig;

    if (!hd_kernel_rig_open(&rig, check, model, &hd_cut_whole)) {
        return;
    }
    struct hd_chain *chain = &rig.chain;
    struct hd_chain_stage *at = &chain->stages[0];
    at->generation = 40;
    HD_HOLD(check, hd_chain_forward(chain, 0) == HD_OK, "a forward fails: %s", check->report.text);
    at->generation = stale->generation;
    if (stale->fill >= 0) {
        memset(at->payload, stale->fill, at->needs.payload_bytes);
    }
    if (stale->name == NULL) {
        HD_HOLD(check, hd_chain_backward(chain) == HD_OK,
                "%s: a backward with the right lease is refused: %s", rig.variant,
                check->report.text);
    } else {
        kernel_faults_expect_refusal(&rig, stale->name);
    }
    hd_kernel_rig_close(&rig);
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

/* Everything after the stamp is random.  Whether the backward is refused or not, it must not write
   outside of its regions. */
void hd_conform_kernel_garbage(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;

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
        HD_HOLD(check, hd_kernel_rig_is_whole(rig),
                "%s: with a corrupt payload a backward writes outside of its regions",
                rig->variant);
        if (status != HD_OK && rig->harness.device.stream != NULL) {
            break; /* the kernel keeps the failure */
        }
    }
}

static double kernel_faults_gradient_length(struct hd_kernel_rig *rig)
{
    struct hd_chain *chain = &rig->chain;
    double squared[2][TENSOR_MAX], length = 0;

    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        const struct hd_chain_stage *at = &chain->stages[stage];
        assert(at->needs.tensor_count <= TENSOR_MAX);
        if (rig->harness.ops->norms(at->stage, squared[stage]) != HD_OK) {
            return 0;
        }
        for (uint32_t i = 0; i < at->needs.tensor_count; i++) {
            length += squared[stage][i];
        }
    }
    return length;
}

/* Fills a tensor that every token uses with NaN; expert tensors may be unused. */
static void kernel_faults_judge_one_nan(struct hd_kernel_rig *rig, uint32_t tensor)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
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
    HD_HOLD(check, status == HD_OK, "%s: %s of NaN: a forward returns %s", rig->variant, about.name,
            hd_status_name(status));
    const bool is_loud = !isfinite(chain->loss);
    HD_HOLD(check, hd_chain_backward(chain) == HD_OK, "%s: %s of NaN: a backward fails: %s",
            rig->variant, about.name, check->report.text);
    HD_HOLD(check, is_loud || !isfinite(kernel_faults_gradient_length(rig)),
            "%s: %s is NaN, but the loss and the norms are finite", rig->variant, about.name);
    HD_HOLD(check, hd_kernel_rig_is_whole(rig),
            "%s: with %s of NaN a pass writes outside of its regions", rig->variant, about.name);
    hd_chain_write(chain, tensor, HD_MASTER, values);
    free(values);
}

/* Tries all tensors one by one, so the model has two blocks only: the first stage has the
   embedding, the last the head. */
void hd_conform_kernel_nan(struct hd_kernel_rig *rig)
{
    for (uint32_t i = 0; i < rig->chain.tensor_count && !hd_conform_is_decided(rig->check); i++) {
        struct hd_tensor about;
        hd_chain_tensor(&rig->chain, i, &about);
        if (about.group == HD_DENSE) {
            kernel_faults_judge_one_nan(rig, i);
        }
    }
}
