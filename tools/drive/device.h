/*
 * drive/device.h - the device that holds the slots of one rank of a pair, and what a copy within it
 * costs: the yardstick of every transport between devices.
 *
 * A kernel plugin lends it (drive/lent.h).  A rank opens it once, before the first transport, and
 * closes it after the last.  It keeps what the kernel reports when something fails.
 */
#ifndef HEDDLE_DRIVE_DEVICE_H
#define HEDDLE_DRIVE_DEVICE_H

#include "base/problem.h"
#include "drive/lent.h"
#include "drive/ranks.h"
#include "engine/host.h"

#define HD_DRIVE_DEVICE_TEXT_BYTES 256u

/* The kernel that lends the device; NULL: the slots are in host memory. */
struct hd_drive_lender {
    const struct hd_plugin *kernel;
    struct hd_option_value *options; /* owned; in the order of its table */
};

struct hd_cli;
struct hd_cli_wanted;
struct hd_config;

/* lender.c: a kernel with its options.  Its option `memory`, if it has one that is not set, becomes
   cuda.  On failure the lender is finished already. */
hd_status hd_lender_find(struct hd_cli *cli, struct hd_config *config,
                         const struct hd_cli_wanted *wanted, struct hd_drive_lender *lender);
void hd_lender_finish(struct hd_drive_lender *lender);

struct hd_drive_device {
    const struct hd_plugin *kernel; /* NULL: not open */
    struct hd_lent lent;
    struct hd_plugin_host host;
    struct hd_problem failure; /* what the kernel reported */
    void *places[2]; /* on the device, [place_bytes] each: the copies go from one to the other */
    uint64_t place_bytes;
};

/* Opens the device of this rank: rank 1 takes the next one where both ranks are on one host.
   `slot_bytes`: of the largest message. */
hd_status hd_drive_device_open(struct hd_drive_device *device, const struct hd_drive_rank *rank,
                               const struct hd_drive_lender *lender, uint64_t slot_bytes,
                               struct hd_problem *problem);
void hd_drive_device_close(struct hd_drive_device *device); /* takes a device that is not open */

/* Makes the status of a call of the kernel the problem, with what the kernel reported. */
hd_status hd_drive_device_blame(const struct hd_drive_device *device, hd_status status,
                                struct hd_problem *problem);

/* Microseconds between the times of two marks; 0 where a kernel's clock has it the other way
   round. */
static inline double hd_drive_between_us(uint64_t begin_ns, uint64_t end_ns)
{
    return end_ns > begin_ns ? (double)(end_ns - begin_ns) * 1e-3 : 0;
}

/* `count` copies of `bytes` within the device, one after another: `gbytes` is the rate of all
   of them in 1e9 bytes a second, by the device's marks.  Before them, each_count copies are timed
   one by one, in microseconds. */
struct hd_drive_copies {
    uint64_t bytes;
    uint32_t count;  /* of the copies that give the rate */
    double *each_us; /* [each_count] */
    uint32_t each_count;
};
hd_status hd_drive_device_copy(struct hd_drive_device *device, const struct hd_drive_copies *copies,
                               double *gbytes);

#endif /* HEDDLE_DRIVE_DEVICE_H */
