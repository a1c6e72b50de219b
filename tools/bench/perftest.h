/*
 * bench/perftest.h - ucx_perftest, which UCX measures itself with, as a yardstick.
 *
 * Rank 0 is its server and rank 1 its client, each a child of the rank.  It gets what the plugin
 * asks of UCX (error handling, lanes), and where the program is not installed that is said, and no
 * error. Its MB/s are of 2^20 and are made GB/s of 1e9 here; its latency is half a round trip
 * already.
 */
#ifndef HEDDLE_BENCH_PERFTEST_H
#define HEDDLE_BENCH_PERFTEST_H

#include "drive/ranks.h"

#define HD_PERFTEST_CALL_MAX 8u

struct hd_perftest {
    double latency_us, gbytes; /* the medians of the calls so far; NaN: not measured */
    double latencies_us[HD_PERFTEST_CALL_MAX], all_gbytes[HD_PERFTEST_CALL_MAX]; /* of the calls */
    uint32_t call_count;
    char test[16];     /* "tag", "ucp_put" */
    char missing[200]; /* why not; empty: it was */
};

struct hd_perftest_request {
    const struct hd_plugin *plugin; /* that carries: it names the test */
    const struct hd_option_value *options;
    const char *address;          /* where rank 0 is */
    uint64_t bytes, beside_bytes; /* of a message; what crosses with it, and does not count */
    uint32_t latency_count, stream_count, window;
};

/* Adds a call to `all`, which begins with no calls and NaN; at most HD_PERFTEST_CALL_MAX.
   Collective; HD_OK also where it is missing. */
hd_status hd_perftest_run(const struct hd_drive_rank *rank,
                          const struct hd_perftest_request *request, struct hd_perftest *all);

#endif /* HEDDLE_BENCH_PERFTEST_H */
