/*
 * open.c - every connection is made before the first message, and tried.
 *
 *   listen    at a port that the system chooses; the card says where
 *   cards     put, fence, get: every rank knows every port
 *   connect   the source of a channel connects and says which channel it means; the system accepts
 *             it in the background, so no rank waits for another here
 *   accept    the target takes what has come, in whatever order, until every channel has its socket
 *   warm up   one message of the pattern on every channel, its credit back; then all counts are 0
 */
#include "plain_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* What a rank tells the others when it opens: where it listens. */
struct tcp_card {
    char address[INET_ADDRSTRLEN];
    uint16_t port;
};

/* The first bytes on a connection: the channel that it serves. */
struct tcp_hello {
    uint64_t magic;
    uint32_t channel;
    uint32_t source;
};

#define TCP_HELLO_MAGIC 0x706374656c646468ull

static hd_status open_fail_errno(struct hd_transport *instance, const struct tcp_channel *channel,
                                 const char *call)
{
    char text[160];

    snprintf(text, sizeof text, "%s: %s", call, strerror(errno));
    return tcp_fail(instance, HD_SYSTEM, channel, text);
}

static uint64_t open_round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static hd_status open_make_arena(struct hd_transport *instance, struct tcp_channel *channel,
                                 uint64_t alignment_bytes)
{
    const struct hd_host *host = instance->host;
    const struct hd_channel *facts = channel->facts;

    channel->slot_count = channel->is_source ? facts->send_depth : facts->depth;
    channel->lead_bytes = open_round_up(HD_SEAL_BYTES, alignment_bytes);
    channel->stride_bytes = open_round_up(channel->lead_bytes + facts->bytes, alignment_bytes);
    channel->arena = host->alloc(host->context, channel->slot_count * channel->stride_bytes,
                                 alignment_bytes, "transfer");
    return channel->arena != NULL ? HD_OK
                                  : tcp_fail(instance, HD_NO_MEMORY, channel,
                                             "cannot allocate the slots of a channel");
}

/* Instances that this process has opened; all ranks open theirs in one order. */
static atomic_uint open_count;

static struct hd_transport *open_make(const struct hd_transport_setup *setup)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = host->alloc(
        host->context, sizeof *instance + setup->channel_count * sizeof(struct tcp_channel), 64,
        "plain_tcp");

    if (instance == NULL) {
        return NULL;
    }
    instance->host = host;
    instance->listener = -1;
    instance->generation = atomic_fetch_add(&open_count, 1);
    instance->channel_count = setup->channel_count;
    for (uint32_t i = 0; i < setup->channel_count; i++) {
        const struct hd_channel *facts = setup->channels[i];
        instance->channels[i] = (struct tcp_channel){
            .facts = facts,
            .socket = -1,
            .is_source = facts->source == host->rank,
            .is_here = facts->source == host->rank || facts->target == host->rank,
        };
    }
    return instance;
}

static hd_status open_listen(struct hd_transport *instance, struct tcp_card *card)
{
    struct sockaddr_in place = {.sin_family = AF_INET};
    socklen_t length = sizeof place;

    snprintf(card->address, sizeof card->address, "%s",
             instance->host->options[TCP_OPTION_ADDRESS].text);
    if (inet_pton(AF_INET, card->address, &place.sin_addr) != 1) {
        return tcp_fail(instance, HD_UNSUPPORTED, NULL,
                        "plain_tcp.address is not an IPv4 address: give one such as 127.0.0.1");
    }
    instance->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (instance->listener < 0 ||
        bind(instance->listener, (struct sockaddr *)&place, sizeof place) != 0 ||
        listen(instance->listener, (int)instance->channel_count + 1) != 0 ||
        getsockname(instance->listener, (struct sockaddr *)&place, &length) != 0) {
        return open_fail_errno(instance, NULL, "cannot listen at plain_tcp.address");
    }
    card->port = place.sin_port;
    return HD_OK;
}

static uint64_t open_left_ms(const struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint64_t now_ns = instance->host->now_ns(instance->host->context);

    return now_ns < deadline_ns ? (deadline_ns - now_ns) / 1000000u + 1 : 0;
}

/* Waits until a socket can be read; false at the deadline. */
static bool open_poll(const struct hd_transport *instance, int fd, uint64_t deadline_ns)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};

    return poll(&entry, 1, (int)open_left_ms(instance, deadline_ns)) == 1;
}

/* While the connection is made its calls block, but not past the deadline. */
static bool open_limit(const struct hd_transport *instance, int fd, uint64_t deadline_ns)
{
    const uint64_t left_ms = open_left_ms(instance, deadline_ns);
    const struct timeval limit = {(time_t)(left_ms / 1000), (suseconds_t)(left_ms % 1000 * 1000)};

    return left_ms > 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0;
}

static hd_status open_connect(struct hd_transport *instance, uint32_t index,
                              const struct tcp_card *card, uint64_t deadline_ns)
{
    struct tcp_channel *channel = &instance->channels[index];
    const struct tcp_hello hello = {TCP_HELLO_MAGIC, index, instance->host->rank};
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = card->port};
    const int on = 1;

    if (inet_pton(AF_INET, card->address, &place.sin_addr) != 1) {
        return tcp_fail(instance, HD_PROTOCOL, channel, "the target's card has no IPv4 address");
    }
    channel->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (channel->socket < 0 || !open_limit(instance, channel->socket, deadline_ns) ||
        connect(channel->socket, (struct sockaddr *)&place, sizeof place) != 0 ||
        send(channel->socket, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello ||
        setsockopt(channel->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        fcntl(channel->socket, F_SETFL, O_NONBLOCK) != 0) {
        return open_fail_errno(instance, channel, "cannot connect to the target of a channel");
    }
    return HD_OK;
}

/* Takes one connection and gives it to the channel that its first bytes name. */
static hd_status open_accept(struct hd_transport *instance, uint64_t deadline_ns)
{
    struct tcp_hello hello = {0};
    const int on = 1;

    if (!open_poll(instance, instance->listener, deadline_ns)) {
        return tcp_fail(instance, HD_TIMEOUT, NULL, "a source did not connect in time");
    }
    const int taken = accept4(instance->listener, NULL, NULL, SOCK_CLOEXEC);
    if (taken < 0) {
        return open_fail_errno(instance, NULL, "cannot accept a connection");
    }
    if (!open_limit(instance, taken, deadline_ns) ||
        recv(taken, &hello, sizeof hello, MSG_WAITALL) != (ssize_t)sizeof hello ||
        hello.magic != TCP_HELLO_MAGIC || hello.channel >= instance->channel_count ||
        instance->channels[hello.channel].facts->target != instance->host->rank ||
        instance->channels[hello.channel].facts->source != hello.source ||
        instance->channels[hello.channel].socket >= 0) {
        close(taken); /* a stranger's: the channels go on waiting */
        return HD_OK;
    }
    instance->channels[hello.channel].socket = taken;
    if (setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        fcntl(taken, F_SETFL, O_NONBLOCK) != 0) {
        return open_fail_errno(instance, &instance->channels[hello.channel],
                               "cannot prepare a connection");
    }
    return HD_OK;
}

/* A key lives as long as the job and is put once, so it names the instance, too. */
static void open_card_key(const struct hd_transport *instance, uint32_t rank, char key[48])
{
    snprintf(key, 48, "plain_tcp/%u/%u", instance->generation, rank);
}

/* The core does not report a fence that failed: whoever gets its status does. */
static hd_status open_fence(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    const hd_status status = host->fence(host->context, deadline_ns);

    return status == HD_OK
               ? HD_OK
               : tcp_fail(instance, status, NULL, "the other ranks did not come this far in time");
}

static hd_status open_exchange_cards(struct hd_transport *instance, const struct tcp_card *card,
                                     uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    char key[48];

    open_card_key(instance, host->rank, key);
    const hd_status status = host->put(host->context, key, card, sizeof *card);
    return status == HD_OK ? open_fence(instance, deadline_ns)
                           : tcp_fail(instance, status, NULL, "cannot publish the card");
}

static hd_status open_connect_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        struct tcp_card card;
        char key[48];
        if (instance->channels[i].is_source) {
            open_card_key(instance, instance->channels[i].facts->target, key);
            status = host->get(host->context, key, &card, sizeof card, deadline_ns);
            status = status == HD_OK ? open_connect(instance, i, &card, deadline_ns)
                                     : tcp_fail(instance, status, &instance->channels[i],
                                                "cannot read the card of the target");
        }
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        const struct tcp_channel *channel = &instance->channels[i];
        while (status == HD_OK && channel->is_here && channel->socket < 0) {
            status = open_accept(instance, deadline_ns);
        }
    }
    return status;
}

static void open_fill(struct hd_transport *instance, uint32_t index)
{
    struct tcp_channel *channel = &instance->channels[index];
    uint64_t *words = (uint64_t *)(void *)tcp_payload(channel, 0);

    for (uint64_t word = 0; word < channel->facts->bytes / 8; word++) {
        words[word] = hd_pattern_word(index, UINT64_MAX, word);
    }
}

static hd_status open_check_pattern(struct hd_transport *instance, uint32_t index)
{
    struct tcp_channel *channel = &instance->channels[index];
    const uint64_t *words = (const uint64_t *)(const void *)tcp_payload(channel, 0);

    for (uint64_t word = 0; word < channel->facts->bytes / 8; word++) {
        if (words[word] != hd_pattern_word(index, UINT64_MAX, word)) {
            return tcp_fail(instance, HD_PROTOCOL, channel,
                            "the warm-up message arrived with other bytes");
        }
    }
    channel->released_count = 1;
    return HD_OK;
}

/* Whether the warm-up message of a channel is over on this rank. */
static bool open_is_warm(const struct tcp_channel *channel)
{
    return !channel->is_here ||
           (channel->is_source ? channel->released_count : channel->told_count) == 1;
}

static hd_status open_warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct hd_host *host = instance->host;
    bool is_warm = false;

    for (uint32_t i = 0; i < instance->channel_count; i++) {
        struct tcp_channel *channel = &instance->channels[i];
        if (channel->is_source) {
            open_fill(instance, i);
        }
        channel->posted_count = channel->is_here;
    }
    while (!is_warm) {
        hd_status status = tcp_progress(instance);
        is_warm = true;
        for (uint32_t i = 0; status >= 0 && i < instance->channel_count; i++) {
            struct tcp_channel *channel = &instance->channels[i];
            if (channel->is_here && !channel->is_source && channel->moved_count == 1 &&
                channel->released_count == 0) {
                status = open_check_pattern(instance, i);
            }
            is_warm = is_warm && open_is_warm(channel);
        }
        if (status < 0) {
            return status;
        }
        if (!is_warm && host->now_ns(host->context) >= deadline_ns) {
            return tcp_fail(instance, HD_TIMEOUT, NULL, "the warm-up message did not come back");
        }
        if (!is_warm && status == HD_IN_PROGRESS) {
            poll(NULL, 0, 1);
        }
    }
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        struct tcp_channel *channel = &instance->channels[i];
        channel->posted_count = channel->moved_count = 0;
        channel->released_count = channel->told_count = 0;
    }
    return HD_OK;
}

hd_status tcp_open(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    struct hd_transport *instance = open_make(setup);
    struct tcp_card card = {0};
    hd_status status = HD_OK;

    if (instance == NULL) {
        const struct hd_error error = {.size = sizeof error,
                                       .status = HD_NO_MEMORY,
                                       .rank = UINT32_MAX,
                                       .channel = UINT32_MAX,
                                       .text = "cannot allocate the channels"};
        return setup->host->fail(setup->host->context, &error);
    }
    if (setup->memory == HD_MEMORY_CUDA) {
        status = tcp_fail(instance, HD_UNSUPPORTED, NULL,
                          "its slots are in host memory: choose a kernel that computes there");
    }
    for (uint32_t i = 0; status == HD_OK && i < instance->channel_count; i++) {
        if (instance->channels[i].is_here) {
            status = open_make_arena(instance, &instance->channels[i], setup->alignment_bytes);
        }
    }
    if (status == HD_OK) {
        status = open_listen(instance, &card);
    }
    if (status == HD_OK) {
        status = open_exchange_cards(instance, &card, setup->deadline_ns);
    }
    if (status == HD_OK) {
        status = open_connect_all(instance, setup->deadline_ns);
    }
    if (status == HD_OK) {
        status = open_warm_up(instance, setup->deadline_ns);
    }
    if (status == HD_OK) {
        status = open_fence(instance, setup->deadline_ns);
    }
    if (status != HD_OK) {
        tcp_close(instance, 0);
        return status;
    }
    instance->is_open = true;
    *out = instance;
    return HD_OK;
}

void tcp_close(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (instance == NULL) {
        return;
    }
    const struct hd_host *host = instance->host;
    for (uint32_t i = 0; i < instance->channel_count; i++) {
        struct tcp_channel *channel = &instance->channels[i];
        if (channel->socket >= 0) {
            close(channel->socket);
        }
        host->free(host->context, channel->arena);
    }
    if (instance->listener >= 0) {
        close(instance->listener);
    }
    host->free(host->context, instance);
}
