/* hook_fault/strike.c - random numbers, and the one fault that strikes the chosen message. */
#include "hook.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* --- which message is struck ------------------------------------------------------------- */

uint64_t hook_draw(const struct hd_transport *hook, uint32_t number, uint64_t count,
                   uint32_t purpose)
{
    uint64_t word = (uint64_t)hook->values[SEED] * 0x9e3779b97f4a7c15ull + number;

    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull + count * 4 + purpose;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    word = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9ull;
    return word ^ (word >> 29);
}

bool hook_is_chosen(const struct hd_transport *hook, uint32_t number, uint64_t sequence)
{
    const int64_t wanted = hook->values[CHANNEL];
    const int64_t sequence_wanted = hook->values[SEQUENCE];
    return (wanted < 0 || (uint64_t)wanted == number) &&
           (sequence_wanted < 0 || (uint64_t)sequence_wanted == sequence);
}

static bool hook_fault_is_struck(const struct hd_transport *hook, const struct hd_message *message,
                                 const char *fault)
{
    return strcmp(hook->fault, fault) == 0 &&
           hook_is_chosen(hook, message->channel, message->sequence);
}

/* --- the one fault ----------------------------------------------------------------------- */

static unsigned char *hook_fault_slot_of(struct hd_transport *hook,
                                         const struct hd_message *message)
{
    return hook->inner_ops->slot(hook->inner, message);
}

void hook_signal(const struct hd_transport *hook, const struct hd_message *message)
{
    const int32_t peer = hook->pids[hook_shape(hook, message->channel)->target];

    if (hook_fault_is_struck(hook, message, "kill_self")) {
        kill(getpid(), SIGKILL);
    } else if (hook_fault_is_struck(hook, message, "stop_self")) {
        kill(getpid(), SIGSTOP);
    } else if (hook_fault_is_struck(hook, message, "kill_peer")) {
        kill(peer, SIGKILL);
    } else if (hook_fault_is_struck(hook, message, "stop_peer")) {
        kill(peer, SIGSTOP);
    }
}

/* Gives the message after the chosen one the content of the chosen one. */
static void hook_fault_duplicate(struct hd_transport *hook, const struct hd_message *message)
{
    struct hook_channel *channel = &hook->channels[message->channel];
    const uint64_t bytes = hook_shape(hook, message->channel)->bytes + HD_SEAL_BYTES;
    unsigned char *first = hook_fault_slot_of(hook, message) - HD_SEAL_BYTES;

    if (channel->copy == NULL) {
        return;
    }
    if (hook_fault_is_struck(hook, message, "duplicate")) {
        memcpy(channel->copy, first, bytes);
    } else if (message->sequence > 0) {
        const struct hd_message before = {.sequence = message->sequence - 1,
                                          .channel = message->channel};
        if (hook_fault_is_struck(hook, &before, "duplicate")) {
            memcpy(first, channel->copy, bytes);
        }
    }
}

void hook_damage(struct hd_transport *hook, const struct hd_message *message)
{
    const uint64_t bytes = hook_shape(hook, message->channel)->bytes;
    const uint64_t chance = hook_draw(hook, message->channel, message->sequence, 3);
    unsigned char *slot = hook_fault_slot_of(hook, message);

    hook_fault_duplicate(hook, message);
    if (hook_fault_is_struck(hook, message, "flip")) {
        slot[chance / 8 % bytes] ^= (unsigned char)(1u << chance % 8);
    } else if (hook_fault_is_struck(hook, message, "flip_seal")) {
        slot[(int64_t)(chance / 8 % 8) - HD_SEAL_BYTES] ^= (unsigned char)(1u << chance % 8);
    } else if (hook_fault_is_struck(hook, message, "partial")) {
        memset(slot, 0xAA, (bytes + 1) / 2);
        kill(getpid(), SIGKILL);
    }
}
