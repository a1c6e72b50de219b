/*
 * The shm transport, but for one promise that it breaks where it is told, for heddle conform.  It
 * lies over the plugin that HD_PLUGIN_DIR holds: all else is carried.  What is broken here needs a
 * transport that is whole: with a wait, a rest and an eye for the dead; transport_lossy.c has none.
 */
#include <heddle/transport.h>

#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first is shm's own. */
enum { OPTION_SPIN, OPTION_DOES };
enum { LARGE_BYTES = 300000, FEW_RANKS = 2 };

static struct hd_transport_ops ops, inner;
static struct hd_transport_setup setup; /* of this process: one rank */
static struct hd_host host;
static hd_status (*honest_fail)(void *context, const struct hd_error *error);
static struct hd_message kept; /* a post that waits for the next */
static int has_kept;

static int does(const char *what)
{
    return strcmp(setup.host->options[OPTION_DOES].text, what) == 0;
}

/* The report names this rank, whoever is to blame. */
static hd_status blame_itself(void *context, const struct hd_error *error)
{
    struct hd_error wrong = *error;

    wrong.rank = host.rank;
    return honest_fail(context, &wrong);
}

static hd_status open_spoiled(const struct hd_transport_setup *given, struct hd_transport **out)
{
    setup = *given;
    host = *given->host;
    has_kept = 0;
    if (does("slander")) {
        honest_fail = host.fail;
        host.fail = blame_itself;
    }
    setup.host = &host;
    return inner.open(&setup, out);
}

/* The first channel between the same ranks in the same direction. */
static uint32_t first_of_pair(uint32_t channel)
{
    const struct hd_channel *own = setup.channels[channel];
    uint32_t first = 0;

    while (setup.channels[first]->source != own->source ||
           setup.channels[first]->direction != own->direction ||
           setup.channels[first]->bytes != own->bytes) {
        first++;
    }
    return first;
}

static void *slot(struct hd_transport *instance, const struct hd_message *message)
{
    struct hd_message asked = *message;

    if (does("share")) {
        asked.channel = first_of_pair(message->channel);
    } else if (does("mix_up") && message->sequence % 3 == 2) {
        asked.sequence++; /* another slot than the one of depth messages before */
    }
    return (unsigned char *)inner.slot(instance, &asked) + (does("crooked") ? 1 : 0);
}

/* Harms the last byte of sizes that are not whole words, or of large messages. */
static void harm(struct hd_transport *instance, const struct hd_message *message)
{
    const uint64_t bytes = setup.channels[message->channel]->bytes;
    unsigned char *last = (unsigned char *)inner.slot(instance, message) + bytes - 1;

    if ((does("whole_words") && bytes % 8 != 0) || (does("cut") && bytes > LARGE_BYTES)) {
        *last ^= 1;
    }
}

static hd_status post_send(struct hd_transport *instance, const struct hd_message *message,
                           void *stream)
{
    hd_status status = HD_OK;

    harm(instance, message);
    if (!does("hoard") || host.rank_count <= FEW_RANKS) {
        return inner.post_send(instance, message, stream);
    }
    if (has_kept) {
        status = inner.post_send(instance, &kept, stream);
    }
    kept = *message; /* it goes with the next, and the last one never */
    has_kept = 1;
    return status;
}

/* By looking, with no eye for the dead; or for longer than it may. */
static hd_status wait(struct hd_transport *instance, const struct hd_message *message, void *stream,
                      uint64_t deadline_ns)
{
    const int is_patient = does("patient");

    if (!does("blind") && !is_patient) {
        return inner.wait(instance, message, stream, deadline_ns);
    }
    hd_status status = inner.test(instance, message);
    while (status == HD_IN_PROGRESS && (is_patient || host.now_ns(host.context) < deadline_ns)) {
        sched_yield();
        status = inner.test(instance, message);
    }
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

static hd_status quiesce(struct hd_transport *instance, uint64_t deadline_ns)
{
    const hd_status status = inner.quiesce(instance, deadline_ns);
    return does("hasty") ? HD_OK : status;
}

static void stats(struct hd_transport *instance, uint32_t channel, struct hd_channel_stats *out)
{
    const uint32_t room = out->size;
    struct hd_channel_stats all = {.size = sizeof all};

    inner.stats(instance, channel, &all);
    all.finished_count += does("overcount") ? 1 : 0;
    all.lane[0] = does("nameless") ? '\0' : all.lane[0];
    all.size = room;
    memcpy(out, &all, does("roomy") || room > sizeof all ? sizeof all : room);
}

__attribute__((constructor)) static void load(void)
{
    const char *const directory = getenv("HD_PLUGIN_DIR");
    char path[4096];

    snprintf(path, sizeof path, "%s/heddle_transport_shm.so", directory != NULL ? directory : "");
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct hd_plugin *const shm = library != NULL ? dlsym(library, "hd_plugin") : NULL;
    if (shm == NULL) {
        return; /* the table is empty then, and the registry says so */
    }
    memcpy(&inner, shm->ops, sizeof inner);
    ops = inner;
    ops.open = open_spoiled;
    ops.slot = slot;
    ops.post_send = post_send;
    ops.wait = wait;
    ops.quiesce = quiesce;
    ops.stats = stats;
}

static const struct hd_option options[] = {
    {"spin_us", "-1", "-1..1000", "as shm's", HD_OPTION_INTEGER, 0},
    {"does", "nothing",
     "nothing | crooked | mix_up | share | whole_words | cut | hoard | hasty | blind | patient | "
     "slander | overcount | nameless | roomy",
     "which promise it breaks", HD_OPTION_TEXT, 0},
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_TRANSPORT),
    .name = "spoiled",
    .summary = "shm, but for one promise",
    .option_count = sizeof options / sizeof options[0],
    .options = options,
    .capabilities = HD_TRANSPORT_HOST | HD_TRANSPORT_SEALED | HD_TRANSPORT_IN_PLACE |
                    HD_TRANSPORT_NO_RESIDENT | HD_TRANSPORT_PEER_DEATH,
    .ops = &ops,
};
