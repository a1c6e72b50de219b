/* output/bigrams.h - what a model of pairs of bytes would reach: a yardstick for the loss. */
#ifndef HEDDLE_OUTPUT_BIGRAMS_H
#define HEDDLE_OUTPUT_BIGRAMS_H

#include "train/corpus.h"

/* Entropy of a byte given the byte before, in nats, of the whole text; of the first
   HD_CORPUS_GRAMMAR_BYTES of the builtin one; NaN for token files.  Reads it all. */
double hd_bigram_entropy(const struct hd_corpus *corpus);

#endif /* HEDDLE_OUTPUT_BIGRAMS_H */
