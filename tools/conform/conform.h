/*
 * conform/conform.h - the suite that judges one plugin by the contract of its kind.
 *
 * A suite is a table of checks.  Each runs in a child process of its own with a deadline, so a
 * plugin that crashes, hangs or exits is a failed check with a name, and says nothing about the
 * next one.  Checks that need ranks fork them in turn, by launch/launch.h.
 *
 *   parent   loads the plugin once, forks a child a check, waits, kills its group at the deadline
 *   child    runs the check; its verdict and sentence lie in memory shared with the parent
 *
 * Levels are cumulative in the order of the enum; HD_CONFORM_SPEED measures and never judges.
 * What a check draws at random it draws from the seed. [setup] one thread.
 *
 * Sources: the laws of schedule.h, G1 to G8 of transport.h, K1 to K8 of kernel.h.
 */
#ifndef HEDDLE_CONFORM_CONFORM_H
#define HEDDLE_CONFORM_CONFORM_H

#include "base/problem.h"

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

#define HD_CONFORM_TEXT_BYTES 1024u

enum hd_conform_level {
    HD_CONFORM_LOAD = 0,      /* it can be had, and says who it is */
    HD_CONFORM_API = 1,       /* every answer is in its range */
    HD_CONFORM_SEMANTICS = 2, /* the laws */
    HD_CONFORM_FAULT = 3,     /* and when something is wrong */
    HD_CONFORM_SPEED = 4,     /* numbers, no verdict */
    HD_CONFORM_LEVEL_COUNT = 5
};

enum hd_conform_verdict { HD_CONFORM_PASSED = 0, HD_CONFORM_FAILED = 1, HD_CONFORM_SKIPPED = 2 };

/* What is judged, and how hard; borrowed by every call. */
struct hd_conform_subject {
    const struct hd_plugin *plugin;        /* as the registry hands it out */
    const struct hd_option_value *options; /* in the order of its table */
    const struct hd_plugin *inner;         /* what a hook wraps; NULL for all others */
    const struct hd_option_value *inner_options;
    const struct hd_plugin *lender; /* a kernel, whose device a transport's slots are to lie on;
                                       NULL: they are the host's */
    const struct hd_option_value *lender_options;
    uint64_t seed;
    uint64_t bytes_max;   /* of one message of a transport */
    uint64_t limit_ms;    /* of a wait that is to succeed */
    uint32_t limit_s;     /* of every check; 0: each its own */
    const char *hosts[2]; /* of a transport's even ranks, and of its odd ones: network namespaces
                             (conform/host.h); NULL: all stay where they are */
};

struct hd_conform_case; /* one running check, in its child; conform/check.h */

struct hd_conform_check {
    const char *name; /* "lease": what --check takes and a report shows */
    uint32_t level;   /* enum hd_conform_level */
    uint32_t limit_s; /* of the child */
    const char *law;  /* "G3", "laws 1 to 5" */
    const char *text; /* what holds if it passes, one sentence without its full stop */
    void (*run)(struct hd_conform_case *check);
};

struct hd_conform_result {
    const struct hd_conform_check *check;
    uint32_t verdict;                 /* enum hd_conform_verdict */
    double seconds;                   /* of the child */
    char text[HD_CONFORM_TEXT_BYTES]; /* why it failed or was left out; what was measured */
};

/* The suite of a kind, in the order of its levels; static. */
const struct hd_conform_check *hd_conform_suite(uint32_t kind, uint32_t *count);

const char *hd_conform_level_name(uint32_t level);          /* static */
int hd_conform_level_of(const char *name, uint32_t *level); /* 0: there is none of that name */
const char *hd_conform_verdict_name(uint32_t verdict);      /* "pass", "fail", "skip" */
const struct hd_conform_check *hd_conform_find(uint32_t kind, const char *name); /* or NULL */

/* Runs one check.  Only a child that cannot be had is an error of its own (HD_EXIT_FAILED). */
hd_status hd_conform_run(const struct hd_conform_subject *subject,
                         const struct hd_conform_check *check, struct hd_conform_result *result,
                         struct hd_problem *problem);

#endif /* HEDDLE_CONFORM_CONFORM_H */
