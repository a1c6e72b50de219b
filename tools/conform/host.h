/*
 * conform/host.h - a rank of a check on a host of its own, as far as its transport can tell.
 *
 * A host is a network namespace that the caller has made (`ip netns add NAME`) and joined to the
 * others by a link.  Memory and processes stay those of one machine, so every check runs unchanged,
 * while what the transport sends over a network really crosses the link.  Needs root.
 */
#ifndef HEDDLE_CONFORM_HOST_H
#define HEDDLE_CONFORM_HOST_H

#include "base/problem.h"

/* Moves the calling process, which has one thread, into the namespace `name` for good, with the
   network devices that /sys shows there.  HD_INVALID: no such namespace; HD_SYSTEM: not allowed. */
hd_status hd_conform_enter_host(const char *name, struct hd_problem *problem);

/* Is there such a namespace? */
int hd_conform_is_host(const char *name);

#endif /* HEDDLE_CONFORM_HOST_H */
