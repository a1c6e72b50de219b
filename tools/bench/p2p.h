/*
 * bench/p2p.h - what a message costs between two ranks, beside what it could cost at least.
 *
 * For each size, in rounds that take turns so that all see the same load:
 *
 *   latency     half a round trip.  Up to `depth` messages go forth and back in a burst; the first
 *               is not counted, for it waits for the peer to be ready
 *   bandwidth   a stream of messages, at most `window` under way, one way or both
 *
 * Each is measured twice.  `whole`: the source writes every byte of its slot and the target
 * compares every byte, within the measured time.  `bare`: only the transport's calls; of a message
 * the first 8 bytes are written and compared, and a latency goes through two slots, so that its
 * bytes lie where those of a yardstick that has one buffer lie.
 *
 * Where the slots lie on a device (a kernel lends it), there is one measurement of each, and no
 * byte but the first 8 of a stream's message is written or read within the time: a latency is from
 * where the source's stream posts to where the target's may read, and half of it; its yardstick is
 * a copy within rank 0's device.
 *
 * Yardsticks of the host: a raw exchange through a memfd (bench/raw.h), measured by the same
 * code, and ucx_perftest (bench/perftest.h), which neither writes nor reads and so stands
 * beside `bare`.
 */
#ifndef HEDDLE_BENCH_P2P_H
#define HEDDLE_BENCH_P2P_H

#include "bench/bench.h"
#include "bench/perftest.h"
#include "drive/pair.h"

#define HD_P2P_SIZE_MAX          64u
#define HD_P2P_CANDIDATE_MAX     4u
#define HD_P2P_ITERATIONS_MAX    1000000u
#define HD_P2P_ROUND_COUNT       5u
#define HD_P2P_CHANNEL_BYTES_MAX (1ull << 30) /* window x size */

struct hd_p2p_request {
    struct hd_pair_plugin candidates[HD_P2P_CANDIDATE_MAX];
    uint32_t candidate_count;
    uint32_t size_count;
    uint64_t sizes[HD_P2P_SIZE_MAX];
    uint32_t iterations, warmup;   /* 0: by the size */
    uint32_t window;               /* 0: the depth, by the size */
    uint32_t is_both;              /* the stream goes both ways at once */
    uint32_t has_thread;           /* transport.progress_thread */
    struct hd_drive_lender lender; /* of the device that all slots lie on; kernel NULL: the host */
    double timeout_s;
    struct hd_link *link; /* NULL: the ranks are forked here */
    char address[64];     /* of rank 0, for ucx_perftest */
};

/* One transport at one size. */
struct hd_p2p_side {
    struct hd_bench_tail whole_us, bare_us;           /* half a round trip */
    struct hd_bench_spread whole_gbytes, bare_gbytes; /* 1e9 a second, over the rounds */
    uint64_t message_count, wrong_count;              /* of both ranks */
    uint32_t is_in_place;                             /* the source writes where the target reads */
    char lane[36];
    struct hd_perftest perftest;
};

struct hd_p2p_row {
    uint64_t bytes;
    uint32_t depth, window;
    uint32_t latency_count, stream_count; /* messages of a round */
    uint32_t is_measured;
    struct hd_p2p_side sides[HD_P2P_CANDIDATE_MAX], raw;
};

struct hd_p2p_result {
    uint32_t row_count;
    uint32_t has_raw; /* the yardstick is there; of a device it is the copy */
    char device[HD_DRIVE_DEVICE_TEXT_BYTES]; /* rank 0's; empty: the host */
    struct hd_p2p_row rows[HD_P2P_SIZE_MAX];
};

/* How many messages of `bytes` are under way. */
uint32_t hd_p2p_window(const struct hd_p2p_request *request, uint64_t bytes);

/* The rows that were measured are there also after a failure.  Wrong messages are no failure
   here. */
hd_status hd_bench_p2p(const struct hd_p2p_request *request, struct hd_p2p_result *result,
                       struct hd_problem *problem);

#endif /* HEDDLE_BENCH_P2P_H */
