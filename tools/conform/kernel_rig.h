/*
 * conform/kernel_rig.h - a check of a kernel: the plugin open, with a chain of stages over it.
 *
 * A law about bits is checked in every variant (precision, recomputation, half batches) that the
 * plugin supports.  The model has experts, unless the plugin serves dense models only, and four
 * blocks that can be cut into stages.
 */
#ifndef HEDDLE_CONFORM_KERNEL_RIG_H
#define HEDDLE_CONFORM_KERNEL_RIG_H

#include "conform/chain.h"
#include "conform/suites.h"

#include <stdbool.h>

#define HD_KERNEL_RIG_BLOCKS 4u /* of hd_conform_model */

/* One opened plugin and one chain over it. */
struct hd_kernel_rig {
    struct hd_conform_case *check;
    struct hd_harness harness;
    struct hd_chain chain;
    const char *variant;       /* hd_variant_name */
    uint32_t first_microbatch; /* of a step of the laws */
    unsigned char soil;        /* what scratch holds between two passes of a step */
};

/* How a model is cut into stages. */
struct hd_cut {
    uint32_t blocks[HD_KERNEL_RIG_BLOCKS], stage_count;
};
extern const struct hd_cut hd_cut_whole, hd_cut_in_two;

/* The argument of a row whose function is hd_kernel_rig_judge. */
struct hd_kernel_law {
    const struct hd_cut *cut;                     /* the model has as many blocks as the cut */
    bool needs_tensors;                           /* skip a plugin without tensors */
    void (*judges[2])(struct hd_kernel_rig *rig); /* each gets a new rig; NULL: no second one */
};

/* Calls the judges of the row's law in every variant that the plugin supports. */
void hd_kernel_rig_judge(struct hd_conform_case *check);

/* Whether the plugin supports the whole model.  It is made dense if the plugin refuses it with
   experts. */
bool hd_conform_is_served(struct hd_conform_case *check, struct hd_stage_spec *model);

/* Calls `judge` with the model in every variant; skips the check if the plugin supports none. */
void hd_conform_each_variant(struct hd_conform_case *check,
                             void (*judge)(struct hd_conform_case *check,
                                           const struct hd_stage_spec *model));

/* The model of the suite: four blocks of four experts, 32 wide. */
struct hd_stage_spec hd_conform_model(uint32_t precision);
const char *hd_variant_name(const struct hd_stage_spec *model); /* "bf16 recomputed"; static */

/* Opens the plugin, and skips the check if that is not possible here.  HD_OK: the harness is
   open. */
hd_status hd_kernel_rig_open_device(struct hd_kernel_rig *rig, struct hd_conform_case *check);

/* Opens the plugin and a chain with drawn parameters.  false: the check is decided, or the plugin
   does not support the model. */
bool hd_kernel_rig_open(struct hd_kernel_rig *rig, struct hd_conform_case *check,
                        const struct hd_stage_spec *model, const struct hd_cut *cut);
void hd_kernel_rig_close(struct hd_kernel_rig *rig);

/* A forward and a backward.  false: one of them failed, and so has the check. */
bool hd_kernel_rig_pass(struct hd_kernel_rig *rig);

/* false: the plugin has no tensors, and the check is skipped. */
bool hd_kernel_rig_has_tensors(struct hd_kernel_rig *rig);

/* No byte beside any block of memory of the chain has been written. */
bool hd_kernel_rig_is_whole(const struct hd_kernel_rig *rig);

#endif /* HEDDLE_CONFORM_KERNEL_RIG_H */
