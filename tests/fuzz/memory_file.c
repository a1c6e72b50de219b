#include "memory_file.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    int descriptor; /* 0: not made yet */
    char path[32];
} files[MEMORY_FILE_COUNT];

static void require(int is_true)
{
    if (!is_true) {
        perror("memory_file");
        abort();
    }
}

const char *memory_file_path(unsigned which)
{
    require(which < MEMORY_FILE_COUNT);
    if (files[which].descriptor == 0) {
        files[which].descriptor = memfd_create("input", MFD_CLOEXEC);
        require(files[which].descriptor > 0);
        snprintf(files[which].path, sizeof files[which].path, "/proc/self/fd/%d",
                 files[which].descriptor);
    }
    return files[which].path;
}

const char *memory_file(unsigned which, const void *bytes, size_t count)
{
    const char *const path = memory_file_path(which);

    require(ftruncate(files[which].descriptor, 0) == 0);
    require(pwrite(files[which].descriptor, bytes, count, 0) == (ssize_t)count);
    return path;
}

FILE *memory_file_write(unsigned which)
{
    FILE *const stream = fopen(memory_file(which, "", 0), "w");

    require(stream != NULL);
    return stream;
}
