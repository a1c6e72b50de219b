/* conform/kernel_checks.h - the checks of the kernel suite, by the file that has them. */
#ifndef HEDDLE_CONFORM_KERNEL_CHECKS_H
#define HEDDLE_CONFORM_KERNEL_CHECKS_H

#include "conform/kernel_rig.h"

/* kernel_api.c */
void hd_conform_kernel_device(struct hd_conform_case *check);
void hd_conform_kernel_needs(struct hd_conform_case *check);
void hd_conform_kernel_refusal(struct hd_conform_case *check);
void hd_conform_kernel_tensors(struct hd_kernel_rig *rig);
void hd_conform_kernel_copies(struct hd_kernel_rig *rig);

/* kernel_stream.c */
void hd_conform_kernel_stream(struct hd_conform_case *check);

/* kernel_laws.c */
void hd_conform_kernel_regions(struct hd_kernel_rig *rig);
void hd_conform_kernel_frugal(struct hd_kernel_rig *rig);
void hd_conform_kernel_repeatable(struct hd_kernel_rig *rig);
void hd_conform_kernel_splittable(struct hd_conform_case *check);
void hd_conform_kernel_writers(struct hd_kernel_rig *rig);
void hd_conform_kernel_doubling(struct hd_kernel_rig *rig);
void hd_conform_kernel_halves(struct hd_conform_case *check);

/* kernel_boundaries.c */
void hd_conform_kernel_ordered(struct hd_kernel_rig *rig);
void hd_conform_kernel_write_once(struct hd_kernel_rig *rig);
void hd_conform_kernel_read_only(struct hd_kernel_rig *rig);
void hd_conform_kernel_evaluation(struct hd_kernel_rig *rig);

/* kernel_numbers.c */
void hd_conform_kernel_gradient(struct hd_conform_case *check);
void hd_conform_kernel_norms(struct hd_kernel_rig *rig);
void hd_conform_kernel_update(struct hd_kernel_rig *rig);
void hd_conform_kernel_speed(struct hd_conform_case *check);

/* kernel_faults.c */
void hd_conform_kernel_stamp(struct hd_conform_case *check);
void hd_conform_kernel_garbage(struct hd_kernel_rig *rig);
void hd_conform_kernel_nan(struct hd_kernel_rig *rig);

#endif /* HEDDLE_CONFORM_KERNEL_CHECKS_H */
