/* plugins/kernels/transformer/remote_stage.c - see remote_stage.h. */
#include "remote_stage.h"

#include <string.h>

bool hd_is_remote(void)
{
    return hd_transformer_backend.remote != NULL;
}

hd_status hd_remote_allocate(struct hd_kernel *kernel, uint64_t bytes, const char *tag, void **out)
{
    return hd_transformer_backend.remote->allocate(kernel->device, bytes, tag, out);
}

hd_status hd_remote_copy(struct hd_kernel *kernel, void *target, const void *source, uint64_t bytes,
                         uint32_t fill)
{
    return hd_transformer_backend.remote->copy(kernel->device, target, source, bytes, fill);
}

hd_status hd_remote_mark(struct hd_kernel *kernel, uint64_t *mark)
{
    return hd_transformer_backend.remote->mark(kernel->device, mark);
}

hd_status hd_remote_reached(struct hd_kernel *kernel, uint64_t mark, uint64_t timeout_ns,
                            uint64_t *passed_ns)
{
    return hd_transformer_backend.remote->reached(kernel->device, mark, timeout_ns, passed_ns);
}

void hd_remote_abort(struct hd_kernel *kernel)
{
    hd_transformer_backend.remote->abort(kernel->device);
}

hd_status hd_copy_and_wait(struct hd_kernel *kernel, void *target, const void *source,
                           uint64_t bytes)
{
    if (!hd_is_remote()) {
        memcpy(target, source, bytes);
        return HD_OK;
    }
    HD_TRY(hd_remote_copy(kernel, target, source, bytes, 0));
    return hd_transformer_backend.remote->drain(kernel->device);
}
