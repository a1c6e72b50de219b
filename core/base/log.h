/*
 * base/log.h - one line per event, to stderr and to the rank's own file.
 *
 * Rank 0 and the parent speak on stderr; every rank writes its file; an error is said on
 * stderr by whoever has it, with "rank 3: " before it.  [any-thread]
 */
#ifndef HEDDLE_BASE_LOG_H
#define HEDDLE_BASE_LOG_H

#include <stdint.h>

/* The values are those of hd_host.log. */
enum hd_log_level { HD_LOG_ERROR = 0, HD_LOG_WARN = 1, HD_LOG_INFO = 2, HD_LOG_DEBUG = 3 };

#define HD_LOG_NO_RANK UINT32_MAX /* the parent, or a command without ranks */

/* Reads HEDDLE_LOG (default: warn); an unknown word counts as the default and is warned about. */
void hd_log_init(void);

/* From now on this process is `rank`; opens `path` for its lines (NULL: no file).  0, or errno. */
int hd_log_rank(uint32_t rank, const char *path);

void hd_log(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif /* HEDDLE_BASE_LOG_H */
