/*
 * base/child.h - a function that runs in a child process, for work that may crash or hang.
 *
 * The parent starts the child, waits for its end up to a deadline, stops it, and reads what the
 * function left in the answer: memory that both processes share.  The kernel kills the child when
 * its parent dies.  A child leaves no core file.
 *
 *   struct hd_child child;
 *   if (hd_child_start(&child, &(struct hd_child_request){.work = measure, .answer_bytes = 64})) {
 *       return HD_SYSTEM;
 *   }
 *   const bool is_over = hd_child_wait(&child, deadline_ns);
 *   const int status = hd_child_stop(&child);
 *   ... read child.answer ...
 *   hd_child_free(&child);
 */
#ifndef HEDDLE_BASE_CHILD_H
#define HEDDLE_BASE_CHILD_H

#include <heddle/plugin.h>

#include <stdbool.h>
#include <sys/types.h>

struct hd_child_request {
    /* Runs in the child, which exits with code 0 when it returns.  It may call exec. */
    void (*work)(void *context, void *answer);
    void *context;
    uint64_t answer_bytes;
    bool has_group;  /* the child leads a process group, and hd_child_stop kills all of it */
    bool has_output; /* the child's stdout goes into a pipe, child->output */
};

struct hd_child {
    void *answer; /* zero-filled at the start; NULL if answer_bytes is 0 */
    uint64_t answer_bytes;
    int output; /* the end of the pipe that the parent reads; -1: none */
    pid_t pid;
    int pidfd; /* -1: this kernel has none */
    bool has_group;
};

/* HD_SYSTEM with errno: the child could not be started, and there is nothing to stop or free. */
hd_status hd_child_start(struct hd_child *child, const struct hd_child_request *request);

/* True: the child has ended.  False: it still runs at the deadline (UINT64_MAX: no deadline). */
bool hd_child_wait(const struct hd_child *child, uint64_t deadline_ns);

/* Kills the child if it still runs, and reaps it; returns the status of waitpid. */
int hd_child_stop(struct hd_child *child);

/* Releases the answer, after hd_child_stop. */
void hd_child_free(struct hd_child *child);

#endif /* HEDDLE_BASE_CHILD_H */
