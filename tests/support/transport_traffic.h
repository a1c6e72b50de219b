/*
 * tests/support/transport_traffic.h - messages that can be told apart, and how ranks move them.
 *
 * A message is filled with hd_pattern_word of its channel and sequence, to the last byte; a
 * sealed transport also carries a pattern in the 64 bytes before the slot.  The target checks
 * all of it, and poisons the slot with 0xFF before it gives it back, so that a byte that is not
 * written anew is seen.  What is no promise of a plugin is not checked: the null transport fills
 * whole words only, and no seal.
 */
#ifndef HD_TESTS_SUPPORT_TRANSPORT_TRAFFIC_H
#define HD_TESTS_SUPPORT_TRANSPORT_TRAFFIC_H

#include "support/transport_harness.h"

/* In turn: reserve (waiting for the credit), fill, post. */
hd_status hd_traffic_send(struct hd_testbed_rank *rank, struct hd_message message);
/* In turn: post_recv, wait, check.  HD_PROTOCOL: readable, but not the message. */
hd_status hd_traffic_receive(struct hd_testbed_rank *rank, struct hd_message message);
/* Poisons the slot, and releases it. */
hd_status hd_traffic_release(struct hd_testbed_rank *rank, struct hd_message message);

/* Waits as the core does: by the plugin's wait, or by test and progress. */
hd_status hd_traffic_wait(struct hd_testbed_rank *rank, struct hd_message message,
                          uint64_t deadline_ns);

/* Writes the message into its slot; is it there, whole? */
void hd_traffic_fill(struct hd_testbed_rank *rank, struct hd_message message);
int hd_traffic_is_whole(struct hd_testbed_rank *rank, struct hd_message message);

/*
 * Sends and receives messages first .. first + count - 1 on every channel of this rank, all
 * channels at once, whatever can move first; a target holds up to depth leases, as many as the
 * rank's own random numbers say.  At the end all that was sent has left.  0, or 1 after a
 * complaint.
 */
int hd_traffic_mix(struct hd_testbed_rank *rank, uint64_t first, uint64_t count);

#endif /* HD_TESTS_SUPPORT_TRANSPORT_TRAFFIC_H */
