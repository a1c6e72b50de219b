/*
 * books/books_open.h - open, as transport.h asks for it: the order of its steps, cards, the warm-up.
 *
 *   every rank     make    memory, devices; its card says so, or why not
 *                  put its card                                               fence
 *                  read all cards: any rank that could not ends it for all
 *                  connect  to the peers
 *                  warm up: one pattern down each channel, its credit back    fence
 *                  reset    every count to 0                                  fence
 *
 * A rank that lacks something says so in its card, so that nobody waits for it.  The last fence
 * keeps a fast source's message 0 from being taken for the warm-up, or from being wiped out with
 * it. Whatever fails is said once: by the step, or here, where the bootstrap ended it.
 */
#ifndef BOOK_OPEN_H
#define BOOK_OPEN_H

#include "books_host.h"

#define BOOK_WARM_UP UINT64_MAX /* the sequence of the warm-up message */

/* The first member of every card. */
struct book_card {
    uint64_t magic;   /* of the transport, and of the layout of its card */
    uint64_t digest;  /* of all channels: the ranks must run one plan */
    hd_status status; /* of `make` */
    uint32_t reserved;
};

/* The memory of an instance: the transport's structs, each with ours at its begin. */
struct book_sizes {
    uint64_t instance_bytes; /* struct book first */
    uint64_t channel_bytes;  /* struct book_channel first */
    uint64_t peer_bytes;     /* struct book_peer first; 0: it keeps none */
    int is_in_place;         /* slots lie at the target only */
};

/* What a transport does in each step.  All [setup]. */
struct book_steps {
    uint64_t magic;
    uint64_t card_bytes; /* struct book_card first */

    /* All that needs no other rank; fills the card behind its head.  Begins with book_check. */
    hd_status (*make)(struct hd_transport *instance, const struct hd_transport_setup *setup,
                      void *card);
    /* After the card is put and before the fence: what else the others are to get.  Or NULL. */
    hd_status (*publish)(struct hd_transport *instance);
    /* All ranks could; `cards` of all of them, in order of rank, borrowed for the call. */
    hd_status (*connect)(struct hd_transport *instance, const void *cards, uint64_t deadline_ns);
    /* Or NULL: connect has done it. */
    hd_status (*warm_up)(struct hd_transport *instance, uint64_t deadline_ns);
    void (*reset)(struct hd_transport *instance);
    /* In whatever state the steps have left it; book_destroy, unless memory must be leaked. */
    void (*close)(struct hd_transport *instance, uint64_t deadline_ns);
};

/* Books, zero but for what the setup says of the channels and peers; reports HD_NO_MEMORY, NULL. */
struct hd_transport *book_create(const struct hd_transport_setup *setup, const char *name,
                                 const struct book_sizes *sizes);
/* Closes the pidfds of all peers: also where memory must stay, since a late write may reach it. */
void book_let_go(struct book *book);
/* All of the books.  Takes NULL. */
void book_destroy(struct hd_transport *instance);
/* The steps, in order; HD_OK, or what failed, with the instance closed. */
hd_status book_open(struct hd_transport *instance, const struct hd_transport_setup *setup,
                    const struct book_steps *steps, struct hd_transport **out);

/* HD_INVALID, HD_UNSUPPORTED: channels and alignment must be what transport.h says. */
hd_status book_check(struct book *book);
/* "NAME.WHAT.NUMBER.GENERATION": a key of the bootstrap, of this instance. */
enum { BOOK_KEY_BYTES = 64 };
void book_key(const struct book *book, const char *what, uint32_t number, char key[BOOK_KEY_BYTES]);

/* The message of the warm-up: at the source; and at the target, HD_PROTOCOL if it is not that. */
void book_fill_pattern(const struct book_channel *channel, unsigned char *message);
hd_status book_check_pattern(struct book *book, const struct book_channel *channel,
                             const unsigned char *message);
/* HD_TIMEOUT or HD_PEER_LOST of a wait in the warm-up, said; anything else as it is. */
hd_status book_report_warm_up(struct book *book, const struct book_channel *channel,
                              hd_status status);

#endif /* BOOK_OPEN_H */
