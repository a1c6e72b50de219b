/*
 * run/checkpoint.h - saving and loading by all ranks together, each its own stages.
 *
 * The ranks tell each other what tensors they hold, once; from the one list every rank knows where
 * each of its tensors lies in the two files, so all write at once and nobody holds the whole model:
 *
 *   rank 0   makes checkpoint.tmp/ and the files | all: put and hash their tensors | rank 0: puts
 *   the headers and state.json, syncs, and gives the directory its name
 *
 * The bars are meetings of all ranks.  Files are the same bytes for every P, V and placement,
 * because the list is in global order.
 */
#ifndef HEDDLE_RUN_CHECKPOINT_H
#define HEDDLE_RUN_CHECKPOINT_H

#include "run/rank.h"
#include "train/safetensors.h"

/* Of all ranks together; the same on each. */
struct hd_ledger {
    uint32_t tensor_count;     /* of the whole model, in global order */
    struct hd_tensor *tensors; /* [tensor_count] */
    char (*moment_names)[2][HD_TENSOR_NAME_MAX + 16];
    struct hd_safetensors_tensor *rows[HD_CHECKPOINT_FILE_COUNT]; /* [1 or 2 x tensor_count] */
    uint64_t file_bytes[HD_CHECKPOINT_FILE_COUNT];
    uint8_t (*digests)[3][HD_HASH_BYTES]; /* [tensor_count]: master and moments */
    unsigned char *mine, *all;            /* what is exchanged: one block, and all blocks */
    void *values;                         /* the largest tensor of this rank */
    uint32_t *stage_first;                /* [stage_count]: place of its first tensor in the list */
};

/* Meets the others and fills rank->ledger, where the run saves or loads.  Everything is allocated
   here. */
hd_status hd_rank_list_tensors(struct hd_rank *rank, struct hd_problem *problem);
void hd_rank_forget_tensors(struct hd_rank *rank);

/* Writes masters and moments from the session's request.resume into this rank's stages. */
hd_status hd_rank_load(struct hd_rank *rank, struct hd_problem *problem);

/* Is a checkpoint due after `step`? */
uint32_t hd_rank_is_due(const struct hd_rank *rank, uint32_t step);
/* Saves what the ranks hold after `step`; collective. */
hd_status hd_rank_save(struct hd_rank *rank, uint32_t step, struct hd_problem *problem);

#endif /* HEDDLE_RUN_CHECKPOINT_H */
