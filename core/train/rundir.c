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

const char *hd_output_remedy(int error)
{
    return error == EFBIG ? "raise the limit on the size of a file (ulimit -f)"
                          : "free space there";
}

hd_status hd_rundir_fail(struct hd_problem *problem, const char *path, const char *verb, int error)
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

/* Writes PATH/NAME followed by `end`.  0, or ENAMETOOLONG. */
int hd_rundir_join(char out[HD_RUNDIR_PATH_BYTES], const char *path, const char *name,
                   const char *end)
{
    const int length = snprintf(out, HD_RUNDIR_PATH_BYTES, "%s/%s%s", path, name, end);
    return length > 0 && length < HD_RUNDIR_PATH_BYTES ? 0 : ENAMETOOLONG;
}

/* --- one run at a time ------------------------------------------------------------------------ */

bool hd_rundir_is_busy(const char *path)
{
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char file[HD_RUNDIR_PATH_BYTES];
    const int descriptor =
        hd_rundir_join(file, path, ".lock", "") == 0 ? open(file, O_RDONLY | O_CLOEXEC) : -1;

    if (descriptor < 0) {
        return false;
    }
    const bool is_busy = fcntl(descriptor, F_GETLK, &other) == 0 && other.l_type != F_UNLCK;
    close(descriptor);
    return is_busy;
}

void hd_rundir_unlock(struct hd_rundir *rundir)
{
    if (rundir->is_locked) {
        close(rundir->lock);
        rundir->is_locked = false;
    }
}

/* --- making it -------------------------------------------------------------------------------- */

/* --- what --overwrite removes ----------------------------------------------------------------- */

/* --- latest ----------------------------------------------------------------------------------- */

/* --- files, written beside and renamed -------------------------------------------------------- */

hd_status hd_rundir_open(const struct hd_rundir *rundir, const char *name, FILE **stream,
                         struct hd_problem *problem)
{
    char beside[HD_RUNDIR_PATH_BYTES];

    if (hd_rundir_join(beside, rundir->path, name, ".tmp") != 0) {
        return hd_rundir_fail(problem, rundir->path, "written", ENAMETOOLONG);
    }
    FILE *const opened = fopen(beside, "we");
    if (opened == NULL) {
        return hd_rundir_fail(problem, beside, "made", errno);
    }
    *stream = opened;
    return HD_OK;
}

/* Closes the stream, and renames the file unless a write has failed; `error` is its errno, or 0. */
static hd_status rundir_settle(const struct hd_rundir *rundir, const char *name, FILE *stream,
                               int error, struct hd_problem *problem)
{
    char beside[HD_RUNDIR_PATH_BYTES], path[HD_RUNDIR_PATH_BYTES];
    const bool fits = hd_rundir_join(beside, rundir->path, name, ".tmp") == 0 &&
                      hd_rundir_join(path, rundir->path, name, "") == 0;
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
    return hd_rundir_fail(problem, path, "written", error);
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
    return rundir->metrics < 0 ? hd_rundir_fail(problem, path, "opened", errno) : HD_OK;
}

hd_status hd_rundir_metrics(struct hd_rundir *rundir, const struct hd_metrics *metrics,
                            struct hd_problem *problem)
{
    char path[HD_RUNDIR_PATH_BYTES], line[HD_METRICS_LINE_BYTES];
    struct stat before;
    ssize_t written;

    if (hd_rundir_join(path, rundir->path, "metrics.jsonl", "") != 0) {
        return hd_rundir_fail(problem, rundir->path, "written", ENAMETOOLONG);
    }
    if (rundir->metrics < 0 && rundir_open_metrics(rundir, path, problem) != HD_OK) {
        return HD_SYSTEM;
    }
    const uint32_t length = hd_metrics_line(metrics, line);
    if (fstat(rundir->metrics, &before) != 0) {
        return hd_rundir_fail(problem, path, "written", errno);
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
    return hd_rundir_fail(problem, path, "written", error);
}

void hd_rundir_close(struct hd_rundir *rundir)
{
    if (rundir->metrics >= 0) {
        close(rundir->metrics);
        rundir->metrics = -1;
    }
    hd_rundir_unlock(rundir);
}
