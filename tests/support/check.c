#include "support/check.h"

#include <CUnit/Basic.h>
#include <heddle/plugin.h>

#include <stdio.h>
#include <stdlib.h>

enum { PATH_COUNT = 8, PATH_BYTES = 4096 };

int hd_check_main(const char *suite, const struct hd_check *checks, unsigned count)
{
    if (CU_initialize_registry() != CUE_SUCCESS) {
        return 1;
    }
    CU_pSuite added = CU_add_suite(suite, NULL, NULL);
    for (unsigned i = 0; added != NULL && i < count; i++) {
        if (CU_add_test(added, checks[i].name, checks[i].run) == NULL) {
            return 1;
        }
    }
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    const int failed = CU_get_number_of_failures() > 0 || CU_get_error() != CUE_SUCCESS ||
                       CU_get_number_of_tests_run() != count;
    CU_cleanup_registry();
    return failed;
}

int hd_check_skip(const char *reason)
{
    printf("skipped: %s\n", reason);
    return 77;
}

#if defined(__SANITIZE_THREAD__)
/* The sanitizer would sleep a second at the exit of each process, and some tests fork dozens. */
HD_EXPORT const char *__tsan_default_options(void);
HD_EXPORT const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}
#endif

static const char *join(const char *variable, const char *path)
{
    static char paths[PATH_COUNT][PATH_BYTES];
    static unsigned next;
    const char *root = getenv(variable);
    char *out = paths[next++ % PATH_COUNT];

    if (root == NULL) {
        fprintf(stderr, "%s is not set: run the test through ctest\n", variable);
        exit(1);
    }
    snprintf(out, PATH_BYTES, "%s/%s", root, path);
    return out;
}

const char *hd_check_source(const char *path)
{
    return join("HD_SOURCE_DIR", path);
}

const char *hd_check_build(const char *path)
{
    return join("HD_BUILD_DIR", path);
}

const char *hd_check_plugin(const char *path)
{
    return join("HD_PLUGIN_DIR", path);
}
