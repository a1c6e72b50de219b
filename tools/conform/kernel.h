/*
 * conform/kernel.h - a kernel plugin opened for a check, and the checks by the file they stand in.
 *
 * What a law says of bits is asked in every way to compute that the plugin serves, of a model with
 * experts; its four blocks can be cut.
 */
#ifndef HEDDLE_CONFORM_KERNEL_H
#define HEDDLE_CONFORM_KERNEL_H

#include "conform/chain.h"
#include "conform/suites.h"

#define HD_BENCH_BLOCKS 4u /* of hd_conform_model */

/* One opened plugin and one chain over it. */
struct hd_bench {
    struct hd_conform_case *check;
    struct hd_harness harness;
    struct hd_chain chain;
    const char *precision; /* hd_model_name */
};

/* The model of the suite: four blocks of four experts, 32 wide. */
struct hd_stage_spec hd_conform_model(uint32_t precision);

/* Opens the plugin, and skips the check when it cannot.  HD_OK: the harness is open. */
hd_status hd_bench_open_device(struct hd_bench *bench, struct hd_conform_case *check);

/* A chain of hd_conform_model, cut as `blocks` says; 0 with a verdict, or when it serves no such
   model.  Every cut is closed by hd_bench_close, which also looks for what stays behind. */
struct hd_cut {
    uint32_t blocks[HD_BENCH_BLOCKS], stage_count;
};
extern const struct hd_cut hd_cut_whole, hd_cut_in_two;
extern const struct hd_cut hd_cut_of_two; /* of a model of two blocks */
int hd_bench_open(struct hd_bench *bench, struct hd_conform_case *check,
                  const struct hd_stage_spec *model, const struct hd_cut *cut);
void hd_bench_close(struct hd_bench *bench);

/* Calls `judge` with the model in every precision that is served, recomputed, and by half batches;
   skips where there is none. */
void hd_conform_each_variant(struct hd_conform_case *check,
                             void (*judge)(struct hd_conform_case *check,
                                           const struct hd_stage_spec *model));
/* 1, or 0 with a skip: a law of sums has nothing to say where there is no tensor. */
int hd_bench_has_tensors(struct hd_bench *bench);
const char *hd_model_name(const struct hd_stage_spec *model); /* "bf16 recomputed"; static */

/* Every block of memory of the chain has what it had beside it. */
int hd_bench_is_whole(const struct hd_bench *bench);

/* kernel_api.c */
void hd_conform_kernel_device(struct hd_conform_case *check);
void hd_conform_kernel_needs(struct hd_conform_case *check);
void hd_conform_kernel_refusal(struct hd_conform_case *check);
void hd_conform_kernel_tensors(struct hd_conform_case *check);
void hd_conform_kernel_copies(struct hd_conform_case *check);

/* kernel_stream.c */
void hd_conform_kernel_stream(struct hd_conform_case *check);

/* kernel_laws.c */
void hd_conform_kernel_regions(struct hd_conform_case *check);
void hd_conform_kernel_frugal(struct hd_conform_case *check);
void hd_conform_kernel_repeatable(struct hd_conform_case *check);
void hd_conform_kernel_splittable(struct hd_conform_case *check);
void hd_conform_kernel_additive(struct hd_conform_case *check);
void hd_conform_kernel_halves(struct hd_conform_case *check);

/* kernel_boundaries.c */
void hd_conform_kernel_ordered(struct hd_conform_case *check);
void hd_conform_kernel_write_once(struct hd_conform_case *check);
void hd_conform_kernel_read_only(struct hd_conform_case *check);
void hd_conform_kernel_evaluation(struct hd_conform_case *check);

/* kernel_numbers.c */
void hd_conform_kernel_gradient(struct hd_conform_case *check);
void hd_conform_kernel_norms(struct hd_conform_case *check);
void hd_conform_kernel_update(struct hd_conform_case *check);
void hd_conform_kernel_speed(struct hd_conform_case *check);

/* kernel_faults.c */
void hd_conform_kernel_stamp(struct hd_conform_case *check);
void hd_conform_kernel_garbage(struct hd_conform_case *check);
void hd_conform_kernel_nan(struct hd_conform_case *check);

#endif /* HEDDLE_CONFORM_KERNEL_H */
