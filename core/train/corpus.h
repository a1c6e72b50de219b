/*
 * train/corpus.h - where tokens come from: a text, token ids, or the built-in grammar.
 *
 * Sample i is tokens i x sequence .. i x sequence + sequence, the last only a label; a corpus of N
 * tokens has floor((N - 1) / sequence) samples.  Step k takes the next microbatches x
 * microbatch_size samples, wrapping. Files are mapped, never copied whole.  INTERFACE.md:
 * "builtin", "auto format".
 *
 * Errors (HD_EXIT_USAGE, with the file as place): an empty file, a length that is not whole, an id
 * past the vocabulary (with its position), a numpy header that is not a one-dimensional
 * little-endian unsigned (or signed) integer array in C order, fewer samples than one step needs
 * (both numbers).  Ids are checked once, at open.
 */
#ifndef HEDDLE_TRAIN_CORPUS_H
#define HEDDLE_TRAIN_CORPUS_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

struct hd_corpus; /* opaque */

struct hd_corpus_request {
    const char *path;     /* "builtin", or a file */
    uint32_t format;      /* 0 auto, 1 text, 2 tokens: enum hd_config_format's values */
    uint32_t token_bytes; /* 0 auto: by vocabulary (1 to 256, 2 to 65536, else 4) */
    uint32_t vocabulary, sequence;
    uint64_t samples_per_step;
    uint64_t seed; /* of the built-in grammar; the text itself is the same everywhere: 0 */
};

hd_status hd_corpus_open(const struct hd_corpus_request *request, struct hd_corpus **corpus,
                         struct hd_problem *problem);
void hd_corpus_close(struct hd_corpus *corpus); /* takes NULL */

uint64_t hd_corpus_sample_count(const struct hd_corpus *corpus); /* builtin: 2^32 */
uint64_t hd_corpus_bytes(const struct hd_corpus *corpus);        /* of the file; builtin: 0 */
void hd_corpus_sha256(const struct hd_corpus *corpus,
                      char text[HD_HASH_TEXT_BYTES]); /* reads it all */

/* Entropy of a byte given the byte before, of the whole text, in nats (the yardstick of the demo);
   NaN for token files.  Reads it all. */
double hd_corpus_bigram_entropy(const struct hd_corpus *corpus);

/* Fills tokens and targets [sequence] of sample `index` (modulo sample_count). [any-thread] */
void hd_corpus_sample(const struct hd_corpus *corpus, uint64_t index, int32_t *tokens,
                      int32_t *targets);

#endif /* HEDDLE_TRAIN_CORPUS_H */
