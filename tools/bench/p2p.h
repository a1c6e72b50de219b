/*
 * bench/p2p.h - what a message costs between two ranks, beside yardsticks.
 *
 * For each size, in rounds in which all transports alternate, so that all see the same load:
 *
 *   latency     half a round trip.  Up to `depth` messages go forth and back in a burst; the first
 *               is not counted, because it waits for the peer to be ready
 *   bandwidth   a stream of messages, at most `window` under way, one way or both
 *
 * Each is measured twice.  `whole`: the source writes every byte of its slot and the target
 * compares every byte, within the measured time.  `bare`: only the calls of the transport; the
 * first 8 bytes of a message are written and compared, and a latency uses two slots, so that its
 * cache lines are as local as those of a yardstick with one buffer.
 *
 * If the slots are on a device, there is one measurement of each.  Within the measured time only
 * the first 8 bytes of a stream's message are written and read.  A latency is half the time from
 * the post in the stream of the source until the stream of the source may read the answer.  The
 * yardstick is a copy within rank 0's device.
 *
 * Yardsticks on the host: a raw exchange through a memfd (bench/raw.c), measured by the same code,
 * and ucx_perftest (bench/perftest.c), which neither writes nor reads the bytes and so is compared
 * with `bare`.
 */
#ifndef HEDDLE_BENCH_P2P_H
#define HEDDLE_BENCH_P2P_H

#include "bench/bench.h"
#include "drive/pair.h"

#define HD_P2P_SIZE_MAX          64u
#define HD_P2P_CANDIDATE_MAX     4u
#define HD_P2P_ITERATIONS_MAX    1000000u
#define HD_P2P_ROUND_COUNT       5u
#define HD_P2P_CHANNEL_BYTES_MAX (1ull << 30) /* window x size */

/*
 * perftest.c: ucx_perftest, UCX's own benchmark, as a yardstick.
 *
 * Rank 0 runs its server and rank 1 its client, each as a child process.  It uses the settings of
 * the plugin (error handling, UCX_TLS).  If the program is not installed, the result says so, which
 * is not an error.  Its MB/s are of 2^20 bytes and are converted to GB/s of 1e9 bytes; its latency
 * is half a round trip already.
 */
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

struct hd_p2p_request {
    struct hd_pair_plugin candidates[HD_P2P_CANDIDATE_MAX];
    uint32_t candidate_count;
    uint32_t size_count;
    uint64_t sizes[HD_P2P_SIZE_MAX];
    uint32_t iterations, warmup;   /* 0: depends on the size */
    uint32_t window;               /* 0: the depth, which depends on the size */
    bool is_both;                  /* the stream goes both ways at once */
    bool has_thread;               /* transport.progress_thread */
    struct hd_drive_lender lender; /* of the device with all slots; kernel NULL: host memory */
    double timeout_s;
    struct hd_link *link; /* NULL: this process forks the ranks */
    char address[64];     /* of rank 0, for ucx_perftest */
};

/* One transport at one size. */
struct hd_p2p_side {
    struct hd_bench_spread whole_us, bare_us;         /* half a round trip */
    struct hd_bench_spread whole_gbytes, bare_gbytes; /* 1e9 a second, over the rounds */
    uint64_t message_count, wrong_count;              /* of both ranks */
    bool is_in_place;                                 /* the source writes where the target reads */
    char carrier[36];
    struct hd_perftest perftest;
};

struct hd_p2p_row {
    uint64_t bytes;
    uint32_t depth, window;
    uint32_t latency_count, stream_count; /* messages of a round */
    bool is_measured;
    struct hd_p2p_side sides[HD_P2P_CANDIDATE_MAX], raw;
};

struct hd_p2p_result {
    uint32_t row_count;
    bool has_raw;                            /* there is a yardstick, raw or the copy on a device */
    char device[HD_DRIVE_DEVICE_TEXT_BYTES]; /* of rank 0; empty: the host */
    struct hd_p2p_row rows[HD_P2P_SIZE_MAX];
};

/* How many messages of `bytes` may be under way. */
uint32_t hd_p2p_window(const struct hd_p2p_request *request, uint64_t bytes);

/* Rows that were measured are valid also after a failure.  Wrong messages are counted, and are not
   a failure here. */
hd_status hd_bench_p2p(const struct hd_p2p_request *request, struct hd_p2p_result *result,
                       struct hd_problem *problem);

#endif /* HEDDLE_BENCH_P2P_H */
