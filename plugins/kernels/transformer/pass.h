/* plugins/kernels/transformer/pass.h - the passes of kernel.h, run by half batches. */
#ifndef HD_TRANSFORMER_PASS_H
#define HD_TRANSFORMER_PASS_H

#include "stage.h"

hd_status hd_stage_forward(struct hd_stage *stage, const struct hd_pass *given);
hd_status hd_stage_backward(struct hd_stage *stage, const struct hd_pass *given);

#endif /* HD_TRANSFORMER_PASS_H */
