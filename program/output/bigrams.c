#include "output/bigrams.h"

#include <math.h>
#include <stdlib.h>

enum { LETTER_COUNT = 256, PART_COUNT = 4096 };

/* Adds the pairs of `count` ids; `previous` is the id before them, or -1. */
static void bigrams_count(uint64_t *pairs, const int32_t *ids, uint32_t count, int32_t *previous)
{
    for (uint32_t i = 0; i < count; i++) {
        if (*previous >= 0) {
            pairs[*previous * LETTER_COUNT + ids[i]]++;
        }
        *previous = ids[i];
    }
}

static double bigrams_entropy_of(const uint64_t *pairs)
{
    double sum = 0.0;
    uint64_t total = 0;

    for (uint32_t before = 0; before < LETTER_COUNT; before++) {
        const uint64_t *const row = pairs + before * LETTER_COUNT;
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
    return total > 0 ? sum / (double)total : 0.0;
}

double hd_bigram_entropy(const struct hd_corpus *corpus)
{
    const uint64_t count = hd_corpus_id_count(corpus);
    int32_t ids[PART_COUNT];
    int32_t previous = -1;
    uint64_t *const pairs =
        hd_corpus_is_text(corpus) ? calloc(LETTER_COUNT * LETTER_COUNT, sizeof *pairs) : NULL;

    if (pairs == NULL) {
        return NAN;
    }
    for (uint64_t position = 0; position < count; position += PART_COUNT) {
        const uint64_t left = count - position;
        const uint32_t part = (uint32_t)(left < PART_COUNT ? left : PART_COUNT);
        hd_corpus_ids(corpus, position, part, ids);
        bigrams_count(pairs, ids, part, &previous);
    }
    const double entropy = bigrams_entropy_of(pairs);
    free(pairs);
    return entropy;
}
