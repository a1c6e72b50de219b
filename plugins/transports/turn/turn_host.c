/* turn/turn_host.c - what /proc and pidfds say. */
#include "turn_host.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's random number of this boot: five groups of digits. */
static void read_boot(uint64_t boot[2])
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

struct turn_place turn_find_place(void)
{
    struct turn_place place = {.pid = (int32_t)getpid()};
    struct stat space;

    read_boot(place.boot);
    place.pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    return place;
}

int turn_is_on_host(const struct turn_place *place, const struct turn_place *other)
{
    return place->boot[0] != 0 && memcmp(place->boot, other->boot, sizeof place->boot) == 0;
}

int turn_is_in_reach(const struct turn_place *place, const struct turn_place *other)
{
    return turn_is_on_host(place, other) && place->pid_space != 0 &&
           place->pid_space == other->pid_space;
}

_Static_assert(sizeof(cpu_set_t) <= TURN_CORE_BYTES, "a card holds glibc's whole set");

struct turn_cores turn_find_cores(void)
{
    struct turn_cores cores = {{0}};
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        memcpy(cores.set, &set, sizeof set);
    }
    return cores;
}

uint32_t turn_core_count(const struct turn_cores *cores)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < TURN_CORE_BYTES; i++) {
        count += (uint32_t)__builtin_popcount(cores->set[i]);
    }
    return count;
}

int turn_share_core(const struct turn_cores *cores, const struct turn_cores *other)
{
    unsigned common = 0;

    for (uint32_t i = 0; i < TURN_CORE_BYTES; i++) {
        common |= (unsigned)(cores->set[i] & other->set[i]);
    }
    return common != 0;
}

int turn_hold(struct turn_peer *peer, int32_t pid)
{
    peer->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return peer->pidfd >= 0 ? 0 : errno;
}

int turn_has_ended(const struct turn_peer *peer)
{
    struct pollfd entry = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&entry, 1, 0) == 1;
}

uint64_t turn_available_bytes(void)
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

void turn_account(const struct turn *turn, int64_t bytes, const char *tag)
{
    const struct hd_host *host = turn->host;

    if (host->size >= sizeof *host && host->account != NULL) { /* a core before 1.1 does not ask */
        host->account(host->context, bytes, tag);
    }
}
