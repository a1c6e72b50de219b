/*
 * run/checkpoint.h - saving and loading by all ranks together, each its own stages.
 *
 *   rank 0: makes checkpoint.tmp/ and the files
 *   - all ranks meet -
 *   each rank: writes its tensors in their places (run/ledger.h), and hashes them
 *   - all ranks meet: digests -
 *   rank 0: writes the headers and state.json, syncs, renames the directory
 *
 * The files are the same bytes for every P, V and placement.
 */
#ifndef HEDDLE_RUN_CHECKPOINT_H
#define HEDDLE_RUN_CHECKPOINT_H

#include "run/rank.h"

/* Reads masters and moments from the session's request.resume into this rank's stages. */
hd_status hd_rank_load(struct hd_rank *rank, struct hd_problem *problem);

/* Whether to save after `step`. */
bool hd_rank_is_due(const struct hd_rank *rank, uint32_t step);
/* Saves what the ranks hold after `step`; collective. */
hd_status hd_rank_save(struct hd_rank *rank, uint32_t step, struct hd_problem *problem);

#endif /* HEDDLE_RUN_CHECKPOINT_H */
