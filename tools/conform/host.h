/*
 * conform/host.h - a rank of a check in a network namespace, which looks like a host of its own.
 *
 * The caller creates the namespaces (`ip netns add NAME`) and connects them.  Memory and processes
 * are still those of one machine, so every check runs unchanged, but what the transport sends over
 * a network crosses the link.  Needs root.
 */
#ifndef HEDDLE_CONFORM_HOST_H
#define HEDDLE_CONFORM_HOST_H

#include "base/problem.h"

#include <stdbool.h>

/* Moves the calling process, which has one thread, into the namespace `name`, and mounts the
   /sys of that namespace.  HD_INVALID: no such namespace; HD_SYSTEM: not allowed. */
hd_status hd_conform_enter_host(const char *name, struct hd_problem *problem);

/* The namespace exists, and this user may open it. */
bool hd_conform_is_host(const char *name);

#endif /* HEDDLE_CONFORM_HOST_H */
