/* plugins/kernels/transformer/tensors.h - the members of kernel.h about tensors and optimizer. */
#ifndef HD_TRANSFORMER_TENSORS_H
#define HD_TRANSFORMER_TENSORS_H

#include "stage.h"

uint32_t hd_stage_tensor_count(const struct hd_stage_spec *spec);
hd_status hd_stage_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out);
hd_status hd_stage_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy, uint32_t into,
                               void *host);
hd_status hd_stage_norms(struct hd_stage *stage, double *squared);
hd_status hd_stage_update(struct hd_stage *stage, const struct hd_update *given);

#endif /* HD_TRANSFORMER_TENSORS_H */
