/*
 * books/books_host.h - this host and its processes: which ranks are here, which have ended, how
 * much memory is left.
 *
 * A pidfd becomes readable when its process ends, whichever process is the parent, and never refers
 * to a later process with the same number.  A stopped process has not ended.
 */
#ifndef BOOK_HOST_H
#define BOOK_HOST_H

#include "books.h"

/* Where a process runs; part of a card.  Zero means unknown, and unknown places never match. */
struct book_place {
    uint64_t boot[2];   /* identifies one boot of one machine */
    uint64_t pid_space; /* the PID namespace in which `pid` is valid */
    int32_t pid;
    uint32_t reserved;
};

struct book_place book_find_place(void);
bool book_is_on_host(const struct book_place *place, const struct book_place *other);
/* On one host and in one PID namespace: either process can open a pidfd of the other. */
bool book_is_in_reach(const struct book_place *place, const struct book_place *other);

/* The cores that a process may run on, one bit each; part of a card.  All zero: unknown. */
#define BOOK_CORE_BYTES 128u /* glibc's cpu_set_t, 1024 cores */
struct book_cores {
    unsigned char set[BOOK_CORE_BYTES];
};

struct book_cores book_find_cores(void);
uint32_t book_core_count(const struct book_cores *cores);
/* Whether two processes on one host may run on a common core. */
bool book_share_core(const struct book_cores *cores, const struct book_cores *other);

/* The process of another rank; the first member of the transport's own struct. */
struct book_peer {
    uint32_t rank;
    int pidfd; /* owned; -1: not held, and book_has_ended is then always false */
};

/* Opens a pidfd of process `pid`.  Returns 0 or an errno: ESRCH if it has ended. [setup] */
int book_hold(struct book_peer *peer, int32_t pid);
bool book_has_ended(const struct book_peer *peer);

/* MemAvailable of this machine, or UINT64_MAX.  Memfd and UCX know no limit but the OOM killer. */
uint64_t book_available_bytes(void);
/* The longest file that this process may make (ulimit -f); UINT64_MAX: any. */
uint64_t book_file_limit_bytes(void);

/* Tells the core of memory that was taken beside alloc, or given back. [any-thread] */
void book_account(const struct book *book, int64_t bytes, const char *tag);
/* Opens file `descriptor` of another process, as /proc/PID/fd/FD; -1 with errno. */
int book_open_descriptor(int32_t pid, int32_t descriptor);

#endif /* BOOK_HOST_H */
