/*
 * launch/segments.h - System V segments of a process that was killed while it made them.
 *
 * A library marks such a segment for removal as soon as it is attached (UCX does, for its queues,
 * and once to test its own hooks).  A kill between the two steps leaves the segment on the machine
 * for ever.  Only the parent can remove it; heddle makes nothing else that has a name and can
 * outlive a run.
 */
#ifndef HEDDLE_LAUNCH_SEGMENTS_H
#define HEDDLE_LAUNCH_SEGMENTS_H

#include <stdint.h>
#include <sys/types.h>

/* Removes the segments that `pid`, an ended process, has made after `since_s` (time of day) and no
   process has attached; returns how many. */
uint32_t hd_segments_remove(pid_t pid, int64_t since_s);

#endif /* HEDDLE_LAUNCH_SEGMENTS_H */
