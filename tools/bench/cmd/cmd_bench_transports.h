/*
 * bench/cmd/cmd_bench_transports.h - what `heddle bench p2p` and `heddle bench skew` share: the
 * transports that two ranks measure, and the two ranks.
 */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_TRANSPORTS_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_TRANSPORTS_H

#include "bench/cmd/cmd_bench.h"
#include "drive/pair.h"

#define HD_BENCH_TRANSPORT_MAX        4u
#define HD_BENCH_TRANSPORT_NAME_BYTES 112u

/*
 * A measurement between two ranks.  The transports are transport.name and bench.against.  If
 * neither the file nor the command line sets transport.name, they are shm, ucx_tag and ucx_put, as
 * far as they are installed.  For transports between devices, kernels.name lends the device, or
 * synthetic if no kernel is named.
 */
struct hd_bench_two {
    struct hd_cli *cli;
    struct hd_config config;
    uint32_t count; /* of transports; right also on failure */
    struct hd_pair_plugin transports[HD_BENCH_TRANSPORT_MAX]; /* their options are owned */
    struct hd_drive_lender lender; /* kernel NULL: all slots are in host memory */
};

/* Reads the configuration, finds the transports, calls `measure`; the exit code. */
int hd_bench_two_run(struct hd_bench_two *two, struct hd_cli *cli,
                     const struct hd_cli_bench_words *words,
                     void (*measure)(struct hd_bench_two *two));

/* "shm", or "hook_fault(shm)". */
void hd_bench_two_name(const struct hd_bench_two *two, uint32_t index,
                       char name[HD_BENCH_TRANSPORT_NAME_BYTES]);

/* If a launcher has started both ranks, they meet, and must agree on the transports and on
   `numbers` [count].  If this command forks both, *link stays NULL. */
struct hd_bench_agreement {
    const uint64_t *numbers;
    uint32_t count;
    char *address; /* of rank 0, 64 bytes; NULL: not needed */
};
hd_status hd_bench_two_join(struct hd_bench_two *two, const struct hd_bench_agreement *agreement,
                            struct hd_link **link);
/* The slots are on a device. */
bool hd_bench_two_has_device(const struct hd_bench_two *two);
/* This process prints the results. */
bool hd_bench_two_speaks(const struct hd_link *link);
/* Leaves with the problem in cli->problem; takes NULL. */
void hd_bench_two_leave(struct hd_bench_two *two, struct hd_link *link);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_TRANSPORTS_H */
