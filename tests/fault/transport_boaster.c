/* A transport that is registered, and promises to move by a progress that it does not have. */
#include <heddle/transport.h>

#include <stddef.h>

static hd_status open_none(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    (void)setup;
    (void)out;
    return HD_UNSUPPORTED;
}

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    (void)instance;
    (void)message;
    return NULL;
}

static hd_status refuse(struct hd_transport *instance, const struct hd_message *message)
{
    (void)instance;
    (void)message;
    return HD_UNSUPPORTED;
}

static hd_status refuse_stream(struct hd_transport *instance, const struct hd_message *message,
                               void *stream)
{
    (void)stream;
    return refuse(instance, message);
}

static void abort_none(struct hd_transport *instance, const char *reason)
{
    (void)instance;
    (void)reason;
}

static void close_none(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)instance;
    (void)deadline_ns;
}

static const struct hd_transport_ops ops = {.size = sizeof ops,
                                            .open = open_none,
                                            .slot = slot,
                                            .reserve = refuse,
                                            .post_send = refuse_stream,
                                            .post_recv = refuse,
                                            .test = refuse,
                                            .release = refuse_stream,
                                            .abort = abort_none,
                                            .close = close_none};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .name = "boaster",
    .summary = "promises progress, and has none",
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_PROGRESS,
    .ops = &ops,
};
