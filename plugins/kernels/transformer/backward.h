/* plugins/kernels/transformer/backward.h - B of one half batch. */
#ifndef HD_TRANSFORMER_BACKWARD_H
#define HD_TRANSFORMER_BACKWARD_H

#include "stage.h"

/* payload[0] is the half's own. */
hd_status hd_backward_half(const struct hd_stage *stage, const struct hd_pass *pass);

#endif /* HD_TRANSFORMER_BACKWARD_H */
