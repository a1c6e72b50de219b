/*
 * base/host.h - the part of struct hd_host that is the same for every plugin: memory, accounted by
 * tag, and the clock.  The caller adds rank, options, log, fail and the bootstrap. [any-thread]
 */
#ifndef HEDDLE_BASE_HOST_H
#define HEDDLE_BASE_HOST_H

#include <heddle/plugin.h>

/* Sets size, alloc, free, now_ns and account; all other members are zero. */
struct hd_host hd_host_basics(void);

#endif /* HEDDLE_BASE_HOST_H */
