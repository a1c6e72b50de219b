/*
 * train/corpus_kind.h - files that look like a corpus and are something else.
 *
 * A file of raw ids says nothing of itself, so two mistakes train without an error and give a loss
 * that looks right: a container (an archive, a table, another program's header) read as text or
 * ids, and ids of two or four bytes read as narrower ones.
 */
#ifndef HEDDLE_TRAIN_CORPUS_KIND_H
#define HEDDLE_TRAIN_CORPUS_KIND_H

#include <stdbool.h>
#include <stdint.h>

/* A known file format that is no corpus, by its first bytes. */
struct hd_foreign_file {
    const char *name;   /* "a gzip archive" */
    const char *remedy; /* "unpack it first" */
};

/* NULL: none that is known. `bytes` [count] is the whole file. */
const struct hd_foreign_file *hd_foreign_file(const uint8_t *bytes, uint64_t count);

/* How wide ids that were taken for `id_bytes` wide seem to be: twice or four times as much where
   every second unit (or all but the first of four) is zero; `id_bytes` otherwise.  Looks at the
   first HD_CORPUS_LOOK_BYTES. */
uint32_t hd_corpus_likely_width(const uint8_t *ids, uint64_t byte_count, uint32_t id_bytes);

#define HD_CORPUS_LOOK_BYTES (1u << 20)

#endif /* HEDDLE_TRAIN_CORPUS_KIND_H */
