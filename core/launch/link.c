#include "launch/link.h"

#include "base/clock.h"
#include "base/log.h"
#include "launch/relay.h"
#include "launch/rendezvous.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* FAREWELL_MS: how long a closing link sends and reads.  ASK_EVERY_MS: between two readings of the
   hub's clock; few, as each wakes the hub, but enough to follow the drift of the clocks. */
enum { EVENTS_MAX = 64, FAREWELL_MS = 200, ASK_EVERY_MS = 250 };
#define KICK UINT32_MAX

uint32_t hd_link_rank(const struct hd_link *link)
{
    return link->rank;
}

uint32_t hd_link_rank_count(const struct hd_link *link)
{
    return link->rank_count;
}

const struct hd_peer *hd_link_peer(const struct hd_link *link, uint32_t rank)
{
    assert(rank < link->rank_count);
    return &link->peers[rank];
}

const struct hd_clock *hd_link_clock(const struct hd_link *link)
{
    return &link->clock;
}

const struct hd_problem *hd_link_verdict(const struct hd_link *link)
{
    return link->has_verdict ? &link->verdict : NULL;
}

uint64_t hd_link_heard_ns(const struct hd_link *link, uint32_t rank)
{
    return link->wires[rank].heard_ns;
}

bool hd_link_is_lost(const struct hd_link *link, uint32_t rank)
{
    return link->is_lost[rank];
}

void hd_link_listen(struct hd_link *link, const struct hd_link_listener *listener)
{
    link->listener = *listener;
}

int hd_link_descriptor(const struct hd_link *link)
{
    return link->poll;
}

void hd_link_pause(struct hd_link *link)
{
    link->is_paused = true;
}

/* --- sending -------------------------------------------------------------------------------- */

void hd_link_send(struct hd_link *link, uint32_t rank, const struct hd_link_message *message)
{
    const struct hd_frame frame = {message->kind, message->rank, message->byte_count};

    if (rank == UINT32_MAX || link->rank != 0) {
        hd_link_broadcast(link, &frame, message->bytes, UINT32_MAX);
    } else {
        assert(rank > 0 && rank < link->rank_count);
        hd_link_send_to(link, rank, &frame, message->bytes);
    }
}

/* --- the clocks ------------------------------------------------------------------------------- */

static void link_ask_clock(struct hd_link *link)
{
    const uint64_t now_ns = hd_now_ns();

    if (link->rank == 0 || link->is_one_clock || link->asked_ns != 0 ||
        now_ns < link->next_ask_ns) {
        return;
    }
    const struct hd_frame frame = {HD_LINK_CLOCK, link->rank, sizeof now_ns};
    link->asked_ns = now_ns;
    link->next_ask_ns = now_ns + ASK_EVERY_MS * HD_MS_NS;
    hd_link_send_to(link, 0, &frame, &now_ns);
}

/* The hub answers with its own time; a member takes the answer. */
static void link_take_clock(struct hd_link *link, uint32_t from, const struct hd_frame *frame,
                            const unsigned char *bytes)
{
    const uint64_t now_ns = hd_now_ns();
    uint64_t there_ns;

    if (frame->bytes != sizeof there_ns) {
        return;
    }
    if (link->rank == 0) {
        const struct hd_frame answer = {HD_LINK_CLOCK, 0, sizeof now_ns};
        hd_link_send_to(link, from, &answer, &now_ns);
    } else if (link->asked_ns != 0) {
        memcpy(&there_ns, bytes, sizeof there_ns);
        hd_clock_take(&link->clock, (struct hd_clock_sample){link->asked_ns, there_ns, now_ns});
        link->asked_ns = 0;
    }
}

/* --- receiving ------------------------------------------------------------------------------ */

static void link_take(struct hd_link *link, uint32_t from, const struct hd_frame *frame,
                      const unsigned char *bytes)
{
    const struct hd_link_message message = {frame->kind, frame->rank, bytes, frame->bytes};

    if (frame->rank >= link->rank_count || (link->rank == 0 && frame->rank != from)) {
        return; /* a member may not send for another rank */
    }
    if (frame->kind == HD_LINK_CLOCK) {
        link_take_clock(link, from, frame, bytes);
    } else if (frame->kind == HD_LINK_VERDICT) {
        link->has_verdict =
            link->rank != 0 && hd_problem_read(&link->verdict, bytes, frame->bytes) == HD_OK;
    } else if (frame->kind >= HD_LINK_PUT && frame->kind <= HD_LINK_GATHERED) {
        hd_relay_take(link, frame, bytes);
    } else if (frame->kind >= HD_LINK_MESSAGE || frame->kind == HD_LINK_FAILED) {
        link->listener.on_message(link->listener.context, &message);
    }
}

static void link_take_frames(struct hd_link *link, uint32_t rank)
{
    const unsigned char *bytes;
    struct hd_frame frame;

    while (!link->is_paused && hd_wire_next(&link->wires[rank], &frame, &bytes)) {
        link_take(link, rank, &frame, bytes);
    }
}

static void link_lose(struct hd_link *link, uint32_t rank)
{
    link_take_frames(link, rank); /* what it sent before its end */
    if (link->is_paused || link->is_lost[rank]) {
        return;
    }
    hd_wire_close(&link->wires[rank]);
    link->is_lost[rank] = true;
    hd_log(HD_LOG_DEBUG, "link: the connection to rank %u has ended", rank);
    link->listener.on_lost(link->listener.context, rank);
}

static void link_serve(struct hd_link *link, const struct epoll_event *event)
{
    const uint32_t rank = event->data.u32;
    uint64_t count;

    if (rank == KICK) {
        const ssize_t ignored = read(link->kick, &count, sizeof count);
        (void)ignored; /* its only purpose is to wake epoll */
        return;
    }
    struct hd_wire *const wire = &link->wires[rank];
    if (event->events & EPOLLOUT) {
        hd_wire_flush(wire);
        hd_link_watch(link, rank);
    }
    const hd_status status = hd_wire_receive(wire);
    if (status == HD_OK) {
        link_take_frames(link, rank);
    }
    if (status != HD_OK || !hd_wire_is_open(wire)) {
        link_lose(link, rank);
    }
}

void hd_link_poll(struct hd_link *link)
{
    struct epoll_event events[EVENTS_MAX];

    link->is_paused = false;
    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        link_take_frames(link, rank); /* frames that a pause has left */
    }
    const int count = link->is_paused ? 0 : epoll_wait(link->poll, events, EVENTS_MAX, 0);
    for (int i = 0; i < count && !link->is_paused; i++) {
        link_serve(link, &events[i]);
    }
    hd_relay_ship(link);
    link_ask_clock(link);
}

/* --- opening and closing -------------------------------------------------------------------- */

static hd_status link_watch_all(struct hd_link *link)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = KICK};

    if (epoll_ctl(link->poll, EPOLL_CTL_ADD, link->kick, &event) != 0) {
        return HD_SYSTEM;
    }
    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        event.data.u32 = rank;
        if (hd_wire_is_open(&link->wires[rank]) &&
            epoll_ctl(link->poll, EPOLL_CTL_ADD, link->wires[rank].descriptor, &event) != 0) {
            return HD_SYSTEM;
        }
    }
    return HD_OK;
}

static void link_destroy(struct hd_link *link)
{
    for (uint32_t rank = 0; link->wires != NULL && rank < link->rank_count; rank++) {
        hd_wire_close(&link->wires[rank]);
    }
    if (link->poll >= 0) {
        close(link->poll);
    }
    if (link->kick >= 0) {
        close(link->kick);
    }
    free(link->wires);
    free(link->peers);
    free(link->is_lost);
    free(link->blocks);
    free(link);
}

static struct hd_link *link_create(const struct hd_identity *identity)
{
    struct hd_link *const link = calloc(1, sizeof *link);

    if (link == NULL) {
        return NULL;
    }
    link->rank = identity->rank;
    link->rank_count = identity->rank_count;
    link->poll = epoll_create1(EPOLL_CLOEXEC);
    link->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->peers = calloc(link->rank_count, sizeof *link->peers);
    link->wires = calloc(link->rank_count, sizeof *link->wires);
    link->is_lost = calloc(link->rank_count, sizeof *link->is_lost);
    for (uint32_t rank = 0; link->wires != NULL && rank < link->rank_count; rank++) {
        link->wires[rank].descriptor = -1;
    }
    if (link->poll < 0 || link->kick < 0 || !link->peers || !link->wires || !link->is_lost) {
        link_destroy(link);
        return NULL;
    }
    return link;
}

hd_status hd_link_open(const struct hd_link_request *request, struct hd_link **link,
                       struct hd_problem *problem)
{
    struct hd_link *const made = link_create(request->identity);

    assert(request->identity->rank_count > 1);
    if (made == NULL) {
        return hd_problem_no_memory(problem, 0, "the link: %s", strerror(errno));
    }
    hd_status status = hd_rendezvous(made, request, problem);
    if (status == HD_OK && link_watch_all(made) != HD_OK) {
        status = hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                                "cannot watch the connections: %s", strerror(errno));
    }
    if (status != HD_OK) {
        link_destroy(made);
        return status;
    }
    *link = made;
    return HD_OK;
}

/* Sends what is queued, then reads until the other end closes.  A socket that is closed with unread
   bytes would discard what it has sent. */
static void link_say_farewell(struct hd_wire *wire, uint64_t deadline_ns)
{
    struct pollfd awaited = {.fd = wire->descriptor, .events = POLLOUT};

    while (hd_wire_has_queue(wire) && hd_now_ns() < deadline_ns && hd_wire_flush(wire) == HD_OK) {
        poll(&awaited, 1, 10);
    }
    shutdown(wire->descriptor, SHUT_WR);
    awaited.events = POLLIN;
    while (hd_wire_receive(wire) == HD_OK && hd_now_ns() < deadline_ns) {
        wire->in.begin = wire->in.end;
        poll(&awaited, 1, 10);
    }
}

void hd_link_close(struct hd_link *link, const struct hd_problem *problem)
{
    if (link == NULL) {
        return;
    }
    if (link->rank == 0 || (problem->exit_code != 0 && !link->has_verdict)) {
        const struct hd_frame frame = {link->rank == 0 ? HD_LINK_VERDICT : HD_LINK_FAILED,
                                       link->rank, sizeof *problem};
        hd_link_broadcast(link, &frame, problem, UINT32_MAX);
    }
    const uint64_t deadline_ns = hd_now_ns() + FAREWELL_MS * HD_MS_NS;
    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        if (hd_wire_is_open(&link->wires[rank])) {
            link_say_farewell(&link->wires[rank], deadline_ns);
        }
    }
    link_destroy(link);
}

void hd_link_forget(struct hd_link *link)
{
    for (uint32_t rank = 0; rank < link->rank_count; rank++) {
        if (hd_wire_is_open(&link->wires[rank])) {
            close(link->wires[rank].descriptor);
            link->wires[rank].descriptor = -1;
        }
    }
    close(link->poll);
    link->poll = -1;
}
