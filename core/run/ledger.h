/*
 * run/ledger.h - the tensors of all ranks in global order, and where each is in the files.
 *
 * The ranks exchange the descriptions of their tensors once.  All compute the same list, so each
 * rank knows where in the two files its tensors go, and no rank holds the whole model.
 */
#ifndef HEDDLE_RUN_LEDGER_H
#define HEDDLE_RUN_LEDGER_H

#include "run/rank.h"
#include "train/safetensors.h"

struct hd_ledger {
    uint32_t tensor_count;     /* of the whole model */
    struct hd_tensor *tensors; /* [tensor_count], in global order */
    char (*moment_names)[2][HD_TENSOR_NAME_MAX + 16];
    struct hd_safetensors_tensor *rows[HD_CHECKPOINT_FILE_COUNT]; /* [1 or 2 x tensor_count] */
    uint64_t file_bytes[HD_CHECKPOINT_FILE_COUNT];
    uint8_t (*digests)[3][HD_HASH_BYTES]; /* [tensor_count]: master and moments */
    unsigned char *mine, *all;            /* of an exchange: this rank's block, and all blocks */
    void *values;                         /* room for the largest tensor of this rank */
    uint32_t *stage_first;                /* [stage_count]: index of the stage's first tensor */
};

/* Whether the run saves checkpoints. */
bool hd_ledger_is_saved(const struct hd_session *session);

/* Collective.  Fills rank->ledger if the run saves or loads; allocates everything here. */
hd_status hd_ledger_create(struct hd_rank *rank, struct hd_problem *problem);
void hd_ledger_destroy(struct hd_ledger *ledger); /* takes NULL */

#endif /* HEDDLE_RUN_LEDGER_H */
