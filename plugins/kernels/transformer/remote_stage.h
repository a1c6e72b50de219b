/*
 * plugins/kernels/transformer/remote_stage.h - members of kernel.h that only a device with its own
 * memory has, made of what the plugin supplies (remote.h).
 */
#ifndef HD_TRANSFORMER_REMOTE_STAGE_H
#define HD_TRANSFORMER_REMOTE_STAGE_H

#include "stage.h"

/* Whether addresses are the device's. */
bool hd_is_remote(void);
hd_status hd_remote_allocate(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out);
hd_status hd_remote_copy(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                         uint32_t fill);
hd_status hd_remote_mark(struct hd_kernel *kernel, uint64_t *mark);
hd_status hd_remote_reached(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                            uint64_t *passed_ns);
void hd_remote_abort(struct hd_kernel *kernel);
/* Copies between host and device, or on the host, and waits. */
hd_status hd_copy_and_wait(struct hd_kernel *kernel, void *target, const void *source,
                           uint64_t bytes);

#endif /* HD_TRANSFORMER_REMOTE_STAGE_H */
