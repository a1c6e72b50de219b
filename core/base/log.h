/*
 * base/log.h - one line for each event, to stderr and to the rank's own file.
 *
 * Rank 0 and the parent write to stderr, and every rank writes to its file.  Any rank writes its
 * errors to stderr too, with "rank 3: " before them.  [any-thread]
 */
#ifndef HEDDLE_BASE_LOG_H
#define HEDDLE_BASE_LOG_H

#include <stdint.h>

/* The same values as in struct hd_host.log. */
enum hd_log_level { HD_LOG_ERROR = 0, HD_LOG_WARN = 1, HD_LOG_INFO = 2, HD_LOG_DEBUG = 3 };

#define HD_LOG_NO_RANK UINT32_MAX /* the parent, or a command without ranks */

/* Reads HEDDLE_LOG (default: warn); an unknown word means the default, with a warning. */
void hd_log_init(void);

/* Makes this process `rank`, and opens the file `path` (NULL: no file).  Returns 0, or errno. */
int hd_log_rank(uint32_t rank, const char *path);

void hd_log(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* HEDDLE_BASE_LOG_H */
