/*
 * A small transport between processes of a node, without a wait of its own, that harms one message:
 * loses, repeats, corrupts, cuts, delays it, or never brings it.  Or it breaks a promise for good:
 * it signals before the payload is there, gives credits while slots are read, forgets that it has
 * failed, does not hear an abort, takes calls in any order.
 *
 * Each rank has one memfd with the slots of the channels that end there, and a pair of counters for
 * each; a source maps it through /proc/PID/fd and writes in place.  What it does to a message it
 * does at the source, in post_send, where the bytes have been written and nobody was told yet.
 */
#include <heddle/transport.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OPTION_DOES, OPTION_CHANNEL, OPTION_SEQUENCE, OPTION_LATE_US };
enum { SEAL_BYTES_OFFSET = 32, LATE_MAX = 50 };

struct counters {
    _Alignas(64) atomic_ullong sent_count;
    _Alignas(64) atomic_ullong released_count;
    _Alignas(64) atomic_ullong shown_ns[64]; /* by sequence mod 64: not readable before */
};

struct card {
    int32_t pid, descriptor;
    uint64_t bytes;
};

struct lane {
    const struct hd_channel *channel;
    struct counters *counters;
    unsigned char *slots;
    uint64_t stride_bytes, lead_bytes;
    uint64_t lost_count;                   /* source: messages that were swallowed */
    uint64_t reserved_count, posted_count; /* source: the next of each call */
    uint64_t received_count, read_count;   /* target: likewise */
};

struct hd_transport {
    const struct hd_transport_setup *setup;
    atomic_int failed;
    int descriptor;
    struct lane lanes[];
};

/* A promise that is broken for good, not for one message. */
static int breaks(const struct hd_transport *instance, const char *promise)
{
    return strcmp(instance->setup->host->options[OPTION_DOES].text, promise) == 0;
}

static hd_status settle(struct hd_transport *instance, hd_status status)
{
    int none = HD_OK;

    if (breaks(instance, "forget")) {
        return status;
    }
    if (status < 0) {
        atomic_compare_exchange_strong(&instance->failed, &none, status);
    }
    return atomic_load(&instance->failed);
}

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    const struct lane *lane = &instance->lanes[message->channel];
    return lane->slots + message->sequence % lane->channel->depth * lane->stride_bytes +
           lane->lead_bytes;
}

static int is_free(const struct lane *lane, uint64_t sequence)
{
    return sequence < atomic_load(&lane->counters->released_count) + lane->channel->depth;
}

/* What now holds, after a call that keeps its turn or does not. */
static hd_status take_turn(struct hd_transport *instance, int is_in_turn)
{
    return settle(instance, is_in_turn || breaks(instance, "anyturn") ? HD_OK : HD_INVALID);
}

static hd_status reserve(struct hd_transport *instance, const struct hd_message *message)
{
    struct lane *lane = &instance->lanes[message->channel];
    const hd_status status = take_turn(instance, message->sequence == lane->reserved_count);

    if (status != HD_OK) {
        return status;
    }
    if (!is_free(lane, message->sequence)) {
        return HD_BUSY;
    }
    lane->reserved_count = message->sequence + 1;
    if (breaks(instance, "early")) { /* the signal is there before a byte is */
        atomic_store(&lane->counters->sent_count, message->sequence + 1);
    }
    return HD_OK;
}

static const char *does_to(const struct hd_transport *instance, const struct hd_message *message)
{
    const struct hd_option_value *options = instance->setup->host->options;
    const int is_hit = options[OPTION_CHANNEL].integer == (int64_t)message->channel &&
                       options[OPTION_SEQUENCE].integer <= (int64_t)message->sequence;

    return is_hit ? options[OPTION_DOES].text : "nothing";
}

/* A slot with its seal. */
static void copy_slot(struct hd_transport *instance, const struct hd_message *from, uint64_t to)
{
    const struct hd_message target = {.sequence = to, .channel = from->channel};
    const struct lane *lane = &instance->lanes[from->channel];
    unsigned char *source_slot = slot(instance, from);
    unsigned char *target_slot = slot(instance, &target);

    memcpy(target_slot - HD_SEAL_BYTES, source_slot - HD_SEAL_BYTES,
           HD_SEAL_BYTES + lane->channel->bytes);
}

/* The bytes that were written are harmed, or the counter does not move.  Returns what it moves
   to. */
static uint64_t harm(struct hd_transport *instance, const struct hd_message *message)
{
    const struct hd_option_value *options = instance->setup->host->options;
    struct lane *lane = &instance->lanes[message->channel];
    unsigned char *bytes = slot(instance, message);
    const char *does = does_to(instance, message);
    const int is_first = options[OPTION_SEQUENCE].integer == (int64_t)message->sequence;
    const uint64_t half = lane->channel->bytes / 2;
    /* What the seal says of the size: half of it, twice as much, nothing. */
    const uint64_t said = strcmp(does, "grow") == 0 ? half * 4 : half;
    const uint64_t said_bytes = strcmp(does, "empty") == 0 ? 0 : said;

    if (strcmp(does, "never") == 0 || (strcmp(does, "lose") == 0 && is_first)) {
        lane->lost_count++;
    } else if (strcmp(does, "lose") == 0) {
        copy_slot(instance, message, message->sequence - lane->lost_count);
    } else if (strcmp(does, "repeat") == 0 && !is_first) {
        const struct hd_message before = {message->sequence - 1, message->channel, 0};
        copy_slot(instance, &before, message->sequence);
    } else if (strcmp(does, "corrupt") == 0 && is_first) {
        bytes[half] ^= 1;
    } else if ((strcmp(does, "cut") == 0 || said_bytes != half) && is_first) {
        memcpy(bytes - HD_SEAL_BYTES + SEAL_BYTES_OFFSET, &said_bytes, sizeof said_bytes);
    } else if (strcmp(does, "unseal") == 0 && is_first) {
        memset(bytes - HD_SEAL_BYTES, 0, HD_SEAL_BYTES);
    }
    return message->sequence + 1 - lane->lost_count;
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    const struct hd_host *host = instance->setup->host;
    struct lane *lane = &instance->lanes[message->channel];
    const uint64_t late_ns = (uint64_t)host->options[OPTION_LATE_US].integer * 1000;
    const hd_status status =
        take_turn(instance, stream == NULL && message->sequence == lane->posted_count &&
                                message->sequence < lane->reserved_count);

    if (breaks(instance, "leave")) {
        _exit(0);
    }
    if (status == HD_OK) {
        lane->posted_count = message->sequence + 1;
        /* Some messages come late, by a rule that only looks random. */
        const uint64_t turn = (message->sequence * 7 + message->channel * 3) % LATE_MAX;
        atomic_store(&lane->counters->shown_ns[message->sequence % 64],
                     host->now_ns(host->context) + late_ns * turn / LATE_MAX);
        const uint64_t count = harm(instance, message);
        if (strcmp(does_to(instance, message), "never") != 0) {
            atomic_store(&lane->counters->sent_count, count);
        }
    }
    return status;
}

static hd_status post_recv(struct hd_transport *instance, const struct hd_message *message)
{
    struct lane *lane = &instance->lanes[message->channel];
    const hd_status status = take_turn(instance, message->sequence == lane->received_count &&
                                                     is_free(lane, message->sequence));
    lane->received_count += status == HD_OK;
    return status;
}

static hd_status test(struct hd_transport *instance, const struct hd_message *message)
{
    const struct hd_host *host = instance->setup->host;
    struct lane *lane = &instance->lanes[message->channel];
    struct counters *counters = lane->counters;
    const int is_source = lane->channel->source == host->rank;
    const int is_leased = message->sequence < lane->received_count &&
                          message->sequence <= lane->read_count &&
                          message->sequence >= atomic_load(&counters->released_count);
    const hd_status status =
        take_turn(instance, is_source || is_leased || breaks(instance, "credit"));

    if (status != HD_OK) {
        return status;
    }
    if (is_source) {
        return is_free(lane, message->sequence) ? HD_OK : HD_IN_PROGRESS;
    }
    const int is_there =
        message->sequence < atomic_load(&counters->sent_count) &&
        host->now_ns(host->context) >= atomic_load(&counters->shown_ns[message->sequence % 64]);
    if (is_there && message->sequence == lane->read_count) {
        lane->read_count++;
        if (breaks(instance, "credit")) { /* while the target reads */
            atomic_store(&counters->released_count, lane->read_count);
        }
    }
    return is_there ? HD_OK : HD_IN_PROGRESS;
}

static hd_status release(struct hd_transport *instance, const struct hd_message *message,
                         void *stream)
{
    struct lane *lane = &instance->lanes[message->channel];
    const uint64_t released = atomic_load(&lane->counters->released_count);
    const int in_turn =
        stream == NULL && released == message->sequence && message->sequence < lane->read_count;
    const hd_status status = take_turn(instance, in_turn || breaks(instance, "credit"));

    if (status == HD_OK && !breaks(instance, "credit")) {
        atomic_store(&lane->counters->released_count, released + 1);
    }
    return status;
}

static void abort_waits(struct hd_transport *instance, const char *reason)
{
    (void)reason;
    if (!breaks(instance, "deaf")) {
        settle(instance, HD_ABORTED);
    }
}

/* Maps stay until the process ends. */
static void close_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)deadline_ns;
    if (instance != NULL) {
        close(instance->descriptor);
        instance->setup->host->free(instance->setup->host->context, instance);
    }
}

/* Where the channels of `target` lie in its memfd; the end is the file's length. */
static uint64_t lay_out(struct hd_transport *instance, uint32_t target, unsigned char *base)
{
    const struct hd_transport_setup *setup = instance->setup;
    const uint64_t align = setup->alignment_bytes;
    uint64_t end = 0;

    for (uint32_t i = 0; i < setup->channel_count; i++) {
        struct lane *lane = &instance->lanes[i];
        const struct hd_channel *channel = setup->channels[i];
        if (channel->target != target) {
            continue;
        }
        lane->channel = channel;
        lane->lead_bytes = align;
        lane->stride_bytes = (channel->bytes + align - 1) / align * align + align;
        if (base != NULL) {
            lane->counters = (struct counters *)(void *)(base + end);
            lane->slots = base + end + (sizeof(struct counters) + align - 1) / align * align;
        }
        end += (sizeof(struct counters) + align - 1) / align * align +
               channel->depth * lane->stride_bytes;
    }
    return end;
}

static hd_status map(struct hd_transport *instance, uint32_t target, int descriptor)
{
    const uint64_t bytes = lay_out(instance, target, NULL);

    if (bytes == 0) {
        return HD_OK;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) {
        return HD_SYSTEM;
    }
    lay_out(instance, target, memory);
    return HD_OK;
}

static hd_status offer(struct hd_transport *instance)
{
    const struct hd_host *host = instance->setup->host;
    char key[32];

    instance->descriptor = memfd_create("lossy", MFD_CLOEXEC);
    const uint64_t bytes = lay_out(instance, host->rank, NULL);
    if (instance->descriptor < 0 || ftruncate(instance->descriptor, (off_t)bytes) != 0) {
        return HD_SYSTEM;
    }
    const struct card card = {(int32_t)getpid(), instance->descriptor, bytes};
    snprintf(key, sizeof key, "card %u", host->rank);
    const hd_status status = host->put(host->context, key, &card, sizeof card);
    return status != HD_OK ? status : map(instance, host->rank, instance->descriptor);
}

static hd_status join(struct hd_transport *instance, uint32_t target)
{
    const struct hd_host *host = instance->setup->host;
    char key[32], path[64];
    struct card card;

    snprintf(key, sizeof key, "card %u", target);
    hd_status status =
        host->get(host->context, key, &card, sizeof card, instance->setup->deadline_ns);
    if (status != HD_OK) {
        return status;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", card.pid, card.descriptor);
    const int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
        return HD_SYSTEM;
    }
    status = map(instance, target, descriptor);
    close(descriptor);
    return status;
}

static hd_status open_all(const struct hd_transport_setup *setup, struct hd_transport **out)
{
    const struct hd_host *host = setup->host;
    struct hd_transport *instance = host->alloc(
        host->context, sizeof *instance + setup->channel_count * sizeof(struct lane), 64, "lossy");

    if (instance == NULL) {
        return HD_NO_MEMORY;
    }
    instance->setup = setup;
    hd_status status = offer(instance);
    for (uint32_t target = 0; status == HD_OK && target < host->rank_count; target++) {
        if (target != host->rank) {
            status = join(instance, target);
        }
    }
    if (status == HD_OK) {
        status = host->fence(host->context, setup->deadline_ns);
    }
    if (status == HD_OK) {
        *out = instance;
    }
    return status;
}

static const struct hd_option options[] = {
    {"does", "nothing",
     "nothing | lose | repeat | corrupt | cut | grow | empty | unseal | never | early | credit | "
     "forget | deaf | "
     "anyturn | leave",
     "what happens to the message, or to a promise", HD_OPTION_TEXT, 0},
    {"channel", "0", "0..1000000", "on which channel", HD_OPTION_INTEGER, 0},
    {"sequence", "0", "0..1000000000", "to which message", HD_OPTION_INTEGER, 0},
    {"late_us", "0", "0..1000000", "how late messages are, at most", HD_OPTION_INTEGER, 0},
};

static const struct hd_transport_ops ops = {
    .size = sizeof ops,
    .open = open_all,
    .slot = slot,
    .reserve = reserve,
    .post_send = post_send,
    .post_recv = post_recv,
    .test = test,
    .release = release,
    .abort = abort_waits,
    .close = close_all,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .name = "lossy",
    .summary = "brings messages, but for one",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities =
        HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_IN_PLACE | HD_TRANSPORT_NO_RESIDENT,
    .ops = &ops,
};
