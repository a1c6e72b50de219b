/*
 * tests/bench/cuda_ipc_rate.c - what cuda_ipc puts bring, beside a copy within the device.
 *
 *   cuda_ipc_rate [RUNTIME [MIB [FLOOR_PERCENT]]]
 *
 * Two processes on GPU 0 (or 0 and 1).  Rank 0 sends messages of MIB mebibytes (64), two slots
 * deep, rank 1 takes and releases them in its stream; the yardstick is the same copy without
 * signals, in rank 0 alone.  Prints one line; exit 1 where the ratio of medians is below the floor
 * (0), 77 where there is no device.
 */
#include "cuda_library.h"
#include "support/transport_harness.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUND_COUNT = 9, ROUND_MESSAGES = 8, LIMIT_MS = 60000 };

struct asked {
    const char *runtime;
    uint64_t bytes;
    double floor;
};

/* Shared words: nanoseconds of each round. */
enum { WORD_PUT = 0, WORD_COPY = 32 };

static uint64_t now_ns(void)
{
    return hd_testbed_deadline_ns(0);
}

/* The stream is empty; the transport moves meanwhile. */
static int settle(struct hd_testbed_rank *rank, const struct cuda_library *cuda,
                  cudaStream_t stream)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LIMIT_MS);

    while (cuda->cudaStreamQuery(stream) == cudaErrorNotReady) {
        HD_REQUIRE(rank, now_ns() < deadline_ns);
        HD_REQUIRE(rank, rank->ops->progress(rank->transport) >= 0);
        sched_yield();
    }
    return 0;
}

static int send_round(struct hd_testbed_rank *rank, cudaStream_t stream, uint64_t first)
{
    const uint64_t deadline_ns = hd_testbed_deadline_ns(LIMIT_MS);
    const uint64_t begin_ns = now_ns();

    for (uint64_t i = 0; i < ROUND_MESSAGES; i++) {
        const struct hd_message message = {.sequence = first + i};
        hd_status status = rank->ops->reserve(rank->transport, &message);
        while (status == HD_BUSY) {
            HD_REQUIRE(rank, now_ns() < deadline_ns);
            (void)rank->ops->progress(rank->transport);
            status = rank->ops->reserve(rank->transport, &message);
        }
        HD_REQUIRE(rank, status == HD_OK);
        HD_REQUIRE(rank, rank->ops->post_send(rank->transport, &message, stream) == HD_OK);
    }
    const struct hd_message last = {.sequence = first + ROUND_MESSAGES - 1};
    HD_REQUIRE(rank, rank->ops->wait(rank->transport, &last, NULL, deadline_ns) == HD_OK);
    atomic_store(&rank->words[WORD_PUT + first / ROUND_MESSAGES], now_ns() - begin_ns);
    return 0;
}

static int receive_round(struct hd_testbed_rank *rank, const struct cuda_library *cuda,
                         cudaStream_t stream, uint64_t first)
{
    for (uint64_t i = 0; i < ROUND_MESSAGES; i++) {
        const struct hd_message message = {.sequence = first + i};
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_OK);
        HD_REQUIRE(rank, rank->ops->wait(rank->transport, &message, stream, 0) == HD_OK);
        HD_REQUIRE(rank, rank->ops->release(rank->transport, &message, stream) == HD_OK);
    }
    return settle(rank, cuda, stream);
}

/* The same bytes between two places of the device, one after the other. */
static int copy_round(struct hd_testbed_rank *rank, const struct cuda_library *cuda,
                      cudaStream_t stream, uint32_t round)
{
    const struct asked *asked = rank->job->argument;
    void *places[2] = {NULL, NULL};

    HD_REQUIRE(rank, cuda->cudaMalloc(&places[0], asked->bytes) == cudaSuccess);
    HD_REQUIRE(rank, cuda->cudaMalloc(&places[1], asked->bytes) == cudaSuccess);
    const uint64_t begin_ns = now_ns();
    for (uint32_t i = 0; i < ROUND_MESSAGES; i++) {
        (void)cuda->cudaMemcpyAsync(places[(i + 1) % 2], places[i % 2], asked->bytes,
                                    cudaMemcpyDeviceToDevice, stream);
    }
    HD_REQUIRE(rank, cuda->cudaStreamSynchronize(stream) == cudaSuccess);
    atomic_store(&rank->words[WORD_COPY + round], now_ns() - begin_ns);
    HD_REQUIRE(rank, cuda->cudaFree(places[0]) == cudaSuccess);
    HD_REQUIRE(rank, cuda->cudaFree(places[1]) == cudaSuccess);
    return 0;
}

static int compare_words(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Gigabytes a second, by the median round; the first warms up. */
static double rate(const struct hd_testbed_rank *rank, uint32_t first)
{
    const struct asked *asked = rank->job->argument;
    uint64_t words[ROUND_COUNT - 1];

    for (uint32_t i = 1; i < ROUND_COUNT; i++) {
        words[i - 1] = atomic_load(&rank->words[first + i]);
    }
    qsort(words, ROUND_COUNT - 1, sizeof words[0], compare_words);
    return (double)(ROUND_MESSAGES * asked->bytes) / (double)words[(ROUND_COUNT - 1) / 2];
}

static int measure(struct hd_testbed_rank *rank)
{
    static struct cuda_library cuda;
    const struct asked *asked = rank->job->argument;
    cudaStream_t stream = NULL;

    HD_REQUIRE(rank, cuda_load(&cuda, asked->runtime) == HD_OK);
    const int ordinal = (int)rank->rank % cuda.device_count;
    HD_REQUIRE(rank, cuda.cudaSetDevice(ordinal) == cudaSuccess);
    HD_REQUIRE(rank,
               cuda.cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
    rank->setup.memory = HD_MEMORY_CUDA;
    rank->setup.device = rank->rank;
    HD_REQUIRE(rank, hd_testbed_open(rank, LIMIT_MS) == HD_OK);
    for (uint32_t round = 0; round < ROUND_COUNT; round++) {
        HD_REQUIRE(rank, rank->rank == 1 || copy_round(rank, &cuda, stream, round) == 0);
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
        const uint64_t first = (uint64_t)round * ROUND_MESSAGES;
        HD_REQUIRE(rank, (rank->rank == 0 ? send_round(rank, stream, first)
                                          : receive_round(rank, &cuda, stream, first)) == 0);
        HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    }
    if (rank->rank == 0) {
        const double put = rate(rank, WORD_PUT);
        const double copy = rate(rank, WORD_COPY);
        printf("cuda_ipc: %.2f GB/s in messages of %.1f MiB; a copy on GPU %d: %.2f GB/s; ratio "
               "%.2f (%s)\n",
               put, (double)asked->bytes / 1048576, ordinal, copy, put / copy, cuda.path);
        fflush(stdout);
        HD_REQUIRE(rank, put / copy >= asked->floor);
    }
    return 0;
}

/* Is there a device?  In a child: a process that has CUDA cannot fork ranks that have it. */
static int has_device(const char *runtime)
{
    int status = -1;
    const pid_t child = fork();

    if (child == 0) {
        static struct cuda_library cuda;
        const hd_status loaded = cuda_load(&cuda, runtime);
        if (loaded != HD_OK) {
            printf("skipped: %s\n", cuda.reason);
            fflush(stdout);
        }
        _exit(loaded == HD_OK ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    static struct hd_channel channel = {0, HD_FORWARD, 0, 1, 2, 2, 0};
    const struct asked asked = {
        .runtime = argc > 1 ? argv[1] : "libcudart.so.13",
        .bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 64) << 20,
        .floor = argc > 3 ? strtod(argv[3], NULL) / 100 : 0,
    };
    const struct hd_option_value option = {.text = asked.runtime};

    if (!has_device(asked.runtime)) {
        return 77;
    }
    channel.bytes = asked.bytes;
    return hd_testbed_run(&(struct hd_testbed_job){.name = "cuda_ipc",
                                                   .rank_count = 2,
                                                   .channel_count = 1,
                                                   .channels = &channel,
                                                   .options = &option,
                                                   .option_count = 1,
                                                   .unopened = 1,
                                                   .limit_ms = 4 * LIMIT_MS,
                                                   .body = measure,
                                                   .argument = &asked}) == 0
               ? 0
               : 1;
}
