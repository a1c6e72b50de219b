/*
 * launch/segments.h - System V segments of a process that was killed while it made them.
 *
 * A library marks such a segment for removal as soon as it is attached (UCX does, for its queues
 * and once to try its own hooks); a kill between the two leaves it to the machine for ever.  Nobody
 * but the parent can know, and nothing else of ours has a name that outlives a run.
 */
#ifndef HEDDLE_LAUNCH_SEGMENTS_H
#define HEDDLE_LAUNCH_SEGMENTS_H

#include <stdint.h>
#include <sys/types.h>

/* Removes what `pid`, which has ended, has made since `since_s` (time of day) and nobody has
   attached; how many. */
uint32_t hd_segments_remove(pid_t pid, int64_t since_s);

#endif /* HEDDLE_LAUNCH_SEGMENTS_H */
