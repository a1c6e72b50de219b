#include "train/rundir.h"
#include "base/log.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = sizeof((struct hd_rundir *)0)->path, TAKEN_MAX = 10000 };

const char *hd_output_remedy(int error)
{
    return error == EFBIG ? "raise the limit on the size of a file (ulimit -f)"
                          : "free space there";
}

static hd_status rundir_fail(struct hd_problem *problem, const char *path, const char *verb,
                             int error)
{
    hd_problem_place(problem, "%s", path);
    hd_problem_key(problem, "output.directory");
    hd_problem_remedy(problem,
                      "%s, or set output.directory to where this user may "
                      "write",
                      hd_output_remedy(error));
    return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot be %s: %s", verb,
                          error != 0 ? strerror(error) : "a write to it has failed");
}

static hd_status rundir_refuse(struct hd_problem *problem, const char *path, const char *reason,
                               const char *remedy)
{
    hd_problem_place(problem, "%s", path);
    hd_problem_key(problem, "output.directory");
    hd_problem_remedy(problem, "%s", remedy);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* Writes PATH/NAME followed by `end`.  0, or ENAMETOOLONG. */
static int rundir_join(char out[PATH_BYTES], const char *path, const char *name, const char *end)
{
    const int length = snprintf(out, PATH_BYTES, "%s/%s%s", path, name, end);
    return length > 0 && length < PATH_BYTES ? 0 : ENAMETOOLONG;
}

/* --- one run at a time ------------------------------------------------------------------------ */

/* Names the process that holds the lock, if the kernel knows it. */
static hd_status rundir_refuse_second(int descriptor, const struct hd_rundir *rundir,
                                      struct hd_problem *problem)
{
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char reason[128];

    snprintf(reason, sizeof reason, "another run uses it");
    if (fcntl(descriptor, F_GETLK, &other) == 0 && other.l_type != F_UNLCK && other.l_pid > 0) {
        snprintf(reason, sizeof reason, "another run uses it (pid %ld)", (long)other.l_pid);
    }
    return rundir_refuse(problem, rundir->path, reason,
                         "wait until that run ends, or set another output.directory");
}

static hd_status rundir_lock(struct hd_rundir *rundir, struct hd_problem *problem)
{
    const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[PATH_BYTES];

    if (rundir_join(path, rundir->path, ".lock", "") != 0) {
        return rundir_fail(problem, rundir->path, "made", ENAMETOOLONG);
    }
    const int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return rundir_fail(problem, path, "made", errno);
    }
    if (fcntl(descriptor, F_SETLK, &whole) == 0) {
        rundir->lock = descriptor;
        rundir->is_locked = true;
        return HD_OK;
    }
    const int error = errno;
    const hd_status status = error == EACCES || error == EAGAIN
                                 ? rundir_refuse_second(descriptor, rundir, problem)
                                 : HD_OK;
    close(descriptor);
    if (status == HD_OK) {
        hd_log(HD_LOG_WARN,
               "cannot lock %s: %s: a second run in this directory would not be refused", path,
               strerror(error));
    }
    return status;
}

bool hd_rundir_is_busy(const char *path)
{
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char file[PATH_BYTES];
    const int descriptor =
        rundir_join(file, path, ".lock", "") == 0 ? open(file, O_RDONLY | O_CLOEXEC) : -1;

    if (descriptor < 0) {
        return false;
    }
    const bool is_busy = fcntl(descriptor, F_GETLK, &other) == 0 && other.l_type != F_UNLCK;
    close(descriptor);
    return is_busy;
}

static void rundir_unlock(struct hd_rundir *rundir)
{
    if (rundir->is_locked) {
        close(rundir->lock);
        rundir->is_locked = false;
    }
}

/* --- making it -------------------------------------------------------------------------------- */

static int rundir_make_directory(const char *path)
{
    struct stat status;

    if (mkdir(path, 0777) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        return errno;
    }
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
}

/* Makes all directories above `path`.  0, or errno. */
static int rundir_make_parents(const char *path)
{
    char part[PATH_BYTES];

    for (const char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        const int error = rundir_make_directory(part);
        if (error != 0) {
            return error;
        }
    }
    return 0;
}

/* Makes runs/NAME-YYYYMMDD-HHMMSS, or the first of -2, -3 .. that does not exist. */
static hd_status rundir_make_dated(struct hd_rundir *rundir, const char *name,
                                   struct hd_problem *problem)
{
    const time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    char stem[512];

    assert(name != NULL && strchr(name, '/') == NULL && strlen(name) < 256);
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    snprintf(stem, sizeof stem, "runs/%s-%s", name, stamp);
    snprintf(rundir->path, sizeof rundir->path, "%s", stem);
    int error = rundir_make_directory("runs");
    if (error != 0) {
        return rundir_fail(problem, "runs", "made", error);
    }
    for (uint32_t i = 2; mkdir(rundir->path, 0777) != 0; i++) {
        error = errno;
        if (error != EEXIST || i > TAKEN_MAX) {
            return rundir_fail(problem, rundir->path, "made", error);
        }
        snprintf(rundir->path, sizeof rundir->path, "%s-%u", stem, i);
    }
    return rundir_lock(rundir, problem);
}

/* --- what --overwrite removes ----------------------------------------------------------------- */

static int rundir_remove_file(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
}

/* A directory that still holds other files stays. */
static int rundir_remove_directory(const char *path)
{
    return rmdir(path) == 0 || errno == ENOENT || errno == ENOTDIR || errno == ENOTEMPTY ||
                   errno == EEXIST
               ? 0
               : errno;
}

/* rank-NNNN.log, any number of digits. */
static bool rundir_is_log(const char *name)
{
    static const char head[] = "rank-";
    const size_t head_length = sizeof head - 1;

    if (strncmp(name, head, head_length) != 0) {
        return false;
    }
    const size_t digits = strspn(name + head_length, "0123456789");
    return digits > 0 && strcmp(name + head_length + digits, ".log") == 0;
}

static int rundir_remove_logs(const char *path)
{
    DIR *const directory = opendir(path);
    int error = 0;

    if (directory == NULL) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL && error == 0;
         entry = readdir(directory)) {
        if (rundir_is_log(entry->d_name) && unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
            error = errno;
        }
    }
    closedir(directory);
    return error != 0 ? error : rundir_remove_directory(path);
}

/* Removes the checkpoint, and what a kill left of another one, with their directories. */
static int rundir_remove_checkpoints(const char *path)
{
    static const char *const directories[] = {"checkpoint.tmp", "checkpoint.old", "checkpoint"};
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    char directory[PATH_BYTES], part[PATH_BYTES];
    int error = 0;

    for (unsigned i = 0; error == 0 && i < sizeof directories / sizeof directories[0]; i++) {
        error = rundir_join(directory, path, directories[i], "");
        for (unsigned j = 0; error == 0 && j < sizeof files / sizeof files[0]; j++) {
            error = rundir_join(part, directory, files[j], "");
            error = error == 0 ? rundir_remove_file(part) : error;
        }
        error = error == 0 ? rundir_remove_directory(directory) : error;
    }
    return error;
}

static int rundir_remove_left(const char *path)
{
    /* run.json is the last: until then the directory still counts as a run. */
    static const char *const files[] = {"config.ini",  "metrics.jsonl", "trace.json",
                                        "report.html", "hang.json",     "run.json"};
    char part[PATH_BYTES];
    int error = rundir_join(part, path, "log", "");
    error = error == 0 ? rundir_remove_logs(part) : error;
    error = error == 0 ? rundir_remove_checkpoints(path) : error;

    for (unsigned i = 0; i < sizeof files / sizeof files[0] && error == 0; i++) {
        error = rundir_join(part, path, files[i], ".tmp");
        error = error == 0 ? rundir_remove_file(part) : error;
        if (error == 0 && rundir_join(part, path, files[i], "") == 0) {
            error = rundir_remove_file(part);
        }
    }
    return error;
}

static hd_status rundir_make_named(struct hd_rundir *rundir, uint32_t mode,
                                   struct hd_problem *problem)
{
    char run[PATH_BYTES];
    struct stat status;
    int error = rundir_make_parents(rundir->path);

    error = error != 0 ? error : rundir_make_directory(rundir->path);
    if (error != 0) {
        return rundir_fail(problem, rundir->path, "made", error);
    }
    if (rundir_join(run, rundir->path, "run.json", "") != 0) {
        return rundir_fail(problem, rundir->path, "made", ENAMETOOLONG);
    }
    const hd_status locked = rundir_lock(rundir, problem);
    if (locked != HD_OK) {
        return locked;
    }
    if (mode == HD_RUNDIR_RESUME || lstat(run, &status) != 0) {
        return HD_OK;
    }
    if (mode == HD_RUNDIR_NEW) {
        return rundir_refuse(
            problem, rundir->path, "already holds a run (run.json)",
            "give --resume to continue it, --overwrite to remove it, or set another "
            "output.directory");
    }
    error = rundir_remove_left(rundir->path);
    return error != 0 ? rundir_fail(problem, rundir->path, "emptied for --overwrite", error)
                      : HD_OK;
}

/* --- latest ----------------------------------------------------------------------------------- */

/* Makes the link under another name and renames it, so that `latest` always exists.  An error is
   only logged. */
static void rundir_point_latest(const char *path)
{
    const char *const slash = strrchr(path, '/');
    const char *const base = slash != NULL ? slash + 1 : path;
    const int parent_length = slash == NULL ? 1 : (slash == path ? 1 : (int)(slash - path));
    char parent[PATH_BYTES], link_path[PATH_BYTES], beside[PATH_BYTES];

    if (strcmp(base, "latest") == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        return;
    }
    snprintf(parent, sizeof parent, "%.*s", parent_length, slash == NULL ? "." : path);
    char name[64];
    snprintf(name, sizeof name, ".latest-%ld", (long)getpid());
    if (rundir_join(link_path, parent, "latest", "") != 0 ||
        rundir_join(beside, parent, name, "") != 0) {
        return;
    }
    struct stat facts;
    if (lstat(link_path, &facts) == 0 && !S_ISLNK(facts.st_mode)) {
        hd_log(HD_LOG_WARN, "%s is not a link: it stays, and does not point to this run",
               link_path);
        return;
    }
    unlink(beside); /* an earlier process with this pid may have left it */
    if (symlink(base, beside) != 0 || rename(beside, link_path) != 0) {
        hd_log(HD_LOG_WARN, "cannot point %s to this run: %s", link_path, strerror(errno));
        unlink(beside);
    }
}

/* Copies `directory` without slashes at its end; false if it is too long. */
static bool rundir_set_path(struct hd_rundir *rundir, const char *directory)
{
    size_t length = strlen(directory);

    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    if (length >= sizeof rundir->path) {
        return false;
    }
    memcpy(rundir->path, directory, length);
    rundir->path[length] = '\0';
    return true;
}

hd_status hd_rundir_create(struct hd_rundir *rundir, const char *directory, const char *name,
                           uint32_t mode, struct hd_problem *problem)
{
    char log[PATH_BYTES];
    hd_status status;

    *rundir = (struct hd_rundir){.metrics = -1};
    if (directory == NULL || directory[0] == '\0') {
        status = rundir_make_dated(rundir, name, problem);
    } else if (rundir_set_path(rundir, directory)) {
        status = rundir_make_named(rundir, mode, problem);
    } else {
        status = rundir_refuse(problem, "output.directory", "the path has 4096 bytes or more",
                               "give a shorter one");
    }
    if (status == HD_OK) {
        int error = rundir_join(log, rundir->path, "log", "");
        error = error == 0 ? rundir_make_directory(log) : error;
        status = error != 0 ? rundir_fail(problem, log, "made", error) : HD_OK;
    }
    if (status == HD_OK) {
        rundir_point_latest(rundir->path);
    } else {
        rundir_unlock(rundir);
    }
    return status;
}

/* --- files, written beside and renamed -------------------------------------------------------- */

hd_status hd_rundir_open(const struct hd_rundir *rundir, const char *name, FILE **stream,
                         struct hd_problem *problem)
{
    char beside[PATH_BYTES];

    if (rundir_join(beside, rundir->path, name, ".tmp") != 0) {
        return rundir_fail(problem, rundir->path, "written", ENAMETOOLONG);
    }
    FILE *const opened = fopen(beside, "we");
    if (opened == NULL) {
        return rundir_fail(problem, beside, "made", errno);
    }
    *stream = opened;
    return HD_OK;
}

/* Closes the stream, and renames the file unless a write has failed; `error` is its errno, or 0. */
static hd_status rundir_settle(const struct hd_rundir *rundir, const char *name, FILE *stream,
                               int error, struct hd_problem *problem)
{
    char beside[PATH_BYTES], path[PATH_BYTES];
    const bool fits = rundir_join(beside, rundir->path, name, ".tmp") == 0 &&
                      rundir_join(path, rundir->path, name, "") == 0;
    bool failed = ferror(stream) != 0;

    assert(fits); /* hd_rundir_open has joined the longer one */
    if (!failed && (fflush(stream) != 0 || fsync(fileno(stream)) != 0)) {
        failed = true;
        error = errno;
    }
    if (fclose(stream) != 0 && !failed) {
        failed = true;
        error = errno;
    }
    if (!failed && rename(beside, path) == 0) {
        return HD_OK;
    }
    error = failed ? error : errno;
    unlink(beside);
    return rundir_fail(problem, path, "written", error);
}

hd_status hd_rundir_commit(const struct hd_rundir *rundir, const char *name, FILE *stream,
                           struct hd_problem *problem)
{
    assert(stream != NULL);
    return rundir_settle(rundir, name, stream, 0, problem);
}

hd_status hd_rundir_write(const struct hd_rundir *rundir, const char *name, const char *text,
                          uint64_t bytes, struct hd_problem *problem)
{
    FILE *stream = NULL;
    const hd_status status = hd_rundir_open(rundir, name, &stream, problem);

    if (status != HD_OK) {
        return status;
    }
    const int error = fwrite(text, 1, bytes, stream) == bytes ? 0 : errno;
    return rundir_settle(rundir, name, stream, error, problem);
}

/* --- metrics.jsonl ---------------------------------------------------------------------------- */

static hd_status rundir_open_metrics(struct hd_rundir *rundir, const char *path,
                                     struct hd_problem *problem)
{
    rundir->metrics = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return rundir->metrics < 0 ? rundir_fail(problem, path, "opened", errno) : HD_OK;
}

hd_status hd_rundir_metrics(struct hd_rundir *rundir, const struct hd_metrics *metrics,
                            struct hd_problem *problem)
{
    char path[PATH_BYTES], line[HD_METRICS_LINE_BYTES];
    struct stat before;
    ssize_t written;

    if (rundir_join(path, rundir->path, "metrics.jsonl", "") != 0) {
        return rundir_fail(problem, rundir->path, "written", ENAMETOOLONG);
    }
    if (rundir->metrics < 0 && rundir_open_metrics(rundir, path, problem) != HD_OK) {
        return HD_SYSTEM;
    }
    const uint32_t length = hd_metrics_line(metrics, line);
    if (fstat(rundir->metrics, &before) != 0) {
        return rundir_fail(problem, path, "written", errno);
    }
    do {
        written = write(rundir->metrics, line, length);
    } while (written < 0 && errno == EINTR);
    if (written == (ssize_t)length) {
        return HD_OK;
    }
    const int error = written < 0 ? errno : ENOSPC;
    if (written > 0 && ftruncate(rundir->metrics, before.st_size) != 0) {
        hd_log(HD_LOG_WARN, "%s ends with an incomplete line: %s", path, strerror(errno));
    }
    return rundir_fail(problem, path, "written", error);
}

void hd_rundir_close(struct hd_rundir *rundir)
{
    if (rundir->metrics >= 0) {
        close(rundir->metrics);
        rundir->metrics = -1;
    }
    rundir_unlock(rundir);
}
