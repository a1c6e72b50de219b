/*
 * bench/raw.h - the yardstick of `heddle bench p2p`: two processes, one memfd, and spinning.
 *
 * It has the functions of a transport, so that the same code measures both, but none of its duties:
 * it does not check the order of calls, cannot be aborted, does not notice a dead peer, and never
 * sleeps.
 * A message is a store of a word after its payload.  A wait polls the word 2000 times as fast as it
 * can, and then yields its core between polls, until the deadline.
 */
#ifndef HEDDLE_BENCH_RAW_H
#define HEDDLE_BENCH_RAW_H

#include <heddle/transport.h>

extern const struct hd_plugin hd_bench_raw;

#endif /* HEDDLE_BENCH_RAW_H */
