/* rendezvous/mover.c - moves what stands at the head of this rank's queue, and at its peer's. */
#include "rendezvous.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void ring(struct words *words)
{
    atomic_fetch_add(&words->bell, 1);
    syscall(SYS_futex, (void *)&words->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t name_of(const struct post *post)
{
    return ((uint64_t)post->channel << 40) + post->sequence + 1;
}

static struct post *post_at(struct hd_transport *instance, uint64_t place)
{
    return &instance->queue[place % instance->queue_size];
}

/* The end of the group at the head; the head itself where none is whole. */
static uint64_t group_end(struct hd_transport *instance)
{
    return instance->head < instance->whole
               ? instance->head + post_at(instance, instance->head)->group_left + 1
               : instance->head;
}

/* Is the message among those that its target is ready to receive? */
static int is_offered(const struct hd_transport *instance, const struct post *post)
{
    const uint32_t target = instance->lanes[post->channel].channel->target;
    int found = 0;

    for (uint32_t i = 0; i < MEET_OFFER_MAX; i++) {
        found |= atomic_load(&instance->words[target]->offers[i]) == name_of(post);
    }
    return found;
}

static void set_offer(struct hd_transport *instance, uint64_t was, uint64_t is)
{
    _Atomic uint64_t *const offers = meet_own_words(instance)->offers;

    for (uint32_t i = 0; i < MEET_OFFER_MAX; i++) {
        if (atomic_load(&offers[i]) == was) {
            atomic_store(&offers[i], is);
            return;
        }
    }
}

/* What the group at the head receives, its sources may write now. */
static void offer_group(struct hd_transport *instance)
{
    for (uint64_t i = instance->head; i < group_end(instance); i++) {
        const struct post *post = post_at(instance, i);
        if (!post->is_send) {
            set_offer(instance, 0, name_of(post));
            ring(instance->words[instance->lanes[post->channel].channel->source]);
        }
    }
}

static void end_post(struct hd_transport *instance, struct post *post)
{
    post->is_moved = 1;
    instance->lanes[post->channel].moved_count++;
    if (!post->is_send) {
        set_offer(instance, name_of(post), 0);
    }
    const uint64_t end = group_end(instance);
    uint64_t left = 0;
    for (uint64_t i = instance->head; i < end; i++) {
        left += !post_at(instance, i)->is_moved;
    }
    if (left == 0) {
        instance->head = end;
        offer_group(instance);
    }
    pthread_cond_broadcast(&instance->moved);
}

/* Up to late_us, by channel and sequence alone.  A transfer that takes long keeps its rank's others
   waiting, as it should. */
static void take_time(const struct hd_transport *instance, const struct post *post)
{
    const uint64_t late_us = (uint64_t)instance->setup->host->options[MEET_OPTION_LATE_US].integer;
    const uint64_t drawn = hd_pattern_word(post->channel, post->sequence, 1) >> 32;
    const struct timespec duration = {.tv_nsec = (long)(drawn % (late_us + 1) * 1000)};

    if (late_us > 0) {
        nanosleep(&duration, NULL);
    }
}

/* One thing that can be done at the head: what has arrived is counted, what is wanted is copied. */
static int move_one(struct hd_transport *instance)
{
    const uint64_t end = group_end(instance);

    for (uint64_t i = instance->head; i < end; i++) {
        struct post *post = post_at(instance, i);
        const struct lane *lane = &instance->lanes[post->channel];
        if (post->is_moved) {
            continue;
        }
        if (!post->is_send && atomic_load(&lane->arrivals->count) > post->sequence) {
            end_post(instance, post);
            return 1;
        }
        if (post->is_send && is_offered(instance, post)) {
            pthread_mutex_unlock(&instance->lock); /* nobody else touches the head */
            take_time(instance, post);
            memcpy(meet_receive_slot(lane, post->sequence) - HD_SEAL_BYTES,
                   meet_send_slot(lane, post->sequence) - HD_SEAL_BYTES,
                   lane->channel->bytes + HD_SEAL_BYTES);
            atomic_store(&lane->arrivals->count, post->sequence + 1);
            ring(instance->words[lane->channel->target]);
            pthread_mutex_lock(&instance->lock);
            end_post(instance, post);
            return 1;
        }
    }
    return 0;
}

static void *move_all(void *argument)
{
    struct hd_transport *instance = argument;
    struct words *words = meet_own_words(instance);
    const struct timespec nap = {.tv_nsec = MEET_NAP_NS};

    while (!atomic_load(&instance->is_over)) {
        const uint32_t seen = atomic_load(&words->bell);
        int moved = 0;
        pthread_mutex_lock(&instance->lock);
        if (atomic_load(&instance->failed) == HD_OK) {
            moved = move_one(instance);
        }
        pthread_mutex_unlock(&instance->lock);
        if (!moved) {
            syscall(SYS_futex, (void *)&words->bell, FUTEX_WAIT, seen, &nap, NULL, 0);
        }
    }
    return NULL;
}

int meet_start_mover(struct hd_transport *instance)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the core's */
    instance->has_mover = pthread_create(&instance->mover, NULL, move_all, instance) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return instance->has_mover != 0;
}

void meet_stop_mover(struct hd_transport *instance)
{
    if (instance->has_mover) {
        atomic_store(&instance->is_over, 1);
        ring(meet_own_words(instance));
        pthread_join(instance->mover, NULL);
        instance->has_mover = 0;
    }
}

void meet_enqueue(struct hd_transport *instance, const struct hd_message *message)
{
    const int is_deaf =
        strcmp(instance->setup->host->options[MEET_OPTION_DOES].text, "ungroup") == 0;
    const uint32_t group_left = is_deaf ? 0 : message->group_left;

    *post_at(instance, instance->tail++) =
        (struct post){.channel = message->channel,
                      .is_send = (uint32_t)meet_is_source(instance, message),
                      .group_left = group_left,
                      .sequence = message->sequence};
    if (group_left == 0) { /* it begins to move at the last */
        const int was_empty = instance->head == instance->whole;
        instance->whole = instance->tail;
        if (was_empty) {
            offer_group(instance);
        }
        ring(meet_own_words(instance));
    }
}
