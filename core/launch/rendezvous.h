/*
 * launch/rendezvous.h - how the ranks of a launched run find each other.
 *
 *   member   connects, and retries until the deadline; reads the hub's clock a few times; sends
 *            hello (its world, rank and facts); waits for the welcome
 *   hub      listens until each rank has connected once, then sends the welcome to all
 *
 * If one rank is wrong, the hub tells all ranks that have connected.
 */
#ifndef HEDDLE_LAUNCH_RENDEZVOUS_H
#define HEDDLE_LAUNCH_RENDEZVOUS_H

#include "launch/link_state.h"

/* Fills the wires and the peers of the link. */
hd_status hd_rendezvous(struct hd_link *link, const struct hd_link_request *request,
                        struct hd_problem *problem);

#endif /* HEDDLE_LAUNCH_RENDEZVOUS_H */
