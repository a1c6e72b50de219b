#include "launch/rendezvous.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "launch/agree.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RETRY_MS = 50,     /* between two attempts to connect */
    CONNECT_MS = 2000, /* for one attempt */
    ANSWER_MS = 5000,  /* in which a hub answers */
    CLOCK_ROUNDS = 5,
    GUESTS_MORE = 64, /* connections that are not ranks, beside those that are */
    LINGER_MS = 1000, /* after a refusal, the hub still tells ranks that connect a little later */
};

static const char rendezvous_magic[8] = "heddle2";

/* The sender's facts follow, with their final zero. */
struct hello {
    char magic[8];
    uint8_t token[HD_TOKEN_BYTES];
    uint32_t rank, rank_count;
    struct hd_peer peer;
};

static void rendezvous_describe_self(const struct hd_identity *identity, struct hd_peer *peer)
{
    FILE *const file = fopen("/proc/sys/kernel/random/boot_id", "re");

    *peer = (struct hd_peer){.local_rank = identity->local_rank, .pid = (int32_t)getpid()};
    gethostname(peer->host, sizeof peer->host - 1);
    if (file != NULL) {
        if (fscanf(file, "%39s", peer->boot) != 1) {
            peer->boot[0] = '\0';
        }
        fclose(file);
    }
    /* Two containers on one machine do not see each other's processes. */
    const size_t length = strlen(peer->boot);
    const ssize_t added =
        readlink("/proc/self/ns/pid", peer->boot + length, sizeof peer->boot - 1 - length);
    peer->boot[length + (added > 0 ? (size_t)added : 0)] = '\0';
}

static uint32_t rendezvous_until_ms(uint64_t deadline_ns, uint32_t most_ms)
{
    const uint64_t now_ns = hd_now_ns();
    const uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / HD_MS_NS : 0;

    return (uint32_t)hd_min_u64(left_ms + 1, most_ms);
}

/* --- the hub -------------------------------------------------------------------------------- */

struct reception {
    struct hd_link *link;
    const struct hd_link_request *request;
    struct hd_problem *problem;
    int listener;
    uint32_t guest_count, guest_max, present_count;
    struct hd_wire *guests; /* [guest_max], connected but not identified; a closed one is free */
    struct pollfd *awaited; /* [guest_max + 1] */
};

static hd_status rendezvous_refuse_twice(struct reception *reception, const struct hello *hello)
{
    const struct hd_peer *const first = &reception->link->peers[hello->rank];

    hd_problem_place(reception->problem, "launch");
    hd_problem_remedy(reception->problem, "give every process a RANK of its own");
    return hd_problem_set(
        reception->problem, HD_INVALID, HD_EXIT_USAGE,
        "rank %u claimed twice: by process %d on %.63s and by process %d on %.63s", hello->rank,
        first->pid, first->host, hello->peer.pid, hello->peer.host);
}

static hd_status rendezvous_check_hello(struct reception *reception, const struct hello *hello,
                                        const char *facts)
{
    const struct hd_link *const link = reception->link;
    struct hd_problem *const problem = reception->problem;

    if (hello->rank_count != link->rank_count) {
        hd_problem_place(problem, "launch");
        return hd_problem_set(
            problem, HD_INVALID, HD_EXIT_USAGE,
            "rank %u (process %d on %.63s) was started with %u ranks, rank 0 with %u", hello->rank,
            hello->peer.pid, hello->peer.host, hello->rank_count, link->rank_count);
    }
    if (hello->rank == 0 || hd_wire_is_open(&link->wires[hello->rank])) {
        return rendezvous_refuse_twice(reception, hello);
    }
    return hd_agree_check(
        &(struct hd_agreement){hello->rank, hello->peer.host, reception->request->facts, facts},
        problem);
}

/* A connection that is not a rank of this run is closed without an answer. */
static bool rendezvous_is_ours(const struct reception *reception, const struct hello *hello)
{
    const uint8_t *const token = reception->request->identity->hub.token;

    return memcmp(hello->magic, rendezvous_magic, sizeof rendezvous_magic) == 0 &&
           hello->rank < hello->rank_count && memcmp(hello->token, token, HD_TOKEN_BYTES) == 0 &&
           memchr(hello->peer.host, '\0', sizeof hello->peer.host) != NULL;
}

static hd_status rendezvous_seat(struct reception *reception, struct hd_wire *guest,
                                 const unsigned char *bytes)
{
    struct hd_link *const link = reception->link;
    struct hello hello;

    memcpy(&hello, bytes, sizeof hello);
    if (!rendezvous_is_ours(reception, &hello)) {
        hd_log(HD_LOG_WARN, "closed a connection that is not from a rank of this run");
        hd_wire_close(guest);
        return HD_OK;
    }
    if (reception->problem->exit_code != 0) {
        const struct hd_frame frame = {HD_LINK_VERDICT, 0, sizeof *reception->problem};
        reception->present_count++;
        hd_wire_send(guest, &frame, reception->problem);
        return HD_OK;
    }
    const hd_status status =
        rendezvous_check_hello(reception, &hello, (const char *)bytes + sizeof hello);
    if (status != HD_OK) {
        return status;
    }
    assert(hello.rank < link->rank_count);
    link->wires[hello.rank] = *guest;
    link->peers[hello.rank] = hello.peer;
    *guest = (struct hd_wire){.descriptor = -1};
    reception->present_count++;
    hd_log(HD_LOG_DEBUG, "launch: rank %u, process %d on %.63s, has connected: %u of %u are here",
           hello.rank, hello.peer.pid, hello.peer.host, reception->present_count, link->rank_count);
    return HD_OK;
}

static hd_status rendezvous_read_guest(struct reception *reception, struct hd_wire *guest)
{
    const unsigned char *bytes;
    struct hd_frame frame;

    const hd_status received = hd_wire_receive(guest);
    while (hd_wire_is_open(guest) && hd_wire_next(guest, &frame, &bytes)) {
        if (frame.kind == HD_LINK_CLOCK && frame.bytes == sizeof(uint64_t)) {
            const uint64_t now_ns = hd_now_ns();
            hd_wire_send(guest, &frame, &now_ns);
        } else if (frame.kind == HD_LINK_HELLO && frame.bytes > sizeof(struct hello) &&
                   bytes[frame.bytes - 1] == '\0') {
            return rendezvous_seat(reception, guest, bytes);
        } else {
            hd_wire_close(guest);
        }
    }
    if (received != HD_OK) {
        hd_wire_close(guest);
    }
    return HD_OK;
}

static void rendezvous_let_in(struct reception *reception)
{
    const int descriptor = accept(reception->listener, NULL, NULL);

    for (uint32_t i = 0; descriptor >= 0 && i < reception->guest_max; i++) {
        if (!hd_wire_is_open(&reception->guests[i])) {
            hd_wire_init(&reception->guests[i], descriptor);
            return;
        }
    }
    if (descriptor >= 0) {
        close(descriptor); /* too many connections that are not ranks; a rank retries */
    }
}

static hd_status rendezvous_refuse_missing(struct reception *reception)
{
    const struct hd_link *const link = reception->link;
    char list[256] = "";
    uint32_t length = 0, missing_count = 0;

    for (uint32_t rank = 1; rank < link->rank_count; rank++) {
        if (!hd_wire_is_open(&link->wires[rank])) {
            missing_count++;
            if (length < sizeof list - 16) {
                length += (uint32_t)snprintf(list + length, sizeof list - length, "%s%u",
                                             length > 0 ? ", " : "", rank);
            }
        }
    }
    hd_problem_place(reception->problem, "launch");
    hd_problem_remedy(reception->problem, "start the missing ranks, or raise "
                                          "transport.first_step_timeout_s");
    return hd_problem_set(reception->problem, HD_TIMEOUT, HD_EXIT_PEER,
                          "rank%s %s %s not connected within %.1f s: %u of %u are here",
                          missing_count > 1 ? "s" : "", list, missing_count > 1 ? "have" : "has",
                          reception->request->patience_s, link->rank_count - missing_count,
                          link->rank_count);
}

static hd_status rendezvous_receive_ranks(struct reception *reception, uint64_t deadline_ns)
{
    hd_status status = HD_OK;

    while (status == HD_OK && reception->present_count < reception->link->rank_count) {
        if (hd_now_ns() >= deadline_ns) {
            return reception->problem->exit_code == 0 ? rendezvous_refuse_missing(reception)
                                                      : HD_TIMEOUT;
        }
        reception->awaited[0] = (struct pollfd){.fd = reception->listener, .events = POLLIN};
        for (uint32_t i = 0; i < reception->guest_max; i++) {
            reception->awaited[i + 1] =
                (struct pollfd){.fd = reception->guests[i].descriptor, .events = POLLIN};
        }
        poll(reception->awaited, reception->guest_max + 1,
             (int)rendezvous_until_ms(deadline_ns, 1000));
        for (uint32_t i = 0; status == HD_OK && i < reception->guest_max; i++) {
            if (reception->awaited[i + 1].revents != 0) {
                status = rendezvous_read_guest(reception, &reception->guests[i]);
            }
        }
        if (reception->awaited[0].revents != 0) {
            rendezvous_let_in(reception);
        }
    }
    return status;
}

static void rendezvous_tell_guests(struct reception *reception)
{
    const struct hd_frame frame = {HD_LINK_VERDICT, 0, sizeof *reception->problem};

    for (uint32_t i = 0; i < reception->guest_max; i++) {
        hd_wire_send(&reception->guests[i], &frame, reception->problem);
    }
    hd_link_broadcast(reception->link, &frame, reception->problem, UINT32_MAX);
}

static hd_status rendezvous_receive(struct hd_link *link, const struct hd_link_request *request,
                                    uint64_t deadline_ns, struct hd_problem *problem)
{
    struct reception reception = {.link = link, .request = request, .problem = problem};
    struct hd_identity *const identity = request->identity;
    hd_status status = hd_socket_listen(&identity->hub, &reception.listener, problem);

    if (status != HD_OK) {
        return status;
    }
    hd_log(HD_LOG_DEBUG, "launch: rank 0 listens on port %u for %u ranks", identity->hub.port,
           link->rank_count - 1);
    reception.present_count = 1;
    reception.guest_max = link->rank_count + GUESTS_MORE;
    reception.guests = calloc(reception.guest_max, sizeof *reception.guests);
    reception.awaited = calloc(reception.guest_max + 1, sizeof *reception.awaited);
    rendezvous_describe_self(identity, &link->peers[0]);
    status = hd_identity_exchange(identity, deadline_ns, problem);
    if (status == HD_OK && (reception.guests == NULL || reception.awaited == NULL)) {
        status = hd_problem_no_memory(problem, 0, "the ranks");
    }
    for (uint32_t i = 0; reception.guests != NULL && i < reception.guest_max; i++) {
        reception.guests[i].descriptor = -1;
    }
    if (status == HD_OK) {
        status = rendezvous_receive_ranks(&reception, deadline_ns);
        const struct hd_frame welcome = {HD_LINK_WELCOME, 0,
                                         link->rank_count * sizeof *link->peers};
        if (status == HD_OK) {
            hd_link_broadcast(link, &welcome, link->peers, UINT32_MAX);
        } else {
            rendezvous_tell_guests(&reception);
            if (status != HD_TIMEOUT) {
                rendezvous_receive_ranks(&reception, hd_now_ns() + LINGER_MS * HD_MS_NS);
            }
        }
    }
    for (uint32_t i = 0; reception.guests != NULL && i < reception.guest_max; i++) {
        hd_wire_close(&reception.guests[i]);
    }
    free(reception.guests);
    free(reception.awaited);
    close(reception.listener);
    return status;
}

/* --- a member ------------------------------------------------------------------------------- */

/* The next frame; HD_TIMEOUT at the deadline; HD_PEER_LOST: the connection has ended. */
static hd_status rendezvous_await_frame(struct hd_wire *wire, struct hd_frame *frame,
                                        const unsigned char **bytes, uint64_t deadline_ns)
{
    hd_status received = HD_OK;

    while (!hd_wire_next(wire, frame, bytes)) {
        struct pollfd awaited = {.fd = wire->descriptor, .events = POLLIN};
        if (received != HD_OK || !hd_wire_is_open(wire)) {
            return HD_PEER_LOST;
        }
        if (hd_now_ns() >= deadline_ns) {
            return HD_TIMEOUT;
        }
        if (hd_wire_has_queue(wire)) {
            awaited.events |= POLLOUT;
            hd_wire_flush(wire);
        }
        poll(&awaited, 1, (int)rendezvous_until_ms(deadline_ns, 1000));
        received = hd_wire_receive(wire);
    }
    return HD_OK;
}

struct attempt {
    struct hd_link *link;
    const struct hd_link_request *request;
    struct hd_problem *problem;
    uint64_t deadline_ns;
};

static hd_status rendezvous_read_clock(struct hd_link *link, struct hd_wire *wire)
{
    const uint64_t deadline_ns = hd_now_ns() + ANSWER_MS * HD_MS_NS;

    link->clock = (struct hd_clock){0};
    for (uint32_t round = 0; round < CLOCK_ROUNDS; round++) {
        const uint64_t begin_ns = hd_now_ns();
        struct hd_frame frame = {HD_LINK_CLOCK, link->rank, sizeof begin_ns};
        const unsigned char *bytes;
        uint64_t there_ns;
        hd_status status = hd_wire_send(wire, &frame, &begin_ns);
        if (status == HD_OK) {
            status = rendezvous_await_frame(wire, &frame, &bytes, deadline_ns);
        }
        if (status != HD_OK || frame.kind != HD_LINK_CLOCK || frame.bytes != sizeof there_ns) {
            return HD_PEER_LOST;
        }
        const uint64_t end_ns = hd_now_ns();
        memcpy(&there_ns, bytes, sizeof there_ns);
        hd_clock_take_first(&link->clock, (struct hd_clock_sample){begin_ns, there_ns, end_ns});
    }
    return HD_OK;
}

static hd_status rendezvous_say_hello(struct hd_link *link, const struct hd_link_request *request,
                                      struct hd_wire *wire)
{
    const size_t facts_bytes = strlen(request->facts) + 1;
    const struct hd_frame frame = {HD_LINK_HELLO, link->rank, sizeof(struct hello) + facts_bytes};
    struct hello *const hello = calloc(1, frame.bytes); /* the padding too */

    if (hello == NULL) {
        return HD_NO_MEMORY;
    }
    memcpy(hello->magic, rendezvous_magic, sizeof rendezvous_magic);
    memcpy(hello->token, request->identity->hub.token, HD_TOKEN_BYTES);
    hello->rank = link->rank;
    hello->rank_count = link->rank_count;
    rendezvous_describe_self(request->identity, &hello->peer);
    memcpy(hello + 1, request->facts, facts_bytes);
    const hd_status status = hd_wire_send(wire, &frame, hello);
    free(hello);
    return status;
}

/* HD_PEER_LOST: the caller retries.  Any other failure is in the attempt's problem. */
static hd_status rendezvous_await_welcome(struct attempt *attempt, struct hd_wire *wire)
{
    struct hd_link *const link = attempt->link;
    const uint64_t peers_bytes = link->rank_count * sizeof *link->peers;
    const unsigned char *bytes;
    struct hd_frame frame;

    const hd_status status = rendezvous_await_frame(wire, &frame, &bytes, attempt->deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    if (frame.kind == HD_LINK_VERDICT && frame.bytes == sizeof *attempt->problem) {
        hd_problem_read(attempt->problem, bytes, frame.bytes);
        return attempt->problem->exit_code > 0 ? HD_ABORTED : HD_PEER_LOST;
    }
    if (frame.kind != HD_LINK_WELCOME || frame.bytes != peers_bytes) {
        return HD_PEER_LOST;
    }
    memcpy(link->peers, bytes, peers_bytes);
    if (strcmp(link->peers[0].boot, link->peers[link->rank].boot) == 0) {
        link->clock = (struct hd_clock){0};
        link->is_one_clock = true;
    }
    return HD_OK;
}

static hd_status rendezvous_try_address(struct attempt *attempt, const char *address)
{
    const uint16_t port = attempt->request->identity->hub.port;
    const int descriptor =
        hd_socket_connect(address, port, rendezvous_until_ms(attempt->deadline_ns, CONNECT_MS));
    struct hd_wire wire;

    if (descriptor < 0) {
        return HD_PEER_LOST;
    }
    hd_wire_init(&wire, descriptor);
    hd_status status = rendezvous_read_clock(attempt->link, &wire);
    if (status == HD_OK) {
        status = rendezvous_say_hello(attempt->link, attempt->request, &wire);
    }
    if (status == HD_OK) {
        status = rendezvous_await_welcome(attempt, &wire);
    }
    if (status == HD_OK) {
        attempt->link->wires[0] = wire;
        return HD_OK;
    }
    hd_wire_close(&wire);
    errno = ECONNRESET;
    return status;
}

static hd_status rendezvous_join(struct attempt *attempt)
{
    const struct hd_link_request *const request = attempt->request;
    const struct hd_hub_address *const hub = &request->identity->hub;
    hd_status status =
        hd_identity_exchange(request->identity, attempt->deadline_ns, attempt->problem);
    uint32_t attempt_count = 0;
    int error = 0;

    if (status != HD_OK) {
        return status;
    }
    attempt->deadline_ns += HD_S_NS / 2; /* later than the hub's, which can name a missing rank */
    do {
        for (uint32_t i = 0; i < hub->address_count; i++) {
            status = rendezvous_try_address(attempt, hub->addresses[i]);
            error = errno;
            attempt_count++;
            if (status == HD_OK || attempt_count == 1) {
                hd_log(HD_LOG_DEBUG,
                       "launch: rank %u, attempt %u to connect to rank 0 at %s port %u: %s",
                       attempt->link->rank, attempt_count, hub->addresses[i], hub->port,
                       status == HD_OK ? "connected" : strerror(error));
            }
            if (status == HD_OK || status == HD_ABORTED) {
                return status;
            }
        }
        poll(NULL, 0, (int)rendezvous_until_ms(attempt->deadline_ns, RETRY_MS));
    } while (hd_now_ns() < attempt->deadline_ns);
    hd_problem_place(attempt->problem, "rank %u", attempt->link->rank);
    hd_problem_remedy(attempt->problem, "start rank 0, give all ranks the same MASTER_ADDR and "
                                        "MASTER_PORT, and open that port");
    return hd_problem_set(attempt->problem, HD_TIMEOUT, HD_EXIT_PEER,
                          "cannot connect to rank 0 at %s port %u within %.1f s: %s",
                          hub->addresses[0], hub->port, request->patience_s, strerror(error));
}

hd_status hd_rendezvous(struct hd_link *link, const struct hd_link_request *request,
                        struct hd_problem *problem)
{
    const uint64_t deadline_ns = hd_now_ns() + (uint64_t)(request->patience_s * 1e9);
    struct hd_hub_address *const hub = &request->identity->hub;

    if (link->rank != 0) {
        return rendezvous_join(&(struct attempt){link, request, problem, deadline_ns});
    }
    if (request->identity->launcher == HD_LAUNCHER_PMIX &&
        getrandom(hub->token, sizeof hub->token, 0) != (ssize_t)sizeof hub->token) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED, "cannot get random bytes: %s",
                              strerror(errno));
    }
    return rendezvous_receive(link, request, deadline_ns, problem);
}
