#include "support/kernel_harness.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hd_stage_spec hd_chain_model(void)
{
    return (struct hd_stage_spec){.size = sizeof(struct hd_stage_spec),
                                  .layers = 2,
                                  .width = 8,
                                  .heads = 2,
                                  .experts = 4,
                                  .experts_per_token = 2,
                                  .expert_width = 6,
                                  .vocabulary = 11,
                                  .sequence = 5,
                                  .batch = 2,
                                  .rope_theta = 1e4,
                                  .norm_epsilon = 1e-5,
                                  .init_std = 0.02,
                                  .balance_weight = 0.7,
                                  .z_weight = 0.3,
                                  .precision = HD_PRECISION_F32};
}

void hd_chain_poison(struct hd_chain *chain)
{
    for (uint32_t stage = 0; stage < chain->stage_count; stage++) {
        struct hd_chain_stage *at = &chain->stages[stage];
        memset(at->payload, 0xff, at->needs.payload_bytes);
        memset(at->memory.scratch, 0xff, at->needs.scratch_bytes);
        if (at->second_payload != NULL) {
            memset(at->second_payload, 0xff, at->needs.payload_bytes);
        }
    }
}

int64_t hd_chain_find(struct hd_chain *chain, const char *name)
{
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        hd_chain_tensor(chain, tensor, &about);
        if (strcmp(about.name, name) == 0) {
            return tensor;
        }
    }
    return -1;
}

double hd_chain_residual(struct hd_chain *a, struct hd_chain *b, uint32_t tensor, uint32_t copy)
{
    struct hd_tensor about;
    const uint64_t count = hd_chain_tensor(a, tensor, &about);
    double *values = malloc(2 * count * sizeof *values), difference = 0, length = 0;
    assert(values != NULL);
    hd_chain_read(a, tensor, copy, values);
    hd_chain_read(b, tensor, copy, values + count);
    for (uint64_t i = 0; i < count; i++) {
        const double apart = values[i] - values[count + i];
        difference += apart * apart;
        length += values[count + i] * values[count + i];
    }
    free(values);
    return length > 0 ? sqrt(difference / length) : sqrt(difference);
}
