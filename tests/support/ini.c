#include "support/ini.h"
#include "support/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct hd_option options[] = {
    {"pull_ahead", "off", NULL, "a flag", HD_OPTION_FLAG, 0},
    {"depth", "4", "1..64", "a number", HD_OPTION_INTEGER, 0},
    {"ring", "64K", "4K..1G", "bytes", HD_OPTION_BYTES, 0},
    {"rate", "0.5", "0<..1", "a fraction", HD_OPTION_NUMBER, 0},
    {"mode", "fast", "fast | slow", "a word", HD_OPTION_TEXT, 0},
};
const struct hd_plugin hd_ini_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "probe",
                                        .option_count = HD_CHECK_COUNT(options),
                                        .options = options};

const char *hd_ini_path(void)
{
    static char path[4096];
    if (path[0] == '\0') {
        /* Two programs may run at once. */
        snprintf(path, sizeof path, "%s/%s.ini", hd_check_build("tests"),
                 program_invocation_short_name);
    }
    return path;
}

void hd_ini_write(const char *text, size_t bytes)
{
    unlink(hd_ini_path()); /* a file that is truncated and written is flushed to disk at once */
    FILE *file = fopen(hd_ini_path(), "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fwrite(text, 1, bytes, file), bytes);
    CU_ASSERT_EQUAL_FATAL(fclose(file), 0);
}

/* Loads text as a file, with at most one override; the error line, or "" . */
hd_status hd_ini_load(struct hd_config *config, const char *text, const char *override,
                      char line[HD_INI_LINE_BYTES])
{
    struct hd_problem problem = {.exit_code = 0};

    hd_ini_write(text, strlen(text));
    const hd_status status =
        hd_config_load(config, hd_ini_path(), override != NULL, &override, &problem);
    hd_problem_line(&problem, line, HD_INI_LINE_BYTES);
    CU_ASSERT_EQUAL(status == HD_OK, problem.exit_code == 0);
    CU_ASSERT_EQUAL(status == HD_OK, line[0] == '\0');
    if (status != HD_OK) {
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
        CU_ASSERT_PTR_NULL(strchr(line, '\n'));
    }
    return status;
}
