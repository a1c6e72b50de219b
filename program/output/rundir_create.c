#include "output/rundir_create.h"
#include "base/log.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TAKEN_MAX = 10000 };

static hd_status create_refuse(struct hd_problem *problem, const char *path, const char *reason,
                               const char *remedy)
{
    hd_problem_place(problem, "%s", path);
    hd_problem_key(problem, "output.directory");
    hd_problem_remedy(problem, "%s", remedy);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* Names the process that holds the lock, if the kernel knows it. */
static hd_status create_refuse_second(int descriptor, const struct hd_rundir *rundir,
                                      struct hd_problem *problem)
{
    struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char reason[128];

    snprintf(reason, sizeof reason, "another run uses it");
    if (fcntl(descriptor, F_GETLK, &other) == 0 && other.l_type != F_UNLCK && other.l_pid > 0) {
        snprintf(reason, sizeof reason, "another run uses it (pid %ld)", (long)other.l_pid);
    }
    return create_refuse(problem, rundir->path, reason,
                         "wait until that run ends, or set another output.directory");
}

static hd_status create_lock(struct hd_rundir *rundir, struct hd_problem *problem)
{
    const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[HD_RUNDIR_PATH_BYTES];

    if (hd_rundir_join(path, rundir->path, ".lock", "") != 0) {
        return hd_rundir_fail(problem, rundir->path, "made", ENAMETOOLONG);
    }
    const int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return hd_rundir_fail(problem, path, "made", errno);
    }
    if (fcntl(descriptor, F_SETLK, &whole) == 0) {
        rundir->lock = descriptor;
        rundir->is_locked = true;
        return HD_OK;
    }
    const int error = errno;
    const hd_status status = error == EACCES || error == EAGAIN
                                 ? create_refuse_second(descriptor, rundir, problem)
                                 : HD_OK;
    close(descriptor);
    if (status == HD_OK) {
        hd_log(HD_LOG_WARN,
               "cannot lock %s: %s: a second run in this directory would not be refused", path,
               strerror(error));
    }
    return status;
}

static int create_make_directory(const char *path)
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
static int create_make_parents(const char *path)
{
    char part[HD_RUNDIR_PATH_BYTES];

    for (const char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        const int error = create_make_directory(part);
        if (error != 0) {
            return error;
        }
    }
    return 0;
}

/* Makes runs/NAME-YYYYMMDD-HHMMSS, or the first of -2, -3 .. that does not exist. */
static hd_status create_make_dated(struct hd_rundir *rundir, const char *name,
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
    int error = create_make_directory("runs");
    if (error != 0) {
        return hd_rundir_fail(problem, "runs", "made", error);
    }
    for (uint32_t i = 2; mkdir(rundir->path, 0777) != 0; i++) {
        error = errno;
        if (error != EEXIST || i > TAKEN_MAX) {
            return hd_rundir_fail(problem, rundir->path, "made", error);
        }
        snprintf(rundir->path, sizeof rundir->path, "%s-%u", stem, i);
    }
    return create_lock(rundir, problem);
}

static int create_remove_file(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR ? 0 : errno;
}

/* A directory that still holds other files stays. */
static int create_remove_directory(const char *path)
{
    return rmdir(path) == 0 || errno == ENOENT || errno == ENOTDIR || errno == ENOTEMPTY ||
                   errno == EEXIST
               ? 0
               : errno;
}

/* rank-NNNN.log, any number of digits. */
static bool create_is_log(const char *name)
{
    static const char head[] = "rank-";
    const size_t head_length = sizeof head - 1;

    if (strncmp(name, head, head_length) != 0) {
        return false;
    }
    const size_t digits = strspn(name + head_length, "0123456789");
    return digits > 0 && strcmp(name + head_length + digits, ".log") == 0;
}

static int create_remove_logs(const char *path)
{
    DIR *const directory = opendir(path);
    int error = 0;

    if (directory == NULL) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : errno;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL && error == 0;
         entry = readdir(directory)) {
        if (create_is_log(entry->d_name) && unlinkat(dirfd(directory), entry->d_name, 0) != 0) {
            error = errno;
        }
    }
    closedir(directory);
    return error != 0 ? error : create_remove_directory(path);
}

/* Removes the checkpoint, and what a kill left of another one, with their directories. */
static int create_remove_checkpoints(const char *path)
{
    static const char *const directories[] = {"checkpoint.tmp", "checkpoint.old", "checkpoint"};
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    char directory[HD_RUNDIR_PATH_BYTES], part[HD_RUNDIR_PATH_BYTES];
    int error = 0;

    for (unsigned i = 0; error == 0 && i < sizeof directories / sizeof directories[0]; i++) {
        error = hd_rundir_join(directory, path, directories[i], "");
        for (unsigned j = 0; error == 0 && j < sizeof files / sizeof files[0]; j++) {
            error = hd_rundir_join(part, directory, files[j], "");
            error = error == 0 ? create_remove_file(part) : error;
        }
        error = error == 0 ? create_remove_directory(directory) : error;
    }
    return error;
}

static int create_remove_left(const char *path)
{
    /* run.json is the last: until then the directory still counts as a run. */
    static const char *const files[] = {"config.ini",  "metrics.jsonl", "trace.json",
                                        "report.html", "hang.json",     "run.json"};
    char part[HD_RUNDIR_PATH_BYTES];
    int error = hd_rundir_join(part, path, "log", "");
    error = error == 0 ? create_remove_logs(part) : error;
    error = error == 0 ? create_remove_checkpoints(path) : error;

    for (unsigned i = 0; i < sizeof files / sizeof files[0] && error == 0; i++) {
        error = hd_rundir_join(part, path, files[i], ".tmp");
        error = error == 0 ? create_remove_file(part) : error;
        if (error == 0 && hd_rundir_join(part, path, files[i], "") == 0) {
            error = create_remove_file(part);
        }
    }
    return error;
}

static hd_status create_make_named(struct hd_rundir *rundir, uint32_t mode,
                                   struct hd_problem *problem)
{
    char run[HD_RUNDIR_PATH_BYTES];
    struct stat status;
    int error = create_make_parents(rundir->path);

    error = error != 0 ? error : create_make_directory(rundir->path);
    if (error != 0) {
        return hd_rundir_fail(problem, rundir->path, "made", error);
    }
    if (hd_rundir_join(run, rundir->path, "run.json", "") != 0) {
        return hd_rundir_fail(problem, rundir->path, "made", ENAMETOOLONG);
    }
    const hd_status locked = create_lock(rundir, problem);
    if (locked != HD_OK) {
        return locked;
    }
    if (mode == HD_RUNDIR_RESUME || lstat(run, &status) != 0) {
        return HD_OK;
    }
    if (mode == HD_RUNDIR_NEW) {
        return create_refuse(
            problem, rundir->path, "already holds a run (run.json)",
            "give --resume to continue it, --overwrite to remove it, or set another "
            "output.directory");
    }
    error = create_remove_left(rundir->path);
    return error != 0 ? hd_rundir_fail(problem, rundir->path, "emptied for --overwrite", error)
                      : HD_OK;
}

/* Makes the link under another name and renames it, so that `latest` always exists.  An error is
   only logged. */
static void create_point_latest(const char *path)
{
    const char *const slash = strrchr(path, '/');
    const char *const base = slash != NULL ? slash + 1 : path;
    const int parent_length = slash == NULL ? 1 : (slash == path ? 1 : (int)(slash - path));
    char parent[HD_RUNDIR_PATH_BYTES], link_path[HD_RUNDIR_PATH_BYTES],
        beside[HD_RUNDIR_PATH_BYTES];

    if (strcmp(base, "latest") == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        return;
    }
    snprintf(parent, sizeof parent, "%.*s", parent_length, slash == NULL ? "." : path);
    char name[64];
    snprintf(name, sizeof name, ".latest-%ld", (long)getpid());
    if (hd_rundir_join(link_path, parent, "latest", "") != 0 ||
        hd_rundir_join(beside, parent, name, "") != 0) {
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
static bool create_set_path(struct hd_rundir *rundir, const char *directory)
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
    char log[HD_RUNDIR_PATH_BYTES];
    hd_status status;

    *rundir = (struct hd_rundir){.metrics = -1};
    if (directory == NULL || directory[0] == '\0') {
        status = create_make_dated(rundir, name, problem);
    } else if (create_set_path(rundir, directory)) {
        status = create_make_named(rundir, mode, problem);
    } else {
        status = create_refuse(problem, "output.directory", "the path has 4096 bytes or more",
                               "give a shorter one");
    }
    if (status == HD_OK) {
        int error = hd_rundir_join(log, rundir->path, "log", "");
        error = error == 0 ? create_make_directory(log) : error;
        status = error != 0 ? hd_rundir_fail(problem, log, "made", error) : HD_OK;
    }
    if (status == HD_OK) {
        create_point_latest(rundir->path);
    } else {
        hd_rundir_unlock(rundir);
    }
    return status;
}

/* Whether both paths name one directory. */
static bool create_is_same(const char *one, const char *other)
{
    struct stat first, second;

    return stat(one, &first) == 0 && stat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

hd_status hd_output_make_directory(struct hd_rundir *rundir, const struct hd_config *config,
                                   const struct hd_resume *resume, bool overwrites,
                                   struct hd_problem *problem)
{
    uint32_t mode = overwrites ? HD_RUNDIR_OVERWRITE : HD_RUNDIR_NEW;

    if (resume != NULL && resume->kind == HD_RESUME_RUN &&
        create_is_same(resume->directory, config->output.directory)) {
        mode = HD_RUNDIR_RESUME;
        if (overwrites) {
            hd_problem_place(problem, "command line");
            hd_problem_remedy(problem, "leave one of the two out, or set output.directory");
            return hd_problem_set(
                problem, HD_INVALID, HD_EXIT_USAGE,
                "--overwrite would remove the checkpoint that --resume continues");
        }
    }
    return hd_rundir_create(rundir, config->output.directory, config->name, mode, problem);
}
