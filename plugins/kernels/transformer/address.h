/* plugins/kernels/transformer/address.h - from the names of tensors and weights to addresses. */
#ifndef HD_TRANSFORMER_ADDRESS_H
#define HD_TRANSFORMER_ADDRESS_H

#include "stage.h"

/* One block of one pass. */
struct hd_block {
    const struct hd_stage *stage;
    const struct hd_pass *pass;
    uint32_t index;        /* within the stage */
    struct hd_saved saved; /* x: for the first block that of the section in scratch */
};

/* Fills in stage->work and stage->section. */
void hd_place_scratch(struct hd_stage *stage);
struct hd_block hd_block_at(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint32_t index);
struct hd_head hd_head_at(const struct hd_stage *stage, const struct hd_pass *pass);

void *hd_master_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);
void *hd_copy_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);
void *hd_gradient_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block);

struct hd_matrix hd_matrix_of(const void *data, uint32_t dtype, uint64_t rows, uint64_t columns);

#endif /* HD_TRANSFORMER_ADDRESS_H */
