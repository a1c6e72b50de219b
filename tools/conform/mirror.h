/*
 * conform/mirror.h - a kernel in a device's memory, as one of the host's.
 *
 * The suite poisons, locks and compares the memory of a stage, which no host can do on a device.
 * A mirror stands between: a table of the same calls, synchronous, whose stages have a copy on the
 * device of everything that they were given here.
 *
 *   call   what it may read or write goes up | the plugin's call | a mark | it all comes back
 *
 * Only what has changed is written back, so an argument that must not be written is a fault on its
 * locked page.  What a pass finds on the device is the answer of the mirrored call.
 */
#ifndef HEDDLE_CONFORM_MIRROR_H
#define HEDDLE_CONFORM_MIRROR_H

#include "conform/chain.h"

/* Puts a mirror in place of the harness's open kernel; the mirror's close closes that one.  0, or a
   negative status and nothing is changed. */
hd_status hd_mirror_open(struct hd_harness *harness, uint64_t limit_ms);

#endif /* HEDDLE_CONFORM_MIRROR_H */
