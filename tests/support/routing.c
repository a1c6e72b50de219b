/* tests/support/routing.c - see routing.h. */
#include "support/routing.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of one element of a tensor: the fixed part of the stream is columns below E of what
   reads it, rows below E of what writes it. */
static double fixed(const struct hd_tensor *about, uint64_t row, uint64_t column, double value)
{
    const int is_down = strstr(about->name, "down_proj") != NULL;
    const uint64_t experts = 4;
    if (strstr(about->name, "o_proj") != NULL || (is_down && row < experts)) {
        return 0;
    }
    if (strstr(about->name, "embed_tokens") != NULL && column < experts) {
        return row % experts == column ? 4 : 0;
    }
    if (strstr(about->name, "mlp.gate.weight") != NULL) {
        return row == column ? 8 : 0;
    }
    return value;
}

void hd_chain_fix_routing(struct hd_chain *chain)
{
    assert(chain->model.experts == 4);
    for (uint32_t tensor = 0; tensor < chain->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(count * sizeof *values);
        assert(values != NULL);
        hd_chain_read(chain, tensor, HD_MASTER, values);
        for (uint64_t i = 0; about.dimension_count == 2 && i < count; i++) {
            values[i] = fixed(&about, i / about.shape[1], i % about.shape[1], values[i]);
        }
        hd_chain_write(chain, tensor, HD_MASTER, values);
        free(values);
    }
}

/* The product of two chains' copies, over all tensors whose name has `part`. */
static double product_of(struct hd_chain *a, struct hd_chain *b, const char *part, uint32_t copy)
{
    double sum = 0;
    for (uint32_t tensor = 0; tensor < a->tensor_count; tensor++) {
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(a, tensor, &about);
        double *values = malloc(2 * count * sizeof *values);
        assert(values != NULL);
        if (strstr(about.name, part) != NULL) {
            hd_chain_read(a, tensor, copy, values);
            hd_chain_read(b, tensor, copy, values + count);
            for (uint64_t i = 0; i < count; i++) {
                sum += values[i] * values[count + i];
            }
        }
        free(values);
    }
    return sum;
}

double hd_chain_length(struct hd_chain *chain, const char *part, uint32_t copy)
{
    return sqrt(product_of(chain, chain, part, copy));
}

double hd_chain_cosine(struct hd_chain *a, struct hd_chain *b, const char *part, uint32_t copy)
{
    const double lengths = hd_chain_length(a, part, copy) * hd_chain_length(b, part, copy);
    return product_of(a, b, part, copy) / lengths;
}
