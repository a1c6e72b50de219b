#include "base/log.h"
#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

static const char *const log_level_names[] = {"error", "warn", "info", "debug"};

static struct {
    uint32_t level;
    uint32_t rank;
    int file; /* -1: none */
    uint64_t begin_ns;
} log_logger = {.level = HD_LOG_WARN, .rank = HD_LOG_NO_RANK, .file = -1};

void hd_log_init(void)
{
    const char *word = getenv("HEDDLE_LOG");

    log_logger.begin_ns = hd_now_ns();
    if (word == NULL || word[0] == '\0') {
        return;
    }
    for (uint32_t level = 0; level <= HD_LOG_DEBUG; level++) {
        if (strcmp(word, log_level_names[level]) == 0) {
            log_logger.level = level;
            return;
        }
    }
    hd_log(HD_LOG_WARN, "HEDDLE_LOG=%s is not error, warn, info or debug; using warn", word);
}

int hd_log_rank(uint32_t rank, const char *path)
{
    log_logger.rank = rank;
    if (path == NULL) {
        return 0;
    }
    log_logger.file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return log_logger.file >= 0 ? 0 : errno;
}

/* One write for each line, so that lines of several processes do not mix. */
static void log_write_line(int file, const char *line, size_t length)
{
    const ssize_t written = write(file, line, length);
    (void)written; /* there is no place to report a failed write */
}

static size_t log_clip(int length)
{
    assert(length >= 0);
    return length < LINE_BYTES ? (size_t)length : LINE_BYTES - 1;
}

void hd_log(uint32_t level, const char *format, ...)
{
    char text[LINE_BYTES - 128];
    char line[LINE_BYTES];
    va_list arguments;
    const bool has_rank = log_logger.rank != HD_LOG_NO_RANK;

    if (level > log_logger.level && log_logger.file < 0) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    if (log_logger.file >= 0 && (level <= log_logger.level || level <= HD_LOG_INFO)) {
        const double at_s = (double)(hd_now_ns() - log_logger.begin_ns) * 1e-9;
        const int length =
            snprintf(line, sizeof line, "%12.6f %-5s %s\n", at_s, log_level_names[level], text);
        log_write_line(log_logger.file, line, log_clip(length));
    }
    if (level <= log_logger.level && (!has_rank || log_logger.rank == 0 || level == HD_LOG_ERROR)) {
        const int length = has_rank
                               ? snprintf(line, sizeof line, "rank %u: %s\n", log_logger.rank, text)
                               : snprintf(line, sizeof line, "heddle: %s\n", text);
        log_write_line(STDERR_FILENO, line, log_clip(length));
    }
}
