/*
 * ucx/peer.c - who is at the other end, and whether it lives.
 *
 * UCX needs a keep-alive round to see a death through shared memory, and a peer may be on another
 * host.  On this host a pidfd says it at once; "this host" is one boot and one pid namespace.
 */
#include "ucx.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's random number of this boot, as two words; zero where it has none. */
static void read_boot(uint64_t boot[2])
{
    unsigned char text[40] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    boot[0] = 0;
    boot[1] = 0;
    if (file == NULL) {
        return;
    }
    const size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    for (size_t i = 0; i < count; i++) {
        boot[i % 2] = boot[i % 2] * 31 + text[i];
    }
}

void ucx_peer_introduce(struct ucx_card *card)
{
    struct stat space;

    card->magic = UCX_MAGIC;
    card->pid = (int32_t)getpid();
    read_boot(card->boot);
    card->pid_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
}

int ucx_peer_is_here(const struct ucx_card *card, const struct ucx_card *other)
{
    return memcmp(card->boot, other->boot, sizeof card->boot) == 0 &&
           card->pid_space == other->pid_space && card->boot[0] != 0 && card->pid_space != 0;
}

hd_status ucx_peer_hold(struct hd_transport *instance, struct ucx_peer *peer,
                        const struct ucx_card *card)
{
    const struct ucx_fault lost = {HD_PEER_LOST, peer->rank, UCX_NONE, 0};

    peer->pidfd = (int)syscall(SYS_pidfd_open, card->pid, 0);
    if (peer->pidfd < 0 && errno == ESRCH) {
        return ucx_fail(instance, &lost, "rank %u (process %d) has ended", peer->rank, card->pid);
    }
    return HD_OK; /* without a pidfd, UCX's keep-alive and the deadline are left */
}

int ucx_peer_is_dead(const struct ucx_peer *peer)
{
    struct pollfd entry = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&entry, 1, 0) == 1;
}

uint32_t ucx_peer_core_count(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? (uint32_t)CPU_COUNT(&cpus) : 1;
}
