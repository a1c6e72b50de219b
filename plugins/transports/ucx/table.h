/* ucx/table.h - what the descriptors of ucx_tag and ucx_put have in common. */
#ifndef UCX_TABLE_H
#define UCX_TABLE_H

#include "ucx.h"

/* Options: these, in this order, are those of both plugins. */
enum ucx_option {
    UCX_OPTION_TLS,
    UCX_OPTION_SPIN,
    UCX_OPTION_KEEPALIVE,
    UCX_OPTION_RENDEZVOUS,
    UCX_OPTION_ELEMENT,
    UCX_OPTION_COUNT
};

#define UCX_OPTION_ROWS                                                                           \
    {"tls",          "auto",                                                                      \
     NULL,           "Transports that UCX may use, as in UCX_TLS: posix,cma,self or tcp,self.",   \
     HD_OPTION_TEXT, 0},                                                                          \
        {"spin_us",                                                                               \
         "-1",                                                                                    \
         "-1..1000",                                                                              \
         "Microseconds that a wait looks before it sleeps; -1: 100, or 20 where more ranks than " \
         "cores are on this host.",                                                               \
         HD_OPTION_INTEGER,                                                                       \
         0},                                                                                      \
        {"keepalive_ms",                                                                          \
         "500",                                                                                   \
         "10..60000",                                                                             \
         "How often UCX asks whether a peer's host still answers; deaths on this host are seen "  \
         "at once.",                                                                              \
         HD_OPTION_INTEGER,                                                                       \
         0},                                                                                      \
        {"rendezvous_bytes",                                                                      \
         "8K",                                                                                    \
         NULL,                                                                                    \
         "Larger messages wait at the source for their receive, so that UCX buffers none.",       \
         HD_OPTION_BYTES,                                                                         \
         0},                                                                                      \
    {                                                                                             \
        "element_bytes", "8448", "128..64K",                                                      \
            "Of UCX's queue through shared memory, 64 elements a rank: messages that fit lie in " \
            "it, larger ones beside it.",                                                         \
            HD_OPTION_BYTES, 0                                                                    \
    }

#define UCX_OPS(open_function)                                                             \
    {                                                                                      \
        .size = sizeof(struct hd_transport_ops), .open = open_function, .slot = ucx_slot,  \
        .reserve = ucx_reserve, .post_send = ucx_post_send, .post_recv = ucx_post_recv,    \
        .test = ucx_test, .wait = ucx_wait, .release = ucx_release, .progress = ucx_move,  \
        .abort = ucx_abort, .quiesce = ucx_quiesce, .close = ucx_close, .stats = ucx_stats \
    }

#endif /* UCX_TABLE_H */
