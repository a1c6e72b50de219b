/*
 * run/launched.h - a run whose ranks a launcher has started one by one (launch/link.h).
 *
 * Each process is the parent of one rank, with a region of its own.  What the parent of a forked
 * run reads in the one shared region comes here over the link:
 *
 *   board    each parent says a few times a second where its rank is; the hub says it of all. Times
 *            travel as ages, because every host has a clock of its own
 *   events   deaths, stops and signals go to the hub, whose session judges them as its own; who
 *            says nothing for two seconds is stopped or cut off
 *   abort    the first cause that the hub hears of is everybody's
 *   results  each parent leaves its rank's with the hub when the rank has ended; the hub writes the
 *            files, and its verdict is every process's exit code
 *
 * Without the hub there is no verdict: then a process judges by what it knows.
 */
#ifndef HEDDLE_RUN_LAUNCHED_H
#define HEDDLE_RUN_LAUNCHED_H

#include "launch/launch.h"

#include <stdint.h>

struct hd_session;

struct hd_launched {
    struct hd_session *session;
    void *region;              /* once it is there */
    uint8_t *is_done;          /* [rank_count]; the hub: its results have come, or will not */
    uint64_t told_ns, tick_ns; /* of the last states; of the last tick */
    uint64_t heard_from_ns;    /* silence before this is mine, not theirs */
    uint64_t aborted_ns;       /* 0: not */
    uint32_t has_told_abort, has_begun;
    struct hd_problem failure; /* of a member, before the run began */
};

/* 1: of a launched run, and not its hub. */
uint32_t hd_launched_is_member(const struct hd_session *session);

/* Listens to the link, if the request has one.  Hub: HD_EXIT_USAGE for a transport that does not
   reach all hosts. */
hd_status hd_launched_create(struct hd_session *session, struct hd_problem *problem);
void hd_launched_finish(struct hd_session *session);

/* A member waits until the hub begins, and knows the run's directory then.  HD_ABORTED with the
   hub's verdict, HD_PEER_LOST. */
hd_status hd_launched_await(struct hd_session *session, struct hd_problem *problem);
/* Before the fork: the region is there; the hub lets the others begin. */
void hd_launched_begin(struct hd_session *session, void *region);

/* A member's event goes to the hub; 1: it is not for this session to judge. */
uint32_t hd_launched_forward(struct hd_session *session, const struct hd_launch_event *event);
/* Has what the others were at when somebody died been said since? */
uint32_t hd_launched_is_current(const struct hd_session *session, uint64_t now_ns);
void hd_launched_tick(struct hd_session *session, uint64_t now_ns);
uint32_t hd_launched_is_settled(const struct hd_session *session);

/* What carries has to reach all of them: HD_EXIT_USAGE, with both hosts.  The hub asks. */
hd_status hd_launched_check_hosts(const struct hd_link *link, const struct hd_plugin *transport,
                                  struct hd_problem *problem);

#endif /* HEDDLE_RUN_LAUNCHED_H */
