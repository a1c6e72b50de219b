/* output/config_write.h - the effective configuration as an ini that reads back to itself. */
#ifndef HEDDLE_OUTPUT_CONFIG_WRITE_H
#define HEDDLE_OUTPUT_CONFIG_WRITE_H

#include "config/config.h"

#include <stdio.h>

/*
 * Writes the effective configuration as a valid ini: every key with value, help, range and origin
 * ("; default", "; conf/x.ini:12"); only_changed: only the keys that differ from their default.
 * `plugins` adds the sections of these plugins; the sections of others are written as they were
 * given.  HD_SYSTEM: writing to `stream` failed.
 */
hd_status hd_config_write(const struct hd_config *config, FILE *stream, bool only_changed,
                          uint32_t plugin_count, const struct hd_plugin *const *plugins);

/* Whether the value differs from the default; two spellings of one number are equal. */
bool hd_config_is_changed(const struct hd_config *config, const char *section, const char *key);

#endif /* HEDDLE_OUTPUT_CONFIG_WRITE_H */
