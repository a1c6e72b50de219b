/*
 * ucx/close.c - the end: let everything leave, announce that nothing follows, wait for the same.
 *
 *   1  everything that was posted leaves this rank
 *   2  flush the endpoint to every peer, then send "stop", which is the last message
 *   3  keep progressing, also for the peers, until every peer has said stop or has died
 *   4  cancel the receives that no peer will match any more
 *
 * From step 2 on UCX progresses and no channel does: a payload that got its credit now would go
 * behind "stop", and a cancelled receive is not a broken connection (ucx_wait, at_rest;
 * BUG_MOVES_AT_REST of tests/model/put_protocol.pml).
 *
 * After a failure step 1 is left out, because a message without a credit never goes.  "stop" still
 * waits for the flush: otherwise a put in progress could be written into a peer that has already
 * received "stop" (BUG_STOP_OVERTAKES of tests/model/put_protocol.pml).  Step 3 remains as well: a
 * healthy peer needs this rank's progress to finish its own quiesce.
 */
#include "ucx.h"

#include <inttypes.h>

static bool ucx_is_gone(const struct ucx_peer *peer)
{
    return book_has_ended(&peer->book) || (peer->book.pidfd < 0 && atomic_load(&peer->is_lost));
}

static bool ucx_has_stopped(const struct ucx_peer *peer)
{
    return !peer->is_mine || peer->ep == NULL || ucx_has_ended(&peer->stop_received) ||
           ucx_is_gone(peer);
}

/* --- 1 ----------------------------------------------------------------------------------- */

static bool ucx_have_all_left(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ucx_channel *channel = &instance->channels[i];
        if (!instance->mode->is_settled(channel) && !atomic_load(&channel->peer->is_lost) &&
            !ucx_has_stopped(channel->peer)) {
            return false;
        }
    }
    return true;
}

/* --- 2 and 3 ----------------------------------------------------------------------------- */

/* Flushes each peer once, even if quiesce is called again after its deadline. */
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

/* Sends "stop" to each peer whose flush has landed; `stop_sent` first held the flush. */
static void ucx_say_stop(struct hd_transport *instance)
{
    const uint64_t tag = ucx_tag(UCX_CHANNEL_STOP, instance->book.host->rank);

    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        struct ucx_peer *peer = &instance->peers[rank];
        if (peer->ep != NULL && !peer->has_said_stop && peer->stop_sent.state != UCX_FLYING &&
            !ucx_is_gone(peer)) {
            const ucp_request_param_t sending = ucx_sending(&peer->stop_sent);
            peer->has_said_stop = true;
            ucx_launch(&peer->stop_sent, ucp_tag_send_nbx(peer->ep, &peer->stop_out,
                                                          sizeof peer->stop_out, tag, &sending));
        }
    }
}

static bool ucx_have_all_stopped(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    ucx_say_stop(instance);
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        const struct ucx_peer *peer = &instance->peers[rank];
        const bool has_left = peer->stop_sent.state != UCX_FLYING || ucx_is_gone(peer);
        if (!ucx_has_stopped(peer) || !has_left) {
            return false;
        }
    }
    return true;
}

/* --- 4 ----------------------------------------------------------------------------------- */

static bool ucx_is_nothing_flying(struct hd_transport *instance, const struct ucx_wait *wait)
{
    (void)wait;
    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        const struct ucx_channel *channel = &instance->channels[i];
        for (uint32_t slot = 0; !channel->book.is_source && slot < channel->book.slot_count;
             slot++) {
            if (channel->flights[slot].state == UCX_FLYING) {
                return false;
            }
        }
    }
    return true;
}

static hd_status ucx_cancel_receives(struct hd_transport *instance, uint64_t deadline_ns)
{
    const uint64_t grace_ns = book_now_ns(&instance->book) + 100000000u;
    const struct ucx_wait wait = {.is_over = ucx_is_nothing_flying,
                                  .at_rest = true,
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
    book_fail(&instance->book, book_rank_fault(HD_TIMEOUT, rank),
              "rank %u did not stop sending by the deadline%s", rank,
              instance->may_be_written ? ": this rank's memory is leaked" : "");
    return HD_TIMEOUT;
}

/* Whether a peer that has not stopped can still write here. */
static bool ucx_can_be_written(const struct hd_transport *instance)
{
    for (uint32_t rank = 0; rank < instance->book.host->rank_count; rank++) {
        const struct ucx_peer *peer = &instance->peers[rank];
        if (instance->mode->writes_remotely && !peer->is_messaged && !ucx_has_stopped(peer)) {
            return true;
        }
    }
    return false;
}

/* Its result does not depend on earlier failures: close frees only what this found unused. */
hd_status ucx_quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    const struct ucx_wait leave = {.is_over = ucx_have_all_left, .deadline_ns = deadline_ns};
    const struct ucx_wait rest = {
        .is_over = ucx_have_all_stopped, .at_rest = true, .deadline_ns = deadline_ns};

    if (book_failed(&instance->book) >= 0) {
        (void)ucx_wait_for(instance, &leave); /* what has not left by the deadline never leaves */
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
        return; /* memory and worker are leaked: a late write must find them as they were */
    }
    if (instance->worker != NULL) {
        (void)ucx_cancel_receives(instance, 0);
    }
    ucx_worker_close(instance, deadline_ns);
    instance->book.host->free(instance->book.host->context, instance->flights);
    book_destroy(instance);
}
