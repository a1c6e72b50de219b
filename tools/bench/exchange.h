/*
 * bench/exchange.h - messages forth and back, and streams of them, over one pair; collective.
 *
 * Each ends in a fence that moves the transport, so nothing is under way while another pair or a
 * child process is measured.
 */
#ifndef HEDDLE_BENCH_EXCHANGE_H
#define HEDDLE_BENCH_EXCHANGE_H

#include "drive/pair.h"

struct hd_exchange {
    uint32_t count;    /* round trips that are counted, or messages each way of a stream */
    uint32_t window;   /* of a stream: messages under way at most, up to the depth */
    uint32_t is_whole; /* bytes are written and compared within the time */
    uint32_t is_both;  /* of a stream */
};

/* Half round trips in microseconds, as many as there is room for; rank 0's count. */
struct hd_exchange_sample {
    double *half_us; /* [capacity], owned; NULL: none is kept */
    uint32_t capacity, count;
};

hd_status hd_exchange_take(struct hd_exchange_sample *sample, uint32_t capacity);
void hd_exchange_give(struct hd_exchange_sample *sample);

/* On a device the bytes are always written before and compared after the time, whatever `is_whole`
   says, and a trip is from where the stream posts to where it may read. */
hd_status hd_exchange_latency(struct hd_pair *pair, const struct hd_exchange *exchange,
                              struct hd_exchange_sample *sample);

/* Rank 0's: 1e9 bytes a second, both ways together, from the first reserve until the peer has said
   that it has read the last. */
hd_status hd_exchange_stream(struct hd_pair *pair, const struct hd_exchange *exchange,
                             double *gbytes);

#endif /* HEDDLE_BENCH_EXCHANGE_H */
