/*
 * tests/test_soak.c - random runs under random faults, for as long as one likes.
 *
 *     test_soak [SECONDS [SEED [ROUND]]]        12 s of seed 1 by themselves
 *
 * A round is one run of the heddle binary: schedule, shape, transport and lane, slots and fault are
 * drawn from the seed and the round, so that both name it for ever; ROUND is where to begin.  After
 * each: the exit code that its fault must have, the culprit named, the same bits as one rank where
 * nothing was broken, and nothing left: no process, no file beside those of a run, no name in
 * /dev/shm, no segment, nothing in the directory for temporary files.
 */
#include "base/clock.h"
#include "support/check.h"
#include "support/command.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096, NUMBERS_BYTES = 2048, LIMIT_S = 60, MICROBATCH_MAX = 10 };

static uint64_t soak_seconds = 12, soak_seed = 1, soak_round;
static char tag[32]; /* stands in the command line of every process of ours */

/* What a round does, and what must come of it. */
enum fault { HARMLESS, CONTINUED, STRUCK, KILLED, STOPPED };

struct round {
    uint64_t number, random;
    enum fault fault;
    const char *strike; /* the hook's, of STRUCK */
    int code;
    uint32_t rank_count, microbatches;
    char words[WORDS_BYTES];
};

/* --- chance ---------------------------------------------------------------------------------- */

static uint64_t draw(struct round *round, uint64_t below)
{
    uint64_t word = round->random += 0x9e3779b97f4a7c15ull;

    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return (word ^ (word >> 31)) % below;
}

static void add(struct round *round, const char *words)
{
    const size_t used = strlen(round->words);
    snprintf(round->words + used, WORDS_BYTES - used, " %s", words);
}

static void add_number(struct round *round, const char *key, uint64_t value)
{
    char text[96];

    snprintf(text, sizeof text, "%s=%llu", key, (unsigned long long)value);
    add(round, text);
}

#define SMALL                                                                                \
    "run model.width=32 model.heads=2 model.layers=8 model.sequence=16 model.vocabulary=64 " \
    "model.expert_width=32 data.microbatch_size=2 train.warmup_steps=1 train.steps=3 "       \
    "kernels.name=reference output.checkpoint_every=never --overwrite --quiet debug.checksum=on"
#define ENDLESS                                                                       \
    "run kernels.name=synthetic cost.tick_us=200 train.steps=1000000 model.layers=8 " \
    "output.checkpoint_every=never --overwrite --quiet debug.checksum=on"

static void draw_plan(struct round *round)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "interleaved_lean",
                                            "1f1b_v"};
    char text[96];

    round->rank_count = (uint32_t)(2 + draw(round, 3));
    round->microbatches = (uint32_t)(round->rank_count + draw(round, 6));
    snprintf(text, sizeof text, "pipeline.schedule=%s", schedules[draw(round, 5)]);
    add(round, text);
    add_number(round, "pipeline.ranks", round->rank_count);
    add_number(round, "pipeline.microbatches", round->microbatches);
    add(round, draw(round, 2) ? "pipeline.overlap=on" : "pipeline.overlap=off");
    add(round, draw(round, 2) ? "debug.poison=on" : "debug.poison=off");
}

#define PUT_ON_TCP "transport.inner=ucx_put transport.ucx_put.tls=tcp,self"

static void draw_transport(struct round *round)
{
    static const char *const inner[] = {
        "transport.inner=shm",
        "transport.inner=ucx_tag",
        "transport.inner=ucx_tag transport.ucx_tag.tls=tcp,self",
        "transport.inner=ucx_put",
        PUT_ON_TCP,
        "transport.inner=ucx_tag transport.ucx_tag.rendezvous_bytes=0",
        PUT_ON_TCP " transport.ucx_put.rendezvous_bytes=0",
    };
    const int has_ucx = access(hd_check_plugin("heddle_transport_ucx_tag.so"), R_OK) == 0;

    add(round, "transport.name=hook_fault");
    add(round, inner[draw(round, HD_CHECK_COUNT(inner)) * (uint64_t)has_ucx]);
    add_number(round, "transport.hook_fault.seed", draw(round, 1000000));
}

/* Any of them, several at once, or none. */
static void draw_hindrance(struct round *round)
{
    if (draw(round, 2)) {
        add_number(round, "transport.hook_fault.delay_us", draw(round, 1500));
    }
    if (draw(round, 4) == 0) {
        add_number(round, "transport.hook_fault.bandwidth_mb", 5 + draw(round, 100));
    }
    if (draw(round, 2)) {
        add_number(round, "transport.hook_fault.busy_percent", draw(round, 90));
    }
    if (draw(round, 2)) {
        add_number(round, "transport.hook_fault.reorder_percent", draw(round, 60));
    }
}

static void draw_strike(struct round *round)
{
    static const struct {
        const char *strike;
        int code;
    } rows[] = {{"drop", 5},      {"duplicate", 1}, {"flip", 1},
                {"flip_seal", 1}, {"partial", 5},   {"kill_self", 5},
                {"kill_peer", 5}, {"stop_self", 5}, {"stop_peer", 5}};
    const uint64_t row = draw(round, HD_CHECK_COUNT(rows));
    char text[96];

    round->strike = rows[row].strike;
    round->code = rows[row].code;
    snprintf(text, sizeof text, "transport.hook_fault.fault=%s", round->strike);
    add(round, text);
    /* After the first step, which has a long deadline; the one after a duplicate must come, too. */
    add_number(round, "transport.hook_fault.sequence",
               round->microbatches + draw(round, round->microbatches * 2u - 1));
}

static void draw_round(struct round *round, uint64_t number)
{
    static const enum fault faults[] = {HARMLESS, HARMLESS, HARMLESS, CONTINUED, STRUCK,
                                        STRUCK,   STRUCK,   KILLED,   STOPPED};

    *round = (struct round){.number = number, .random = soak_seed * 1000003 + number};
    round->fault = faults[draw(round, HD_CHECK_COUNT(faults))];
    const int is_endless = round->fault == KILLED || round->fault == STOPPED;
    add(round, is_endless ? ENDLESS : SMALL);
    add(round, tag);
    draw_plan(round);
    draw_transport(round);
    draw_hindrance(round);
    if (round->fault == STRUCK) {
        draw_strike(round);
    } else if (is_endless) {
        round->code = 5;
    }
    add(round, round->code == 5 ? "transport.timeout_s=2 transport.first_step_timeout_s=15"
                                : "transport.timeout_s=40 transport.first_step_timeout_s=40");
}

/* --- bits ------------------------------------------------------------------------------------ */

static void read_numbers(char text[NUMBERS_BYTES])
{
    static const char *const keys[] = {"losses", "grad_norms", "parameters_hash"};
    char path[64];
    size_t used = 0;

    snprintf(path, sizeof path, "%s/run.json", strchr(tag, '=') + 1);
    cJSON *json = command_json(path);
    for (size_t i = 0; i < HD_CHECK_COUNT(keys) && used < NUMBERS_BYTES; i++) {
        char *part = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, keys[i]));
        used += (size_t)snprintf(text + used, NUMBERS_BYTES - used, "%s ", part ? part : "?");
        free(part);
    }
    cJSON_Delete(json);
}

/* Of one rank and so many microbatches; run once. */
static const char *base_of(uint32_t microbatches)
{
    static char bases[MICROBATCH_MAX][NUMBERS_BYTES];
    char words[WORDS_BYTES];
    struct command command = {0};

    CU_ASSERT_FATAL(microbatches < MICROBATCH_MAX);
    if (bases[microbatches][0] == '\0') {
        snprintf(words, sizeof words,
                 SMALL " %s pipeline.schedule=gpipe pipeline.ranks=1 pipeline.microbatches=%u", tag,
                 microbatches);
        CU_ASSERT_EQUAL_FATAL(command_run(&command, words), 0);
        read_numbers(bases[microbatches]);
        CU_ASSERT_PTR_NULL_FATAL(strchr(bases[microbatches], '?'));
    }
    return bases[microbatches];
}

/* --- what is left ---------------------------------------------------------------------------- */

/* Says what it found; how many. */
static unsigned complain_of_processes(void)
{
    unsigned found = 0;
    DIR *directory = opendir("/proc");

    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        char path[300], line[WORDS_BYTES] = "";
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *stream =
            entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (stream == NULL) {
            continue;
        }
        const size_t length = fread(line, 1, sizeof line - 1, stream);
        fclose(stream);
        if (length > 0 && memmem(line, length, tag, strlen(tag)) != NULL) {
            fprintf(stderr, "process %s is left\n", entry->d_name);
            found++;
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return found;
}

/* Entries of a directory that are not in `known`, or, where it is NULL, that hold `word`. */
static unsigned complain_of_files(const char *path, const char *known, const char *word)
{
    unsigned found = 0;
    DIR *directory = opendir(path);

    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        char name[300];
        snprintf(name, sizeof name, " %s ", entry->d_name);
        const int is_wrong =
            known != NULL ? strstr(known, name) == NULL : strstr(entry->d_name, word) != NULL;
        if (is_wrong) {
            fprintf(stderr, "%s/%s is left\n", path, entry->d_name);
            found++;
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return found;
}

/* System V segments that nobody has attached and whose maker is gone; UCX makes some. */
static unsigned count_segments(void)
{
    char *text = command_text("/proc/sysvipc/shm");
    unsigned count = 0;
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        int maker, attached;
        if (sscanf(line, "%*d %*d %*o %*u %d %*d %d", &maker, &attached) == 2 && attached == 0 &&
            kill(maker, 0) != 0) {
            count++;
        }
    }
    free(text);
    return count;
}

static unsigned complain_of_rest(unsigned segments_before)
{
    const char *own = strchr(tag, '=') + 1;
    unsigned found = complain_of_processes();

    found +=
        complain_of_files(own,
                          " . .. .lock config.ini run.json metrics.jsonl trace.json report.html "
                          "hang.json log ",
                          NULL);
    found += complain_of_files("temporary", " . .. ", NULL);
    found += complain_of_files("/dev/shm", NULL, "heddle");
    if (count_segments() > segments_before) {
        fprintf(stderr, "a shared segment is left\n");
        found++;
    }
    return found;
}

/* --- a round --------------------------------------------------------------------------------- */

static void wait_us(uint64_t duration_us)
{
    const struct timespec pause = {(time_t)(duration_us / 1000000),
                                   (long)(duration_us % 1000000) * 1000};
    nanosleep(&pause, NULL);
}

/* From outside, at any moment: while they open, in a step, between steps.  The rank, or UINT32_MAX
   where the run has ended by itself. */
static uint32_t strike_from_outside(struct round *round, const struct command *command)
{
    pid_t ranks[COMMAND_RANK_MAX];
    const uint32_t rank = (uint32_t)draw(round, round->rank_count);
    const uint64_t moment_us = draw(round, 400000);

    if (command_ranks(command->pid, round->rank_count, ranks) != round->rank_count) {
        return UINT32_MAX;
    }
    wait_us(moment_us);
    kill(ranks[rank], round->fault == KILLED ? SIGKILL : SIGSTOP);
    if (round->fault == CONTINUED &&
        command_await(command->pid, command->err, "was stopped by signal 19")) {
        kill(ranks[rank], SIGCONT);
    }
    return rank;
}

/* "rank 2 died at", "rank 1 has been stopped at": whatever rank, where the hook struck. */
static int names_culprit(const struct round *round, const struct command *command, uint32_t rank)
{
    const int dies = round->fault == KILLED ||
                     (round->fault == STRUCK && (strstr(round->strike, "kill") != NULL ||
                                                 strcmp(round->strike, "partial") == 0));
    const int stops = round->fault == STOPPED ||
                      (round->fault == STRUCK && strstr(round->strike, "stop") != NULL);
    char text[64];

    snprintf(text, sizeof text, dies ? " died at " : " has been stopped at ");
    if (round->fault == KILLED || round->fault == STOPPED) {
        snprintf(text, sizeof text, "rank %u %s at ", rank, dies ? "died" : "has been stopped");
    }
    return (!dies && !stops) || command_says(command->err, text);
}

static int run_exit(void)
{
    char path[64];

    snprintf(path, sizeof path, "%s/run.json", strchr(tag, '=') + 1);
    cJSON *json = command_json(path);
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(json, "exit");
    const int value = cJSON_IsNumber(code) ? code->valueint : -1;
    cJSON_Delete(json);
    return value;
}

/* 1, and said why, when something is not as it must be. */
static int is_wrong(const struct round *round, const struct command *command, int code,
                    uint32_t rank)
{
    char numbers[NUMBERS_BYTES] = "";

    if (code != round->code || run_exit() != code) {
        fprintf(stderr, "exit %d, in run.json %d; must be %d\n", code, run_exit(), round->code);
        return 1;
    }
    if (!names_culprit(round, command, rank)) {
        fprintf(stderr, "the culprit is not named\n");
        return 1;
    }
    if (code == 0) {
        read_numbers(numbers);
        if (strcmp(numbers, base_of(round->microbatches)) != 0) {
            fprintf(stderr, "other numbers than one rank's:\n%s\n", numbers);
            return 1;
        }
    }
    return 0;
}

static int perform(struct round *round)
{
    const unsigned segments_before = count_segments();
    struct command command = {0};
    uint32_t rank = UINT32_MAX;

    if (round->code == 0) {
        base_of(round->microbatches); /* or its run would lie over the one that is judged */
    }
    command_begin(&command, round->words + 1);
    if (round->fault != HARMLESS && round->fault != STRUCK) {
        rank = strike_from_outside(round, &command);
    }
    const int code = command_end(&command, LIMIT_S);
    int has_failed = is_wrong(round, &command, code, rank);
    has_failed |= complain_of_rest(segments_before) > 0;
    if (has_failed) {
        char *text = command_text(command.err);
        fprintf(stderr, "\nround %llu of seed %llu: heddle%s\nstderr:\n%s\n",
                (unsigned long long)round->number, (unsigned long long)soak_seed, round->words,
                text);
        free(text);
    }
    unlink(command.out);
    unlink(command.err);
    return has_failed;
}

static void test_soak(void)
{
    const uint64_t end_ns = hd_now_ns() + soak_seconds * HD_S_NS;
    static const char *const names[] = {"harmless", "continued", "struck", "killed", "stopped"};
    unsigned counts[HD_CHECK_COUNT(names)] = {0}, failed_count = 0;
    uint64_t number = soak_round;

    do {
        static struct round round;
        draw_round(&round, number++);
        counts[round.fault]++;
        failed_count += (unsigned)perform(&round);
    } while (hd_now_ns() < end_ns);
    printf("(%llu rounds:", (unsigned long long)(number - soak_round));
    for (unsigned i = 0; i < HD_CHECK_COUNT(names); i++) {
        printf(" %u %s", counts[i], names[i]);
    }
    printf("; %u failed) ", failed_count);
    CU_ASSERT_EQUAL(failed_count, 0);
}

static uint64_t number_of(const char *text)
{
    return strtoull(text, NULL, 10);
}

int main(int argument_count, char **arguments)
{
    static const struct hd_check checks[] = {
        {"random runs under random faults end as they must, and leave nothing", test_soak}};

    soak_seconds = argument_count > 1 ? number_of(arguments[1]) : soak_seconds;
    soak_seed = argument_count > 2 ? number_of(arguments[2]) : soak_seed;
    soak_round = argument_count > 3 ? number_of(arguments[3]) : soak_round;
    command_work("soak");
    snprintf(tag, sizeof tag, "output.directory=soak-%d", (int)getpid());
    mkdir("temporary", 0755);
    setenv("TMPDIR", "temporary", 1);
    return hd_check_main("soak", checks, HD_CHECK_COUNT(checks));
}
