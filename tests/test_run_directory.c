/*
 * tests/test_run_directory.c - what a run leaves when the disk is full or another run is there, and
 * that its summary lists what is there.
 */
#include "support/check.h"
#include "support/command.h"

#include "train/checkpoint.h"
#include "output/rundir_create.h"
#include "train/rundir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL                                                                            \
    "kernels.precision=f32 model.layers=8 model.width=32 model.heads=2 model.experts=4 " \
    "model.expert_width=32 model.sequence=16 model.vocabulary=64 train.warmup_steps=2 "  \
    "output.trace=off --quiet "
#define SHAPE "pipeline.ranks=2 pipeline.microbatches=4 data.microbatch_size=2 "

/* The last line of the summary, "see RUN: a, b/": every name is there, and what is there is
   named. */
static int names_what_is_there(const struct command *command, const char *run)
{
    static const char *const files[] = {"report.html", "run.json",   "metrics.jsonl", "trace.json",
                                        "hang.json",   "config.ini", "checkpoint/",   "log/"};
    char *const text = command_text(command->out);
    char begin[64], path[128];
    int same;

    snprintf(begin, sizeof begin, "see %s: ", run);
    const char *const line = strstr(text, begin);
    same = line != NULL;
    for (unsigned i = 0; same && i < HD_CHECK_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", run, files[i]);
        same = (strstr(line, files[i]) != NULL) == (access(path, F_OK) == 0);
    }
    if (!same) {
        fprintf(stderr, "\n%s: %s\n", run, text);
    }
    free(text);
    return same;
}

/* Before any checkpoint: a half-written one gives its space back, and run.json says the end. */
static void check_full_at_once(void)
{
    struct command command = {.file_max_bytes = 100000};

    CU_ASSERT_EQUAL(
        command_run(&command, "run " MODEL SHAPE "train.steps=3 output.directory=early"), 7);
    CU_ASSERT(command_says("early/run.json", "\"exit\": 7"));
    CU_ASSERT(access("early/checkpoint.tmp", F_OK) != 0);
    CU_ASSERT(names_what_is_there(&command, "early"));
    CU_ASSERT(access("early/checkpoint", F_OK) != 0);
    command.file_max_bytes = 0;
    CU_ASSERT_EQUAL(command_run(&command, "run " MODEL SHAPE "train.steps=1 output.directory=late"),
                    0);
    CU_ASSERT(names_what_is_there(&command, "late"));
    CU_ASSERT(command_says(command.out, "1 step, "));
    CU_ASSERT(command_says(command.out, "checkpoint/"));
}

/* Which of several files could not be written is said in full. */
static void check_put_path(void)
{
    struct hd_problem problem = {0};
    char line[8192];
    const int descriptor = open("late/config.ini", O_RDONLY);

    CU_ASSERT_FATAL(descriptor >= 0);
    CU_ASSERT(hd_checkpoint_put(descriptor, "x", 1, 0, &problem) < 0);
    close(descriptor);
    hd_problem_line(&problem, line, sizeof line);
    CU_ASSERT(line[0] == '/' &&
              strstr(line, "/late/config.ini: output.checkpoint_every: ") != NULL);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_OUTPUT);
}

/* Another process that holds the directory; ends with the test, or when told. */
static pid_t hold(const char *run, int *told)
{
    int pipes[2];
    char letter = 0;

    CU_ASSERT_FATAL(pipe(pipes) == 0);
    const pid_t holder = fork();
    CU_ASSERT_FATAL(holder >= 0);
    if (holder == 0) {
        struct hd_rundir rundir;
        struct hd_problem problem = {0};
        const hd_status status = hd_rundir_create(&rundir, run, "demo", HD_RUNDIR_RESUME, &problem);
        if (status == HD_OK && write(pipes[1], "!", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    close(pipes[1]);
    CU_ASSERT_EQUAL(read(pipes[0], &letter, 1), 1);
    *told = pipes[0];
    return holder;
}

/* A run that lives: another one neither goes on there nor mends its checkpoint. */
static void check_held(void)
{
    struct command command = {0};
    int told = -1, state;
    const pid_t holder = hold("late", &told);

    CU_ASSERT_EQUAL(command_run(&command, "run --resume late --quiet train.steps=6"), 2);
    CU_ASSERT(command_says(command.err, "output.directory: another run uses it"));
    CU_ASSERT_FATAL(rename("late/checkpoint", "late/checkpoint.old") == 0);
    CU_ASSERT_EQUAL(command_run(&command, "run --resume late --quiet train.steps=6"), 2);
    CU_ASSERT_FATAL(rename("late/checkpoint.old", "late/checkpoint") == 0);
    kill(holder, SIGKILL);
    CU_ASSERT_EQUAL(waitpid(holder, &state, 0), holder);
    close(told);
}

/* Corpus, plugin and schedule by relative paths: config.ini has absolute ones. */
static void check_resume_from_elsewhere(void)
{
    static const char words[] =
        "run " MODEL SHAPE "train.steps=2 output.directory=portable "
        "data.corpus=text.txt model.vocabulary=256 "
        "pipeline.schedule=sched.CSV kernels.name=plugins/heddle_kernel_reference.so";
    struct command command = {0};
    char plugin[4096];
    FILE *const text = fopen("text.txt", "w");

    for (int i = 0; i < 4000; i++) {
        putc('a' + i % 26, text);
    }
    fclose(text);
    snprintf(plugin, sizeof plugin, "%s/heddle_kernel_reference.so", getenv("HD_PLUGIN_DIR"));
    mkdir("plugins", 0777);
    CU_ASSERT_EQUAL(symlink(plugin, "plugins/heddle_kernel_reference.so"), 0);
    CU_ASSERT_EQUAL(command_run(&command, "plan " SHAPE "--quiet --csv sched.CSV"), 0);
    CU_ASSERT_EQUAL(command_run(&command, words), 0);
    mkdir("elsewhere", 0777);
    CU_ASSERT_EQUAL_FATAL(chdir("elsewhere"), 0);
    CU_ASSERT_EQUAL(command_run(&command, "run --resume ../portable --quiet train.steps=4"), 0);
    CU_ASSERT_EQUAL_FATAL(chdir(".."), 0);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"a full disk before any checkpoint: nothing half, and the summary lists what is there",
         check_full_at_once},
        {"the file that could not be written is named in full", check_put_path},
        {"a run that lives is left alone", check_held},
        {"--resume from another directory finds corpus, plugin and schedule",
         check_resume_from_elsewhere},
    };

    command_work("run_directory");
    return hd_check_main("run directory", checks, HD_CHECK_COUNT(checks));
}
