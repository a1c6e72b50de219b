/*
 * base/host.h - the part of struct hd_host that is the same wherever a plugin is called: memory,
 * accounted under its tags, and the one clock.  Who calls adds rank, options, log, fail and the
 * bootstrap. [any-thread]
 */
#ifndef HEDDLE_BASE_HOST_H
#define HEDDLE_BASE_HOST_H

#include <heddle/plugin.h>

/* Size, alloc, free, now_ns and account; all else zero. */
struct hd_host hd_host_basics(void);

#endif /* HEDDLE_BASE_HOST_H */
