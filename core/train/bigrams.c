#include "train/bigrams.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { LETTER_COUNT = 256 };

struct hd_bigrams {
    int32_t previous; /* -1: none yet */
    uint64_t pairs[LETTER_COUNT][LETTER_COUNT];
};

struct hd_bigrams *hd_bigrams_create(void)
{
    struct hd_bigrams *const bigrams = calloc(1, sizeof *bigrams);

    if (bigrams != NULL) {
        bigrams->previous = -1;
    }
    return bigrams;
}

void hd_bigrams_destroy(struct hd_bigrams *bigrams)
{
    free(bigrams);
}

void hd_bigrams_add(struct hd_bigrams *bigrams, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(ids[i] >= 0 && ids[i] < LETTER_COUNT);
        if (bigrams->previous >= 0) {
            bigrams->pairs[bigrams->previous][ids[i]]++;
        }
        bigrams->previous = ids[i];
    }
}

double hd_bigrams_entropy(const struct hd_bigrams *bigrams)
{
    double sum = 0.0;
    uint64_t total = 0;

    for (uint32_t before = 0; bigrams != NULL && before < LETTER_COUNT; before++) {
        const uint64_t *const row = bigrams->pairs[before];
        uint64_t row_total = 0;
        for (uint32_t after = 0; after < LETTER_COUNT; after++) {
            row_total += row[after];
        }
        for (uint32_t after = 0; after < LETTER_COUNT; after++) {
            if (row[after] > 0) {
                sum += (double)row[after] * log((double)row_total / (double)row[after]);
            }
        }
        total += row_total;
    }
    return bigrams == NULL ? NAN : total > 0 ? sum / (double)total : 0.0;
}
