/* train/metrics.h - the numbers of one step, in metrics.jsonl and on the terminal. */
#ifndef HEDDLE_TRAIN_METRICS_H
#define HEDDLE_TRAIN_METRICS_H

#include "train/step.h"

#include <stdbool.h>
#include <stdint.h>

struct hd_metrics {
    uint32_t step;
    double time_s; /* seconds since the start of the run */
    struct hd_step_result result;
    double learning_rate;
    uint64_t tokens; /* of this step */
    double step_seconds, tokens_per_second;
    uint32_t skipped;
    bool lacks_loss; /* the kernel has no terms: null in the file, nothing on the terminal */
};

#define HD_METRICS_LINE_BYTES 1024u

/* Writes one line of metrics.jsonl: an object and its newline.  Doubles read back to the same bits;
   a non-finite one is null.  Returns its length. */
uint32_t hd_metrics_line(const struct hd_metrics *metrics, char line[HD_METRICS_LINE_BYTES]);

/* The progress on stderr: one line, rewritten, on a terminal; otherwise a line every 10 steps and
   after the last. */
struct hd_progress {
    bool is_quiet, is_terminal;
    uint32_t steps;
    uint64_t begin_ns;
    uint32_t first_step; /* the last that an earlier run finished; 0 if there was none */
};
void hd_progress_step(struct hd_progress *progress, const struct hd_metrics *metrics);
void hd_progress_end(struct hd_progress *progress);

#endif /* HEDDLE_TRAIN_METRICS_H */
