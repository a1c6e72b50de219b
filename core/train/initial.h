/*
 * train/initial.h - the first values of every parameter, the same bits for every P, V, plugin and
 * order.
 *
 * A counter-based generator (Philox 4x32-10, Salmon et al. 2011) keyed by seed and tensor name;
 * element i takes its own counter, and two uniforms give one normal (Box-Muller in float64, rounded
 * once).  Nothing depends on which rank draws or in which order.
 */
#ifndef HEDDLE_TRAIN_INITIAL_H
#define HEDDLE_TRAIN_INITIAL_H

#include <heddle/kernel.h>

/* Fills `values` (float or double, by tensor->dtype: HD_F32 or HD_F64), row-major, the whole
 * tensor. */
void hd_initial_fill(const struct hd_tensor *tensor, uint64_t seed, double deviation, void *values);

/* Elements of a tensor. */
uint64_t hd_tensor_count(const struct hd_tensor *tensor);

#endif /* HEDDLE_TRAIN_INITIAL_H */
