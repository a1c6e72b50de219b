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
    uint32_t count;  /* round trips that are counted, or messages each way of a stream */
    uint32_t window; /* of a stream: messages under way at most, up to the depth */
    bool is_whole;   /* bytes are written and compared within the measured time */
    bool is_both;    /* of a stream */
};

/* Half round trips in microseconds, up to the capacity; those of rank 0 count. */
struct hd_exchange_sample {
    double *half_us; /* [capacity], owned; NULL: keep none */
    uint32_t capacity, count;
};

hd_status hd_exchange_take(struct hd_exchange_sample *sample, uint32_t capacity);
void hd_exchange_give(struct hd_exchange_sample *sample);

/* On a device all bytes are written before and compared after the measured time, and `is_whole` is
   ignored; a trip is from the post in the stream until the stream may read the answer. */
hd_status hd_exchange_latency(struct hd_pair *pair, const struct hd_exchange *exchange,
                              struct hd_exchange_sample *sample);

/* 1e9 bytes per second, both ways together, from the first reserve until the peer reports that
   it has read the last message; that of rank 0 counts. */
hd_status hd_exchange_stream(struct hd_pair *pair, const struct hd_exchange *exchange,
                             double *gbytes);

/*
 * raw.c: the yardstick of `heddle bench p2p`: two processes, one memfd, and spinning.
 *
 * It has the functions of a transport, so that the same code measures both, but none of its duties:
 * it does not check the order of calls, cannot be aborted, does not notice a dead peer, and never
 * sleeps.  A message is a store of a word after its payload.  A wait polls the word 2000 times as
 * fast as it can, and then yields its core between polls, until the deadline.
 */
extern const struct hd_plugin hd_bench_raw;

#endif /* HEDDLE_BENCH_EXCHANGE_H */
