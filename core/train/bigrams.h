/* train/bigrams.h - pairs of neighbouring bytes of a text, counted, and their entropy. */
#ifndef HEDDLE_TRAIN_BIGRAMS_H
#define HEDDLE_TRAIN_BIGRAMS_H

#include <stdint.h>

struct hd_bigrams;

/* NULL: there is not enough memory. */
struct hd_bigrams *hd_bigrams_create(void);
void hd_bigrams_destroy(struct hd_bigrams *bigrams); /* takes NULL */

/* The next `count` ids of the text, each 0 to 255. */
void hd_bigrams_add(struct hd_bigrams *bigrams, const int32_t *ids, uint32_t count);

/* Nats a byte, given the byte before; NaN for NULL, 0 for fewer than two bytes. */
double hd_bigrams_entropy(const struct hd_bigrams *bigrams);

#endif /* HEDDLE_TRAIN_BIGRAMS_H */
