/*
 * bench/perftest.h - ucx_perftest, UCX's own benchmark, as a yardstick.
 *
 * Rank 0 runs its server and rank 1 its client, each as a child process.  It uses the settings of
 * the plugin (error handling, UCX_TLS).  If the program is not installed, the result says so, which
 * is not an error.  Its MB/s are of 2^20 bytes and are converted to GB/s of 1e9 bytes; its latency
 * is half a round trip already.
 */
#ifndef HEDDLE_BENCH_PERFTEST_H
#define HEDDLE_BENCH_PERFTEST_H

#include "drive/ranks.h"

#define HD_PERFTEST_CALL_MAX 8u

struct hd_perftest {
    double latency_us, gbytes; /* medians of the calls so far; NaN: not measured */
    double latencies_us[HD_PERFTEST_CALL_MAX], all_gbytes[HD_PERFTEST_CALL_MAX]; /* of the calls */
    uint32_t call_count;
    char test[16];     /* "tag", "ucp_put" */
    char missing[200]; /* why there is no number; empty: there is one */
};

struct hd_perftest_request {
    const struct hd_plugin *plugin; /* the transport, which selects the test */
    const struct hd_option_value *options;
    const char *address;          /* of rank 0 */
    uint64_t bytes, beside_bytes; /* of a message; of what is transferred with it and not counted */
    uint32_t latency_count, stream_count, window;
};

/* Adds a call to `all`, which begins with no calls and NaN; at most HD_PERFTEST_CALL_MAX.
   Collective; HD_OK also if the program is missing. */
hd_status hd_perftest_run(const struct hd_drive_rank *rank,
                          const struct hd_perftest_request *request, struct hd_perftest *all);

#endif /* HEDDLE_BENCH_PERFTEST_H */
