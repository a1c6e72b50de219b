/*
 * plain_tcp.h - what the two files of the example share: tcp.c moves messages, open.c connects.
 */
#ifndef PLAIN_TCP_H
#define PLAIN_TCP_H

#include <heddle/transport.h>

#include <stdatomic.h>
#include <stdbool.h>

/* The place of an option in the table and in host->options. */
enum { TCP_OPTION_ADDRESS };

/* This rank's end of one channel. */
struct tcp_channel {
    const struct hd_channel *facts; /* borrowed from the setup */
    int socket;                     /* -1: not connected */
    bool is_here, is_source;        /* one end is on this rank; and it is the source */
    uint32_t slot_count;
    uint64_t stride_bytes, lead_bytes; /* from slot to slot; from a slot's place to its payload */
    unsigned char *arena;              /* [slot_count, stride_bytes]; owned */
    uint64_t reserved_count, posted_count; /* the sequence of the next reserve and post */
    uint64_t moved_count, released_count;  /* moved: sent or arrived */
    uint64_t waited_count;                 /* target: messages before it were found readable */
    uint64_t told_count;                   /* target: credits that have left; source: unused */
    uint64_t moved_bytes;                  /* of the message that is moving now */
    uint64_t busy_count;
};

struct hd_transport {
    const struct hd_host *host;
    uint32_t channel_count;
    uint32_t generation; /* of the instance: part of its keys */
    int listener;
    bool is_open;      /* the warm-up is over */
    atomic_int failed; /* the first negative status: it stays (G7) */
    struct tcp_channel channels[];
};

/* Keeps the first failure; reports it if it is this one.  `channel` NULL: none is at fault. */
hd_status tcp_fail(struct hd_transport *instance, hd_status status,
                   const struct tcp_channel *channel, const char *text);
/* One look at every connection: HD_OK if anything moved, else HD_IN_PROGRESS. */
hd_status tcp_progress(struct hd_transport *instance);
/* Where the payload of a message lies on this rank; its seal stands before it. */
unsigned char *tcp_payload(const struct tcp_channel *channel, uint64_t sequence);

/* open.c */
hd_status tcp_open(const struct hd_transport_setup *setup, struct hd_transport **out);
void tcp_close(struct hd_transport *instance, uint64_t deadline_ns);

#endif /* PLAIN_TCP_H */
