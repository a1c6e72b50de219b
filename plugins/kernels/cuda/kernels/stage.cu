/*
 * plugins/kernels/cuda/kernels/stage.cu - the stage program's work on payload and terms.
 *
 * A kernel cannot refuse the payload of another microbatch.  It writes the first finding to the
 * fault word, which the host reads when it next waits (kernel.h, K7 and `reached`).  Overwritten
 * routing is replaced by a routing without rows, so that no later kernel follows an index out of
 * range (K8).
 */
#include "arguments.h"
#include "language.cuh"
#include "parts.cuh"
#include "shared.h"

HD_KERNEL(write_stamp, 32, hd_stamp_args)
{
    if (hd_thread() == 0) {
        *(struct hd_stamp *)args.payload = args.stamp;
    }
}

HD_INLINE int is_other_stage(const struct hd_check_args *args, const struct hd_stamp *found)
{
    return found->magic != args->expected.magic || found->spec_hash != args->expected.spec_hash ||
           found->half != args->expected.half;
}

HD_INLINE void report_fault(const struct hd_check_args *args, uint32_t code, uint32_t block)
{
    const struct hd_stamp *found = (const struct hd_stamp *)args->payload;
    volatile struct hd_fault *fault = args->fault;
    if (fault->code == 0) {
        fault->stage = args->stage;
        fault->block = args->first_block + block;
        fault->microbatch = args->expected.microbatch;
        fault->generation = args->expected.generation;
        fault->found_magic = found->magic;
        fault->found_generation = found->generation;
        fault->found_microbatch = found->microbatch;
        hd_fence();
        fault->code = code;
    }
}

/* 1 if index[at] is outside of [least, limit) for some `at` of this thread. */
HD_INLINE int strays(const int32_t *index, uint64_t count, int64_t least, int64_t limit)
{
    int found = 0;
    for (uint64_t at = hd_thread(); at < count; at += hd_threads()) {
        found |= index[at] < least || index[at] >= limit;
    }
    return found;
}

HD_INLINE int maps_stray(const struct hd_check_args *args, const struct hd_routing *maps)
{
    int found = strays(maps->offsets, args->experts + 1ull, 0, (int64_t)args->row_max + 1);
    found |= maps->offsets[0] != 0;
    for (uint32_t e = hd_thread(); e < args->experts; e += hd_threads()) {
        found |= maps->offsets[e] > maps->offsets[e + 1] ||
                 maps->offsets[e + 1] % (int32_t)HD_ROW_BLOCK != 0;
    }
    found |= strays(maps->selected, args->chosen, 0, args->experts);
    found |= strays(maps->row_of, args->chosen, 0, maps->offsets[args->experts]);
    found |= strays(maps->source, args->row_max, -1, (int64_t)args->chosen);
    return found;
}

/* No expert has a row.  All choices of a token are row 0, which exists: the rows are sized for the
   worst routing. */
HD_INLINE void empty_maps(const struct hd_check_args *args, const struct hd_routing *maps)
{
    for (uint64_t at = hd_thread(); at <= args->experts; at += hd_threads()) {
        maps->offsets[at] = 0;
    }
    for (uint64_t at = hd_thread(); at < args->chosen; at += hd_threads()) {
        maps->selected[at] = 0;
        maps->row_of[at] = 0;
    }
    for (uint64_t at = hd_thread(); at < args->row_max; at += hd_threads()) {
        maps->source[at] = -1;
    }
}

/* One block. */
HD_KERNEL(check_payload, 256, hd_check_args)
{
    HD_SHARED(hd_match_shared, shared);
    const struct hd_stamp *found = (const struct hd_stamp *)args.payload;
    if (args.checks_stamp && hd_thread() == 0) {
        if (is_other_stage(&args, found)) {
            report_fault(&args, HD_FAULT_OTHER_STAGE, 0);
        } else if (found->generation != args.expected.generation ||
                   found->microbatch != args.expected.microbatch) {
            report_fault(&args, HD_FAULT_STALE, 0);
        }
    }
    for (uint32_t block = 0; block < args.block_count; block++) {
        struct hd_routing maps;
        uint32_t any = 0;
        maps.offsets = (int32_t *)((char *)args.maps.offsets + block * args.block_stride);
        maps.selected = (int32_t *)((char *)args.maps.selected + block * args.block_stride);
        maps.row_of = (int32_t *)((char *)args.maps.row_of + block * args.block_stride);
        maps.source = (int32_t *)((char *)args.maps.source + block * args.block_stride);
        hd_match(shared, maps_stray(&args, &maps));
        for (uint32_t warp = 0; warp < hd_threads() / HD_WARP; warp++) {
            any |= shared->ballots[warp];
        }
        if (any) {
            if (hd_thread() == 0) {
                report_fault(&args, HD_FAULT_ROUTING, block);
            }
            empty_maps(&args, &maps);
        }
    }
}

/* terms[i] += more[i]: those of the second half batch. */
HD_KERNEL(add_terms, 32, hd_terms_args)
{
    for (uint32_t i = hd_thread(); i < args.count; i += hd_threads()) {
        args.terms[i] += args.more[i];
    }
}
