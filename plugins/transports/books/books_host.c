/* books/books_host.c - what /proc and pidfds tell. */
#include "books_host.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The random number that the kernel chose at boot: five groups of hexadecimal digits. */
static void books_host_read_boot(uint64_t boot[2])
{
    uint64_t part[5] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file == NULL) {
        return;
    }
    if (fscanf(file, "%8" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%12" SCNx64, &part[0],
               &part[1], &part[2], &part[3], &part[4]) == 5) {
        boot[0] = part[0] << 32 | part[1] << 16 | part[2];
        boot[1] = part[3] << 48 | part[4];
    }
    fclose(file);
}

struct book_place book_find_place(void)
{
    struct book_place place = {.pid = (int32_t)getpid()};
    struct stat space;

    books_host_read_boot(place.boot);
    place.pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    return place;
}

bool book_is_on_host(const struct book_place *place, const struct book_place *other)
{
    return place->boot[0] != 0 && memcmp(place->boot, other->boot, sizeof place->boot) == 0;
}

bool book_is_in_reach(const struct book_place *place, const struct book_place *other)
{
    return book_is_on_host(place, other) && place->pid_space != 0 &&
           place->pid_space == other->pid_space;
}

_Static_assert(sizeof(cpu_set_t) <= BOOK_CORE_BYTES, "a card holds a whole cpu_set_t");

struct book_cores book_find_cores(void)
{
    struct book_cores cores = {{0}};
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        memcpy(cores.set, &set, sizeof set);
    }
    return cores;
}

uint32_t book_core_count(const struct book_cores *cores)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < BOOK_CORE_BYTES; i++) {
        count += (uint32_t)__builtin_popcount(cores->set[i]);
    }
    return count;
}

bool book_share_core(const struct book_cores *cores, const struct book_cores *other)
{
    unsigned common = 0;

    for (uint32_t i = 0; i < BOOK_CORE_BYTES; i++) {
        common |= (unsigned)(cores->set[i] & other->set[i]);
    }
    return common != 0;
}

int book_hold(struct book_peer *peer, int32_t pid)
{
    peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return peer->pidfd >= 0 ? 0 : errno;
}

bool book_has_ended(const struct book_peer *peer)
{
    struct pollfd entry = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&entry, 1, 0) == 1;
}

uint64_t book_available_bytes(void)
{
    char line[128];
    uint64_t available_kib = UINT64_MAX / 1024;
    FILE *file = fopen("/proc/meminfo", "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &available_kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return available_kib * 1024;
}

uint64_t book_file_limit_bytes(void)
{
    struct rlimit limit;
    const bool is_limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;

    return is_limited ? (uint64_t)limit.rlim_cur : UINT64_MAX;
}

void book_account(const struct book *book, int64_t bytes, const char *tag)
{
    const struct hd_host *host = book->host;

    if (host->size >= sizeof *host &&
        host->account != NULL) { /* a core older than 1.1 has no account */
        host->account(host->context, bytes, tag);
    }
}

int book_open_descriptor(int32_t pid, int32_t descriptor)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
    return open(path, O_RDWR | O_CLOEXEC);
}
