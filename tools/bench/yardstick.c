/* bench/yardstick.c - programs that multiply and quantise, and calls that do nothing. */
#include "bench/yardstick.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/try.h"
#include "bench/bench.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BIG_SIZE = 1024, EXIT_UNSUPPORTED = 3, CALL_SAMPLES = 101, CALLS = 2000 };

/* --- programs -------------------------------------------------------------------------------- */

bool hd_bench_program_find(const char *name, char path[PATH_MAX])
{
    char exe[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (length <= 0) {
        return false;
    }
    exe[length] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    const int written = snprintf(path, PATH_MAX, "%s/../libexec/heddle/%s", exe, name);
    const bool is_found = written > 0 && written < PATH_MAX && access(path, X_OK) == 0;
    hd_log(HD_LOG_DEBUG, "bench: program %s %s", name, is_found ? path : "is missing");
    return is_found;
}

struct command {
    const char *path;
    char *const *words;
};

static void yardstick_become(void *context, void *answer)
{
    const struct command *const command = context;

    (void)answer;
    setenv("OMP_NUM_THREADS", "1", 1);
    execv(command->path, command->words);
    _exit(HD_BENCH_NOT_RUN);
}

hd_status hd_bench_program_start(struct hd_child *child, const char *path, char *const *words)
{
    struct command command = {path, words};

    return hd_child_start(child, &(struct hd_child_request){.work = yardstick_become,
                                                            .context = &command,
                                                            .has_output = true});
}

int hd_bench_program_read(struct hd_child *child, void (*take)(void *context, const char *line),
                          void *context)
{
    char line[HD_BENCH_LINE_BYTES];
    FILE *const stream = fdopen(dup(child->output), "r");

    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        take(context, line);
    }
    if (stream != NULL) {
        fclose(stream);
    }
    hd_child_wait(child, UINT64_MAX);
    const int state = hd_child_stop(child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : HD_BENCH_NOT_RUN;
}

/* --- rates ----------------------------------------------------------------------------------- */

static void yardstick_take_row(void *context, const char *line)
{
    struct hd_gemm_rate *rate = context;
    char type[8], layout[8];
    unsigned size = 0, samples = 0;
    double median = 0, best = 0;

    if (rate->row_count == HD_GEMM_ROWS_MAX ||
        sscanf(line, "%7s %7s %u %lf %lf %u", type, layout, &size, &median, &best, &samples) != 6) {
        return;
    }
    struct hd_gemm_row *row = &rate->rows[rate->row_count++];
    memcpy(row->type, type, sizeof type);
    memcpy(row->layout, layout, sizeof layout);
    row->size = size;
    row->sample_count = samples;
    row->gflops = median;
}

/* Adds the rates of copies that ran at once, product by product. */
static void yardstick_add(struct hd_gemm_rate *sum, const struct hd_gemm_rate *one)
{
    if (sum->row_count == 0 && sum->copies == 0) {
        *sum = *one;
        return;
    }
    sum->copies++;
    sum->row_count = one->row_count < sum->row_count ? one->row_count : sum->row_count;
    for (uint32_t i = 0; i < sum->row_count; i++) {
        struct hd_gemm_row *row = &sum->rows[i];
        row->gflops += one->rows[i].gflops;
        row->sample_count = one->rows[i].sample_count < row->sample_count
                                ? one->rows[i].sample_count
                                : row->sample_count;
    }
}

static void yardstick_choose(struct hd_gemm_rate *rate)
{
    bool has_big = false;

    rate->best = 0;
    rate->big = 0;
    for (uint32_t i = 0; i < rate->row_count; i++) {
        const double gflops = rate->rows[i].gflops;
        if (gflops > rate->rows[rate->best].gflops) {
            rate->best = i;
        }
        if (rate->rows[i].size >= BIG_SIZE && (!has_big || gflops > rate->rows[rate->big].gflops)) {
            rate->big = i;
            has_big = true;
        }
    }
}

/* A program that runs in some copies at once. */
struct round {
    const char *name, *type; /* type NULL: the program takes none */
    double seconds;
    uint32_t copies;
};

/* *exit_code: of the first copy that failed, or 0. */
static hd_status yardstick_run_round(const struct round *round, const char *path,
                                     struct hd_gemm_rate *rate, int *exit_code)
{
    struct hd_child rows[HD_GEMM_COPIES_MAX];
    struct hd_gemm_rate one;
    char seconds[32];
    char *words[] = {(char *)path, (char *)round->type, seconds, NULL};
    hd_status status = HD_OK;
    uint32_t started = 0;

    snprintf(seconds, sizeof seconds, "%.3f", round->seconds);
    if (round->type == NULL) {
        words[1] = seconds;
        words[2] = NULL;
    }
    *rate = (struct hd_gemm_rate){0};
    *exit_code = 0;
    while (status == HD_OK && started < round->copies) {
        status = hd_bench_program_start(&rows[started], path, words);
        started += status == HD_OK;
    }
    for (uint32_t i = 0; i < started; i++) {
        one = (struct hd_gemm_rate){.copies = 1};
        const int code = hd_bench_program_read(&rows[i], yardstick_take_row, &one);
        yardstick_add(rate, &one);
        *exit_code = *exit_code == 0 ? code : *exit_code;
    }
    return status;
}

/* If there is no rate, rate->missing has the reason. */
static hd_status yardstick_measure(struct round round, struct hd_gemm_rate *rate,
                                   struct hd_problem *problem)
{
    char path[PATH_MAX];
    int exit_code = 0;

    assert(round.copies > 0 && round.copies <= HD_GEMM_COPIES_MAX);
    *rate = (struct hd_gemm_rate){0};
    if (!hd_bench_program_find(round.name, path)) {
        snprintf(rate->missing, sizeof rate->missing,
                 "libexec/heddle/%s is missing; it is built if oneDNN is installed", round.name);
        return HD_OK;
    }
    hd_status status = yardstick_run_round(&round, path, rate, &exit_code);
    if (status == HD_OK && exit_code == EXIT_UNSUPPORTED && round.type != NULL &&
        strcmp(round.type, "bf16") == 0) {
        round.type = "f32";
        status = yardstick_run_round(&round, path, rate, &exit_code);
    }
    if (status != HD_OK) {
        return hd_problem_set(problem, status, HD_EXIT_FAILED, "cannot start %s: %s", path,
                              strerror(errno));
    }
    if (exit_code != 0) {
        rate->row_count = 0;
        snprintf(rate->missing, sizeof rate->missing, "%s ended with exit code %d", round.name,
                 exit_code);
    }
    return HD_OK;
}

hd_status hd_gemm_rate(const char *type, uint32_t copies, double seconds, struct hd_gemm_rate *rate,
                       struct hd_problem *problem)
{
    HD_TRY(yardstick_measure((struct round){"heddle-gemm-rate", type, seconds, copies}, rate,
                             problem));
    yardstick_choose(rate);
    return HD_OK;
}

void hd_gemm_rate_join(struct hd_gemm_rate *rate, const struct hd_gemm_rate *other)
{
    assert(rate->copies == other->copies);
    for (uint32_t i = 0; i < rate->row_count && i < other->row_count; i++) {
        if (other->rows[i].gflops > rate->rows[i].gflops) {
            rate->rows[i] = other->rows[i];
        }
    }
    yardstick_choose(rate);
}

/* Bytes read and written per element: BF16 on one side or both, one byte and a 32nd of a scale
   on the other. */
static double yardstick_bytes_of(const char *operation)
{
    return strcmp(operation, "copy") == 0 ? 4.0 : 3.0 + 1.0 / 32;
}

static void yardstick_fill_quantiser(const struct hd_gemm_rate *measured,
                                     struct hd_quantiser_rate *rate)
{
    double copy_gbytes = 0;

    for (uint32_t i = 0; i < measured->row_count; i++) {
        const struct hd_gemm_row *const from = &measured->rows[i];
        struct hd_quantiser_row *const row = &rate->rows[rate->row_count++];
        *row = (struct hd_quantiser_row){.source_kib = from->size,
                                         .sample_count = from->sample_count,
                                         .gelements = from->gflops,
                                         .gbytes = from->gflops * yardstick_bytes_of(from->type)};
        memcpy(row->operation, from->type, sizeof row->operation);
        memcpy(row->isa, from->layout, sizeof row->isa);
        if (strcmp(row->operation, "copy") == 0) {
            copy_gbytes = row->gbytes; /* the first row of every size */
        }
        row->ratio = hd_bench_ratio(row->gbytes, copy_gbytes);
    }
}

hd_status hd_quantiser_rate(double seconds, struct hd_quantiser_rate *rate,
                            struct hd_problem *problem)
{
    struct hd_gemm_rate measured;

    *rate = (struct hd_quantiser_rate){0};
    HD_TRY(yardstick_measure((struct round){"heddle-quantiser-rate", NULL, seconds, 1}, &measured,
                             problem));
    memcpy(rate->missing, measured.missing, sizeof rate->missing);
    yardstick_fill_quantiser(&measured, rate);
    return HD_OK;
}

/* A function that does nothing, called like one of a plugin. */
struct empty_ops {
    hd_status (*nothing)(void *context);
};

static hd_status yardstick_nothing(void *context)
{
    (void)context;
    return HD_OK;
}

static double yardstick_time_calls(const struct empty_ops *volatile const *table)
{
    uint32_t failed = 0;
    const uint64_t begin_ns = hd_now_ns();

    for (uint32_t i = 0; i < CALLS; i++) {
        failed += (*table)->nothing(NULL) != HD_OK;
    }
    assert(failed == 0);
    return (double)(hd_now_ns() - begin_ns) / CALLS;
}

static double yardstick_time_clock(void)
{
    volatile uint64_t kept = 0;
    const uint64_t begin_ns = hd_now_ns();

    for (uint32_t i = 0; i < CALLS; i++) {
        const uint64_t one_ns = hd_now_ns();
        kept = hd_now_ns() - one_ns;
    }
    (void)kept;
    return (double)(hd_now_ns() - begin_ns) / CALLS;
}

void hd_call_cost(struct hd_call_cost *cost)
{
    static const struct empty_ops ops = {yardstick_nothing};
    const struct empty_ops *volatile table = &ops;
    double calls[CALL_SAMPLES], clocks[CALL_SAMPLES];
    struct hd_bench_spread spread;

    for (uint32_t i = 0; i < CALL_SAMPLES; i++) {
        calls[i] = yardstick_time_calls(&table);
        clocks[i] = yardstick_time_clock();
    }
    hd_bench_spread(calls, CALL_SAMPLES, &spread);
    cost->call_ns = spread.median;
    hd_bench_spread(clocks, CALL_SAMPLES, &spread);
    cost->clock_pair_ns = spread.median;
}
