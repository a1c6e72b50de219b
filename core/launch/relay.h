/*
 * launch/relay.h - the bootstrap of a launched run: regions that are copies of each other.
 *
 * A rank writes to the region of its own process and wakes the link.  hd_relay_ship sends the write
 * to the hub, which passes it on, and opens a barrier when the last rank has arrived.  A connection
 * keeps the order: what a rank has put before a fence is there when the fence opens.
 */
#ifndef HEDDLE_LAUNCH_RELAY_H
#define HEDDLE_LAUNCH_RELAY_H

#include "launch/link_state.h"

/* From here on the link carries this rank's bootstrap; HD_NO_MEMORY.  [before the fork, once] */
hd_status hd_relay_attach(struct hd_link *link, struct hd_region *region);
/* Sends what this process's rank has written. */
void hd_relay_ship(struct hd_link *link);
/* Applies a frame that another process has sent. */
void hd_relay_take(struct hd_link *link, const struct hd_frame *frame, const unsigned char *bytes);

#endif /* HEDDLE_LAUNCH_RELAY_H */
