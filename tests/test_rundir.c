/* The run directory: made, refused, emptied, and whole whatever the disk does. */
#include "support/check.h"

#include "output/rundir_create.h"
#include "train/rundir.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_BYTES = 65536 };

static char directory[] = "/tmp/heddle-rundir-XXXXXX"; /* and the working directory of all tests */

static int exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

static void put(const char *path, const char *text)
{
    FILE *const file = fopen(path, "w");
    CU_ASSERT_FATAL(file != NULL);
    fputs(text, file);
    CU_ASSERT_FATAL(fclose(file) == 0);
}

/* The whole file as text; static storage, one at a time. */
static const char *get(const char *path)
{
    static char text[TEXT_BYTES];
    FILE *const file = fopen(path, "r");
    CU_ASSERT_FATAL(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static const char *latest_of(const char *path)
{
    static char target[4096];
    const ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    return target;
}

static struct hd_rundir create_sound(const char *path, uint32_t overwrite)
{
    struct hd_rundir rundir;
    struct hd_problem problem = {0};

    CU_ASSERT_FATAL(hd_rundir_create(&rundir, path, "demo", overwrite, &problem) == HD_OK);
    CU_ASSERT(rundir.metrics == -1 && problem.exit_code == 0);
    return rundir;
}

static void check_problem(const struct hd_problem *problem, int32_t exit_code, const char *part)
{
    char line[8192];

    hd_problem_line(problem, line, sizeof line);
    CU_ASSERT(problem->exit_code == exit_code);
    CU_ASSERT(problem->place[0] != '\0' && problem->remedy[0] != '\0');
    if (strstr(line, part) == NULL) {
        printf("\n    got: %s\n    not: %s\n", line, part);
    }
    CU_ASSERT(strstr(line, part) != NULL);
}

/* --- making ----------------------------------------------------------------------------------- */

/* Runs of one second: NAME-YYYYMMDD-HHMMSS, then -2, -3; latest is the newest. */
static void dated_names(void)
{
    uint32_t is_third = 0, is_second = 0;

    for (unsigned i = 0; i < 100 && !is_third; i++) {
        const struct hd_rundir run = create_sound(i % 2 == 0 ? "" : NULL, 0);
        unsigned day, time_of_day;
        char tail[16] = "";
        const int read = sscanf(run.path, "runs/demo-%8u-%6u%15s", &day, &time_of_day, tail);
        CU_ASSERT_FATAL(read >= 2 && day > 20000101 && time_of_day < 240000);
        CU_ASSERT(strlen(run.path) == strlen("runs/demo-20260101-000000") + strlen(tail));
        CU_ASSERT_STRING_EQUAL(latest_of("runs/latest"), run.path + strlen("runs/"));
        is_second |= strcmp(tail, "-2") == 0;
        is_third |= strcmp(tail, "-3") == 0;
    }
    CU_ASSERT(is_second && is_third);
    CU_ASSERT(exists("runs/latest/log"));
}

static void named(void)
{
    static const struct {
        const char *name, *given, *path, *latest, *target;
    } rows[] = {
        {"parents are made", "a/b/c", "a/b/c", "a/b/latest", "c"},
        {"slashes at the end are cut", "a/b/d//", "a/b/d", "a/b/latest", "d"},
        {"without a parent", "alone", "alone", "latest", "alone"},
        {"an empty directory that is there", "a/b/c", "a/b/c", "a/b/latest", "c"},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_rundir rundir = create_sound(rows[i].given, 0);
        char log[4200];
        CU_ASSERT_STRING_EQUAL(rundir.path, rows[i].path);
        snprintf(log, sizeof log, "%s/log", rundir.path);
        CU_ASSERT(exists(log));
        CU_ASSERT_STRING_EQUAL(latest_of(rows[i].latest), rows[i].target);
    }
}

static void absolute(void)
{
    char path[4200], latest[4200];

    snprintf(path, sizeof path, "%s/abs/run", directory);
    snprintf(latest, sizeof latest, "%s/abs/latest", directory);
    create_sound(path, 0);
    CU_ASSERT_STRING_EQUAL(latest_of(latest), "run");
}

/* Somebody's own directory `latest` stays, and the run goes on; a run may be called latest. */
static void latest_is_taken(void)
{
    CU_ASSERT_FATAL(mkdir("taken", 0777) == 0 && mkdir("taken/latest", 0777) == 0);
    put("taken/latest/notes", "mine");
    create_sound("taken/run", 0);
    CU_ASSERT_STRING_EQUAL(get("taken/latest/notes"), "mine");
    CU_ASSERT_FATAL(mkdir("written", 0777) == 0);
    put("written/latest", "mine"); /* somebody's own file */
    create_sound("written/run", 0);
    CU_ASSERT_STRING_EQUAL(get("written/latest"), "mine");
    create_sound("other/latest", 0);
    CU_ASSERT(exists("other/latest/log"));
    CU_ASSERT_STRING_EQUAL(latest_of("other/latest"), "");
}

static void a_run_is_refused(void)
{
    struct hd_rundir rundir = create_sound("full", 0);
    struct hd_problem problem = {0};

    CU_ASSERT(hd_rundir_write(&rundir, "run.json", "{}", 2, &problem) == HD_OK);
    CU_ASSERT(hd_rundir_create(&rundir, "full/", "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_USAGE, "full: output.directory: already holds a run");
    CU_ASSERT(strstr(problem.remedy, "--overwrite") != NULL);
    CU_ASSERT_STRING_EQUAL(get("full/run.json"), "{}");
}

static void overwrite_removes_a_run(void)
{
    static const char *const ours[] = {"config.ini",
                                       "run.json",
                                       "metrics.jsonl",
                                       "trace.json",
                                       "report.html",
                                       "hang.json",
                                       "run.json.tmp",
                                       "trace.json.tmp",
                                       "log/rank-0000.log",
                                       "log/rank-0012.log",
                                       "checkpoint/model.safetensors",
                                       "checkpoint/optimizer.safetensors",
                                       "checkpoint/state.json"};
    static const char *const theirs[] = {
        "notes.txt",          "run.json.bak",    "log/rank-x.log",   "log/rank-.log",
        "log/rank-0001.log2", "checkpoint/mine", "log/my-rank-1.log"};
    char path[4200];

    create_sound("again", 0);
    CU_ASSERT_FATAL(mkdir("again/checkpoint", 0777) == 0);
    for (unsigned i = 0; i < HD_CHECK_COUNT(ours); i++) {
        snprintf(path, sizeof path, "again/%s", ours[i]);
        put(path, "old");
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(theirs); i++) {
        snprintf(path, sizeof path, "again/%s", theirs[i]);
        put(path, "mine");
    }
    create_sound("again", 1);
    for (unsigned i = 0; i < HD_CHECK_COUNT(ours); i++) {
        snprintf(path, sizeof path, "again/%s", ours[i]);
        CU_ASSERT(!exists(path));
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(theirs); i++) {
        snprintf(path, sizeof path, "again/%s", theirs[i]);
        CU_ASSERT_STRING_EQUAL(get(path), "mine");
    }
}

static void overwrite_without_a_run(void)
{
    CU_ASSERT_FATAL(mkdir("norun", 0777) == 0);
    put("norun/config.ini", "mine");
    create_sound("norun", 1);
    CU_ASSERT_STRING_EQUAL(get("norun/config.ini"), "mine");
}

/* A link is removed, what it points to is not. */
static void overwrite_follows_no_link(void)
{
    put("precious", "mine");
    create_sound("linked", 0);
    CU_ASSERT_FATAL(symlink("../precious", "linked/run.json") == 0);
    create_sound("linked", 1);
    CU_ASSERT(!exists("linked/run.json"));
    CU_ASSERT_STRING_EQUAL(get("precious"), "mine");
}

static void cannot_be_made(void)
{
    struct hd_rundir rundir;
    struct hd_problem problem = {0};

    put("file", "a file");
    CU_ASSERT(hd_rundir_create(&rundir, "file/run", "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "cannot be made: Not a directory");
    problem = (struct hd_problem){0};
    CU_ASSERT(hd_rundir_create(&rundir, "file", "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "file: output.directory: cannot be made");
    problem = (struct hd_problem){0};
    CU_ASSERT(hd_rundir_create(&rundir, "/proc/heddle", "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "/proc/heddle: output.directory: cannot be made");

    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    problem = (struct hd_problem){0};
    CU_ASSERT(hd_rundir_create(&rundir, longest, "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_USAGE, "4096 bytes");
    longest[4090] = '\0';
    problem = (struct hd_problem){0};
    CU_ASSERT(hd_rundir_create(&rundir, longest, "demo", 0, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "File name too long");
}

/* --- one run at a time ------------------------------------------------------------------------ */

/* A process that holds the directory, and a child of it that outlives it. */
static void hold(int told, int rank_ends)
{
    struct hd_rundir rundir;
    struct hd_problem problem = {0};
    char letter;

    if (hd_rundir_create(&rundir, "busy", "demo", HD_RUNDIR_NEW, &problem) == HD_OK &&
        hd_rundir_write(&rundir, "run.json", "{}", 2, &problem) == HD_OK && fork() == 0) {
        const ssize_t count = write(told, "!", 1) + read(rank_ends, &letter, 1);
        _exit(count != 1);
    }
    pause();
    _exit(1);
}

static void one_run_at_a_time(void)
{
    static const uint32_t modes[] = {HD_RUNDIR_OVERWRITE, HD_RUNDIR_NEW, HD_RUNDIR_RESUME};
    struct hd_rundir rundir;
    int told[2], ends[2], state = 0;
    char letter = 0;

    CU_ASSERT_FATAL(pipe(told) == 0 && pipe(ends) == 0);
    const pid_t holder = fork();
    CU_ASSERT_FATAL(holder >= 0);
    if (holder == 0) {
        close(ends[1]);
        hold(told[1], ends[0]);
    }
    close(told[1]);
    CU_ASSERT_FATAL(read(told[0], &letter, 1) == 1);
    CU_ASSERT(hd_rundir_is_busy("busy") && !hd_rundir_is_busy("full"));
    for (unsigned i = 0; i < HD_CHECK_COUNT(modes); i++) {
        struct hd_problem problem = {0};
        CU_ASSERT(hd_rundir_create(&rundir, "busy", "demo", modes[i], &problem) < 0);
        check_problem(&problem, HD_EXIT_USAGE, "busy: output.directory: another run uses it");
        CU_ASSERT_STRING_EQUAL(get("busy/run.json"), "{}");
    }
    kill(holder, SIGKILL);
    CU_ASSERT(waitpid(holder, &state, 0) == holder && WIFSIGNALED(state));
    CU_ASSERT(!hd_rundir_is_busy("busy"));
    rundir = create_sound("busy", HD_RUNDIR_OVERWRITE); /* its child still lives */
    CU_ASSERT(!exists("busy/run.json") && read(told[0], &letter, 0) == 0);
    hd_rundir_close(&rundir);
    close(ends[1]); /* ends it */
    CU_ASSERT(read(told[0], &letter, 1) == 0);
    close(told[0]);
    close(ends[0]);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void written_whole(void)
{
    struct hd_rundir rundir = create_sound("write", 0);
    struct hd_problem problem = {0};
    FILE *stream = NULL;

    CU_ASSERT(hd_rundir_write(&rundir, "run.json", "first", 5, &problem) == HD_OK);
    CU_ASSERT(hd_rundir_open(&rundir, "run.json", &stream, &problem) == HD_OK);
    fputs("second", stream);
    CU_ASSERT_STRING_EQUAL(get("write/run.json"), "first"); /* until the last byte is there */
    CU_ASSERT(hd_rundir_commit(&rundir, "run.json", stream, &problem) == HD_OK);
    CU_ASSERT_STRING_EQUAL(get("write/run.json"), "second");
    CU_ASSERT(!exists("write/run.json.tmp"));
}

static void directory_is_gone(void)
{
    struct hd_rundir rundir = create_sound("gone", 0);
    struct hd_problem problem = {0};
    const struct hd_metrics metrics = {.step = 1};

    CU_ASSERT_FATAL(unlink("gone/.lock") == 0 && rmdir("gone/log") == 0 && rmdir("gone") == 0);
    CU_ASSERT(hd_rundir_write(&rundir, "run.json", "{}", 2, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "cannot be made: No such file");
    problem = (struct hd_problem){0};
    CU_ASSERT(hd_rundir_metrics(&rundir, &metrics, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "cannot be opened: No such file");
}

/* A device that is always full stands in for the file beside. */
static void disk_is_full(void)
{
    struct hd_rundir rundir = create_sound("device", 0);
    struct hd_problem problem = {0};
    static char long_text[3 * BUFSIZ];
    FILE *stream = NULL;

    memset(long_text, 'x', sizeof long_text);
    CU_ASSERT(hd_rundir_write(&rundir, "run.json", "first", 5, &problem) == HD_OK);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_FATAL(symlink("/dev/full", "device/run.json.tmp") == 0);
        CU_ASSERT(hd_rundir_write(&rundir, "run.json", long_text, i == 0 ? 5 : sizeof long_text,
                                  &problem) < 0);
        check_problem(&problem, HD_EXIT_OUTPUT, "No space left on device");
        CU_ASSERT_STRING_EQUAL(get("device/run.json"), "first");
        CU_ASSERT(!exists("device/run.json.tmp"));
        problem = (struct hd_problem){0};
    }
    CU_ASSERT_FATAL(symlink("/dev/full", "device/trace.json.tmp") == 0);
    CU_ASSERT(hd_rundir_open(&rundir, "trace.json", &stream, &problem) == HD_OK);
    fwrite(long_text, 1, sizeof long_text, stream);
    CU_ASSERT(hd_rundir_commit(&rundir, "trace.json", stream, &problem) < 0);
    check_problem(&problem, HD_EXIT_OUTPUT, "a write to it has failed");
    CU_ASSERT(!exists("device/trace.json"));
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    CU_ASSERT_FATAL(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
    CU_ASSERT_FATAL(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* The last line that fits stays; half of the next one is taken back. */
static void metrics_on_a_full_disk(void)
{
    struct hd_rundir rundir = create_sound("limit", 0);
    struct hd_problem problem = {0};
    const struct hd_metrics metrics = {.step = 1, .tokens = 4096};
    char line[HD_METRICS_LINE_BYTES];
    const uint32_t length = hd_metrics_line(&metrics, line);

    signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT(hd_rundir_metrics(&rundir, &metrics, &problem) == HD_OK);
    limit_files(length + length / 2);
    CU_ASSERT(hd_rundir_metrics(&rundir, &metrics, &problem) < 0);
    limit_files(RLIM_INFINITY);
    signal(SIGXFSZ, SIG_DFL);
    check_problem(&problem, HD_EXIT_OUTPUT, "limit/metrics.jsonl");
    CU_ASSERT_STRING_EQUAL(get("limit/metrics.jsonl"), line);
    hd_rundir_close(&rundir);
    CU_ASSERT(rundir.metrics == -1);
}

/* Each line is there when the call returns; a second run in the directory appends (resume). */
static void metrics_are_appended(void)
{
    char expected[4 * HD_METRICS_LINE_BYTES] = "", line[HD_METRICS_LINE_BYTES];
    struct hd_metrics metrics = {.tokens = 4096, .result = {.loss = 1.0 / 3.0}};
    struct hd_rundir rundir = create_sound("metrics", 0);
    struct hd_problem problem = {0};

    for (metrics.step = 1; metrics.step <= 4; metrics.step++) {
        CU_ASSERT(hd_rundir_metrics(&rundir, &metrics, &problem) == HD_OK);
        hd_metrics_line(&metrics, line);
        strcat(expected, line);
        CU_ASSERT_STRING_EQUAL(get("metrics/metrics.jsonl"), expected);
        if (metrics.step == 2) {
            hd_rundir_close(&rundir);
        }
    }
    hd_rundir_close(&rundir);
    hd_rundir_close(&rundir);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"a directory has a name, a date and a number if taken", dated_names},
        {"a named directory is made with its parents", named},
        {"an absolute directory has its latest beside it", absolute},
        {"somebody's own latest stays", latest_is_taken},
        {"a directory with a run is refused", a_run_is_refused},
        {"--overwrite removes what a run leaves and nothing else", overwrite_removes_a_run},
        {"--overwrite removes nothing where no run is", overwrite_without_a_run},
        {"--overwrite follows no link", overwrite_follows_no_link},
        {"what cannot be made is exit 7 with the path", cannot_be_made},
        {"a second run in a live run's directory is refused in every mode", one_run_at_a_time},
        {"a file is what it was until it is whole", written_whole},
        {"a directory that is gone is exit 7", directory_is_gone},
        {"a full disk is exit 7 and leaves the last file", disk_is_full},
        {"a full disk leaves whole metrics", metrics_on_a_full_disk},
        {"metrics are appended and there at once", metrics_are_appended},
    };
    if (mkdtemp(directory) == NULL || chdir(directory) != 0) {
        return 1;
    }
    const int failed = hd_check_main("rundir", checks, HD_CHECK_COUNT(checks));
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command) != 0 || failed;
}
