/* hook_fault/hook.h - what the files of the hook share; hook_fault.c explains what it does. */
#ifndef HOOK_H
#define HOOK_H

#include <heddle/transport.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* The options, in the order of their table in hook_fault.c. */
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

/* A message that the core has posted and inner does not have yet. */
struct held {
    uint64_t begin_ns; /* when it entered the wire */
    uint64_t due_ns;   /* when it may go to inner; UINT64_MAX: never */
};

/* This rank's sending end of one channel. */
struct hook_channel {
    uint64_t posted_count; /* by the core */
    uint64_t passed_count; /* to inner */
    struct held *held;     /* [depth], by sequence mod depth; NULL: not a channel of this rank */
    uint64_t wire_free_ns; /* when the wire has sent everything, if its bandwidth is limited */
    unsigned char *copy;   /* of the message that `duplicate` sends twice; NULL */
    uint64_t asked_count;  /* reserves, which draw their HD_BUSY */
    uint64_t yields_to;    /* waits until hook->passed_count has reached this; 0: does not wait */
    _Atomic uint64_t busy_count;
};

struct hd_transport {
    const struct hd_host *host;
    const struct hd_transport_ops *inner_ops;
    struct hd_transport *inner;
    struct hd_transport_setup setup; /* inner's */
    const char *fault;
    int64_t values[OPTION_COUNT];
    pthread_mutex_t lock; /* held during every data call, and by the wire's thread while it moves */
    pthread_cond_t news;  /* a message is held, or the thread is to end */
    pthread_t thread;     /* of the wire */
    bool has_thread, is_resting;
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

/* A random number that depends only on the seed, the channel, `count` and the purpose (0..3). */
uint64_t hook_draw(const struct hd_transport *hook, uint32_t number, uint64_t count,
                   uint32_t purpose);
/* Whether the options `channel` and `sequence` choose this message. */
bool hook_is_chosen(const struct hd_transport *hook, uint32_t number, uint64_t sequence);
/* Kills or stops a process if the fault asks for it when `message` is posted. */
void hook_signal(const struct hd_transport *hook, const struct hd_message *message);
/* Damages `message` if the fault asks for it when it goes to inner. */
void hook_damage(struct hd_transport *hook, const struct hd_message *message);

/* --- hook_fault.c, under the lock --- */

/* Passes every message that is due to inner, channel by channel; HD_OK if there were any.  `forced`
   passes the others too. */
hd_status hook_pass_due(struct hd_transport *hook, bool forced);
/* When the next message is due; UINT64_MAX: no held message becomes due. */
uint64_t hook_next_due_ns(const struct hd_transport *hook);

/* --- wire.c --- */

/* Creates the lock, and the thread if it is needed.  0, or the errno of the thread. */
int hook_start_wire(struct hd_transport *hook);
void hook_stop_wire(struct hd_transport *hook);

/* --- open.c --- */

hd_status hook_open(const struct hd_transport_setup *setup, struct hd_transport **out);
void hook_free(struct hd_transport *hook);

#endif /* HOOK_H */
