/*
 * bench/raw.h - the yardstick of `heddle bench p2p`: two processes, one memfd, and spinning.
 *
 * It has the calls of a transport, so that the same code measures both, and none of its duties: it
 * checks no turn, knows no abort and no death, and never sleeps.  A message is a store of a word
 * behind its payload; a wait looks at the word, 2000 times as fast as it can, and then gives its
 * core away between looks, until the deadline.
 */
#ifndef HEDDLE_BENCH_RAW_H
#define HEDDLE_BENCH_RAW_H

#include <heddle/transport.h>

extern const struct hd_plugin hd_bench_raw;

#endif /* HEDDLE_BENCH_RAW_H */
