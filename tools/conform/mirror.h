/*
 * conform/mirror.h - makes a kernel with device memory look like a kernel with host memory.
 *
 * The suite poisons, locks and compares the memory of a stage, which is not possible on a device.
 * A mirror is a table of the same functions, synchronous; its stages have a copy on the device of
 * everything that they were given in host memory.  Each call
 *
 *   copies all that it may read or write to the device, calls the plugin, marks the stream, and
 *   copies everything back
 *
 * Only bytes that have changed are written back, so a write to a locked argument is a fault.
 */
#ifndef HEDDLE_CONFORM_MIRROR_H
#define HEDDLE_CONFORM_MIRROR_H

#include "conform/chain.h"

/* Replaces the open kernel of the harness by a mirror of it; the mirror's close closes both.  On
   failure nothing is changed. */
hd_status hd_mirror_open(struct hd_harness *harness, uint64_t limit_ms);

#endif /* HEDDLE_CONFORM_MIRROR_H */
