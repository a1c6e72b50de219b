/*
 * tests/test_cuda_ipc.c - the transport cuda_ipc in streams, over the CUDA stand-in.
 *
 * A rank does what a kernel does: its compute stream writes the send slot, waits for signals, reads
 * receive slots and gives credits; the host runs ahead.  `heddle conform` has what the host can
 * see; here is what only streams can get wrong, and what a machine may lack.
 */
#include "standin/standin.h"
#include "support/check.h"
#include "support/transport_harness.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_COUNT = 24, BYTES = 1000, WORD_COUNT = BYTES / 8, LIMIT_MS = 20000 };

/* --- a rank with a compute stream -------------------------------------------------------- */

struct crew {
    struct hd_testbed_rank *rank;
    cudaStream_t stream;
};

static hd_status begin(struct crew *crew, struct hd_testbed_rank *rank)
{
    int device_count = 1;

    *crew = (struct crew){.rank = rank};
    if (cudaGetDeviceCount(&device_count) == cudaSuccess) {
        (void)cudaSetDevice((int)rank->rank % device_count);
        (void)cudaStreamCreateWithPriority(&crew->stream, cudaStreamNonBlocking, 0);
    }
    rank->setup.memory = HD_MEMORY_CUDA;
    rank->setup.device = rank->rank;
    return hd_testbed_open(rank, LIMIT_MS);
}

/* Until `stream` has done all that it was given; the transport moves meanwhile. */
static hd_status settle(struct crew *crew)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LIMIT_MS);
    const struct hd_transport_ops *ops = crew->rank->ops;
    hd_status status = HD_OK;

    while (status >= 0 && cudaStreamQuery(crew->stream) == cudaErrorNotReady) {
        if (hd_testbed_deadline_ns(0) > deadline_ns) {
            return HD_TIMEOUT;
        }
        status = ops->progress(crew->rank->transport);
        sched_yield();
    }
    return status < 0 ? status : HD_OK;
}

static hd_status send(struct crew *crew, struct hd_message message, uint64_t *words)
{
    const struct hd_transport_ops *ops = crew->rank->ops;
    struct hd_transport *transport = crew->rank->transport;
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LIMIT_MS);
    hd_status status = ops->reserve(transport, &message);

    while (status == HD_BUSY) {
        status = ops->wait(transport, &message, NULL, deadline_ns);
        status = status == HD_OK ? ops->reserve(transport, &message) : status;
    }
    if (status != HD_OK) {
        return status;
    }
    for (uint64_t i = 0; i < WORD_COUNT; i++) {
        words[i] = hd_pattern_word(message.channel, message.sequence, i);
    }
    (void)cudaMemcpyAsync(ops->slot(transport, &message), words, BYTES, cudaMemcpyHostToDevice,
                          crew->stream);
    return ops->post_send(transport, &message, crew->stream);
}

/* Wait, read, spoil and release, all in the stream. */
static hd_status receive(struct crew *crew, struct hd_message message, uint64_t *words)
{
    const struct hd_transport_ops *ops = crew->rank->ops;
    struct hd_transport *transport = crew->rank->transport;
    void *slot = ops->slot(transport, &message);
    hd_status status = ops->post_recv(transport, &message);

    if (status == HD_OK) {
        status = ops->wait(transport, &message, crew->stream, hd_testbed_deadline_ns(LIMIT_MS));
    }
    if (status == HD_OK) {
        (void)cudaMemcpyAsync(words, slot, BYTES, cudaMemcpyDeviceToHost, crew->stream);
        (void)cudaMemsetAsync(slot, 0xFF, BYTES, crew->stream);
        status = ops->release(transport, &message, crew->stream);
    }
    return status;
}

static int is_whole(struct hd_message message, const uint64_t *words)
{
    int is = 1;

    for (uint64_t i = 0; i < WORD_COUNT; i++) {
        is = is && words[i] == hd_pattern_word(message.channel, message.sequence, i);
    }
    return is;
}

/* --- traffic ----------------------------------------------------------------------------- */

/* Every message of every channel, enqueued in one order everywhere: by sequence, then channel. */
static int exchange(struct hd_testbed_rank *rank)
{
    enum { CHANNEL_MAX = 16 };
    static _Thread_local uint64_t words[MESSAGE_COUNT][CHANNEL_MAX][WORD_COUNT];
    const struct hd_testbed_job *job = rank->job;
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    for (uint64_t sequence = 0; sequence < MESSAGE_COUNT; sequence++) {
        for (uint32_t i = 0; i < job->channel_count; i++) {
            const struct hd_message message = {.sequence = sequence, .channel = i};
            if (job->channels[i].source == rank->rank) {
                HD_REQUIRE(rank, send(&crew, message, words[sequence][i]) == HD_OK);
            } else if (job->channels[i].target == rank->rank) {
                HD_REQUIRE(rank, receive(&crew, message, words[sequence][i]) == HD_OK);
            }
        }
    }
    HD_REQUIRE(rank, settle(&crew) == HD_OK);
    for (uint64_t sequence = 0; sequence < MESSAGE_COUNT; sequence++) {
        for (uint32_t i = 0; i < job->channel_count; i++) {
            const struct hd_message message = {.sequence = sequence, .channel = i};
            const int is_mine = job->channels[i].target == rank->rank;
            HD_REQUIRE(rank, !is_mine || is_whole(message, words[sequence][i]));
        }
    }
    return 0;
}

static const struct hd_channel two_ways[] = {
    {0, HD_FORWARD, 0, 1, 3, 2, BYTES},
    {0, HD_BACKWARD, 1, 0, 1, 1, BYTES},
    {1, HD_FORWARD, 0, 1, 2, 1, BYTES},
};

static struct hd_testbed_job job_of(int (*body)(struct hd_testbed_rank *rank), uint32_t count,
                                    const struct hd_channel *channels)
{
    static struct hd_option_value options[1];
    static char path[1024];

    snprintf(path, sizeof path, "%s", hd_check_build("tests/standin/libheddle_standin_cuda.so"));
    options[0].text = path;
    return (struct hd_testbed_job){.name = "cuda_ipc",
                                   .rank_count = 2,
                                   .channel_count = count,
                                   .channels = channels,
                                   .options = options,
                                   .option_count = 1,
                                   .unopened = 1,
                                   .limit_ms = 2 * LIMIT_MS,
                                   .body = body};
}

static void run(struct hd_testbed_job job)
{
    CU_ASSERT_EQUAL(hd_testbed_run(&job), 0);
}

static void set(const char *key, const char *value)
{
    if (value != NULL) {
        setenv(key, value, 1);
    } else {
        unsetenv(key);
    }
}

static void messages_cross_in_streams(void)
{
    static struct hd_channel many[16];
    struct hd_testbed_job ring = job_of(exchange, 8, many);

    run(job_of(exchange, 3, two_ways));
    /* Four ranks in a ring, both ways. */
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t from = i % 4;
        many[i] = (struct hd_channel){from, i / 4, from, (from + (i < 4 ? 1 : 3)) % 4, 2, 1, BYTES};
    }
    ring.rank_count = 4;
    run(ring);
    /* More channels than hardware queues: the host paces the copies. */
    for (uint32_t i = 0; i < 16; i++) {
        many[i] = (struct hd_channel){i, i % 2, i % 2, 1 - i % 2, 1 + i % 3, 1, BYTES};
    }
    run(job_of(exchange, 16, many));
    set("CUDA_DEVICE_MAX_CONNECTIONS", "3");
    run(job_of(exchange, 16, many));
    set("CUDA_DEVICE_MAX_CONNECTIONS", NULL);
}

/* Both ends in one address space: the sanitizer of threads sees all words and slots. */
static void ranks_may_be_threads_and_gpus_several(void)
{
    struct hd_testbed_job job = job_of(exchange, 3, two_ways);
    int status = -1;

    fflush(NULL);
    const pid_t child = fork(); /* the parent must not have CUDA */
    if (child == 0) {
        job.as_threads = 1;
        _exit(hd_testbed_run(&job) == 0 ? 0 : 1);
    }
    CU_ASSERT(waitpid(child, &status, 0) == child);
    CU_ASSERT_EQUAL(status, 0);
    set("STANDIN_CUDA", "devices=2");
    run(job_of(exchange, 3, two_ways));
    set("STANDIN_CUDA", NULL);
}

/* --- credits follow the consumer --------------------------------------------------------- */

static int is_open(void *gate)
{
    return atomic_load((atomic_int *)gate);
}

static int hold_the_credit(struct hd_testbed_rank *rank)
{
    static atomic_int gate;
    const struct standin_work work = {is_open, NULL, &gate};
    const struct hd_message first = {.sequence = 0};
    static uint64_t words[2][WORD_COUNT];
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    if (rank->rank == 1) { /* its consumer is at work until both ranks have met */
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &first) == HD_OK);
        HD_REQUIRE(rank, rank->ops->wait(rank->transport, &first, crew.stream, 0) == HD_OK);
        HD_REQUIRE(rank, standin_enqueue(crew.stream, &work) == 0);
        HD_REQUIRE(rank, rank->ops->release(rank->transport, &first, crew.stream) == HD_OK);
        /* A release by the host goes behind the stream's. */
        const struct hd_message second = {.sequence = 1};
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &second) == HD_OK);
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
        HD_REQUIRE(rank, rank->ops->test(rank->transport, &second) == HD_IN_PROGRESS);
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
        atomic_store(&gate, 1);
        HD_REQUIRE(rank, cudaStreamSynchronize(crew.stream) == cudaSuccess);
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
        HD_REQUIRE(rank, receive(&crew, (struct hd_message){.sequence = 2}, words[0]) ==
                             HD_INVALID); /* the second is still leased */
        return 0;
    }
    HD_REQUIRE(rank, send(&crew, first, words[0]) == HD_OK);
    HD_REQUIRE(rank, settle(&crew) == HD_OK);
    HD_REQUIRE(rank, send(&crew, (struct hd_message){.sequence = 1}, words[1]) == HD_OK);
    const uint64_t copy_count = standin_call_count("cudaMemcpyAsync");
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    for (uint32_t i = 0; i < 1000; i++) {
        HD_REQUIRE(rank, rank->ops->progress(rank->transport) == HD_IN_PROGRESS);
    }
    HD_REQUIRE(rank, standin_call_count("cudaMemcpyAsync") == copy_count);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    const struct hd_message second = {.sequence = 1};
    HD_REQUIRE(rank, rank->ops->wait(rank->transport, &second, NULL,
                                     hd_testbed_deadline_ns(LIMIT_MS)) == HD_OK);
    HD_REQUIRE(rank, standin_call_count("cudaMemcpyAsync") == copy_count + 1);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    return 0;
}

static void a_credit_waits_for_the_consumers_stream(void)
{
    static const struct hd_channel one[] = {{0, HD_FORWARD, 0, 1, 1, 1, BYTES}};
    run(job_of(hold_the_credit, 1, one));
}

/* --- ends -------------------------------------------------------------------------------- */

/* Rank 0's stream waits for what never comes; abort lets it go. */
static int let_go(struct hd_testbed_rank *rank)
{
    static uint64_t words[WORD_COUNT];
    const struct hd_message first = {.sequence = 0, .channel = 1};
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    if (rank->rank == 0) {
        HD_REQUIRE(rank, receive(&crew, first, words) == HD_OK);
        HD_REQUIRE(rank, cudaStreamQuery(crew.stream) == cudaErrorNotReady);
        rank->ops->abort(rank->transport, "a test");
        HD_REQUIRE(rank, cudaStreamSynchronize(crew.stream) == cudaSuccess);
        HD_REQUIRE(rank, rank->ops->progress(rank->transport) == HD_ABORTED);
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &first) == HD_ABORTED);
    }
    return 0;
}

/* The copy of rank 1 never ends: rank 0 hears nothing, and neither may free anything. */
static int hang(struct hd_testbed_rank *rank)
{
    static uint64_t words[WORD_COUNT];
    const struct hd_message first = {.sequence = 0, .channel = 1};
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    if (rank->rank == 1) {
        HD_REQUIRE(rank, standin_fault("cudaMemcpyAsync:2:hang") == 0); /* the transport's */
        HD_REQUIRE(rank, send(&crew, first, words) == HD_OK);
        HD_REQUIRE(rank, settle(&crew) == HD_OK);
    } else {
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &first) == HD_OK);
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    const hd_status tested = rank->ops->test(rank->transport, &first);
    HD_REQUIRE(rank, tested == HD_IN_PROGRESS);
    const hd_status rests = rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(200));
    HD_REQUIRE(rank, rests == HD_TIMEOUT);
    HD_REQUIRE(rank, rank->report.status == HD_TIMEOUT && rank->report.count == 1);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    const uint64_t free_count = standin_call_count("cudaFree");
    rank->ops->close(rank->transport, hd_testbed_deadline_ns(200));
    rank->transport = NULL;
    HD_REQUIRE(rank, standin_call_count("cudaFree") == free_count);
    return 0;
}

static int outlive(struct hd_testbed_rank *rank)
{
    static uint64_t words[WORD_COUNT];
    const struct hd_message first = {.sequence = 0, .channel = 1};
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    if (rank->rank == 1) {
        raise(SIGKILL);
    }
    HD_REQUIRE(rank, receive(&crew, first, words) == HD_OK);
    HD_REQUIRE(rank, settle(&crew) == HD_PEER_LOST);
    HD_REQUIRE(rank, rank->report.rank == 1 && rank->report.channel == 1);
    HD_REQUIRE(rank, strstr(rank->report.text, "rank 1 has ended") != NULL);
    rank->ops->abort(rank->transport, "a test");
    HD_REQUIRE(rank, cudaStreamSynchronize(crew.stream) == cudaSuccess);
    HD_REQUIRE(rank,
               rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(LIMIT_MS)) == HD_OK);
    rank->ops->close(rank->transport, hd_testbed_deadline_ns(LIMIT_MS));
    rank->transport = NULL;
    return 0;
}

/* An error that CUDA reports late fails the next call, with its name, and stays. */
static int fail_on_the_device(struct hd_testbed_rank *rank)
{
    static uint64_t words[WORD_COUNT];
    const struct hd_message first = {.sequence = 0, .channel = 1};
    struct crew crew;

    HD_REQUIRE(rank, begin(&crew, rank) == HD_OK);
    if (rank->rank == 1) {
        HD_REQUIRE(rank, standin_fault("cudaMemcpyAsync:2:async:700") == 0);
        HD_REQUIRE(rank, send(&crew, first, words) >= HD_DEVICE);
        (void)settle(&crew); /* ends with the error too, whoever sees it first */
        HD_REQUIRE(rank, cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        HD_REQUIRE(rank, rank->ops->progress(rank->transport) == HD_DEVICE);
        HD_REQUIRE(rank, strstr(rank->report.text, "illegal memory access") != NULL);
        HD_REQUIRE(rank, rank->report.count == 1);
    }
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    return 0;
}

static void every_end_is_told_and_frees_only_what_rests(void)
{
    static const int second_dies[] = {0, HD_TESTBED_KILLED};
    struct hd_testbed_job job = job_of(outlive, 3, two_ways);

    job.exit_codes = second_dies;
    run(job);
    run(job_of(let_go, 3, two_ways));
    run(job_of(hang, 3, two_ways));
    run(job_of(fail_on_the_device, 3, two_ways));
}

/* --- what a machine may lack ------------------------------------------------------------- */

struct lack {
    const char *settings, *connections; /* of the stand-in; of CUDA */
    const char *part;                   /* of what rank 0 or 1 says */
};

static const struct lack lacks[] = {
    {"driver=0", NULL, "there is no NVIDIA driver"},
    {"runtime=12080", NULL, "is the runtime of CUDA 12.8"},
    {"devices=0", NULL, "shows no GPU"},
    {"mem_ops=off", NULL, "CAN_USE_64_BIT_STREAM_MEM_OPS"},
    {"devices=2 peers=off", NULL, "cudaDeviceCanAccessPeer says 0"},
    {"memory=4096", NULL, "plan fewer slots or smaller microbatches"},
    {"", "1", "CUDA_DEVICE_MAX_CONNECTIONS=1"},
    {"", "2", "CUDA_DEVICE_MAX_CONNECTIONS=2"},
};

/* Every rank is told: by its own lack, or by the other's card. */
static int be_refused(struct hd_testbed_rank *rank)
{
    const struct lack *lack = rank->job->argument;
    struct crew crew;
    const hd_status status = begin(&crew, rank);

    HD_REQUIRE(rank, status == HD_UNSUPPORTED || status == HD_NO_MEMORY);
    HD_REQUIRE(rank, rank->report.count == 1);
    HD_REQUIRE(rank, strstr(rank->report.text, lack->part) != NULL ||
                         strstr(rank->report.text, "could not open cuda_ipc") != NULL);
    HD_REQUIRE(rank, rank->rank == 1 || strstr(rank->report.text, lack->part) != NULL);
    return 0;
}

static int refuse_host_memory(struct hd_testbed_rank *rank)
{
    HD_REQUIRE(rank, hd_testbed_open(rank, LIMIT_MS) == HD_UNSUPPORTED);
    HD_REQUIRE(rank, strstr(rank->report.text, "device memory only") != NULL);
    return 0;
}

static void what_a_machine_lacks_is_named(void)
{
    struct hd_testbed_job job = job_of(be_refused, 3, two_ways);

    for (size_t i = 0; i < sizeof lacks / sizeof lacks[0]; i++) {
        set("STANDIN_CUDA", lacks[i].settings);
        set("CUDA_DEVICE_MAX_CONNECTIONS", lacks[i].connections);
        job.argument = &lacks[i];
        const uint32_t wrong_count = hd_testbed_run(&job);
        CU_ASSERT_EQUAL(wrong_count, 0);
        if (wrong_count > 0) {
            printf("%s %s\n", lacks[i].settings, lacks[i].part);
        }
    }
    set("STANDIN_CUDA", NULL);
    set("CUDA_DEVICE_MAX_CONNECTIONS", NULL);
    run(job_of(refuse_host_memory, 3, two_ways));
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"messages cross in streams", messages_cross_in_streams},
        {"ranks may be threads, and GPUs several", ranks_may_be_threads_and_gpus_several},
        {"a credit waits for the consumer's stream", a_credit_waits_for_the_consumers_stream},
        {"every end is told, and frees only what rests",
         every_end_is_told_and_frees_only_what_rests},
        {"what a machine lacks is named", what_a_machine_lacks_is_named},
    };
    return hd_check_main("cuda_ipc", checks, HD_CHECK_COUNT(checks));
}
