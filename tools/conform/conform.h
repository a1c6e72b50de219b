/*
 * conform/conform.h - the suite that checks one plugin against the contract of its kind.
 *
 * A suite is a table of checks.  Each check runs in a child process with a deadline, so a plugin
 * that crashes, hangs or exits fails that check and no other.  A check that needs ranks forks them
 * with launch/launch.h.
 *
 *   parent   loads the plugin once; for each check forks a child, waits, and kills the child's
 *            process group at the deadline
 *   child    runs the check and writes the verdict into memory shared with the parent
 *
 * Levels are cumulative, in the order of the enum.  All random numbers of a check come from the
 * seed. [setup] one thread.
 *
 * Sources: the laws of schedule.h, G1 to G8 of transport.h, K1 to K8 of kernel.h.
 */
#ifndef HEDDLE_CONFORM_CONFORM_H
#define HEDDLE_CONFORM_CONFORM_H

#include "base/problem.h"

#include <stdbool.h>

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

#define HD_CONFORM_TEXT_BYTES 1024u

enum hd_conform_level {
    HD_CONFORM_LOAD = 0,      /* the plugin loads, and its descriptor is valid */
    HD_CONFORM_API = 1,       /* every function answers within its range */
    HD_CONFORM_SEMANTICS = 2, /* the laws of the contract */
    HD_CONFORM_FAULT = 3,     /* the laws for faults: wrong calls, lost peers, corrupt data */
    HD_CONFORM_SPEED = 4,     /* measurements, which never fail */
    HD_CONFORM_LEVEL_COUNT = 5
};

enum hd_conform_verdict { HD_CONFORM_PASSED = 0, HD_CONFORM_FAILED = 1, HD_CONFORM_SKIPPED = 2 };

/* The plugin and the parameters of the checks; borrowed by every call. */
struct hd_conform_subject {
    const struct hd_plugin *plugin;        /* as the registry hands it out */
    const struct hd_option_value *options; /* in the order of its table */
    const struct hd_plugin *inner;         /* the transport that a hook wraps, or NULL */
    const struct hd_option_value *inner_options;
    const struct hd_plugin *lender; /* the kernel on whose device a transport has its slots;
                                       NULL: slots are in host memory */
    const struct hd_option_value *lender_options;
    uint64_t seed;
    uint64_t bytes_max;   /* of one message of a transport */
    uint64_t limit_ms;    /* of a wait that should succeed */
    uint32_t limit_s;     /* of every check; 0: the limit of its row */
    bool is_in_process;   /* a check runs in the caller's process, without a deadline */
    const char *hosts[2]; /* network namespaces of a transport's even and odd ranks
                             (conform/host.h); NULL: the caller's */
};

struct hd_conform_case; /* one running check, in its child; conform/check.h */

struct hd_conform_check {
    const char *name; /* "lease": the argument of --check */
    uint32_t level;   /* enum hd_conform_level */
    uint32_t limit_s; /* of the child */
    const char *law;  /* "G3", "laws 1 to 5" */
    const char *text; /* what holds if the check passes: a sentence without a full stop */
    void (*run)(struct hd_conform_case *check);
    const void *argument; /* of the function `run`, which knows its type; or NULL */
};

struct hd_conform_result {
    const struct hd_conform_check *check;
    uint32_t verdict;                 /* enum hd_conform_verdict */
    double seconds;                   /* of the child */
    char text[HD_CONFORM_TEXT_BYTES]; /* why the check failed or was skipped, or what it measured */
};

/* The suite of a kind, in the order of its levels; static. */
const struct hd_conform_check *hd_conform_suite(uint32_t kind, uint32_t *count);

const char *hd_conform_level_name(uint32_t level); /* static */
bool hd_conform_level_of(const char *name, uint32_t *level);
const char *hd_conform_verdict_name(uint32_t verdict); /* "pass", "fail", "skip" */
const struct hd_conform_check *hd_conform_find(uint32_t kind, const char *name); /* or NULL */

/* Runs one check.  The only error is that the child process cannot start, or that a check in this
   process has no memory (HD_EXIT_FAILED). */
hd_status hd_conform_run(const struct hd_conform_subject *subject,
                         const struct hd_conform_check *check, struct hd_conform_result *result,
                         struct hd_problem *problem);

#endif /* HEDDLE_CONFORM_CONFORM_H */
