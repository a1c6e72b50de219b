#include "base/text.h"
#include "train/rundir.h"

#include <assert.h>
#include <math.h>

/* A number as JSON has it. */
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
