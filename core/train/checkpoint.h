/*
 * train/checkpoint.h - the files of a checkpoint directory, and how a new one replaces the old one.
 *
 *   checkpoint/model.safetensors      the masters, by the names of Hugging Face's OLMoE
 *   checkpoint/optimizer.safetensors  NAME.moment1 and NAME.moment2
 *   checkpoint/state.json             {"state": {...}, "sha256": of the object before it}
 *
 * A checkpoint is written into checkpoint.tmp/ and synced.  Then one exchange of the two names puts
 * it in the place of the old one, so that a kill at any moment leaves one of them whole.  On a file
 * system that cannot exchange names, two renames are used: the old one becomes checkpoint.old/
 * first; after a kill between them hd_checkpoint_recover renames checkpoint.old/ back.
 *
 * state.json holds a digest of itself and of the header of each file, and each header holds a
 * digest of each tensor.  So each rank checks what it reads, and no rank has to read everything.
 *
 * Which numbers go into the files, and when, is decided in core/run (checkpoint.c, ledger.c).
 */
#ifndef HEDDLE_TRAIN_CHECKPOINT_H
#define HEDDLE_TRAIN_CHECKPOINT_H

#include "base/problem.h"
#include "train/checkpoint_state.h"

/* --- reading ---------------------------------------------------------------------------------- */

/* Renames checkpoint.old/ back if there is no checkpoint/.  `run` is the run's directory. */
hd_status hd_checkpoint_recover(const char *run, struct hd_problem *problem);

/* Reads and checks RUN/checkpoint/state.json.  HD_EXIT_USAGE if there is none, if it was damaged,
   or if it has another version. */
hd_status hd_checkpoint_read_state(const char *run, struct hd_checkpoint_state *state,
                                   struct hd_problem *problem);

/* RUN/checkpoint/FILE; HD_INVALID and a problem if that is too long. */
hd_status hd_checkpoint_path(const char *run, const char *file, char path[4096],
                             struct hd_problem *problem);

/* --- writing: by one process, in this order --------------------------------------------------- */

/* Makes RUN/checkpoint.tmp with its data files, each at its full length.  HD_EXIT_OUTPUT. */
hd_status hd_checkpoint_begin(const char *run, const uint64_t bytes[HD_CHECKPOINT_FILE_COUNT],
                              struct hd_problem *problem);

/* Removes RUN/checkpoint.tmp, once no rank writes to it. */
void hd_checkpoint_discard(const char *run);

/* Opens one of the data files for pwrite; any rank may.  HD_EXIT_OUTPUT. */
hd_status hd_checkpoint_open(const char *run, uint32_t file, int *descriptor,
                             struct hd_problem *problem);
hd_status hd_checkpoint_put(int descriptor, const void *bytes, uint64_t count, uint64_t offset,
                            struct hd_problem *problem);

/* Syncs the files, once the headers and all tensors are written, writes state.json, and renames the
   directory to RUN/checkpoint.  On HD_EXIT_OUTPUT the old RUN/checkpoint is still there. */
hd_status hd_checkpoint_commit(const char *run, const struct hd_checkpoint_state *state,
                               struct hd_problem *problem);

#endif /* HEDDLE_TRAIN_CHECKPOINT_H */
