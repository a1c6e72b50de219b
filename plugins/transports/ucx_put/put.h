/* ucx_put/put.h - what a lane of ucx_put has of its own; ucx_put.c says how it works. */
#ifndef PUT_H
#define PUT_H

#include "ucx.h"

#define PUT_LINE_BYTES 128u /* a word each: two lines of x86, which fetches them in pairs */

struct put_lane {
    _Atomic uint64_t *news; /* here: arrived at the target, credit at the source */
    uint64_t remote_word;   /* there: the other of the two */
    uint64_t remote_slots;  /* source: slot 0 at the target */
    uint64_t known_count;   /* *news, when it was last read */
    uint64_t started_count; /* source: payloads that are put */
    uint64_t ready_count;   /* source: payloads that are there */
    uint64_t said_count;    /* what remote_word has been told */
    uint64_t word_value;
    struct ucx_flight word;
    struct ucx_flight *flushes; /* source: [slot_count] */
    int is_warming;             /* the warm-up is over only with its credit */
};

/* region.c: the memory of a rank, and where things lie in a peer's. [setup] */
hd_status put_prepare(struct hd_transport *instance, struct ucx_card *card);
hd_status put_connect(struct hd_transport *instance, struct ucx_peer *peer,
                      const struct ucx_card *card);
void put_finish(struct hd_transport *instance);

#endif /* PUT_H */
