/* tests/test_link.c - processes that a launcher has started: one link, one bootstrap. */
#include "base/clock.h"
#include "launch/launch.h"
#include "launch/socket.h"
#include "launch/wire.h"
#include "run/launched.h"
#include "support/check.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANK_COUNT = 3, GATHER_BYTES = 4096, ROUNDS = 200, FAR_S = 30 };

static uint64_t far_ns(void)
{
    return hd_now_ns() + FAR_S * HD_S_NS;
}

/* A port that was free a moment ago. */
static uint16_t free_port(void)
{
    struct hd_hub_address hub = {.port = 0};
    struct hd_problem problem = {.exit_code = 0};
    int listener = -1;

    CU_ASSERT_EQUAL_FATAL(hd_socket_listen(&hub, &listener, &problem), HD_OK);
    close(listener);
    return hub.port;
}

static struct hd_identity identity_of(uint32_t rank, uint16_t port)
{
    struct hd_identity identity = {.launcher = HD_LAUNCHER_VARIABLES,
                                   .rank = rank,
                                   .rank_count = RANK_COUNT,
                                   .local_rank = rank};

    strcpy(identity.hub.addresses[0], "127.0.0.1");
    identity.hub.address_count = 1;
    identity.hub.port = port;
    return identity;
}

/* --- the bootstrap over a link ---------------------------------------------------------------- */

/* Blocks of another length each round, after puts that everybody reads behind the fence. */
static int32_t use_bootstrap(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    const uint32_t rank = hd_bootstrap_rank(bootstrap), count = hd_bootstrap_rank_count(bootstrap);
    uint32_t mine[16], all[RANK_COUNT * 16], wrong = 0;
    char key[32];

    (void)context;
    (void)shared;
    for (uint32_t round = 0; round < ROUNDS && wrong == 0; round++) {
        const uint32_t words = 1 + round % 16;
        for (uint32_t i = 0; i < words; i++) {
            mine[i] = round << 8 | rank;
        }
        wrong += hd_bootstrap_gather(bootstrap, mine, words * 4, all, far_ns()) != HD_OK;
        for (uint32_t i = 0; i < count * words; i++) {
            wrong += all[i] != (round << 8 | i / words);
        }
        if (round % 10 == 0) {
            snprintf(key, sizeof key, "%u of %u", rank, round);
            wrong += hd_bootstrap_put(bootstrap, key, mine, 4) != HD_OK;
            wrong += hd_bootstrap_fence(bootstrap, far_ns()) != HD_OK;
            for (uint32_t other = 0; other < count; other++) {
                snprintf(key, sizeof key, "%u of %u", other, round);
                /* No patience at all: the fence has brought it. */
                wrong += hd_bootstrap_get(bootstrap, key, all, 4, 0) != HD_OK;
                wrong += all[0] != (round << 8 | other);
            }
        }
    }
    wrong += hd_bootstrap_get(bootstrap, "nobody's", all, 4, hd_now_ns()) != HD_TIMEOUT;
    return wrong == 0 ? 0 : 1;
}

static bool on_event(void *context, void *shared, const struct hd_launch_event *event)
{
    (void)context;
    (void)shared;
    (void)event;
    return 0;
}

/* The first words of a rank may be the last of its process: so all stay until the others go. */
static bool is_settled(void *context, void *shared)
{
    struct hd_link *link = context;

    (void)shared;
    if (hd_link_rank(link) != 0) {
        return hd_link_verdict(link) != NULL;
    }
    for (uint32_t rank = 1; rank < RANK_COUNT; rank++) {
        if (!hd_link_is_lost(link, rank)) {
            return 0;
        }
    }
    return 1;
}

static void on_message(void *context, const struct hd_link_message *message)
{
    (void)context;
    (void)message;
}

static void on_lost(void *context, uint32_t rank)
{
    (void)context;
    (void)rank;
}

/* A member goes as soon as its rank has: the hub sees the connection end. */
static bool is_settled_at_once(void *context, void *shared)
{
    (void)context;
    (void)shared;
    return 1;
}

static int32_t run_process(uint32_t rank, uint16_t port)
{
    struct hd_identity identity = identity_of(rank, port);
    const struct hd_link_request request = {&identity, "plan", FAR_S};
    struct hd_link_listener listener = {NULL, on_message, on_lost};
    struct hd_launch_outcome outcome;
    struct hd_problem problem = {.exit_code = 0};
    struct hd_link *link = NULL;

    if (hd_link_open(&request, &link, &problem) != HD_OK) {
        return problem.exit_code;
    }
    listener.context = link;
    hd_link_listen(link, &listener);
    const struct hd_launch launch = {
        .rank_count = RANK_COUNT,
        .gather_bytes = GATHER_BYTES,
        .context = link,
        .rank_main = use_bootstrap,
        .on_event = on_event,
        .grace_ms = 100,
        .link = link,
        .is_settled = rank == 0 ? is_settled : is_settled_at_once,
    };
    const hd_status status = hd_launch_run(&launch, &outcome, &problem);
    const int32_t exit_code = status == HD_OK ? outcome.exit_codes[rank] : 1;
    hd_link_close(link, &problem);
    return exit_code;
}

static void the_bootstrap_is_the_same_over_a_link(void)
{
    const uint16_t port = free_port();
    pid_t pids[RANK_COUNT];
    int end = -1;

    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            _exit(run_process(rank, port));
        }
    }
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        CU_ASSERT_EQUAL(waitpid(pids[rank], &end, 0), pids[rank]);
        CU_ASSERT_EQUAL(end, 0);
    }
}

/* --- a rank 0 that does not begin ------------------------------------------------------------- */

/* Its process has connected, lives, and never says that the run begins. */
static int32_t await_begin(uint32_t rank, uint16_t port)
{
    struct hd_identity identity = identity_of(rank, port);
    const struct hd_link_request request = {&identity, "plan", FAR_S};
    char directory[HD_LAUNCHED_PATH_BYTES];
    struct hd_problem problem = {.exit_code = 0};
    struct hd_launched launched;
    struct hd_link *link = NULL;

    if (hd_link_open(&request, &link, &problem) != HD_OK) {
        return 1;
    }
    if (rank == 0) {
        while (!hd_link_is_lost(link, 1) || !hd_link_is_lost(link, 2)) {
            hd_link_listen(link, &(struct hd_link_listener){NULL, on_message, on_lost});
            hd_link_poll(link);
        }
        return 0;
    }
    if (hd_launched_create(&launched, link, NULL, &problem) != HD_OK ||
        hd_launched_await(&launched, 0.2, directory, &problem) != HD_TIMEOUT) {
        return 1;
    }
    hd_launched_finish(&launched);
    return problem.exit_code == HD_EXIT_PEER && strncmp(problem.message, "rank 0 on ", 10) == 0 &&
                   strstr(problem.message, " has not begun the run within 0.2 s") != NULL
               ? 0
               : 1;
}

static void a_rank_0_that_does_not_begin_is_named(void)
{
    const uint16_t port = free_port();
    pid_t pids[RANK_COUNT];
    int end = -1;

    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            _exit(await_begin(rank, port));
        }
    }
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        CU_ASSERT_EQUAL(waitpid(pids[rank], &end, 0), pids[rank]);
        CU_ASSERT_EQUAL(end, 0);
    }
}

/* --- frames ----------------------------------------------------------------------------------- */

static void frames_come_whole_and_in_order_however_they_are_cut(void)
{
    static unsigned char large[300000];
    struct hd_wire sender, receiver;
    struct hd_frame frame;
    const unsigned char *bytes;
    uint32_t next = 0;
    int ends[2];

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    hd_wire_init(&sender, ends[0]);
    hd_wire_init(&receiver, ends[1]);
    for (uint32_t i = 0; i < 20; i++) { /* more than a socket holds: most of it waits */
        memset(large, (int)i, sizeof large);
        frame = (struct hd_frame){20 + i, i, (uint64_t)i * 15000};
        CU_ASSERT_EQUAL(hd_wire_send(&sender, &frame, large), HD_OK);
    }
    CU_ASSERT_EQUAL(hd_wire_has_queue(&sender), 1);
    const uint64_t deadline_ns = far_ns();
    while (next < 20 && hd_now_ns() < deadline_ns) {
        CU_ASSERT_EQUAL(hd_wire_flush(&sender), HD_OK);
        CU_ASSERT_EQUAL(hd_wire_receive(&receiver), HD_OK);
        while (hd_wire_next(&receiver, &frame, &bytes)) {
            CU_ASSERT_EQUAL(frame.kind, 20 + next);
            CU_ASSERT_EQUAL(frame.bytes, (uint64_t)next * 15000);
            CU_ASSERT_TRUE(next == 0 || bytes[frame.bytes - 1] == next);
            next++;
        }
    }
    CU_ASSERT_EQUAL(next, 20);
    CU_ASSERT_FALSE(hd_wire_has_queue(&sender));

    /* Last words are read after the end; a head without sense ends the wire. */
    frame = (struct hd_frame){20, 0, 0};
    CU_ASSERT_EQUAL(hd_wire_send(&sender, &frame, NULL), HD_OK);
    hd_wire_close(&sender);
    CU_ASSERT_EQUAL(hd_wire_receive(&receiver), HD_PEER_LOST);
    CU_ASSERT_EQUAL(hd_wire_next(&receiver, &frame, &bytes), 1);
    CU_ASSERT_FALSE(hd_wire_next(&receiver, &frame, &bytes));
    hd_wire_close(&receiver);
}

static void a_frame_too_large_closes_the_wire(void)
{
    const struct hd_frame wild = {20, 0, HD_FRAME_BYTES_MAX + 1};
    struct hd_wire receiver;
    struct hd_frame frame;
    const unsigned char *bytes;
    int ends[2];

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    hd_wire_init(&receiver, ends[1]);
    CU_ASSERT_EQUAL(write(ends[0], &wild, sizeof wild), (ssize_t)sizeof wild);
    CU_ASSERT_EQUAL(hd_wire_receive(&receiver), HD_OK);
    CU_ASSERT_FALSE(hd_wire_next(&receiver, &frame, &bytes));
    CU_ASSERT_FALSE(hd_wire_is_open(&receiver));
    close(ends[0]);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the bootstrap is the same over a link", the_bootstrap_is_the_same_over_a_link},
        {"a rank 0 that does not begin is named", a_rank_0_that_does_not_begin_is_named},
        {"frames come whole and in order however they are cut",
         frames_come_whole_and_in_order_however_they_are_cut},
        {"a frame too large closes the wire", a_frame_too_large_closes_the_wire},
    };

    return hd_check_main("launch link", checks, HD_CHECK_COUNT(checks));
}
