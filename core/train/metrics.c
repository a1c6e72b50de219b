#include "train/metrics.h"
#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { PROGRESS_BYTES = 256, EVERY = 10 };

/* A number of JSON. */
static const char *metrics_number(double value, char text[HD_NUMBER_TEXT_BYTES])
{
    if (!isfinite(value)) {
        return "null";
    }
    hd_text_from_number(value, text);
    return text;
}

uint32_t hd_metrics_line(const struct hd_metrics *metrics, char line[HD_METRICS_LINE_BYTES])
{
    const struct hd_step_result *const result = &metrics->result;
    const struct {
        const char *key;
        double value;
    } before[] = {{"time", metrics->time_s},
                  {"loss", metrics->lacks_loss ? NAN : result->loss},
                  {"balance_loss", metrics->lacks_loss ? NAN : result->balance_loss},
                  {"z_loss", metrics->lacks_loss ? NAN : result->z_loss},
                  {"grad_norm", result->grad_norm},
                  {"learning_rate", metrics->learning_rate}};
    char text[HD_NUMBER_TEXT_BYTES], second[HD_NUMBER_TEXT_BYTES];
    int length = snprintf(line, HD_METRICS_LINE_BYTES, "{\"step\": %u", metrics->step);

    for (unsigned i = 0; i < sizeof before / sizeof before[0]; i++) {
        length += snprintf(line + length, HD_METRICS_LINE_BYTES - (size_t)length, ", \"%s\": %s",
                           before[i].key, metrics_number(before[i].value, text));
    }
    length +=
        snprintf(line + length, HD_METRICS_LINE_BYTES - (size_t)length,
                 ", \"tokens\": %llu, \"step_seconds\": %s, \"tokens_per_second\": %s, "
                 "\"skipped\": %u}\n",
                 (unsigned long long)metrics->tokens, metrics_number(metrics->step_seconds, text),
                 metrics_number(metrics->tokens_per_second, second), metrics->skipped);
    assert(length > 0 && length < (int)HD_METRICS_LINE_BYTES);
    return (uint32_t)length;
}

/* "1.25M", "12.3k", "980". */
static void metrics_short_number(double value, char text[32])
{
    if (value >= 1e6) {
        snprintf(text, 32, "%.2fM", value * 1e-6);
    } else if (value >= 1e4) {
        snprintf(text, 32, "%.1fk", value * 1e-3);
    } else {
        snprintf(text, 32, "%.0f", value);
    }
}

/* "1:02:03", "2:03"; or "decades" for more than 30 years. */
static void metrics_clock_text(double seconds, char text[32])
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

static double metrics_seconds_left(const struct hd_progress *progress, uint32_t step)
{
    const double past_s = (double)(hd_now_ns() - progress->begin_ns) * 1e-9;
    const uint32_t done = step - progress->first_step;

    return done > 0 && progress->steps > step ? past_s / done * (progress->steps - step) : 0.0;
}

void hd_progress_step(struct hd_progress *progress, const struct hd_metrics *metrics)
{
    const bool is_last = metrics->step == progress->steps;
    char line[PROGRESS_BYTES], rate[32], left[32], loss[32] = "";

    if (progress->is_quiet || (!progress->is_terminal && metrics->step % EVERY != 0 && !is_last)) {
        return;
    }
    metrics_short_number(metrics->tokens_per_second, rate);
    metrics_clock_text(metrics_seconds_left(progress, metrics->step), left);
    if (!metrics->lacks_loss) {
        snprintf(loss, sizeof loss, "loss %.4f  ", metrics->result.loss);
    }
    const int length = snprintf(line, sizeof line, "%sstep %u/%u  %s%s tokens/s  %s left%s%s",
                                progress->is_terminal ? "\r" : "", metrics->step, progress->steps,
                                loss, rate, left, metrics->skipped ? "  (skipped)" : "",
                                progress->is_terminal ? "\033[K" : "\n");
    /* One write, so that no line of the log comes in between. */
    const ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written; /* the run goes on if the terminal is gone */
}

void hd_progress_end(struct hd_progress *progress)
{
    if (!progress->is_quiet && progress->is_terminal) {
        const ssize_t written = write(STDERR_FILENO, "\n", 1);
        (void)written;
    }
}
