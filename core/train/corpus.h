/*
 * train/corpus.h - where tokens come from: a text, token ids, or the built-in grammar.
 *
 * Sample i is tokens i x sequence .. i x sequence + sequence, the last only a label; a corpus of N
 * tokens has floor((N - 1) / sequence) samples.  Step k takes the next microbatches x
 * microbatch_size samples, wrapping: the samples left over at the end open the next round, none is
 * dropped.  The position is counted in samples, so it means the same for every split of a step into
 * microbatches.  Files are mapped, never copied whole.  docs/interface.md, "Corpus".
 *
 * Errors (HD_EXIT_USAGE, with the file as place): an empty file, a length that is not whole, an id
 * past the vocabulary (with its position), another file format (train/corpus_kind.h), raw ids that
 * seem wider than the vocabulary says, a numpy header that is not a one-dimensional
 * little-endian unsigned (or signed) integer array in C order, a width that contradicts it, fewer
 * samples than one step needs (both numbers).  Ids are checked once, at open.
 */
#ifndef HEDDLE_TRAIN_CORPUS_H
#define HEDDLE_TRAIN_CORPUS_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

#define HD_CORPUS_FORMAT_BYTES 48u

struct hd_corpus; /* opaque; read-only after open, and inherited by fork */

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
uint32_t hd_corpus_is_text(const struct hd_corpus *corpus);      /* an id is a byte of text */
uint32_t hd_corpus_is_endless(const struct hd_corpus *corpus);   /* builtin */
/* How its tokens are stored, for the run's header: "raw ids, 2 bytes a token". */
const char *hd_corpus_format(const struct hd_corpus *corpus, char text[HD_CORPUS_FORMAT_BYTES]);
uint64_t hd_corpus_bytes(const struct hd_corpus *corpus);   /* of the file; builtin: 0 */
const char *hd_corpus_path(const struct hd_corpus *corpus); /* borrowed from the corpus */
/* Of the whole file; builtin: of the first HD_CORPUS_GRAMMAR_BYTES of the text. */
void hd_corpus_sha256(const struct hd_corpus *corpus, char text[HD_HASH_TEXT_BYTES]);

#define HD_CORPUS_GRAMMAR_BYTES (1u << 20) /* that stand for the endless text */

/* Ids position .. position + count - 1, as they stand in the file. */
void hd_corpus_ids(const struct hd_corpus *corpus, uint64_t position, uint32_t count, int32_t *out);
/* How many there are; builtin: HD_CORPUS_GRAMMAR_BYTES. */
uint64_t hd_corpus_id_count(const struct hd_corpus *corpus);

/* Fills tokens and targets [sequence] of sample `index` (modulo sample_count); either may be NULL.
   [any-thread] */
void hd_corpus_sample(const struct hd_corpus *corpus, uint64_t index, int32_t *tokens,
                      int32_t *targets);

struct hd_corpus_range {
    uint64_t first; /* sample, counted over the whole job; not reduced modulo sample_count */
    uint32_t sample_count;
};

/* All samples of a range, likewise: tokens and targets [sample_count, sequence].  Microbatch j of a
   job that has drawn `drawn` samples before this step begins at drawn + j x microbatch_size. */
void hd_corpus_samples(const struct hd_corpus *corpus, struct hd_corpus_range range,
                       int32_t *tokens, int32_t *targets);

/* 1: the range reaches past the first round of the corpus, which the caller says once. */
uint32_t hd_corpus_wraps(const struct hd_corpus *corpus, struct hd_corpus_range range);

#endif /* HEDDLE_TRAIN_CORPUS_H */
