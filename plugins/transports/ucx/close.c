/*
 * ucx/close.c - the end: let go what has been sent, say that no more comes, hear the same.
 *
 *   1  everything that was posted leaves this rank
 *   2  flush the endpoint to every peer; behind it "stop", behind which nothing comes
 *   3  go on moving, for the peers' sake too, until every peer has said stop or is dead
 *   4  cancel the receives that nobody meets any more
 *
 * From 2 on UCX moves and no channel does: a payload that gets its credit now would go behind "stop",
 * and a receive that is cancelled is no broken connection (ucx_wait, at_rest; BUG_MOVES_AT_REST of
 * tests/model/put_protocol.pml).
 *
 * After a failure step 1 is left out: what has no credit never goes.  But what is under way may
 * still be written into the peer when "stop" gets there, so that waits for its flush all the same
 * (BUG_STOP_OVERTAKES of tests/model/put_protocol.pml); and a peer that is well needs this rank's
 * progress to come to its own rest.
 */
#include "ucx.h"

#include <inttypes.h>

static int ucx_is_gone(const struct ucx_peer *peer)
{
    return ucx_peer_is_dead(peer) || (peer->book.pidfd < 0 && atomic_load(&peer->is_lost));
}

static int ucx_has_stopped(const struct ucx_peer *peer)
{
    return !peer->is_mine || peer->ep == NULL || ucx_has_ended(&peer->stop_received) ||
           ucx_is_gone(peer);
}

/* --- 1 ----------------------------------------------------------------------------------- */

static int ucx_have_all_left(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ucx_channel *channel = &instance->channels[i];
        if (!instance->mode->is_settled(channel) && !atomic_load(&channel->peer->is_lost) &&
            !ucx_has_stopped(channel->peer)) {
            return 0;
        }
    }
    return 1;
}

/* --- 2 and 3 ----------------------------------------------------------------------------- */

/* Once: a quiesce that came to its deadline may be asked for again. */
static void ucx_flush_all(struct hd_transport *instance)
{
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        struct ucx_peer *peer = &instance->peers[rank];
        if (peer->ep != NULL && !peer->has_said_stop && peer->stop_sent.state != UCX_FLYING &&
            !ucx_has_stopped(peer) && !atomic_load(&peer->is_lost)) {
            const ucp_request_param_t sending = ucx_sending(&peer->stop_sent);
            ucx_launch(&peer->stop_sent, ucp_ep_flush_nbx(peer->ep, &sending));
        }
    }
}

/* To each peer once its flush has landed, which was this flight before. */
static void ucx_say_stop(struct hd_transport *instance)
{
    const uint64_t tag = ucx_tag(UCX_CHANNEL_STOP, instance->book.host->rank);

    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        struct ucx_peer *peer = &instance->peers[rank];
        if (peer->ep != NULL && !peer->has_said_stop && peer->stop_sent.state != UCX_FLYING &&
            !ucx_is_gone(peer)) {
            const ucp_request_param_t sending = ucx_sending(&peer->stop_sent);
            peer->has_said_stop = 1;
            ucx_launch(&peer->stop_sent, ucp_tag_send_nbx(peer->ep, &peer->stop_out,
                                                          sizeof peer->stop_out, tag, &sending));
        }
    }
}

static int ucx_have_all_stopped(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    ucx_say_stop(instance);
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        const struct ucx_peer *peer = &instance->peers[rank];
        const int has_heard = peer->stop_sent.state != UCX_FLYING || ucx_is_gone(peer);
        if (!ucx_has_stopped(peer) || !has_heard) {
            return 0;
        }
    }
    return 1;
}

/* --- 4 ----------------------------------------------------------------------------------- */

static int ucx_is_nothing_flying(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ucx_channel *channel = &instance->channels[i];
        for (uint32_t slot = 0; !channel->book.is_source && slot < channel->book.slot_count;
             slot++) {
            if (channel->flights[slot].state == UCX_FLYING) {
                return 0;
            }
        }
    }
    return 1;
}

static hd_status ucx_cancel_receives(struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint64_t grace_ns = book_now_ns(&instance->book) + 100000000u;
    const struct ucx_wait wait = {.is_over = ucx_is_nothing_flying,
                                  .at_rest = 1,
                                  .deadline_ns = deadline_ns > grace_ns ? deadline_ns : grace_ns};

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ucx_channel *channel = &instance->channels[i];
        for (uint32_t slot = 0; !channel->book.is_source && slot < channel->book.slot_count;
             slot++) {
            if (channel->flights[slot].state == UCX_FLYING) {
                ucp_request_cancel(instance->worker, channel->flights[slot].request);
            }
        }
    }
    return ucx_wait_for(instance, &wait);
}

static hd_status ucx_report_restless(struct hd_transport *instance)
{
    uint32_t rank = 0;

    while (rank + 1 < instance->book.host->rank_count && ucx_has_stopped(&instance->peers[rank])) {
        rank++;
    }
    const struct book_fault fault = {HD_TIMEOUT, rank, BOOK_NONE, 0};
    book_fail(&instance->book, &fault, "rank %u did not come to rest by the deadline%s", rank,
              instance->may_be_written ? ": this rank's memory is leaked" : "");
    return HD_TIMEOUT;
}

/* Can a peer that has not stopped still write here? */
static int ucx_can_be_written(const struct hd_transport *instance)
{
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        const struct ucx_peer *peer = &instance->peers[rank];
        if (instance->mode->writes_remotely && !peer->is_messaged && !ucx_has_stopped(peer)) {
            return 1;
        }
    }
    return 0;
}

/* Says what it found, whatever failed before: only this decides what close may free. */
hd_status ucx_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct ucx_wait leave = {.is_over = ucx_have_all_left, .deadline_ns = deadline_ns};
    const struct ucx_wait rest = {
        .is_over = ucx_have_all_stopped, .at_rest = 1, .deadline_ns = deadline_ns};

    if (book_failed(&instance->book) >= 0) {
        (void)ucx_wait_for(instance, &leave); /* what has not left by then never will */
    }
    ucx_flush_all(instance);
    const hd_status rested = ucx_wait_for(instance, &rest);
    const hd_status landed = ucx_cancel_receives(instance, deadline_ns);
    instance->may_be_written = landed != HD_OK || (rested != HD_OK && ucx_can_be_written(instance));
    if (instance->may_be_written || (rested != HD_OK && book_failed(&instance->book) >= 0)) {
        return ucx_report_restless(instance);
    }
    return HD_OK;
}

void ucx_close(struct hd_transport *instance, uint64_t deadline_ns)
{
    if (instance == NULL) {
        return;
    }
    book_let_go(&instance->book);
    if (instance->may_be_written) {
        return; /* memory, worker and all: a late write must find what it was sent to */
    }
    if (instance->worker != NULL) {
        (void)ucx_cancel_receives(instance, 0);
    }
    ucx_worker_close(instance, deadline_ns);
    instance->book.host->free(instance->book.host->context, instance->flights);
    book_destroy(instance);
}
