/* What a user watches: a line of metrics.jsonl, and the progress line. */
#include "support/check.h"

#include "base/clock.h"
#include "train/rundir.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 65536 };

/* --- metrics ---------------------------------------------------------------------------------- */

static const struct hd_metrics awkward = {.step = 7,
                                          .time_s = 0.1,
                                          .result = {.loss = 1.0 / 3.0,
                                                     .balance_loss = 5e-324,
                                                     .z_loss = 1.7976931348623157e308,
                                                     .grad_norm = 0x1.123456789abcdp-3},
                                          .learning_rate = 3e-3,
                                          .tokens = 1ull << 40,
                                          .step_seconds = 2.0 / 3.0,
                                          .tokens_per_second = 98765.4321,
                                          .skipped = 1};

static void metrics_read_back(void)
{
    static const char *const keys[] = {
        "step",          "time",   "loss",         "balance_loss",      "z_loss", "grad_norm",
        "learning_rate", "tokens", "step_seconds", "tokens_per_second", "skipped"};
    const double values[] = {7,
                             awkward.time_s,
                             awkward.result.loss,
                             awkward.result.balance_loss,
                             awkward.result.z_loss,
                             awkward.result.grad_norm,
                             awkward.learning_rate,
                             0x1p40,
                             awkward.step_seconds,
                             awkward.tokens_per_second,
                             1};
    char line[HD_METRICS_LINE_BYTES];
    const uint32_t length = hd_metrics_line(&awkward, line);

    CU_ASSERT(length == strlen(line) && line[length - 1] == '\n');
    CU_ASSERT(strchr(line, '\n') == line + length - 1);
    cJSON *const root = cJSON_Parse(line);
    CU_ASSERT_FATAL(root != NULL);
    const cJSON *item = root->child;
    for (unsigned i = 0; i < HD_CHECK_COUNT(keys); i++) {
        CU_ASSERT_FATAL(item != NULL);
        CU_ASSERT_STRING_EQUAL(item->string, keys[i]);
        CU_ASSERT(item->valuedouble == values[i]);
        item = item->next;
    }
    CU_ASSERT_PTR_NULL(item);
    cJSON_Delete(root);
}

static void metrics_not_finite(void)
{
    char line[HD_METRICS_LINE_BYTES];
    struct hd_metrics metrics = awkward;

    metrics.result.loss = NAN;
    metrics.result.grad_norm = INFINITY;
    metrics.tokens_per_second = -INFINITY;
    hd_metrics_line(&metrics, line);
    CU_ASSERT(strstr(line, "\"loss\": null,") != NULL);
    CU_ASSERT(strstr(line, "\"grad_norm\": null,") != NULL);
    CU_ASSERT(strstr(line, "\"tokens_per_second\": null,") != NULL);
    CU_ASSERT(strstr(line, "nan") == NULL && strstr(line, "inf") == NULL);
}

/* --- progress --------------------------------------------------------------------------------- */

/* What the steps up to `last` print, as a file that stands in for stderr. */
static const char *progress_up_to(struct hd_progress progress, uint32_t last)
{
    static char text[TEXT_BYTES];
    const int saved = dup(STDERR_FILENO);
    FILE *const stream = tmpfile();
    struct hd_metrics metrics = awkward;

    CU_ASSERT_FATAL(saved >= 0 && stream != NULL && dup2(fileno(stream), STDERR_FILENO) >= 0);
    metrics.skipped = 0;
    for (metrics.step = progress.first_step + 1; metrics.step <= last; metrics.step++) {
        hd_progress_step(&progress, &metrics);
    }
    hd_progress_end(&progress);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(stream);
    text[fread(text, 1, sizeof text - 1, stream)] = '\0';
    fclose(stream);
    return text;
}

static const char *progress_text(struct hd_progress progress)
{
    return progress_up_to(progress, progress.steps);
}

static unsigned count_of(const char *text, char wanted)
{
    unsigned count = 0;
    for (; *text != '\0'; text++) {
        count += *text == wanted;
    }
    return count;
}

/* A kernel that only lasts has no loss, and no number stands in for it (C31). */
static void metrics_without_loss(void)
{
    char line[HD_METRICS_LINE_BYTES];
    struct hd_metrics metrics = awkward;

    metrics.lacks_loss = 1;
    hd_metrics_line(&metrics, line);
    CU_ASSERT(strstr(line, "\"loss\": null, \"balance_loss\": null, \"z_loss\": null,") != NULL);
}

static void progress_in_a_pipe(void)
{
    const char *const text =
        progress_text((struct hd_progress){.steps = 25, .begin_ns = hd_now_ns()});

    CU_ASSERT(count_of(text, '\n') == 3 && count_of(text, '\r') == 0);
    CU_ASSERT(strncmp(text, "step 10/25  loss 0.3333  98.8k tokens/s  ", 40) == 0);
    CU_ASSERT(strstr(text, "\nstep 20/25  ") != NULL);
    CU_ASSERT(strstr(text, "\nstep 25/25  ") != NULL);
}

static void progress_on_a_terminal(void)
{
    const char *const text =
        progress_text((struct hd_progress){.steps = 25, .is_terminal = 1, .begin_ns = hd_now_ns()});

    CU_ASSERT(count_of(text, '\r') == 25 && count_of(text, '\n') == 1);
    CU_ASSERT(text[strlen(text) - 1] == '\n');
}

static void progress_quiet(void)
{
    CU_ASSERT_STRING_EQUAL(progress_text((struct hd_progress){.steps = 25, .is_quiet = 1}), "");
}

/* 10 of 30 steps took an hour by the clock: two more are left; steps of an earlier run count
   for nothing. */
static void progress_time_left(void)
{
    const uint64_t hour_ago = hd_now_ns() - 3600 * HD_S_NS;
    struct hd_progress progress = {.steps = 120, .first_step = 90, .begin_ns = hour_ago};
    const char *const text = progress_text(progress);

    CU_ASSERT(strstr(text, "step 100/120") != NULL);
    CU_ASSERT(strstr(text, "2:00:0") != NULL);
    CU_ASSERT(strstr(text, "step 120/120  loss 0.3333  98.8k tokens/s  0:00 left\n") != NULL);
}

static void progress_without_end(void)
{
    const uint64_t hour_ago = hd_now_ns() - 3600 * HD_S_NS;
    const char *const text =
        progress_up_to((struct hd_progress){.steps = UINT32_MAX, .begin_ns = hour_ago}, 10);

    CU_ASSERT(strstr(text, "step 10/4294967295") != NULL);
    CU_ASSERT(strstr(text, "0:00 left") == NULL && strstr(text, "decades left") != NULL);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"metrics read back to the same bits", metrics_read_back},
        {"what is not finite is null", metrics_not_finite},
        {"a kernel without a loss has none in the file", metrics_without_loss},
        {"in a pipe, a line every 10 steps and the last", progress_in_a_pipe},
        {"on a terminal, one line that is rewritten", progress_on_a_terminal},
        {"quiet is quiet", progress_quiet},
        {"the time left comes from this run's steps", progress_time_left},
        {"a time beyond all clocks is not 0:00", progress_without_end},
    };
    return hd_check_main("metrics", checks, HD_CHECK_COUNT(checks));
}
