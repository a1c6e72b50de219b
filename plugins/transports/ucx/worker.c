/*
 * ucx/worker.c - UCX itself: its context, the worker, one endpoint per peer, and its log.
 *
 * Every endpoint asks for UCX's peer error mode, so that UCX reports a broken connection.  In that
 * mode UCX keeps shared memory only with MM_ERROR_HANDLING; without it, it would use tcp over
 * loopback (measured: eight times slower at 1 KiB).
 */
#include "table.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

/* --- the log of UCX ---------------------------------------------------------------------- */

static _Thread_local char ucx_last_words[160];
static atomic_int ucx_is_listening;

/* UCX would print to stdout, which belongs to the core; an error of ours quotes UCX instead. */
static ucs_log_func_rc_t ucx_hear(const char *file, unsigned line, const char *function,
                                  ucs_log_level_t level, const ucs_log_component_config_t *config,
                                  const char *message, va_list arguments)
{
    (void)file;
    (void)line;
    (void)function;
    (void)config;
    if (level <= UCS_LOG_LEVEL_WARN) {
        vsnprintf(ucx_last_words, sizeof ucx_last_words, message, arguments);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

/* Signals belong to the core too, and UCX takes some over when it is loaded.  HANDLE_ERRORS=none
   keeps a failed assertion of UCX from printing thirty lines of backtrace before our report. */
static void ucx_tame(void)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};

    if (atomic_exchange(&ucx_is_listening, 1) == 0) {
        ucs_log_push_handler(ucx_hear);
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
            ucs_debug_disable_signal(signals[i]);
        }
        if (getenv("UCX_HANDLE_ERRORS") == NULL) {
            (void)ucs_global_opts_set_value("HANDLE_ERRORS", "none");
        }
    }
    ucx_last_words[0] = '\0';
}

static hd_status ucx_refuse(struct hd_transport *instance, uint32_t rank, const char *call,
                            ucs_status_t status)
{
    const hd_status reason = status == UCS_ERR_NO_MEMORY ? HD_NO_MEMORY : HD_UNSUPPORTED;

    return book_fail(&instance->book, book_rank_fault(reason, rank),
                     "%s: UCX: %s%s%s; the option tls lists the transports that UCX may use", call,
                     ucs_status_string(status), ucx_last_words[0] != '\0' ? ": " : "",
                     ucx_last_words);
}

/* What one worker of UCX 1.13 takes of /dev/shm by default, in one file. */
enum { UCX_SHARED_BYTES = 4700000 };

/* Whether UCX may use /dev/shm: our option, else its own variable, decides. */
static bool ucx_worker_is_shared(const struct hd_transport *instance)
{
    static const char *const names[] = {"all", "shm", "sm", "mm", "posix"};
    const char *tls = book_text_option(&instance->book, UCX_OPTION_TLS, "auto");
    const char *variable = getenv("UCX_TLS");
    bool is_named = false;

    if (strcmp(tls, "auto") == 0) {
        tls = variable != NULL ? variable : "all";
    }
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        is_named |= strstr(tls, names[i]) != NULL;
    }
    return is_named || tls[0] == '^';
}

/* HD_OK unless /dev/shm, or the limit on files, is too small.  After a failure, also if it is too
   small for all ranks together. */
static hd_status ucx_check_shared(struct hd_transport *instance, bool has_failed)
{
    const uint64_t all_bytes = (uint64_t)instance->book.host->rank_count * UCX_SHARED_BYTES;
    const struct book_fault fault = book_own_fault(HD_UNSUPPORTED);
    struct statvfs room;

    if (!ucx_worker_is_shared(instance)) {
        return HD_OK;
    }
    if (book_file_limit_bytes() < UCX_SHARED_BYTES) {
        return book_fail(&instance->book, fault,
                         "UCX needs a file of %d bytes in /dev/shm for each rank, and the limit on "
                         "the size of a file is %" PRIu64
                         ": raise the limit (ulimit -f), or set the option tls to tcp",
                         UCX_SHARED_BYTES, book_file_limit_bytes());
    }
    if (statvfs("/dev/shm", &room) != 0) {
        return HD_OK;
    }
    const uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    const uint64_t size_bytes = (uint64_t)room.f_blocks * room.f_frsize;
    if (free_bytes >= UCX_SHARED_BYTES && !(has_failed && size_bytes < all_bytes)) {
        return HD_OK;
    }
    return book_fail(&instance->book, fault,
                     "/dev/shm is too small for UCX: %u ranks need %" PRIu64
                     " bytes (%d each), and it has %" PRIu64 ", of which %" PRIu64
                     " are free: enlarge it (docker run --shm-size), or set the option tls to tcp",
                     instance->book.host->rank_count, all_bytes, UCX_SHARED_BYTES, size_bytes,
                     free_bytes);
}

/* --- context and worker ------------------------------------------------------------------ */

static void ucx_set(ucp_config_t *config, const char *key, int64_t value, const char *unit)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRId64 "%s", value, unit);
    ucp_config_modify(config, key, text);
}

/* Our options override the UCX_ variables of the environment. */
static void ucx_configure(const struct hd_transport *instance, ucp_config_t *config)
{
    const struct book *book = &instance->book;
    const char *tls = book_text_option(book, UCX_OPTION_TLS, "auto");

    ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
    if (strcmp(tls, "auto") != 0) {
        ucp_config_modify(config, "TLS", tls);
    }
    ucx_set(config, "KEEPALIVE_INTERVAL", book_option(book, UCX_OPTION_KEEPALIVE, 500), "ms");
    ucx_set(config, "RNDV_THRESH", book_option(book, UCX_OPTION_RENDEZVOUS, 8192), "");
    ucx_set(config, "MM_FIFO_ELEM_SIZE", book_option(book, UCX_OPTION_ELEMENT, 8448), "");
    book_log(book, "UCX %s, tls %s", ucp_get_version_string(), tls);
}

hd_status ucx_worker_open(struct hd_transport *instance)
{
    const ucp_params_t wanted = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG | instance->mode->features};
    const ucp_worker_params_t threads = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_config_t *config = NULL;

    BOOK_TRY(ucx_check_shared(instance, false));
    ucx_tame();
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return ucx_refuse(instance, BOOK_NONE, "ucp_config_read", status);
    }
    ucx_configure(instance, config);
    status = ucp_init(&wanted, config, &instance->context);
    ucp_config_release(config);
    if (status != UCS_OK) {
        instance->context = NULL;
        return ucx_refuse(instance, BOOK_NONE, "ucp_init", status);
    }
    ucx_last_words[0] = '\0'; /* it warns about MM_ERROR_HANDLING if it uses no shared memory */
    status = ucp_worker_create(instance->context, &threads, &instance->worker);
    if (status != UCS_OK) {
        instance->worker = NULL;
        BOOK_TRY(ucx_check_shared(instance, true));
        return ucx_refuse(instance, BOOK_NONE, "ucp_worker_create", status);
    }
    ucx_last_words[0] = '\0';
    return HD_OK;
}

hd_status ucx_worker_introduce(struct hd_transport *instance, struct ucx_card *card)
{
    ucp_address_t *address = NULL;
    size_t bytes = 0;

    const ucs_status_t status = ucp_worker_get_address(instance->worker, &address, &bytes);
    if (status != UCS_OK) {
        return ucx_refuse(instance, BOOK_NONE, "ucp_worker_get_address", status);
    }
    const bool fits = bytes <= sizeof card->address;
    if (fits) {
        memcpy(card->address, address, bytes);
        card->address_bytes = (uint32_t)bytes;
    }
    ucp_worker_release_address(instance->worker, address);
    if (!fits) {
        return book_fail(&instance->book, book_own_fault(HD_UNSUPPORTED),
                         "the address of this worker has %zu bytes and must have at most %zu: list "
                         "fewer transports in the option tls",
                         bytes, sizeof card->address);
    }
    return HD_OK;
}

static void ucx_on_broken(void *user_data, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx_peer *peer = user_data;

    (void)ep;
    (void)status;
    atomic_store(&peer->is_lost, 1);
}

hd_status ucx_worker_connect(struct hd_transport *instance, struct ucx_peer *peer,
                             const struct ucx_card *card)
{
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = (const ucp_address_t *)card->address,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = ucx_on_broken, .arg = peer}};

    const ucs_status_t status = ucp_ep_create(instance->worker, &params, &peer->ep);
    if (status != UCS_OK) {
        peer->ep = NULL;
        return ucx_refuse(instance, peer->book.rank, "ucp_ep_create", status);
    }
    const uint64_t tag = ucx_tag(UCX_CHANNEL_STOP, peer->book.rank);
    const ucp_request_param_t receiving = ucx_receiving(&peer->stop_received, sizeof peer->stop_in);
    ucx_launch(&peer->stop_received,
               ucp_tag_recv_nbx(instance->worker, &peer->stop_in, sizeof peer->stop_in, tag,
                                UINT64_MAX, &receiving));
    return HD_OK;
}

/* --- the end ----------------------------------------------------------------------------- */

static bool ucx_has_landed(struct hd_transport *instance, const struct ucx_wait *wait)
{
    const struct ucx_flight *flight = &instance->peers[wait->goal].stop_received;
    return flight->state != UCX_FLYING;
}

/* Cancels the receive of a "stop" that the peer no longer sends. */
static void ucx_cancel_stop(struct hd_transport *instance, struct ucx_peer *peer,
                            uint64_t deadline_ns)
{
    const struct ucx_wait wait = {.is_over = ucx_has_landed,
                                  .goal = peer->book.rank,
                                  .at_rest = true,
                                  .deadline_ns = deadline_ns};

    if (peer->stop_received.state == UCX_FLYING) {
        ucp_request_cancel(instance->worker, peer->stop_received.request);
        ucx_wait_for(instance, &wait);
    }
}

/* Closes by force: quiesce has flushed everything that matters, and the peer may have ended. */
static void ucx_close_endpoint(struct hd_transport *instance, struct ucx_peer *peer,
                               uint64_t deadline_ns)
{
    const struct hd_host *host = instance->book.host;
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const ucs_status_ptr_t request = ucp_ep_close_nbx(peer->ep, &force);

    peer->ep = NULL;
    if (!UCS_PTR_IS_PTR(request)) {
        return;
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS &&
           host->now_ns(host->context) < deadline_ns) {
        ucp_worker_progress(instance->worker);
    }
    ucp_request_free(request);
}

void ucx_worker_close(struct hd_transport *instance, uint64_t deadline_ns)
{
    for (uint32_t rank = 0; instance->worker != NULL && rank < instance->book.host->rank_count;
         rank++) {
        struct ucx_peer *peer = &instance->peers[rank];
        if (peer->ep != NULL) {
            ucx_cancel_stop(instance, peer, deadline_ns);
            if (peer->rkey != NULL) {
                ucp_rkey_destroy(peer->rkey);
                peer->rkey = NULL;
            }
            ucx_close_endpoint(instance, peer, deadline_ns);
        }
    }
    if (instance->worker != NULL) {
        ucp_worker_destroy(instance->worker);
        instance->worker = NULL;
    }
    instance->mode->finish(instance);
    if (instance->context != NULL) {
        ucp_cleanup(instance->context);
        instance->context = NULL;
    }
}
