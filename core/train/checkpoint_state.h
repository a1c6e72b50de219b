/* train/checkpoint_state.h - state.json as text; between checkpoint.c and checkpoint_state.c. */
#ifndef HEDDLE_TRAIN_CHECKPOINT_STATE_H
#define HEDDLE_TRAIN_CHECKPOINT_STATE_H

#include "train/checkpoint.h"

#define HD_CHECKPOINT_STATE_FILE "state.json"

/* The whole file; owned, free(). */
char *hd_checkpoint_state_text(const struct hd_checkpoint_state *state);

#endif /* HEDDLE_TRAIN_CHECKPOINT_STATE_H */
