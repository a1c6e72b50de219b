/* plugins/kernels/transformer/payload.h - the stamp of a payload, and its checks (K7, K8). */
#ifndef HD_TRANSFORMER_PAYLOAD_H
#define HD_TRANSFORMER_PAYLOAD_H

#include "stage.h"

/* Stamps payload[0], which is that of the half. */
hd_status hd_payload_stamp(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half,
                           uint64_t row_count);
/* Refuses a payload that is not of this stage, half, microbatch and generation, or with indices out
   of range. */
hd_status hd_payload_check(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half);

#endif /* HD_TRANSFORMER_PAYLOAD_H */
