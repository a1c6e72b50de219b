/*
 * nccl and nccl_rma over stand-ins: real processes, streams, the order of law 7, and every
 * condition that is refused.
 *
 * A rank's compute stream does what a stage would: it writes a send slot, and reads, poisons and
 * releases a received one; the host looks at nothing until the end.
 */
#include "support/check.h"
#include "support/transport_harness.h"

#include "cuda_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 1000, DEPTH = 3, SEND_DEPTH = 2, MESSAGES = 17, PATH_BYTES = 512 };

static char runtime_path[PATH_BYTES], library_path[PATH_BYTES];

static const struct hd_channel channels[] = {
    {.boundary = 0,
     .direction = HD_FORWARD,
     .source = 0,
     .target = 1,
     .depth = DEPTH,
     .send_depth = SEND_DEPTH,
     .bytes = BYTES},
    {.boundary = 0,
     .direction = HD_BACKWARD,
     .source = 1,
     .target = 0,
     .depth = DEPTH,
     .send_depth = SEND_DEPTH,
     .bytes = BYTES},
};

/* What one case sets, and expects. */
struct scene {
    const char *name;        /* of the plugin */
    const char *cuda, *nccl; /* STANDIN_CUDA, STANDIN_NCCL */
    const char *fault;       /* STANDIN_NCCL_FAULT */
    const char *connections; /* CUDA_DEVICE_MAX_CONNECTIONS */
    const char *refusal;     /* a word of the sentence that open ends with */
    int is_crossed;          /* rank 1 issues in the other order */
    int is_host;             /* asks for host memory */
};

struct machine {
    struct cuda_library cuda;
    cudaStream_t compute;
    unsigned char *staging; /* pinned: [MESSAGES, BYTES] to send, then as many received */
};

static void set(const char *name, const char *value)
{
    if (value != NULL) {
        setenv(name, value, 1);
    } else {
        unsetenv(name);
    }
}

static hd_status open_rank(struct hd_testbed_rank *rank, uint64_t limit_ms)
{
    const struct scene *scene = rank->job->argument;

    set("STANDIN_CUDA", scene->cuda != NULL ? scene->cuda : "devices=2");
    set("STANDIN_NCCL", scene->nccl != NULL ? scene->nccl : "serial=on");
    set("STANDIN_NCCL_FAULT", scene->fault);
    set("CUDA_DEVICE_MAX_CONNECTIONS", scene->connections);
    rank->setup.memory = scene->is_host ? HD_MEMORY_HOST : HD_MEMORY_CUDA;
    rank->setup.device = rank->rank;
    return hd_testbed_open(rank, limit_ms);
}

static int start(struct hd_testbed_rank *rank, struct machine *machine)
{
    memset(machine, 0, sizeof *machine);
    HD_REQUIRE(rank, cuda_load(&machine->cuda, runtime_path) == HD_OK);
    HD_REQUIRE(rank, machine->cuda.cudaSetDevice((int)rank->rank) == cudaSuccess);
    HD_REQUIRE(rank, machine->cuda.cudaStreamCreateWithPriority(
                         &machine->compute, cudaStreamNonBlocking, 0) == cudaSuccess);
    HD_REQUIRE(rank,
               machine->cuda.cudaHostAlloc((void **)&machine->staging, (size_t)2 * MESSAGES * BYTES,
                                           cudaHostAllocDefault) == cudaSuccess);
    return 0;
}

static void finish(struct machine *machine)
{
    machine->cuda.cudaStreamDestroy(machine->compute);
    machine->cuda.cudaFreeHost(machine->staging);
}

static void fill(unsigned char *bytes, uint32_t channel, uint64_t sequence)
{
    for (uint64_t i = 0; i < BYTES; i += 8) {
        const uint64_t word = hd_pattern_word(channel, sequence, i / 8);
        memcpy(bytes + i, &word, BYTES - i < 8 ? BYTES - i : 8);
    }
}

/* --- a step, as the engine makes it ------------------------------------------------------ */

static int send_one(struct hd_testbed_rank *rank, struct machine *machine, uint64_t sequence)
{
    const struct hd_message message = {.sequence = sequence, .channel = rank->rank};
    const uint64_t deadline_ns = hd_testbed_deadline_ns(20000);
    unsigned char *bytes = machine->staging + sequence * BYTES;
    hd_status status = rank->ops->reserve(rank->transport, &message);

    while (status == HD_BUSY) {
        status = rank->ops->wait(rank->transport, &message, NULL, deadline_ns);
        status = status == HD_OK ? rank->ops->reserve(rank->transport, &message) : status;
    }
    HD_REQUIRE(rank, status == HD_OK);
    fill(bytes, message.channel, sequence);
    HD_REQUIRE(rank, machine->cuda.cudaMemcpyAsync(rank->ops->slot(rank->transport, &message),
                                                   bytes, BYTES, cudaMemcpyDefault,
                                                   machine->compute) == cudaSuccess);
    HD_REQUIRE(rank, rank->ops->post_send(rank->transport, &message, machine->compute) == HD_OK);
    return 0;
}

static int receive_one(struct hd_testbed_rank *rank, struct machine *machine, uint64_t sequence)
{
    const struct hd_message message = {.sequence = sequence, .channel = 1 - rank->rank};
    const uint64_t deadline_ns = hd_testbed_deadline_ns(20000);
    unsigned char *bytes = machine->staging + (MESSAGES + sequence) * BYTES;

    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &message) == HD_OK);
    HD_REQUIRE(rank,
               rank->ops->wait(rank->transport, &message, machine->compute, deadline_ns) == HD_OK);
    void *slot = rank->ops->slot(rank->transport, &message);
    HD_REQUIRE(rank, machine->cuda.cudaMemcpyAsync(bytes, slot, BYTES, cudaMemcpyDefault,
                                                   machine->compute) == cudaSuccess);
    HD_REQUIRE(rank,
               machine->cuda.cudaMemsetAsync(slot, 0xFF, BYTES, machine->compute) == cudaSuccess);
    HD_REQUIRE(rank, rank->ops->release(rank->transport, &message, machine->compute) == HD_OK);
    return 0;
}

static int check_received(struct hd_testbed_rank *rank, struct machine *machine)
{
    unsigned char wanted[BYTES];

    HD_REQUIRE(rank, machine->cuda.cudaStreamSynchronize(machine->compute) == cudaSuccess);
    for (uint64_t sequence = 0; sequence < MESSAGES; sequence++) {
        fill(wanted, 1 - rank->rank, sequence);
        HD_REQUIRE(rank,
                   memcmp(machine->staging + (MESSAGES + sequence) * BYTES, wanted, BYTES) == 0);
    }
    return 0;
}

/* After a failure nothing may be freed: the process ends with all of it. */
static int leave(struct hd_testbed_rank *rank)
{
    rank->ops->close(rank->transport, hd_testbed_deadline_ns(300));
    rank->transport = NULL;
    rank->leaks = 1;
    return 0;
}

/* Forward message k before backward message k, on both ranks: one order for all. */
static int body_traffic(struct hd_testbed_rank *rank)
{
    struct machine machine;
    struct hd_channel_stats stats = {.size = sizeof stats};
    int code = 0;

    HD_REQUIRE(rank, open_rank(rank, 20000) == HD_OK);
    code = start(rank, &machine);
    for (uint64_t k = 0; code == 0 && k < MESSAGES; k++) {
        code = rank->rank == 0 ? send_one(rank, &machine, k) : receive_one(rank, &machine, k);
        if (code == 0) {
            code = rank->rank == 0 ? receive_one(rank, &machine, k) : send_one(rank, &machine, k);
        }
    }
    code = code == 0 ? check_received(rank, &machine) : code;
    HD_REQUIRE(rank, rank->ops->progress(rank->transport) >= 0);
    rank->ops->stats(rank->transport, 1 - rank->rank, &stats);
    HD_REQUIRE(rank, strstr(stats.lane, rank->job->name) != NULL);
    if (code == 0) {
        finish(&machine);
    }
    return code;
}

static uint32_t run_scene(const struct scene *scene, int (*body)(struct hd_testbed_rank *))
{
    const struct hd_option_value options[] = {
        {.text = runtime_path}, {.text = library_path}, {.integer = 2}};
    const struct hd_testbed_job job = {
        .name = scene->name,
        .rank_count = 2,
        .channel_count = 2,
        .channels = channels,
        .options = options,
        .option_count = strcmp(scene->name, "nccl") == 0 ? 3 : 2,
        .unopened = 1,
        .body = body,
        .argument = scene,
    };
    return hd_testbed_run(&job);
}

static void check_traffic(void)
{
    const struct scene scenes[] = {{.name = "nccl"},
                                   {.name = "nccl", .nccl = "serial=off version=22809"},
                                   {.name = "nccl_rma"}};

    for (unsigned i = 0; i < HD_CHECK_COUNT(scenes); i++) {
        CU_ASSERT_EQUAL(run_scene(&scenes[i], body_traffic), 0);
    }
}

/* --- groups ------------------------------------------------------------------------------ */

/* Both ranks send, then receive: only as a group can both move. */
static int body_group(struct hd_testbed_rank *rank)
{
    const struct hd_message sent = {.channel = rank->rank, .group_left = 1};
    const struct hd_message received = {.channel = 1 - rank->rank};
    const uint64_t deadline_ns = hd_testbed_deadline_ns(20000);
    struct machine machine;

    HD_REQUIRE(rank, open_rank(rank, 20000) == HD_OK);
    if (start(rank, &machine) != 0) {
        return 1;
    }
    HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &sent) == HD_OK);
    HD_REQUIRE(rank, rank->ops->post_send(rank->transport, &sent, machine.compute) == HD_OK);
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &received) == HD_OK);
    HD_REQUIRE(rank, rank->ops->wait(rank->transport, &received, NULL, deadline_ns) == HD_OK);
    HD_REQUIRE(rank, rank->ops->release(rank->transport, &received, NULL) == HD_OK);
    finish(&machine);
    return 0;
}

static void check_group(void)
{
    const struct scene scene = {.name = "nccl"};
    CU_ASSERT_EQUAL(run_scene(&scene, body_group), 0);
}

/* --- what cannot end by itself ----------------------------------------------------------- */

/* Without the group neither send can move: law 7 is there for this.  The abort ends it. */
static int body_crossed(struct hd_testbed_rank *rank)
{
    const struct hd_message sent = {.channel = rank->rank};
    const struct hd_message received = {.channel = 1 - rank->rank};
    struct machine machine;

    HD_REQUIRE(rank, open_rank(rank, 20000) == HD_OK);
    if (start(rank, &machine) != 0) {
        return 1;
    }
    HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &sent) == HD_OK);
    HD_REQUIRE(rank, rank->ops->post_send(rank->transport, &sent, machine.compute) == HD_OK);
    HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &received) == HD_OK);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK);
    HD_REQUIRE(rank, rank->ops->wait(rank->transport, &received, NULL,
                                     hd_testbed_deadline_ns(300)) == HD_TIMEOUT);
    HD_REQUIRE(rank, rank->report.status == HD_TIMEOUT && rank->report.rank == 1 - rank->rank);
    HD_REQUIRE(rank, hd_testbed_fence(rank) == HD_OK); /* an abort would end the other's wait */
    rank->ops->abort(rank->transport, "the test");
    HD_REQUIRE(rank,
               rank->ops->test(rank->transport, &received) == HD_TIMEOUT); /* the first stays */
    HD_REQUIRE(rank,
               rank->ops->quiesce(rank->transport, hd_testbed_deadline_ns(300)) == HD_TIMEOUT);
    return leave(rank);
}

static void check_crossed(void)
{
    const struct scene scene = {.name = "nccl"};
    CU_ASSERT_EQUAL(run_scene(&scene, body_crossed), 0);
}

/* A stream that waits for what never comes is let go by the abort, where that is promised. */
static int body_abort(struct hd_testbed_rank *rank)
{
    const struct hd_message received = {.channel = 0};
    const uint64_t deadline_ns = hd_testbed_deadline_ns(20000);
    struct machine machine;

    HD_REQUIRE(rank, open_rank(rank, 20000) == HD_OK);
    if (start(rank, &machine) != 0) {
        return 1;
    }
    if (rank->rank == 1) {
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &received) == HD_OK);
        HD_REQUIRE(rank, rank->ops->wait(rank->transport, &received, machine.compute,
                                         deadline_ns) == HD_OK);
        HD_REQUIRE(rank, machine.cuda.cudaStreamQuery(machine.compute) == cudaErrorNotReady);
        rank->ops->abort(rank->transport, "the test");
        rank->ops->abort(rank->transport, "the test, again");
        HD_REQUIRE(rank, machine.cuda.cudaStreamSynchronize(machine.compute) == cudaSuccess);
        HD_REQUIRE(rank, rank->ops->release(rank->transport, &received, NULL) == HD_ABORTED);
    } else {
        rank->ops->abort(rank->transport, "the test");
    }
    HD_REQUIRE(rank, rank->report.count == 0); /* an abort is no failure of this rank's */
    return leave(rank);
}

static void check_abort(void)
{
    const struct scene scenes[] = {{.name = "nccl"}, {.name = "nccl_rma"}};

    for (unsigned i = 0; i < HD_CHECK_COUNT(scenes); i++) {
        CU_ASSERT_EQUAL(run_scene(&scenes[i], body_abort), 0);
    }
}

/* --- errors of the library --------------------------------------------------------------- */

static int body_error(struct hd_testbed_rank *rank)
{
    const struct scene *scene = rank->job->argument;
    const struct hd_message sent = {.channel = 0};
    const struct hd_message received = {.channel = 0};
    const uint64_t deadline_ns = hd_testbed_deadline_ns(5000);

    HD_REQUIRE(rank, open_rank(rank, 20000) == HD_OK);
    hd_status status = HD_OK;
    if (rank->rank == 0) {
        HD_REQUIRE(rank, rank->ops->reserve(rank->transport, &sent) == HD_OK);
        status = rank->ops->post_send(rank->transport, &sent, NULL);
        while (status >= 0 && hd_testbed_deadline_ns(0) < deadline_ns) {
            status = rank->ops->progress(rank->transport);
        }
        HD_REQUIRE(rank, status < 0 && status != HD_TIMEOUT);
        HD_REQUIRE(rank, strstr(rank->report.text, scene->refusal) != NULL);
        HD_REQUIRE(rank, rank->report.count == 1 && rank->report.channel == 0);
    } else {
        HD_REQUIRE(rank, rank->ops->post_recv(rank->transport, &received) == HD_OK);
    }
    return leave(rank);
}

static void check_errors(void)
{
    const struct scene scenes[] = {
        /* the first of each call is the warm-up's */
        {.name = "nccl", .fault = "ncclSend:2:6", .refusal = "remote process exited"},
        {.name = "nccl", .fault = "ncclSend:2:async:3", .refusal = "internal error"},
        {.name = "nccl_rma", .fault = "ncclPutSignal:2:2", .refusal = "system error"},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(scenes); i++) {
        CU_ASSERT_EQUAL(run_scene(&scenes[i], body_error), 0);
    }
}

/* --- what is refused --------------------------------------------------------------------- */

static int body_refused(struct hd_testbed_rank *rank)
{
    const struct scene *scene = rank->job->argument;

    HD_REQUIRE(rank, open_rank(rank, 3000) < 0);
    HD_REQUIRE(rank, rank->report.count == 1);
    if (strstr(rank->report.text, scene->refusal) == NULL &&
        strstr(rank->report.text, "could not open") == NULL) {
        fprintf(stderr, "%s: '%s' does not say '%s'\n", scene->name, rank->report.text,
                scene->refusal);
        return 1;
    }
    return leave(rank); /* its communicators may be known to the peer already */
}

static void check_refused(void)
{
    const struct scene scenes[] = {
        {.name = "nccl", .is_host = 1, .refusal = "moves device memory only"},
        {.name = "nccl", .cuda = "devices=1", .refusal = "NCCL needs one GPU for each rank"},
        {.name = "nccl", .cuda = "devices=2 driver=0", .refusal = "no NVIDIA driver"},
        {.name = "nccl", .connections = "1", .refusal = "CUDA_DEVICE_MAX_CONNECTIONS"},
        {.name = "nccl_rma", .nccl = "version=22809", .refusal = "version: "},
        {.name = "nccl_rma", .cuda = "devices=2 driver=12040 runtime=13000", .refusal = "driver"},
        {.name = "nccl_rma", .connections = "3", .refusal = "CUDA_DEVICE_MAX_CONNECTIONS"},
        {.name = "nccl_rma", .nccl = "windows=off", .refusal = "symmetric window"},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(scenes); i++) {
        CU_ASSERT_EQUAL(run_scene(&scenes[i], body_refused), 0);
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"messages cross behind the streams of both ends, in the order of law 7", check_traffic},
        {"what depends on each other moves as a group", check_group},
        {"without the group nothing moves, and the deadline says so", check_crossed},
        {"an abort lets the streams go", check_abort},
        {"an error of NCCL names the channel and stays", check_errors},
        {"each missing condition is refused by its name", check_refused},
    };
    const char *build = getenv("HD_BUILD_DIR");

    snprintf(runtime_path, sizeof runtime_path, "%s/tests/standin/libheddle_standin_cuda.so",
             build != NULL ? build : ".");
    snprintf(library_path, sizeof library_path, "%s/tests/standin/libheddle_standin_nccl.so",
             build != NULL ? build : ".");
    return hd_check_main("nccl_transport", checks, HD_CHECK_COUNT(checks));
}
