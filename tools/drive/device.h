/*
 * drive/device.h - the device on which one rank of a bench has its slots, and what a copy
 * within it costs: the yardstick of every transport between devices.
 *
 * A kernel plugin lends it (drive/lent.h).  It is opened once in a rank, before the first
 * transport, and closed behind the last.  What the kernel says when something fails is kept here,
 * as the transport's words are in its line.
 */
#ifndef HEDDLE_DRIVE_DEVICE_H
#define HEDDLE_DRIVE_DEVICE_H

#include "base/problem.h"
#include "drive/lent.h"
#include "drive/ranks.h"

#define HD_BENCH_DEVICE_TEXT_BYTES 256u

/* Who lends; kernel NULL: nobody, and the slots are the host's. */
struct hd_bench_lender {
    const struct hd_plugin *kernel;
    const struct hd_option_value *options;
};

struct hd_bench_device {
    const struct hd_plugin *kernel; /* NULL: not open */
    struct hd_lent lent;
    struct hd_problem failure; /* what the kernel said */
    void *places[2];           /* of the device, [place_bytes] each: between them the copies are */
    uint64_t place_bytes;
};

/* Opens the device of this rank: rank 1 takes the next one where both ranks are on one host.
   `slot_bytes`: of the largest message. */
hd_status hd_bench_device_open(struct hd_bench_device *device, const struct hd_bench_rank *rank,
                               const struct hd_bench_lender *lender, uint64_t slot_bytes,
                               struct hd_problem *problem);
void hd_bench_device_close(struct hd_bench_device *device); /* takes one that is not open */

/* What a call of the kernel returned becomes the problem, with what it said. */
hd_status hd_bench_device_blame(const struct hd_bench_device *device, hd_status status,
                                struct hd_problem *problem);

/* Microseconds between the times of two marks; 0 where a kernel's clock has it the other way
   round. */
static inline double hd_bench_between_us(uint64_t begin_ns, uint64_t end_ns)
{
    return end_ns > begin_ns ? (double)(end_ns - begin_ns) * 1e-3 : 0;
}

/* `count` copies of `bytes`, one behind the other, by the kernel's copy: how long each took, in
   microseconds, and all together in 1e9 bytes a second; by the device's marks. */
struct hd_bench_copies {
    uint64_t bytes;
    uint32_t count;  /* of those that the rate is of */
    double *each_us; /* [each_count], as many again, one mark behind each */
    uint32_t each_count;
};
hd_status hd_bench_device_copy(struct hd_bench_device *device, const struct hd_bench_copies *copies,
                               double *gbytes);

#endif /* HEDDLE_DRIVE_DEVICE_H */
