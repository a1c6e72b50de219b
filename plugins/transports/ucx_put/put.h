/* ucx_put/put.h - a channel's state that only ucx_put has; ucx_put.c explains how it works. */
#ifndef PUT_H
#define PUT_H

#include "table.h"

#define PUT_LINE_BYTES 128u /* one word each: two cache lines of x86, which are fetched in pairs */

/* The option that only ucx_put has, after those of both plugins. */
enum { PUT_OPTION_PUTS = UCX_OPTION_COUNT };

/* The header of a message, where no word can be put. */
struct put_header {
    uint64_t number; /* a payload's sequence; a credit's count */
    uint64_t channel;
};

struct put_channel {
    _Atomic uint64_t *news;  /* this rank's word: arrived at the target, credit at the source */
    uint64_t remote_word;    /* the address of the peer's word */
    _Atomic uint64_t *there; /* the peer's word if it is mapped here; else NULL */
    uint64_t remote_slots;   /* source: the address of slot 0 at the target */
    uint32_t started_slot;   /* source: the slot of message started_count here, */
    uint32_t remote_slot;    /* and at the target */
    uint32_t ready_slot;     /* source: the slot of message ready_count */
    uint64_t known_count;    /* *news when it was last read */
    uint64_t started_count;  /* source: payloads put; target: messages that have begun to arrive */
    uint64_t ready_count;    /* source: payloads that have arrived at the target */
    uint64_t said_count;     /* the value last written to the peer's word */
    uint64_t word_value;     /* the source of a put in progress to the peer's word */
    struct ucx_flight word;  /* that put */
    struct put_header word_header;
    ucp_request_param_t *how;   /* [slot_count], the parameters of a payload's put */
    struct ucx_flight *flushes; /* source: [slot_count] */
    struct put_header *headers; /* source: [slot_count] */
    bool is_warming;            /* the warm-up is over only when its credit has arrived */
};

/* region.c: the memory of a rank, and the addresses in a peer's. [setup] */
hd_status put_prepare(struct hd_transport *instance, struct ucx_card *card);
hd_status put_connect(struct hd_transport *instance, struct ucx_peer *peer,
                      const struct ucx_card *card);
void put_finish(struct hd_transport *instance);

/* message.c: replaces puts where UCX has none. */
hd_status put_message_open(struct hd_transport *instance); /* [setup] */
/* Sends payload `sequence`, which has its credit; it has left its slot when its flight lands. */
void put_message_payload(struct ucx_channel *channel, struct put_channel *put, uint64_t sequence);
void put_message_credit(struct ucx_channel *channel, struct put_channel *put, uint64_t count);
/* Target: counts the messages that have arrived whole.  A broken connection is not a failure. */
hd_status put_message_count(struct hd_transport *instance, struct ucx_channel *channel,
                            struct put_channel *put);

#endif /* PUT_H */
