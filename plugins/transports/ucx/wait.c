/*
 * ucx/wait.c - progresses UCX while the transport is open; the only file that blocks.
 *
 * A put into shared memory wakes no process, so a wait that has spun for a while sleeps in short
 * naps, each longer than the last, and checks the peer, the abort word and the deadline after each.
 */
#include "ucx.h"

#include <sched.h>
#include <time.h>

enum {
    ROUND_MAX = 16,        /* of progress in one move: far below 100 us */
    OTHERS_EVERY = 8,      /* looks at the awaited channel for one at all others */
    NAP_FIRST_NS = 20000,  /* the kernel adds about 60 us to a nap */
    NAP_LAST_NS = 1000000, /* a sleeping rank moves nothing for its peers */
};

static hd_status ucx_look_at_channels(struct hd_transport *instance)
{
    hd_status moved = HD_IN_PROGRESS;

    for (uint32_t i = 0; i < instance->book.own_count; i++) {
        hd_status status = HD_OK;
        while (status == HD_OK) {
            status = instance->mode->advance(instance, &instance->channels[i]);
            moved = status == HD_OK ? HD_OK : moved;
        }
        if (status < 0) {
            return status;
        }
    }
    return moved;
}

hd_status ucx_move(struct hd_transport *instance)
{
    const hd_status failed = book_failed(&instance->book);
    hd_status moved = HD_IN_PROGRESS;

    for (uint32_t i = 0; i < ROUND_MAX && ucp_worker_progress(instance->worker) != 0; i++) {
        moved = HD_OK;
    }
    if (failed < 0) {
        return failed;
    }
    const hd_status status = ucx_look_at_channels(instance);
    return status != HD_IN_PROGRESS ? status : moved;
}

static void ucx_nap(uint64_t duration_ns)
{
    const struct timespec duration = {0, (long)duration_ns};
    nanosleep(&duration, NULL);
}

static bool ucx_is_over(struct hd_transport *instance, const struct ucx_wait *wait)
{
    return wait->is_over != NULL ? wait->is_over(instance, wait)
                                 : ucx_done(wait->channel) >= wait->goal;
}

/*
 * Looks several times without reading the clock, since a message takes less time than the clock and
 * a yield.  The awaited channel is looked at first, the others only if it has not moved.  In a mode
 * without remote writes nothing can have changed unless UCX has progressed.  UCX is progressed once
 * per look, after everything that it brought is counted: a message that UCX receives before its
 * receive is posted is copied once more.  *moved is HD_OK if anything moved.
 */
static hd_status ucx_look(struct hd_transport *instance, const struct ucx_wait *wait,
                          uint32_t look_count, hd_status *moved)
{
    const struct ucx_mode *mode = instance->mode;
    hd_status failed = book_failed(&instance->book);
    hd_status now = HD_OK; /* anything may have arrived before the first look */

    *moved = HD_IN_PROGRESS;
    for (uint32_t i = 0; failed >= 0 && i < look_count; i++) {
        const bool has_progressed = now != HD_OK && ucp_worker_progress(instance->worker) != 0;
        const bool has_news = has_progressed || now == HD_OK;
        if (!has_news && !mode->writes_remotely) {
            continue;
        }
        now = wait->channel != NULL ? mode->advance(instance, wait->channel) : HD_IN_PROGRESS;
        if (now == HD_OK && ucx_is_over(instance, wait)) {
            return HD_OK;
        }
        if (now >= 0 && (has_news || i % OTHERS_EVERY == 0)) {
            const hd_status others = ucx_look_at_channels(instance);
            now = others != HD_IN_PROGRESS ? others : now;
        }
        failed = now < 0 ? now : book_failed(&instance->book);
        if (failed >= 0 && ucx_is_over(instance, wait)) {
            return HD_OK;
        }
        *moved = has_progressed || now == HD_OK ? HD_OK : *moved;
    }
    return failed < 0 ? failed : HD_IN_PROGRESS;
}

/* The same for a rank that sends nothing more and gives no more credits. */
static hd_status ucx_look_at_rest(struct hd_transport *instance, const struct ucx_wait *wait,
                                  hd_status *moved)
{
    *moved = HD_IN_PROGRESS;
    for (uint32_t i = 0; i < UCX_LOOKS_FEW; i++) {
        *moved = ucp_worker_progress(instance->worker) != 0 ? HD_OK : *moved;
    }
    return ucx_is_over(instance, wait) ? HD_OK : HD_IN_PROGRESS;
}

/* HD_PEER_LOST if the peer has ended and nothing that it sent before ends the wait. */
static hd_status ucx_look_at_peer(struct hd_transport *instance, const struct ucx_wait *wait)
{
    hd_status moved = HD_IN_PROGRESS;

    if (wait->peer == NULL ||
        (!book_has_ended(&wait->peer->book) && !atomic_load(&wait->peer->is_lost))) {
        return HD_IN_PROGRESS;
    }
    const hd_status status = ucx_look(instance, wait, UCX_LOOKS_FEW, &moved);
    return status == HD_IN_PROGRESS && moved != HD_OK ? HD_PEER_LOST : status;
}

static hd_status ucx_look_again(struct hd_transport *instance, const struct ucx_wait *wait,
                                uint32_t look_count, hd_status *moved)
{
    return wait->at_rest ? ucx_look_at_rest(instance, wait, moved)
                         : ucx_look(instance, wait, look_count, moved);
}

hd_status ucx_wait_for(struct hd_transport *instance, const struct ucx_wait *wait)
{
    const struct hd_host *host = instance->book.host;
    uint64_t nap_ns = NAP_FIRST_NS, idle_since_ns = 0;
    uint32_t look_count = instance->look_count;
    hd_status moved = HD_IN_PROGRESS;
    hd_status status =
        ucx_is_over(instance, wait) ? HD_OK : ucx_look_again(instance, wait, look_count, &moved);

    if (status == HD_IN_PROGRESS) { /* a wait that is over at once does not read the clock */
        idle_since_ns = host->now_ns(host->context);
    }

    while (status == HD_IN_PROGRESS) { /* ends at the deadline */
        const uint64_t now_ns = host->now_ns(host->context);
        if (now_ns >= wait->deadline_ns) {
            return HD_TIMEOUT;
        }
        if (moved == HD_OK) {
            idle_since_ns = now_ns;
            nap_ns = NAP_FIRST_NS;
            look_count = instance->look_count;
        } else if (now_ns - idle_since_ns < instance->spin_ns) {
            sched_yield();
        } else {
            status = ucx_look_at_peer(instance, wait);
            if (status != HD_IN_PROGRESS) {
                return status;
            }
            ucx_nap(nap_ns);
            look_count = UCX_LOOKS_FEW; /* a wait that sleeps does not spin as well */
            nap_ns = nap_ns < NAP_LAST_NS ? nap_ns * 3 / 2 : NAP_LAST_NS;
        }
        status = ucx_look_again(instance, wait, look_count, &moved);
    }
    return status;
}
