/* ucx/table.h - what the plugin descriptors of ucx_tag and ucx_put have in common. */
#ifndef UCX_TABLE_H
#define UCX_TABLE_H

#include "ucx.h"

/* The options of both plugins, in the order of their rows. */
enum ucx_option {
    UCX_OPTION_TLS,
    UCX_OPTION_SPIN,
    UCX_OPTION_KEEPALIVE,
    UCX_OPTION_RENDEZVOUS,
    UCX_OPTION_ELEMENT,
    UCX_OPTION_COUNT
};

#define UCX_ROW(row_type, row_name, row_initial, row_range, row_help) \
    {                                                                 \
        row_name, row_initial, row_range, row_help, row_type, 0       \
    }

#define UCX_OPTION_ROWS                                                                           \
    UCX_ROW(HD_OPTION_TEXT, "tls", "auto", NULL,                                                  \
            "Transports that UCX may use, in the form of UCX_TLS: posix,cma,self or tcp,self."),  \
        UCX_ROW(HD_OPTION_INTEGER, "spin_us", "-1", "-1..1000",                                   \
                "Microseconds that a wait spins before it sleeps; -1: 100, or 20 if more ranks "  \
                "than cores share this rank's cores."),                                           \
        UCX_ROW(HD_OPTION_INTEGER, "keepalive_ms", "500", "10..60000",                            \
                "Milliseconds between two checks by UCX that a peer's host answers; a death on "  \
                "this host is seen at once."),                                                    \
        UCX_ROW(HD_OPTION_BYTES, "rendezvous_bytes", "8K", NULL,                                  \
                "Larger messages wait at the source for their receive, so that UCX buffers none " \
                "of them."),                                                                      \
        UCX_ROW(HD_OPTION_BYTES, "element_bytes", "8448", "128..64K",                             \
                "Size of an element of UCX's queue in shared memory, which has 64 per rank: "     \
                "messages that fit travel in the queue, larger ones beside it.")

#define UCX_CAPABILITIES                                                         \
    (HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_NO_RESIDENT |        \
     HD_TRANSPORT_PEER_DEATH | HD_TRANSPORT_MANY_HOSTS | HD_TRANSPORT_PROGRESS | \
     HD_TRANSPORT_TARGET_PROGRESS)

#define UCX_OPS(open_function)                                                             \
    {                                                                                      \
        .size = sizeof(struct hd_transport_ops), .open = open_function, .slot = ucx_slot,  \
        .reserve = ucx_reserve, .post_send = ucx_post_send, .post_recv = ucx_post_recv,    \
        .test = ucx_test, .wait = ucx_wait, .release = ucx_release, .progress = ucx_move,  \
        .abort = ucx_abort, .quiesce = ucx_quiesce, .close = ucx_close, .stats = ucx_stats \
    }

#endif /* UCX_TABLE_H */
