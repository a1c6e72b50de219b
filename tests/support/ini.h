/* tests/support/ini.h - one ini file of the test's own, loaded as `heddle` would load it. */
#ifndef HD_TESTS_SUPPORT_INI_H
#define HD_TESTS_SUPPORT_INI_H

#include "config/config.h"

#include <stddef.h>

#define HD_INI_LINE_BYTES   8192u
#define HD_INI_OPTION_COUNT 5u

/* A schedule "probe" with an option of each type: pull_ahead, depth, ring, rate, mode. */
extern const struct hd_plugin hd_ini_plugin;

const char *hd_ini_path(void); /* of the one file; named after the program; static */
void hd_ini_write(const char *text, size_t bytes);

/* Writes and loads `text`, with at most one override; gives the error line, or "".  Checks that
   status and problem agree, and that the line is one and means exit code 2. */
hd_status hd_ini_load(struct hd_config *config, const char *text, const char *override,
                      char line[HD_INI_LINE_BYTES]);

#endif /* HD_TESTS_SUPPORT_INI_H */
