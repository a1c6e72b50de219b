/*
 * tests/support/check.h - one CUnit suite per program, and its exit code.
 *
 * A test program names its tests in a table and returns hd_check_main().  CUnit's
 * runner returns 0 with failures, so the exit code comes from the count of them.
 */
#ifndef HD_TESTS_SUPPORT_CHECK_H
#define HD_TESTS_SUPPORT_CHECK_H

#include <CUnit/CUnit.h>

struct hd_check {
    const char *name; /* the behaviour, as a sentence */
    CU_TestFunc run;
};

/* Runs `checks` as one suite; the exit code of the program: 0, or 1 with failures or errors. */
int hd_check_main(const char *suite, const struct hd_check *checks, unsigned count);

/* The exit code of a test that cannot run here, after saying why on stdout. */
int hd_check_skip(const char *reason);

/* A path under the source tree, the build tree or the plugin directory; static storage, 8 deep. */
const char *hd_check_source(const char *path);
const char *hd_check_build(const char *path);
const char *hd_check_plugin(const char *path);

#define HD_CHECK_COUNT(table) (unsigned)(sizeof(table) / sizeof((table)[0]))

#endif /* HD_TESTS_SUPPORT_CHECK_H */
