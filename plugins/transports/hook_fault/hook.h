/* hook_fault/hook.h - what the files of the hook share; hook_fault.c says what it does. */
#ifndef HOOK_H
#define HOOK_H

#include <heddle/transport.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum option {
    FAULT,
    CHANNEL,
    SEQUENCE,
    DELAY_US,
    BANDWIDTH_MB,
    BUSY_PERCENT,
    REORDER_PERCENT,
    SEED,
    OPTION_COUNT
};

/* A message that has been posted and has not gone. */
struct held {
    uint64_t begin_ns; /* on its way since */
    uint64_t due_ns;   /* UINT64_MAX: never */
};

/* This rank's sending end of one channel. */
struct hook_channel {
    uint64_t posted_count; /* by the core */
    uint64_t passed_count; /* to inner */
    struct held *held;     /* [depth], by sequence mod depth; NULL: not of this rank */
    uint64_t wire_free_ns; /* the limited line has sent everything by then */
    unsigned char *copy;   /* of the message that is sent twice; NULL */
    uint64_t asked_count;  /* reserves, for their chance of HD_BUSY */
    uint64_t yields_to;    /* waits until so many messages of all channels have gone */
    _Atomic uint64_t busy_count;
};

struct hd_transport {
    const struct hd_host *host;
    const struct hd_transport_ops *inner_ops;
    struct hd_transport *inner;
    struct hd_transport_setup setup; /* inner's */
    const char *fault;
    int64_t values[OPTION_COUNT];
    pthread_mutex_t lock; /* held in every data call, and by the line while it moves */
    pthread_cond_t news;  /* a message is held, or the line is to rest */
    pthread_t thread;     /* the line */
    int has_thread, is_resting;
    uint64_t passed_count;          /* of all channels */
    int32_t *pids;                  /* [rank_count] */
    struct hook_channel channels[]; /* [channel_count] */
};

static inline const struct hd_channel *hook_shape(const struct hd_transport *hook, uint32_t number)
{
    return hook->setup.channels[number];
}

static inline uint64_t hook_now_ns(const struct hd_transport *hook)
{
    return hook->host->now_ns(hook->host->context);
}

/* --- strike.c --- */

/* A number of the seed, the channel, `number` and the purpose (0..3); of nothing else. */
uint64_t hook_draw(const struct hd_transport *hook, uint32_t number, uint64_t count,
                   uint32_t purpose);
int hook_is_chosen(const struct hd_transport *hook, uint32_t number, uint64_t sequence);
/* What is to die or stop when `message` is posted. */
void hook_signal(const struct hd_transport *hook, const struct hd_message *message);
/* What is to be broken in `message` when it goes. */
void hook_damage(struct hd_transport *hook, const struct hd_message *message);

/* --- hook_fault.c, under the lock --- */

/* Everything that is due goes to inner, channel by channel; HD_OK if anything went. */
hd_status hook_pass_due(struct hd_transport *hook, int forced);
/* When the next message is due; UINT64_MAX: none is held that will go by itself. */
uint64_t hook_next_due_ns(const struct hd_transport *hook);

/* --- wire.c --- */

/* Lock and thread; 0, or an errno, with the lock there all the same. */
int hook_start_wire(struct hd_transport *hook);
void hook_stop_wire(struct hd_transport *hook);

/* --- open.c --- */

hd_status hook_open(const struct hd_transport_setup *setup, struct hd_transport **out);
void hook_free(struct hd_transport *hook);

#endif /* HOOK_H */
