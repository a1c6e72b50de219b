/*
 * books/books_host.h - this host and the processes on it: who is here, who has ended, what memory is
 * left.
 *
 * A pidfd becomes readable when its process ends, whoever its parent is, and never means another
 * process that was given the same number later.  A stopped process has not ended.
 */
#ifndef BOOK_HOST_H
#define BOOK_HOST_H

#include "books.h"

/* Part of a card.  What the kernel does not say is zero, and then nobody is taken for a
   neighbour. */
struct book_place {
    uint64_t boot[2];   /* which start of which machine this is */
    uint64_t pid_space; /* in which a pid means what it means here */
    int32_t pid;
    uint32_t reserved;
};

struct book_place book_find_place(void);
int book_is_on_host(const struct book_place *place, const struct book_place *other);
/* On one host, and of one pid namespace: either may hold the other. */
int book_is_in_reach(const struct book_place *place, const struct book_place *other);

/* The cores that a process may run on, by number; part of a card.  All zero: not known. */
#define BOOK_CORE_BYTES 128u /* glibc's whole set, of 1024 */
struct book_cores {
    unsigned char set[BOOK_CORE_BYTES];
};

struct book_cores book_find_cores(void);
uint32_t book_core_count(const struct book_cores *cores);
/* Is there one on which both may run?  Of ranks on one host. */
int book_share_core(const struct book_cores *cores, const struct book_cores *other);

/* The process of another rank; the first member of the transport's own. */
struct book_peer {
    uint32_t rank;
    int pidfd; /* owned; -1: not held, and then it never ends */
};

/* Takes hold of process `pid`: 0, or an errno, ESRCH if it has ended. [setup] */
int book_hold(struct book_peer *peer, int32_t pid);
int book_has_ended(const struct book_peer *peer);

/* What the machine can still give, or UINT64_MAX: neither memfd nor UCX know any limit but the
   killer of processes. */
uint64_t book_available_bytes(void);
/* Tells the core of memory taken beside alloc, or given back. [any-thread] */
void book_account(const struct book *book, int64_t bytes, const char *tag);

#endif /* BOOK_HOST_H */
