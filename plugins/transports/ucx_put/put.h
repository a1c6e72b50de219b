/* ucx_put/put.h - what a channel of ucx_put has of its own; ucx_put.c says how it works. */
#ifndef PUT_H
#define PUT_H

#include "table.h"

#define PUT_LINE_BYTES 128u /* a word each: two lines of x86, which fetches them in pairs */

/* The option of ucx_put alone, after those of both plugins. */
enum { PUT_OPTION_PUTS = UCX_OPTION_COUNT };

/* What a message says of itself, where no word can be put. */
struct put_header {
    uint64_t number; /* of a payload: its sequence; of a credit: the count */
    uint64_t channel;
};

struct put_channel {
    _Atomic uint64_t *news;  /* here: arrived at the target, credit at the source */
    uint64_t remote_word;    /* there: the other of the two */
    _Atomic uint64_t *there; /* the same, where it is memory of this process too; else NULL */
    uint64_t remote_slots;   /* source: slot 0 at the target */
    uint32_t started_slot;   /* source: of message started_count here, */
    uint32_t remote_slot;    /* and at the target */
    uint32_t ready_slot;     /* source: of message ready_count */
    uint64_t known_count;    /* *news, when it was last read */
    uint64_t started_count;  /* payloads that are put; target: messages that have begun to come */
    uint64_t ready_count;    /* source: payloads that are there */
    uint64_t said_count;     /* what remote_word has been told */
    uint64_t word_value;
    struct ucx_flight word;
    struct put_header word_header;
    ucp_request_param_t *how;   /* [slot_count], of a payload */
    struct ucx_flight *flushes; /* source: [slot_count] */
    struct put_header *headers; /* source: [slot_count] */
    int is_warming;             /* the warm-up is over only with its credit */
};

/* region.c: the memory of a rank, and where things lie in a peer's. [setup] */
hd_status put_prepare(struct hd_transport *instance, struct ucx_card *card);
hd_status put_connect(struct hd_transport *instance, struct ucx_peer *peer,
                      const struct ucx_card *card);
void put_finish(struct hd_transport *instance);

/* message.c: where a channel has no puts. */
hd_status put_message_open(struct hd_transport *instance); /* [setup] */
/* The payload `sequence`, which has its credit; it has left its slot when its flight lands. */
void put_message_payload(struct ucx_channel *channel, struct put_channel *put, uint64_t sequence);
void put_message_credit(struct ucx_channel *channel, struct put_channel *put, uint64_t count);
/* Target: counts the messages whose last byte is there.  A broken connection is no failure here. */
hd_status put_message_count(struct hd_transport *instance, struct ucx_channel *channel,
                            struct put_channel *put);

#endif /* PUT_H */
