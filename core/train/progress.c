#include "base/clock.h"
#include "train/rundir.h"

#include <stdio.h>
#include <unistd.h>

enum { LINE_BYTES = 256, EVERY = 10 };

/* "1.25M", "12.3k", "980". */
static void progress_short_number(double value, char text[32])
{
    if (value >= 1e6) {
        snprintf(text, 32, "%.2fM", value * 1e-6);
    } else if (value >= 1e4) {
        snprintf(text, 32, "%.1fk", value * 1e-3);
    } else {
        snprintf(text, 32, "%.0f", value);
    }
}

/* "1:02:03", "2:03"; what is longer than anybody waits is said so. */
static void progress_clock_text(double seconds, char text[32])
{
    if (!(seconds < 1e9)) {
        snprintf(text, 32, "decades");
        return;
    }
    const uint64_t whole = (uint64_t)(seconds + 0.5);
    const unsigned hours = (unsigned)(whole / 3600), minutes = (unsigned)(whole / 60 % 60);

    if (hours > 0) {
        snprintf(text, 32, "%u:%02u:%02u", hours, minutes, (unsigned)(whole % 60));
    } else {
        snprintf(text, 32, "%u:%02u", minutes, (unsigned)(whole % 60));
    }
}

static double progress_seconds_left(const struct hd_progress *progress, uint32_t step)
{
    const double past_s = (double)(hd_now_ns() - progress->begin_ns) * 1e-9;
    const uint32_t done = step - progress->first_step;

    return done > 0 && progress->steps > step ? past_s / done * (progress->steps - step) : 0.0;
}

void hd_progress_step(struct hd_progress *progress, const struct hd_metrics *metrics)
{
    const uint32_t is_last = metrics->step == progress->steps;
    char line[LINE_BYTES], rate[32], left[32], loss[32] = "";

    if (progress->is_quiet || (!progress->is_terminal && metrics->step % EVERY != 0 && !is_last)) {
        return;
    }
    progress_short_number(metrics->tokens_per_second, rate);
    progress_clock_text(progress_seconds_left(progress, metrics->step), left);
    if (!metrics->lacks_loss) {
        snprintf(loss, sizeof loss, "loss %.4f  ", metrics->result.loss);
    }
    const int length = snprintf(line, sizeof line, "%sstep %u/%u  %s%s tokens/s  %s left%s%s",
                                progress->is_terminal ? "\r" : "", metrics->step, progress->steps,
                                loss, rate, left, metrics->skipped ? "  (skipped)" : "",
                                progress->is_terminal ? "\033[K" : "\n");
    /* One write, so that a line of the log never falls into the middle of it. */
    const ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written; /* a terminal that is gone ends no run */
}

void hd_progress_end(struct hd_progress *progress)
{
    if (!progress->is_quiet && progress->is_terminal) {
        const ssize_t written = write(STDERR_FILENO, "\n", 1);
        (void)written;
    }
}
