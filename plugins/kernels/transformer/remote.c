/*
 * plugins/kernels/transformer/remote.c - stages in a device's own memory (remote.h).
 *
 * Nothing here looks at a payload: what the host's stage program reads of one, a kernel of the
 * plugin reads, and what it finds wrong comes back through the fault word.
 */
#include "remote_stage.h"

#include <string.h>

int hd_is_remote(void)
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
    const hd_status status = hd_remote_copy(kernel, target, source, bytes, 0);
    return status == HD_OK ? hd_transformer_backend.remote->drain(kernel->device) : status;
}

static int32_t *transformer_map_at(const struct hd_frame *frame, enum hd_line line)
{
    return hd_line_at(frame, line);
}

hd_status hd_remote_check(const struct hd_stage *stage, const struct hd_pass *pass, uint32_t half)
{
    const struct hd_layout *layout = &stage->layout;
    struct hd_check_args args = {.payload = pass->payload[0],
                                 .expected = hd_stamp_of(stage, pass, half, 0),
                                 .block_stride = layout->kept_stride,
                                 .row_max = layout->row_max,
                                 .chosen = layout->tokens * stage->spec.experts_per_token,
                                 .experts = stage->spec.experts,
                                 .stage = stage->spec.stage,
                                 .first_block = stage->spec.first_block,
                                 .checks_stamp = stage->kernel->checks_stamps != 0};
    if (stage->spec.experts && layout->kept[HD_LINE_OFFSETS] != HD_NOT_KEPT) {
        const struct hd_frame frame = hd_frame_at(stage, pass, 0);
        args.block_count = stage->spec.block_count;
        args.maps = (struct hd_routing){.offsets = transformer_map_at(&frame, HD_LINE_OFFSETS),
                                        .selected = transformer_map_at(&frame, HD_LINE_SELECTED),
                                        .row_of = transformer_map_at(&frame, HD_LINE_ROW_OF),
                                        .source = transformer_map_at(&frame, HD_LINE_SOURCE)};
    }
    return hd_transformer_backend.remote->check_payload(stage->kernel->device, &args);
}

hd_status hd_fault_refuse(const struct hd_host *host, const struct hd_fault *fault)
{
    const unsigned long long microbatch = fault->microbatch, generation = fault->generation;
    switch (fault->code) {
    case HD_FAULT_OTHER_STAGE:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu: expected the payload of generation %llu, "
                         "found no payload of this stage (magic %016llx, generation %llu)",
                         fault->stage, microbatch, generation,
                         (unsigned long long)fault->found_magic,
                         (unsigned long long)fault->found_generation);
    case HD_FAULT_STALE:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu: expected the payload of generation %llu, "
                         "found generation %llu of microbatch %llu: the slot was leased again too "
                         "early",
                         fault->stage, microbatch, generation,
                         (unsigned long long)fault->found_generation,
                         (unsigned long long)fault->found_microbatch);
    default:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu, generation %llu: the routing of block %u in "
                         "the payload was overwritten behind an intact stamp",
                         fault->stage, microbatch, generation, fault->block);
    }
}
