#include "engine/lane.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define SEAL_MAGIC 0x6c61657365646568ull /* "hedeseal" */

/* A poll loop yields, and after POLL_COUNT polls it sleeps. */
enum { POLL_COUNT = 64, NAP_NS = 50000 };

_Static_assert(sizeof(struct hd_seal) == HD_SEAL_BYTES, "the seal is the bytes before a slot");

static struct hd_message lane_message_of(const struct hd_lane *lane, uint64_t sequence)
{
    return (struct hd_message){.sequence = sequence, .channel = lane->index};
}

struct hd_lane hd_lane_of(const struct hd_channel *channel, uint32_t index, uint32_t rank)
{
    return (struct hd_lane){.channel = channel,
                            .index = index,
                            .is_source = channel->source == rank,
                            .is_target = channel->target == rank};
}

hd_status hd_lane_create(struct hd_lane *lane, struct hd_problem *problem)
{
    const uint64_t alignment = lane->regions->alignment;
    const uint32_t depth = lane->channel->depth;
    hd_status status = HD_OK;
    void *arena = NULL;

    assert(depth > 0 && alignment >= HD_SEAL_BYTES);
    lane->lead_bytes = lane->regions->is_device ? 0 : alignment;
    lane->stride_bytes = hd_round_up(lane->channel->bytes, alignment) + lane->lead_bytes;
    lane->is_released = hd_memory_take(depth * sizeof lane->is_released[0], 64, "lanes");
    if (hd_lane_is_local(lane)) {
        status = hd_regions_take(lane->regions, depth * lane->stride_bytes, "transfer", &arena);
        lane->arena = arena;
    }
    if (lane->is_released == NULL || status != HD_OK) {
        return hd_problem_no_memory(problem, depth * lane->stride_bytes, "%u slots at boundary %u",
                                    depth, lane->channel->boundary);
    }
    return HD_OK;
}

void hd_lane_finish(struct hd_lane *lane)
{
    hd_memory_give(lane->action_of);
    hd_memory_give(lane->is_released);
    if (lane->arena != NULL) {
        hd_regions_give(lane->regions, lane->arena);
    }
    lane->action_of = NULL;
    lane->is_released = NULL;
    lane->arena = NULL;
}

void hd_lane_begin(struct hd_lane *lane, uint32_t step)
{
    assert(step > 0);
    lane->base = (uint64_t)(step - 1) * lane->message_count;
}

static bool lane_is_free(const struct hd_lane *lane, uint64_t sequence)
{
    return sequence < lane->released_count + lane->channel->depth;
}

hd_status hd_lane_post_next(struct hd_lane *lane, uint32_t group_left)
{
    struct hd_message message = lane_message_of(lane, lane->posted_count);
    message.group_left = group_left;
    const hd_status status = lane->ops->post_recv(lane->transport, &message);

    lane->posted_count += status == HD_OK;
    return status;
}

hd_status hd_lane_post_free(struct hd_lane *lane, uint64_t end)
{
    while (lane->posted_count < end && lane_is_free(lane, lane->posted_count)) {
        HD_TRY(hd_lane_post_next(lane, 0));
    }
    return HD_OK;
}

hd_status hd_lane_post_all(struct hd_lane *lane)
{
    return hd_lane_post_free(lane, lane->base + lane->message_count);
}

hd_status hd_lane_post_until(struct hd_lane *lane, uint64_t sequence)
{
    while (lane->posted_count <= sequence) {
        HD_TRY(hd_lane_post_next(lane, 0));
    }
    return HD_OK;
}

/* A rank runs its plan in order, so a local message is there when its reader comes, and a local
   slot is free when its writer comes. */
static hd_status lane_test_local(const struct hd_lane *lane, uint64_t sequence)
{
    return sequence < lane->sent_count || lane_is_free(lane, sequence) ? HD_OK : HD_PROTOCOL;
}

hd_status hd_lane_test(struct hd_lane *lane, uint64_t sequence)
{
    if (hd_lane_is_local(lane)) {
        return lane_test_local(lane, sequence);
    }
    const struct hd_message message = lane_message_of(lane, sequence);
    return lane->ops->test(lane->transport, &message);
}

/* For transports that have no wait of their own.  After an abort, test returns an error. */
static hd_status lane_poll(struct hd_lane *lane, const struct hd_message *message,
                           uint64_t deadline_ns)
{
    const struct timespec nap = {0, NAP_NS};
    hd_status status = HD_IN_PROGRESS;

    for (uint64_t poll = 1; status == HD_IN_PROGRESS; poll++) {
        hd_status moved = HD_IN_PROGRESS;
        if (lane->ops->progress != NULL) {
            moved = lane->ops->progress(lane->transport);
        }
        status = moved < 0 ? moved : lane->ops->test(lane->transport, message);
        if (status != HD_IN_PROGRESS) {
            break;
        }
        if (poll % POLL_COUNT == 0 && hd_now_ns() >= deadline_ns) {
            return HD_TIMEOUT;
        }
        if (moved != HD_OK && poll % POLL_COUNT == 0) {
            nanosleep(&nap, NULL);
        } else if (moved != HD_OK) {
            sched_yield();
        }
    }
    return status;
}

hd_status hd_lane_wait(struct hd_lane *lane, uint64_t sequence, uint64_t deadline_ns)
{
    if (hd_lane_is_local(lane)) {
        return lane_test_local(lane, sequence);
    }
    const struct hd_message message = lane_message_of(lane, sequence);
    if (lane->ops->wait == NULL) {
        return lane_poll(lane, &message, deadline_ns);
    }
    return lane->ops->wait(lane->transport, &message, NULL, deadline_ns);
}

bool hd_lane_waits_on_stream(const struct hd_lane *lane)
{
    return !hd_lane_is_local(lane) && lane->stream != NULL && lane->ops->wait != NULL;
}

hd_status hd_lane_wait_on_stream(struct hd_lane *lane, uint64_t sequence)
{
    const struct hd_message message = lane_message_of(lane, sequence);

    assert(hd_lane_waits_on_stream(lane));
    return lane->ops->wait(lane->transport, &message, lane->stream, HD_LANE_NO_DEADLINE);
}

static hd_status lane_poison(const struct hd_lane *lane, uint64_t sequence)
{
    return lane->poison ? hd_regions_fill(lane->regions, hd_lane_slot(lane, sequence),
                                          lane->channel->bytes, 0xFF)
                        : HD_OK;
}

/* A send slot holds an earlier message: nobody releases it here, so it is poisoned when its source
   claims it. */
hd_status hd_lane_reserve(struct hd_lane *lane, uint64_t sequence)
{
    const struct hd_message message = lane_message_of(lane, sequence);

    if (!hd_lane_is_local(lane)) {
        HD_TRY(lane->ops->reserve(lane->transport, &message));
    } else if (!lane_is_free(lane, sequence)) {
        return HD_PROTOCOL;
    }
    return lane_poison(lane, sequence);
}

hd_status hd_lane_reserve_by(struct hd_lane *lane, uint64_t sequence, uint64_t deadline_ns)
{
    hd_status status = hd_lane_reserve(lane, sequence);

    while (status == HD_BUSY) { /* a hook may return it again after the wait */
        status = hd_lane_wait(lane, sequence, deadline_ns);
        if (status == HD_OK) {
            status = hd_lane_reserve(lane, sequence);
        }
        if (status == HD_BUSY && hd_now_ns() >= deadline_ns) {
            status = HD_TIMEOUT;
        }
    }
    return status;
}

void *hd_lane_slot(const struct hd_lane *lane, uint64_t sequence)
{
    if (hd_lane_is_local(lane)) {
        return lane->arena + sequence % lane->channel->depth * lane->stride_bytes +
               lane->lead_bytes;
    }
    const struct hd_message message = lane_message_of(lane, sequence);
    return lane->ops->slot(lane->transport, &message);
}

/* Eight bytes at a time; the tail counts as one word.  For debug.checksum, so it need not be
   fast. */
static uint64_t lane_checksum_of(const unsigned char *bytes, uint64_t count)
{
    uint64_t sum = 0x9e3779b97f4a7c15ull ^ count;
    uint64_t word;

    for (uint64_t at = 0; at < count; at += sizeof word) {
        const uint64_t left = count - at;
        word = 0;
        memcpy(&word, bytes + at, hd_min_u64(left, sizeof word));
        sum = (sum ^ word) * 0xff51afd7ed558ccdull;
        sum ^= sum >> 32;
    }
    return sum != 0 ? sum : 1;
}

static struct hd_seal lane_seal_of(const struct hd_lane *lane, uint64_t sequence, uint32_t step,
                                   uint32_t microbatch)
{
    return (struct hd_seal){
        .magic = SEAL_MAGIC,
        .channel = lane->index,
        .dtype = lane->dtype,
        .sequence = sequence,
        .step = step,
        .microbatch = microbatch,
        .bytes = lane->channel->bytes,
    };
}

void hd_lane_seal(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch)
{
    unsigned char *slot = hd_lane_slot(lane, sequence);
    struct hd_seal seal = lane_seal_of(lane, sequence, step, microbatch);

    seal.checksum = lane->has_checksum ? lane_checksum_of(slot, lane->channel->bytes) : 0;
    memcpy(slot - sizeof seal, &seal, sizeof seal);
}

void hd_lane_end_write(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch)
{
    assert(sequence == lane->written_count);
    if (lane->is_sealed) {
        hd_lane_seal(lane, sequence, step, microbatch);
    }
    lane->written_count++;
}

hd_status hd_lane_send_next(struct hd_lane *lane, uint32_t group_left)
{
    struct hd_message message = lane_message_of(lane, lane->sent_count);
    hd_status status = HD_OK;

    assert(lane->sent_count < lane->written_count);
    message.group_left = group_left;
    if (!hd_lane_is_local(lane)) {
        status = lane->ops->post_send(lane->transport, &message, lane->stream);
    }
    lane->sent_count += status == HD_OK;
    return status;
}

hd_status hd_lane_send(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch)
{
    hd_lane_end_write(lane, sequence, step, microbatch);
    return hd_lane_send_next(lane, 0);
}

hd_status hd_lane_check(struct hd_lane *lane, uint64_t sequence, uint32_t step, uint32_t microbatch,
                        struct hd_problem *problem)
{
    struct hd_seal seal;

    if (!lane->is_sealed) {
        return HD_OK;
    }
    const unsigned char *slot = hd_lane_slot(lane, sequence);
    struct hd_seal wanted = lane_seal_of(lane, sequence, step, microbatch);
    memcpy(&seal, slot - sizeof seal, sizeof seal);
    wanted.checksum = lane->has_checksum ? lane_checksum_of(slot, lane->channel->bytes) : 0;
    if (memcmp(&seal, &wanted, sizeof seal) == 0) {
        return HD_OK;
    }
    return hd_problem_set(
        problem, HD_PROTOCOL, HD_EXIT_FAILED,
        "boundary %u to %u, %s: expected step %u, microbatch %u, sequence %llu, %llu bytes, type "
        "%u, "
        "checksum %llx; got step %u, microbatch %u, sequence %llu, %llu bytes, type %u, checksum "
        "%llx%s",
        lane->channel->boundary, lane->channel->boundary + 1,
        lane->channel->direction == HD_FORWARD ? "activation" : "gradient", wanted.step,
        wanted.microbatch, (unsigned long long)wanted.sequence, (unsigned long long)wanted.bytes,
        wanted.dtype, (unsigned long long)wanted.checksum, seal.step, seal.microbatch,
        (unsigned long long)seal.sequence, (unsigned long long)seal.bytes, seal.dtype,
        (unsigned long long)seal.checksum, seal.magic == SEAL_MAGIC ? "" : "; this is not a seal");
}

hd_status hd_lane_release_next(struct hd_lane *lane)
{
    hd_status status = HD_OK;

    if (!hd_lane_is_local(lane)) {
        const struct hd_message message = lane_message_of(lane, lane->released_count);
        status = lane->ops->release(lane->transport, &message, lane->stream);
    }
    lane->released_count += status == HD_OK;
    return status;
}

hd_status hd_lane_release(struct hd_lane *lane, uint64_t sequence)
{
    const uint32_t depth = lane->channel->depth;

    assert(sequence >= lane->released_count && sequence < lane->released_count + depth);
    assert(!lane->is_released[sequence % depth]);
    hd_status status = lane_poison(lane, sequence);
    lane->is_released[sequence % depth] = true;
    while (status == HD_OK && lane->is_released[lane->released_count % depth]) {
        lane->is_released[lane->released_count % depth] = false;
        status = hd_lane_release_next(lane);
    }
    return status;
}
