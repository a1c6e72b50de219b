/*
 * base/problem.h - what went wrong, as the user reads it, and the exit code.
 *
 * The first function that decides an error fills the caller's struct hd_problem; all other
 * functions pass the negative status on.  Only the command line prints it, at the very end: one
 * line on stderr, "place: key: reason: remedy", or the error object of --json.
 */
#ifndef HEDDLE_BASE_PROBLEM_H
#define HEDDLE_BASE_PROBLEM_H

#include <heddle/plugin.h>

#include <stdint.h>

/* docs/interface.md, "Exit codes"; 128 + n for signal n. */
enum hd_exit {
    HD_EXIT_OK = 0,
    HD_EXIT_FAILED = 1,    /* a check failed, or an internal error */
    HD_EXIT_USAGE = 2,     /* usage or configuration */
    HD_EXIT_PLUGIN = 3,    /* a plugin cannot be loaded, or does not work here */
    HD_EXIT_PLAN = 4,      /* the plan breaks a law */
    HD_EXIT_PEER = 5,      /* a peer is lost, or a deadline has passed */
    HD_EXIT_NONFINITE = 6, /* a loss or a norm is not finite */
    HD_EXIT_OUTPUT = 7,    /* a file cannot be written */
};

struct hd_problem {
    int32_t exit_code;  /* enum hd_exit; 0: no problem */
    uint32_t law;       /* the law of schedule.h that is broken, 1..8; 0: none */
    char place[512];    /* "conf/x.ini:12", "command line", a path, "rank 3"; may be empty */
    char key[128];      /* "pipeline.microbatches"; may be empty */
    char message[2048]; /* the reason, one sentence without its full stop */
    char remedy[1024];  /* what to do; may be empty */
    char cycle[2048];   /* laws 4, 6 and 7: which rank waits for which; may be empty */
};

/* Fills `problem`, unless it is filled already, and returns `status`, which is negative.  The
   message is printf's; place, key and remedy are set with the functions below, before or after. */
hd_status hd_problem_set(struct hd_problem *problem, hd_status status, int32_t exit_code,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The same with HD_NO_MEMORY and "cannot allocate 4096 bytes for " before printf's message; `bytes`
   0 says "memory" instead of a number. */
hd_status hd_problem_no_memory(struct hd_problem *problem, uint64_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hd_problem_place(struct hd_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hd_problem_key(struct hd_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hd_problem_remedy(struct hd_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Writes the line: the parts that are not empty, with ": " between them.  Returns as snprintf. */
int hd_problem_line(const struct hd_problem *problem, char *line, uint32_t capacity);

/* Reads the bytes of a struct hd_problem that another process has sent; HD_PROTOCOL: they are not
   one. */
hd_status hd_problem_read(struct hd_problem *problem, const void *bytes, uint64_t byte_count);

/* The exit code of a status, if nothing more is known. */
int32_t hd_exit_of(hd_status status);

/* "HD_PEER_LOST" and so on, for logs; static. */
const char *hd_status_name(hd_status status);

#endif /* HEDDLE_BASE_PROBLEM_H */
