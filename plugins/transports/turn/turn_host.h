/*
 * turn/turn_host.h - this host and the processes on it: who is here, who has ended, what memory is
 * left.
 *
 * A pidfd becomes readable when its process ends, whoever its parent is, and never means another
 * process that was given the same number later.  A stopped process has not ended.
 */
#ifndef TURN_HOST_H
#define TURN_HOST_H

#include "turn.h"

/* Part of a card.  What the kernel does not say is zero, and then nobody is taken for a
   neighbour. */
struct turn_place {
    uint64_t boot[2];   /* which start of which machine this is */
    uint64_t pid_space; /* in which a pid means what it means here */
    int32_t pid;
    uint32_t reserved;
};

struct turn_place turn_find_place(void);
int turn_is_on_host(const struct turn_place *place, const struct turn_place *other);
/* On one host, and of one pid namespace: either may hold the other. */
int turn_is_in_reach(const struct turn_place *place, const struct turn_place *other);

/* The cores that a process may run on, by number; part of a card.  All zero: not known. */
#define TURN_CORE_BYTES 128u /* glibc's whole set, of 1024 */
struct turn_cores {
    unsigned char set[TURN_CORE_BYTES];
};

struct turn_cores turn_find_cores(void);
uint32_t turn_core_count(const struct turn_cores *cores);
/* Is there one on which both may run?  Of ranks on one host. */
int turn_share_core(const struct turn_cores *cores, const struct turn_cores *other);

/* The process of another rank; the first member of the transport's own. */
struct turn_peer {
    uint32_t rank;
    int pidfd; /* owned; -1: not held, and then it never ends */
};

/* Takes hold of process `pid`: 0, or an errno, ESRCH if it has ended. [setup] */
int turn_hold(struct turn_peer *peer, int32_t pid);
int turn_has_ended(const struct turn_peer *peer);

/* What the machine can still give, or UINT64_MAX: neither memfd nor UCX know any limit but the
   killer of processes. */
uint64_t turn_available_bytes(void);
/* Tells the core of memory taken beside alloc, or given back. [any-thread] */
void turn_account(const struct turn *turn, int64_t bytes, const char *tag);

#endif /* TURN_HOST_H */
