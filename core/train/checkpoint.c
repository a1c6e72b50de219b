#include "train/checkpoint.h"
#include "train/rundir.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static hd_status checkpoint_fail(struct hd_problem *problem, const char *path, const char *verb,
                                 int error)
{
    hd_problem_place(problem, "%.500s", path);
    hd_problem_key(problem, "output.checkpoint_every");
    hd_problem_remedy(problem,
                      "%s, or set output.directory to where this user may "
                      "write, or output.checkpoint_every=never",
                      hd_output_remedy(error));
    return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot be %s: %s", verb,
                          strerror(error));
}

/* Writes RUN/DIRECTORY/FILE, or RUN/DIRECTORY if the file is empty.  0, or ENAMETOOLONG. */
static int checkpoint_join(char path[PATH_BYTES], const char *run, const char *directory,
                           const char *file)
{
    const int length =
        snprintf(path, PATH_BYTES, "%s/%s%s%s", run, directory, file[0] != '\0' ? "/" : "", file);
    return length > 0 && length < PATH_BYTES ? 0 : ENAMETOOLONG;
}

hd_status hd_checkpoint_path(const char *run, const char *file, char path[4096],
                             struct hd_problem *problem)
{
    if (checkpoint_join(path, run, "checkpoint", file) == 0) {
        return HD_OK;
    }
    hd_problem_place(problem, "%.500s", run);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "the path is too long");
}

/* Removes the files and the directory, which may be absent.  0, or errno. */
static int checkpoint_remove_whole(const char *run, const char *directory)
{
    const char *const files[] = {hd_checkpoint_files[0], hd_checkpoint_files[1],
                                 HD_CHECKPOINT_STATE_FILE, ""};
    char path[PATH_BYTES];

    for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (checkpoint_join(path, run, directory, files[i]) != 0) {
            return ENAMETOOLONG;
        }
        const int failed = files[i][0] != '\0' ? unlink(path) : rmdir(path);
        if (failed != 0 && errno != ENOENT && errno != ENOTDIR) {
            return errno;
        }
    }
    return 0;
}

/* A new name is on disk only once its directory is synced. */
static int checkpoint_sync_path(const char *path)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);

    if (descriptor < 0) {
        return errno;
    }
    const int error = fsync(descriptor) != 0 ? errno : 0;
    close(descriptor);
    return error;
}

static bool checkpoint_exists(const char *run, const char *directory)
{
    char path[PATH_BYTES];
    struct stat facts;

    return checkpoint_join(path, run, directory, "") == 0 && lstat(path, &facts) == 0;
}

hd_status hd_checkpoint_recover(const char *run, struct hd_problem *problem)
{
    char old[PATH_BYTES], path[PATH_BYTES];

    if (checkpoint_exists(run, "checkpoint") || !checkpoint_exists(run, "checkpoint.old")) {
        return HD_OK;
    }
    if (checkpoint_join(old, run, "checkpoint.old", "") != 0 ||
        checkpoint_join(path, run, "checkpoint", "") != 0) {
        return checkpoint_fail(problem, run, "read", ENAMETOOLONG);
    }
    if (rename(old, path) != 0) {
        return checkpoint_fail(problem, old, "renamed", errno);
    }
    hd_log(HD_LOG_WARN, "renamed %s back: the run was killed while it replaced this checkpoint",
           path);
    return HD_OK;
}

hd_status hd_checkpoint_read_state(const char *run, struct hd_checkpoint_state *state,
                                   struct hd_problem *problem)
{
    char path[PATH_BYTES];
    FILE *stream = NULL;

    *state = (struct hd_checkpoint_state){0};
    hd_status status = hd_checkpoint_path(run, HD_CHECKPOINT_STATE_FILE, path, problem);
    if (status != HD_OK) {
        return status;
    }
    hd_problem_place(problem, "%.500s", path);
    char *const text = malloc(HD_CHECKPOINT_STATE_BYTES_MAX + 1);
    stream = text != NULL ? fopen(path, "re") : NULL;
    if (stream == NULL) {
        hd_problem_remedy(problem, "name the directory of a run that wrote a checkpoint, a "
                                   "directory with model.safetensors, or a .safetensors file");
        status = hd_problem_set(problem, HD_SYSTEM, HD_EXIT_USAGE,
                                "there is no checkpoint to resume from: %s", strerror(errno));
    } else {
        const uint64_t bytes = fread(text, 1, HD_CHECKPOINT_STATE_BYTES_MAX, stream);
        text[bytes] = '\0';
        fclose(stream);
        status = hd_checkpoint_state_parse(text, bytes, state, problem);
    }
    free(text);
    return status;
}

void hd_checkpoint_discard(const char *run)
{
    const int error = checkpoint_remove_whole(run, "checkpoint.tmp");

    if (error != 0) {
        hd_log(HD_LOG_WARN, "cannot remove %s/checkpoint.tmp: %s", run, strerror(error));
    }
}

hd_status hd_checkpoint_begin(const char *run, const uint64_t bytes[HD_CHECKPOINT_FILE_COUNT],
                              struct hd_problem *problem)
{
    char path[PATH_BYTES];

    int error = checkpoint_join(path, run, "checkpoint.tmp", "");
    error = error == 0 ? checkpoint_remove_whole(run, "checkpoint.tmp") : error;
    if (error == 0 && mkdir(path, 0777) != 0) {
        error = errno;
    }
    for (uint32_t file = 0; error == 0 && file < HD_CHECKPOINT_FILE_COUNT; file++) {
        error = checkpoint_join(path, run, "checkpoint.tmp", hd_checkpoint_files[file]);
        const int descriptor =
            error == 0 ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
        if (error == 0 && (descriptor < 0 || ftruncate(descriptor, (off_t)bytes[file]) != 0)) {
            error = errno;
        }
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    return error != 0 ? checkpoint_fail(problem, path, "made", error) : HD_OK;
}

hd_status hd_checkpoint_open(const char *run, uint32_t file, int *descriptor,
                             struct hd_problem *problem)
{
    char path[PATH_BYTES];

    assert(file < HD_CHECKPOINT_FILE_COUNT);
    if (checkpoint_join(path, run, "checkpoint.tmp", hd_checkpoint_files[file]) != 0) {
        return checkpoint_fail(problem, run, "written", ENAMETOOLONG);
    }
    const int opened = open(path, O_WRONLY | O_CLOEXEC);
    if (opened < 0) {
        return checkpoint_fail(problem, path, "opened", errno);
    }
    *descriptor = opened;
    return HD_OK;
}

/* The kernel knows the path of the descriptor. */
static hd_status checkpoint_fail_put(struct hd_problem *problem, int descriptor, int error)
{
    char link[64], path[PATH_BYTES];

    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return checkpoint_fail(problem, length > 0 ? path : "checkpoint.tmp", "written", error);
}

hd_status hd_checkpoint_put(int descriptor, const void *bytes, uint64_t count, uint64_t offset,
                            struct hd_problem *problem)
{
    const unsigned char *from = bytes;

    while (count > 0) {
        const size_t part = count < (1u << 30) ? (size_t)count : 1u << 30;
        const ssize_t written = pwrite(descriptor, from, part, (off_t)offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return checkpoint_fail_put(problem, descriptor, written < 0 ? errno : ENOSPC);
        }
        from += written;
        count -= (uint64_t)written;
        offset += (uint64_t)written;
    }
    return HD_OK;
}

/* Renames the new one; the old one, if any, becomes checkpoint.tmp or checkpoint.old. */
static int checkpoint_give_name(const char *run, const char *beside, const char *path)
{
    char old[PATH_BYTES];

    if (rename(beside, path) == 0) {
        return 0; /* there was no checkpoint */
    }
    if (renameat2(AT_FDCWD, beside, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
        return errno;
    }
    int error = checkpoint_join(old, run, "checkpoint.old", "");
    error = error == 0 ? checkpoint_remove_whole(run, "checkpoint.old") : error;
    if (error == 0 && rename(path, old) != 0) {
        error = errno;
    }
    return error == 0 && rename(beside, path) != 0 ? errno : error;
}

static int checkpoint_write_state(const char *path, const struct hd_checkpoint_state *state)
{
    char *const text = hd_checkpoint_state_text(state);
    FILE *const stream = fopen(path, "wxe");
    int error = stream == NULL ? errno : 0;

    if (stream != NULL) {
        if (fputs(text, stream) == EOF || fflush(stream) != 0 || fsync(fileno(stream)) != 0) {
            error = errno;
        }
        if (fclose(stream) != 0 && error == 0) {
            error = errno;
        }
    }
    free(text);
    return error;
}

hd_status hd_checkpoint_commit(const char *run, const struct hd_checkpoint_state *state,
                               struct hd_problem *problem)
{
    char path[PATH_BYTES], beside[PATH_BYTES];
    int error = 0;

    for (uint32_t file = 0; error == 0 && file < HD_CHECKPOINT_FILE_COUNT; file++) {
        error = checkpoint_join(path, run, "checkpoint.tmp", hd_checkpoint_files[file]);
        error = error == 0 ? checkpoint_sync_path(path) : error;
    }
    if (error == 0) {
        error = checkpoint_join(path, run, "checkpoint.tmp", HD_CHECKPOINT_STATE_FILE);
        error = error == 0 ? checkpoint_write_state(path, state) : error;
    }
    if (error == 0) {
        error = checkpoint_join(beside, run, "checkpoint.tmp", "");
        error = error == 0 ? checkpoint_sync_path(beside) : error;
    }
    if (error == 0) {
        error = checkpoint_join(path, run, "checkpoint", "");
        error = error == 0 ? checkpoint_give_name(run, beside, path) : error;
    }
    if (error == 0) {
        error = checkpoint_sync_path(run);
    }
    if (error != 0) {
        return checkpoint_fail(problem, path, "written", error);
    }
    hd_log(HD_LOG_DEBUG, "checkpoint: %s is that of step %u", path, state->step);
    error = checkpoint_remove_whole(run, "checkpoint.tmp");
    error = error != 0 ? error : checkpoint_remove_whole(run, "checkpoint.old");
    if (error != 0) {
        hd_log(HD_LOG_WARN, "%s: cannot remove the checkpoint before this one: %s", run,
               strerror(error));
    }
    return HD_OK;
}
