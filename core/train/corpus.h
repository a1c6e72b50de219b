/*
 * train/corpus.h - the source of tokens: a text, token ids, or the built-in grammar.
 *
 * Sample i is tokens i x sequence .. i x sequence + sequence, the last only a label; a corpus of N
 * tokens has floor((N - 1) / sequence) samples.  Each step takes the next microbatches x
 * microbatch_size samples.  At the end it goes on with the first sample; none is left out.  The
 * position is counted in samples, so it does not depend on how a step is split into microbatches.
 * Files are mapped, not copied.  docs/interface.md, "Corpus".
 *
 * Errors (HD_EXIT_USAGE, with the file as place): an empty file; a length that is not a whole
 * number of ids; an id outside the vocabulary (with its position); another file format
 * (train/corpus_kind.h); raw ids that seem wider than the vocabulary says; a numpy header of
 * anything but one dimension of little-endian integers in C order; token_bytes that contradict it;
 * fewer samples than one step needs (both numbers).  Ids are checked once, at open.
 */
#ifndef HEDDLE_TRAIN_CORPUS_H
#define HEDDLE_TRAIN_CORPUS_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdbool.h>
#include <stdint.h>

#define HD_CORPUS_FORMAT_BYTES 48u

struct hd_corpus; /* opaque; read-only after open; forked processes inherit it */

struct hd_corpus_request {
    const char *path;     /* "builtin", or a file */
    uint32_t format;      /* 0 auto, 1 text, 2 tokens: enum hd_config_format's values */
    uint32_t token_bytes; /* 0 auto: by vocabulary (1 to 256, 2 to 65536, else 4) */
    uint32_t vocabulary, sequence;
    uint64_t samples_per_step;
    uint64_t seed; /* of the built-in grammar; heddle uses 0 */
};

hd_status hd_corpus_open(const struct hd_corpus_request *request, struct hd_corpus **corpus,
                         struct hd_problem *problem);
void hd_corpus_close(struct hd_corpus *corpus); /* takes NULL */

uint64_t hd_corpus_sample_count(const struct hd_corpus *corpus); /* builtin: 2^32 */
bool hd_corpus_is_text(const struct hd_corpus *corpus);          /* an id is a byte of text */
bool hd_corpus_is_endless(const struct hd_corpus *corpus);       /* builtin */
/* How its tokens are stored, for the run's header: "raw ids, 2 bytes a token". */
const char *hd_corpus_format(const struct hd_corpus *corpus, char text[HD_CORPUS_FORMAT_BYTES]);
uint64_t hd_corpus_bytes(const struct hd_corpus *corpus);   /* of the file; builtin: 0 */
const char *hd_corpus_path(const struct hd_corpus *corpus); /* borrowed from the corpus */
/* Of the whole file, or of the first HD_CORPUS_GRAMMAR_BYTES of the built-in text. */
void hd_corpus_sha256(const struct hd_corpus *corpus, char text[HD_HASH_TEXT_BYTES]);

#define HD_CORPUS_GRAMMAR_BYTES (1u << 20) /* the part that represents the endless text */

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

/* The same for all samples of a range: [sample_count, sequence].  Microbatch j of a
   job that has drawn `drawn` samples before this step begins at drawn + j x microbatch_size. */
void hd_corpus_samples(const struct hd_corpus *corpus, struct hd_corpus_range range,
                       int32_t *tokens, int32_t *targets);

/* True if the range reaches past the first pass over the corpus. */
bool hd_corpus_wraps(const struct hd_corpus *corpus, struct hd_corpus_range range);

#endif /* HEDDLE_TRAIN_CORPUS_H */
