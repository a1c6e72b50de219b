/*
 * books/books_open.h - the steps of open, in the order that transport.h requires.
 *
 *   every rank     make     memory and devices; the rank's card says whether that succeeded
 *                  put its card                                               fence
 *                  read all cards: if one rank failed, all ranks stop here
 *                  connect  to the peers
 *                  warm up  one pattern through each channel, and its credit  fence
 *                  reset    every count to 0                                  fence
 *
 * A rank that fails still puts its card and comes to the fence, so that no other rank waits for it
 * until the deadline.  The last fence keeps message 0 of a fast source apart from the warm-up.  An
 * error is reported once: by the step that failed or, if the bootstrap failed, by book_open.
 */
#ifndef BOOK_OPEN_H
#define BOOK_OPEN_H

#include "books_host.h"

#define BOOK_WARM_UP UINT64_MAX /* the sequence of the warm-up message */

/* The members of hd_plugin that are the same in every transport of heddle. */
#define BOOK_PLUGIN_HEAD                                                       \
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT), .vendor = "heddle", .version = "0.1.0", \
                                       .licence = "Apache-2.0"

/* What every rank publishes when it opens a transport; the first member of the transport's card. */
struct book_card {
    uint64_t magic;   /* identifies the transport and the layout of its card */
    uint64_t digest;  /* of all channels: the ranks must run one plan */
    hd_status status; /* of `make` */
    uint32_t reserved;
    struct book_place place;
    struct book_cores cores;
};

/* The sizes of the transport's structs. */
struct book_sizes {
    uint64_t instance_bytes; /* begins with a struct book */
    uint64_t channel_bytes;  /* begins with a struct book_channel */
    uint64_t peer_bytes;     /* begins with a struct book_peer; 0: the transport keeps none */
    bool is_in_place;        /* slots are at the target only */
};

/* What a transport does in each step.  All [setup]. */
struct book_steps {
    uint64_t magic;
    uint64_t card_bytes; /* begins with a struct book_card */

    /* Everything that needs no other rank.  Calls book_check first, and fills the card behind its
       head; book_open fills the head. */
    hd_status (*make)(struct hd_transport *instance, const struct hd_transport_setup *setup,
                      void *card);
    /* Puts further values, after the card and before the fence.  Or NULL. */
    hd_status (*publish)(struct hd_transport *instance);
    /* Every rank has succeeded; `cards` are in order of rank, borrowed for the call. */
    hd_status (*connect)(struct hd_transport *instance, const void *cards, uint64_t deadline_ns);
    /* Or NULL: connect includes the warm-up. */
    hd_status (*warm_up)(struct hd_transport *instance, uint64_t deadline_ns);
    void (*reset)(struct hd_transport *instance);
    /* Undoes what the steps so far have done; calls book_destroy unless memory must be leaked. */
    void (*close)(struct hd_transport *instance, uint64_t deadline_ns);
};

/* Allocates an instance, and fills its channels and peers.  NULL: HD_NO_MEMORY is reported. */
struct hd_transport *book_create(const struct hd_transport_setup *setup, const char *name,
                                 const struct book_sizes *sizes);
/* Closes the pidfds of all peers; also done where the memory itself must be leaked. */
void book_let_go(struct book *book);
/* Frees the instance and its channels and peers.  Takes NULL. */
void book_destroy(struct hd_transport *instance);
/* Runs the steps in order.  HD_OK, or the first failure, with the instance closed. */
hd_status book_open(struct hd_transport *instance, const struct hd_transport_setup *setup,
                    const struct book_steps *steps, struct hd_transport **out);

/* Checks channels and alignment against transport.h.  HD_INVALID, HD_UNSUPPORTED. */
hd_status book_check(struct book *book);
/* Writes "NAME.WHAT.NUMBER.GENERATION", a bootstrap key of this instance. */
enum { BOOK_KEY_BYTES = 64 };
void book_key(const struct book *book, const char *what, uint32_t number, char key[BOOK_KEY_BYTES]);

/* The value of option `index`, or `initial` if the host gives none. */
int64_t book_option(const struct book *book, uint32_t index, int64_t initial);
const char *book_text_option(const struct book *book, uint32_t index, const char *initial);

/* Opens a pidfd of the peer.  HD_PEER_LOST; HD_UNSUPPORTED if it is not within reach. */
hd_status book_hold_peer(struct book *book, struct book_peer *peer, const struct book_card *own,
                         const struct book_card *card);
/* Whether more ranks than cores share the cores of this rank.  `cards` as in connect. */
bool book_is_crowded(const struct book *book, const void *cards, uint64_t card_bytes);
/* The bytes of the largest message of this rank, at least 8. */
uint64_t book_largest_bytes(const struct book *book);

static inline uint64_t book_round_up(uint64_t bytes, uint64_t alignment_bytes)
{
    return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

/* Source: writes the warm-up message.  Target: HD_PROTOCOL if it differs. */
void book_fill_pattern(const struct book_channel *channel, unsigned char *message);
hd_status book_check_pattern(struct book *book, const struct book_channel *channel,
                             const unsigned char *message);
/* Reports HD_TIMEOUT or HD_PEER_LOST of a wait in the warm-up; returns any other status. */
hd_status book_report_warm_up(struct book *book, const struct book_channel *channel,
                              hd_status status);

#endif /* BOOK_OPEN_H */
