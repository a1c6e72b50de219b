/*
 * train/checkpoint_state.h - what state.json says, and its text.
 *
 * The digest covers the bytes of the inner object, so the file has one fixed form,
 * {"state": OBJECT, "sha256": "HEX"}.
 */
#ifndef HEDDLE_TRAIN_CHECKPOINT_STATE_H
#define HEDDLE_TRAIN_CHECKPOINT_STATE_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>

#define HD_CHECKPOINT_STATE_FILE      "state.json"
#define HD_CHECKPOINT_STATE_BYTES_MAX (1u << 16)

enum hd_checkpoint_file { HD_CHECKPOINT_MODEL = 0, HD_CHECKPOINT_OPTIMIZER = 1 };
#define HD_CHECKPOINT_FILE_COUNT 2u

extern const char *const hd_checkpoint_files[HD_CHECKPOINT_FILE_COUNT];

#define HD_CHECKPOINT_TEXT_BYTES 1024u

/* The settings of the model, apart from the shapes of its parameters. */
struct hd_checkpoint_model {
    uint32_t layers, width, heads, key_value_heads, experts, experts_per_token, expert_width;
    uint32_t vocabulary, sequence, normalize_gates;
    double rope_theta, norm_epsilon;
};

struct hd_checkpoint_state {
    uint32_t step;    /* the last that was finished */
    uint64_t samples; /* drawn from the corpus in all steps up to it */
    uint32_t skipped, skipped_in_row;
    uint64_t seed;
    double learning_rate; /* of that step; the schedule is a function of the step */
    struct hd_checkpoint_model model;
    char corpus[HD_CHECKPOINT_TEXT_BYTES];  /* its path; empty if there is none */
    char corpus_sha256[HD_HASH_TEXT_BYTES]; /* empty if there is none */
    uint64_t file_bytes[HD_CHECKPOINT_FILE_COUNT];
    char header_sha256[HD_CHECKPOINT_FILE_COUNT][HD_HASH_TEXT_BYTES];
};

/* The name of the first member that differs, and both its values as text; NULL if none does. */
const char *hd_checkpoint_differs(const struct hd_checkpoint_model *ours,
                                  const struct hd_checkpoint_model *theirs, char text[2][32]);

/* The whole file; owned, free(). */
char *hd_checkpoint_state_text(const struct hd_checkpoint_state *state);

/* Reads `text` [bytes], which ends in zero and is written to.  HD_EXIT_USAGE if it was damaged, or
   has another version. */
hd_status hd_checkpoint_state_parse(char *text, uint64_t bytes, struct hd_checkpoint_state *state,
                                    struct hd_problem *problem);

#endif /* HEDDLE_TRAIN_CHECKPOINT_STATE_H */
