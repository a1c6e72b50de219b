/*
 * train/checkpoint.h - what lies in a checkpoint directory, and how it changes hands.
 *
 *   checkpoint/model.safetensors      the masters, by the names of Hugging Face's OLMoE
 *   checkpoint/optimizer.safetensors  NAME.moment1 and NAME.moment2
 *   checkpoint/state.json             {"state": {...}, "sha256": of the object before it}
 *
 * A checkpoint is written into checkpoint.tmp/, synced, and takes the place of the one before in
 * one exchange of two names, so that a kill at any moment leaves either the one or the other,
 * whole. A file system that cannot exchange names gets two renames, the old one over
 * checkpoint.old/; a kill between them leaves checkpoint.old/, which hd_checkpoint_recover puts
 * back.
 *
 * Integrity is a chain: state.json holds a digest of itself and one of the header of each file, and
 * a header holds one of each tensor.  So each rank checks what it reads, and nobody reads it all.
 */
#ifndef HEDDLE_TRAIN_CHECKPOINT_H
#define HEDDLE_TRAIN_CHECKPOINT_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

enum hd_checkpoint_file { HD_CHECKPOINT_MODEL = 0, HD_CHECKPOINT_OPTIMIZER = 1 };
#define HD_CHECKPOINT_FILE_COUNT 2u

extern const char
    *const hd_checkpoint_files[HD_CHECKPOINT_FILE_COUNT]; /* "model.safetensors", .. */

#define HD_CHECKPOINT_TEXT_BYTES 1024u

/* What fixes the function that the parameters are of, beside their shapes. */
struct hd_checkpoint_model {
    uint32_t layers, width, heads, key_value_heads, experts, experts_per_token, expert_width;
    uint32_t vocabulary, sequence, normalize_gates;
    double rope_theta, norm_epsilon;
};

struct hd_checkpoint_state {
    uint32_t step;    /* that was finished */
    uint64_t samples; /* drawn from the corpus in all steps up to it */
    uint32_t skipped, skipped_in_row;
    uint64_t seed;
    double learning_rate; /* of that step; the schedule is a function of the step */
    struct hd_checkpoint_model model;
    char corpus[HD_CHECKPOINT_TEXT_BYTES];  /* its path; empty: none */
    char corpus_sha256[HD_HASH_TEXT_BYTES]; /* empty: none */
    uint64_t file_bytes[HD_CHECKPOINT_FILE_COUNT];
    char header_sha256[HD_CHECKPOINT_FILE_COUNT][HD_HASH_TEXT_BYTES];
};

/* The first member of `model` that differs; NULL: they are the same function.  Fills the two values
   as text [32 bytes each]. */
const char *hd_checkpoint_differs(const struct hd_checkpoint_model *ours,
                                  const struct hd_checkpoint_model *theirs, char text[2][32]);

/* --- reading ---------------------------------------------------------------------------------- */

/* Puts checkpoint.old/ back where a kill has left only that.  `run` is the run's directory. */
hd_status hd_checkpoint_recover(const char *run, struct hd_problem *problem);

/* Reads and checks RUN/checkpoint/state.json.  HD_EXIT_USAGE: there is none (the message says
   what there is), it was damaged, or it is of another version. */
hd_status hd_checkpoint_read_state(const char *run, struct hd_checkpoint_state *state,
                                   struct hd_problem *problem);

/* RUN/checkpoint/FILE; HD_INVALID and a problem when that is too long. */
hd_status hd_checkpoint_path(const char *run, const char *file, char path[4096],
                             struct hd_problem *problem);

/* --- writing: by one process, in this order --------------------------------------------------- */

/* Makes RUN/checkpoint.tmp anew, with its data files, each of its whole length.  HD_EXIT_OUTPUT. */
hd_status hd_checkpoint_begin(const char *run, const uint64_t bytes[HD_CHECKPOINT_FILE_COUNT],
                              struct hd_problem *problem);

/* Nobody writes any more: what of RUN/checkpoint.tmp is there gives its space back. */
void hd_checkpoint_discard(const char *run);

/* Opens one of them for pwrite; any rank.  HD_EXIT_OUTPUT. */
hd_status hd_checkpoint_open(const char *run, uint32_t file, int *descriptor,
                             struct hd_problem *problem);
hd_status hd_checkpoint_put(int descriptor, const void *bytes, uint64_t count, uint64_t offset,
                            struct hd_problem *problem);

/* The headers and every tensor are written: syncs the files, writes state.json, and gives the
   directory its name.  HD_EXIT_OUTPUT; RUN/checkpoint is then what it was. */
hd_status hd_checkpoint_commit(const char *run, const struct hd_checkpoint_state *state,
                               struct hd_problem *problem);

#endif /* HEDDLE_TRAIN_CHECKPOINT_H */
