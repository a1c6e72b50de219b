/*
 * train/initial.h - the initial values of every parameter: the same bits for every P, V, plugin and
 * order.
 *
 * A counter-based generator (Philox 4x32-10, Salmon et al. 2011) keyed by seed and tensor name;
 * element i has its own counter, and two uniform numbers give one normal (Box-Muller in float64,
 * rounded once).  So it does not matter which rank draws, or in which order.
 *
 *   key      the first 8 bytes of SHA-256(seed as 8 bytes, name with its final zero)
 *   counter  i in the lower half, the next 8 bytes of that digest in the upper
 *   uniforms the upper 53 bits of the lower and of the upper half of the block
 *
 * A float32 tensor has the rounded values of a float64 tensor of the same name.  The bits depend on
 * the libm of the machine: cos and log may differ in the last place.
 */
#ifndef HEDDLE_TRAIN_INITIAL_H
#define HEDDLE_TRAIN_INITIAL_H

#include <heddle/kernel.h>

/* Fills `values` (float or double, by tensor->dtype: HD_F32 or HD_F64), row-major, the whole
 * tensor. [any-thread] */
void hd_initial_fill(const struct hd_tensor *tensor, uint64_t seed, double deviation, void *values);

/* Elements of a tensor; 1 if it has no dimensions. */
uint64_t hd_tensor_count(const struct hd_tensor *tensor);

/* One block of the generator: ten rounds over `counter` under `key`.  Pure. [any-thread] */
void hd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t block[4]);

#endif /* HEDDLE_TRAIN_INITIAL_H */
