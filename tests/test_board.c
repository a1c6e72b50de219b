/*
 * tests/test_board.c - who is overdue, what the report says, and the watchdog that reads it.
 *
 * Boards are written by hand and read at times of the test's choosing, so nothing here waits but
 * the rows of the watchdog, which end when it has acted.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/board.h"
#include "engine/watchdog.h"
#include "support/check.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RANK_COUNT = 4, REPORT_BYTES = 4096, TIMEOUT_S = 2, FIRST_S = 9 };

static struct hd_board *make_board(void)
{
    struct hd_board *board = hd_memory_take(hd_board_bytes(RANK_COUNT), 64, "board");

    hd_board_init(board, RANK_COUNT);
    board->timeout_ns = TIMEOUT_S * HD_S_NS;
    board->first_step_timeout_ns = FIRST_S * HD_S_NS;
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        hd_board_beat(board, rank);
    }
    return board;
}

/* In step 2, at action 1F2 (or none), since `age_s` before `now_ns`. */
static void publish(struct hd_board *board, uint32_t rank, uint32_t phase, uint32_t peer,
                    uint64_t since_ns)
{
    const struct hd_rank_state state = {
        .phase = phase,
        .step = 2,
        .action_count = 5,
        .stage = rank,
        .microbatch = 2,
        .kind = phase == HD_PHASE_TOGETHER ? 0 : 'F',
        .peer = peer,
        .channel = 3,
        .sequence = 10,
        .message_bytes = 16384,
        .since_ns = since_ns,
    };
    hd_board_publish(board, rank, &state);
}

#define NOBODY UINT32_MAX

/* Phases of four ranks, whom each waits for, and what is wrong with one of them. */
struct scene {
    const char *name;
    uint32_t phases[RANK_COUNT], peers[RANK_COUNT];
    uint32_t dead, stopped, silent; /* a rank, or NOBODY */
    uint32_t overdue, culprit;      /* for rank 0 */
};

enum { NO = HD_PHASE_NONE, RUN = HD_PHASE_RUN, GET = HD_PHASE_RECEIVE, PUT = HD_PHASE_CREDIT };
enum { MET = HD_PHASE_TOGETHER, DONE = HD_PHASE_DONE, ORDER = HD_PHASE_ORDER };

static const struct scene scenes[] = {
    {"a slow stage", {GET, RUN, RUN, RUN}, {1, 0, 0, 0}, NOBODY, NOBODY, NOBODY, 0, 1},
    {"a slow stage, two hops away",
     {GET, GET, RUN, RUN},
     {1, 2, 0, 0},
     NOBODY,
     NOBODY,
     NOBODY,
     0,
     2},
    {"a dead peer", {GET, RUN, RUN, RUN}, {1, 0, 0, 0}, 1, NOBODY, NOBODY, 1, 1},
    {"a dead rank elsewhere", {GET, RUN, RUN, RUN}, {1, 0, 0, 0}, 3, NOBODY, NOBODY, 0, 1},
    {"a stopped rank, three hops away",
     {GET, PUT, GET, RUN},
     {1, 2, 3, 0},
     NOBODY,
     3,
     NOBODY,
     1,
     3},
    {"a silent heart", {GET, RUN, RUN, RUN}, {1, 0, 0, 0}, NOBODY, NOBODY, 1, 1, 1},
    {"a cycle", {GET, GET, PUT, RUN}, {1, 2, 0, 0}, NOBODY, NOBODY, NOBODY, 1, 2},
    {"behind a transfer of a slow rank",
     {ORDER, ORDER, RUN, RUN},
     {1, 2, 0, 0},
     NOBODY,
     NOBODY,
     NOBODY,
     0,
     2},
    {"behind each other's transfers",
     {ORDER, ORDER, RUN, RUN},
     {1, 0, 0, 0},
     NOBODY,
     NOBODY,
     NOBODY,
     1,
     1},
    {"a peer that has left its last step",
     {GET, DONE, RUN, RUN},
     {1, 0, 0, 0},
     NOBODY,
     NOBODY,
     NOBODY,
     1,
     1},
    {"at the end of a step, one is slow",
     {MET, MET, RUN, MET},
     {NOBODY, NOBODY, 0, NOBODY},
     NOBODY,
     NOBODY,
     NOBODY,
     0,
     2},
    {"at the end of a step, one is dead",
     {MET, MET, RUN, MET},
     {NOBODY, NOBODY, 0, NOBODY},
     2,
     NOBODY,
     NOBODY,
     1,
     2},
    {"at the end of a step, one waits for a stopped one",
     {MET, MET, GET, RUN},
     {NOBODY, NOBODY, 3, 0},
     NOBODY,
     3,
     NOBODY,
     1,
     3},
};

static void set_scene(struct hd_board *board, const struct scene *scene, uint64_t since_ns,
                      uint64_t now_ns)
{
    for (uint32_t rank = 0; rank < RANK_COUNT; rank++) {
        publish(board, rank, scene->phases[rank], scene->peers[rank], since_ns);
        atomic_store(&board->rows[rank].heartbeat_ns, now_ns);
    }
    if (scene->dead != NOBODY) {
        atomic_store(&board->rows[scene->dead].is_dead, 1u);
    }
    if (scene->stopped != NOBODY) {
        atomic_store(&board->rows[scene->stopped].is_stopped, 1u);
    }
    if (scene->silent != NOBODY) {
        atomic_store(&board->rows[scene->silent].heartbeat_ns, now_ns - 5 * HD_S_NS);
    }
}

static void test_overdue(void)
{
    const uint64_t since_ns = hd_now_ns();
    const uint64_t now_ns = since_ns + TIMEOUT_S * HD_S_NS;

    for (unsigned i = 0; i < HD_CHECK_COUNT(scenes); i++) {
        struct hd_board *board = make_board();
        uint32_t culprit = NOBODY;
        set_scene(board, &scenes[i], since_ns, now_ns);
        const uint32_t overdue = hd_board_is_overdue(board, 0, now_ns, &culprit);
        if (overdue != scenes[i].overdue || (overdue && culprit != scenes[i].culprit)) {
            fprintf(stderr, "%s: overdue %u, culprit %u\n", scenes[i].name, overdue, culprit);
            CU_FAIL("the chain of waits is read wrongly");
        }
        /* Nobody is blamed before the deadline, whatever is wrong. */
        CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, now_ns - 1, &culprit), 0);
        hd_memory_give(board);
    }
}

/* A cycle that closed a moment ago is no deadlock yet: its message may lie there, and the reader
 * sleep. */
static void test_young_cycle(void)
{
    struct hd_board *board = make_board();
    const uint64_t since_ns = hd_now_ns();
    const uint64_t closed_ns = since_ns + TIMEOUT_S * HD_S_NS;
    uint32_t culprit = NOBODY;

    publish(board, 0, HD_PHASE_RECEIVE, 1, since_ns);
    publish(board, 1, HD_PHASE_RECEIVE, 0, closed_ns);
    for (uint32_t rank = 0; rank < 2; rank++) {
        atomic_store(&board->rows[rank].heartbeat_ns, closed_ns + TIMEOUT_S * HD_S_NS);
    }
    CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, closed_ns + 1, &culprit), 0);
    CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, closed_ns + TIMEOUT_S * HD_S_NS, &culprit), 1);
    hd_memory_give(board);
}

/* Ranks that meet at different places: one waits at a meeting that the others have passed or left.
 * Every kind of wait ends at the deadline, but not while a rank runs. */
static void test_starved_meeting(void)
{
    static const struct {
        const char *name;
        uint32_t phases[3], steps[3], peer; /* rank 0's peer; ranks 1 and 2 wait for rank 0 */
        uint32_t overdue, culprit;          /* for rank 0 */
    } rows[] = {
        {"a message of a rank in another meeting", {GET, MET, MET}, {5, 4, 4}, 1, 1, 1},
        {"a slot of a rank in another meeting", {PUT, MET, MET}, {5, 4, 4}, 2, 1, 2},
        {"a transfer behind one of it", {ORDER, MET, GET}, {5, 4, 5}, 1, 1, 1},
        {"the others are a step ahead", {MET, GET, PUT}, {4, 5, 5}, NOBODY, 1, 1},
        {"the others have left", {MET, DONE, DONE}, {6, 4, 4}, NOBODY, 1, 1},
        {"two meetings", {MET, MET, MET}, {2, 3, 2}, NOBODY, 1, 1},
        {"all in one meeting", {MET, MET, MET}, {2, 2, 2}, NOBODY, 1, 0},
        {"one a step ahead still runs", {MET, GET, RUN}, {4, 5, 5}, NOBODY, 0, 0},
        {"one saves", {MET, MET, HD_PHASE_SAVE}, {4, 4, 5}, NOBODY, 0, 0},
    };
    const uint64_t since_ns = hd_now_ns();
    const uint64_t now_ns = since_ns + TIMEOUT_S * HD_S_NS;

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_board *board = make_board();
        uint32_t culprit = NOBODY;
        board->rank_count = 3;
        for (uint32_t rank = 0; rank < 3; rank++) {
            const struct hd_rank_state state = {.phase = rows[i].phases[rank],
                                                .step = rows[i].steps[rank],
                                                .peer = rank == 0 ? rows[i].peer : 0,
                                                .since_ns = since_ns};
            hd_board_publish(board, rank, &state);
            atomic_store(&board->rows[rank].heartbeat_ns, now_ns);
        }
        const uint32_t overdue = hd_board_is_overdue(board, 0, now_ns, &culprit);
        if (overdue != rows[i].overdue || (overdue && culprit != rows[i].culprit)) {
            fprintf(stderr, "%s: overdue %u, culprit %u\n", rows[i].name, overdue, culprit);
            CU_FAIL("a starved meeting is read wrongly");
        }
        CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, now_ns - 1, &culprit), 0);
        hd_memory_give(board);
    }
}

/* The first step has a deadline of its own; a rank that was stopped has all of it again. */
static void test_deadlines(void)
{
    struct hd_board *board = make_board();
    const uint64_t since_ns = hd_now_ns();
    const uint64_t now_ns = since_ns + TIMEOUT_S * HD_S_NS;
    uint32_t culprit;

    CU_ASSERT_EQUAL(hd_board_timeout_ns(board, 0), FIRST_S * HD_S_NS);
    CU_ASSERT_EQUAL(hd_board_timeout_ns(board, 1), FIRST_S * HD_S_NS);
    CU_ASSERT_EQUAL(hd_board_timeout_ns(board, 2), TIMEOUT_S * HD_S_NS);
    CU_ASSERT_EQUAL(hd_board_newest_step(board), 0);
    publish(board, 3, HD_PHASE_RUN, NOBODY, since_ns); /* of the others the last word is older */
    CU_ASSERT_EQUAL(hd_board_newest_step(board), 2);
    set_scene(board, &scenes[2], since_ns, now_ns);
    CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, now_ns, &culprit), 1);
    atomic_store(&board->rows[0].resumed_ns, now_ns - 1);
    CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, now_ns, &culprit), 0);
    CU_ASSERT_EQUAL(hd_board_is_overdue(board, 0, now_ns + TIMEOUT_S * HD_S_NS, &culprit), 1);
    hd_memory_give(board);
}

static void test_rest(void)
{
    static const struct {
        const char *name;
        uint32_t phases[RANK_COUNT];
        uint32_t dead, at_rest;
    } rows[] = {
        {"one runs", {GET, RUN, RUN, MET}, 1, 0},
        {"all wait for the dead one", {GET, RUN, PUT, MET}, 1, 1},
        {"nobody has begun", {NO, NO, NO, NO}, NOBODY, 1},
        {"the last one is at its optimizer", {DONE, DONE, DONE, HD_PHASE_UPDATE}, 0, 0},
    };
    const uint64_t since_ns = hd_now_ns();
    const uint64_t now_ns = since_ns + HD_S_NS;

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_board *board = make_board();
        struct scene scene = {.dead = rows[i].dead, .stopped = NOBODY, .silent = NOBODY};
        memcpy(scene.phases, rows[i].phases, sizeof scene.phases);
        set_scene(board, &scene, since_ns, now_ns);
        if (hd_board_is_at_rest(board, now_ns) != rows[i].at_rest) {
            fprintf(stderr, "%s\n", rows[i].name);
            CU_FAIL("rest is seen wrongly");
        }
        /* A wait that has just begun may be over in a moment. */
        publish(board, 3, GET, 2, now_ns);
        CU_ASSERT_EQUAL(hd_board_is_at_rest(board, now_ns), 0);
        hd_memory_give(board);
    }
}

static void test_first_cause_stays(void)
{
    struct hd_board *board = make_board();
    struct hd_problem first = {0}, second = {0};

    hd_problem_set(&first, HD_PEER_LOST, HD_EXIT_PEER, "the first");
    hd_problem_set(&second, HD_DEVICE, HD_EXIT_PLUGIN, "the second");
    CU_ASSERT_EQUAL(hd_board_is_aborted(board), 0);
    CU_ASSERT_EQUAL(hd_board_abort(board, &first), 1);
    CU_ASSERT_EQUAL(hd_board_abort(board, &second), 0);
    CU_ASSERT_EQUAL(hd_board_is_aborted(board), 1);
    CU_ASSERT_EQUAL(board->cause.exit_code, HD_EXIT_PEER);
    CU_ASSERT_STRING_EQUAL(board->cause.message, "the first");
    CU_ASSERT_PTR_NOT_NULL(strstr(board->report, "rank 3 "));
    hd_memory_give(board);
}

/* Dead and stopped ranks first; each line in the words of the schedule. */
/* The first writer has taken the cause and died before it was written: a sentence all the same. */
static void test_cause_of_the_dead(void)
{
    struct hd_board *board = make_board();
    struct hd_problem second = {0}, cause = {0};

    atomic_store(&board->is_caused, 1u);
    hd_problem_set(&second, HD_TIMEOUT, HD_EXIT_PEER, "the second");
    CU_ASSERT_EQUAL(hd_board_abort(board, &second), 0);
    CU_ASSERT_EQUAL(hd_board_is_aborted(board), 1);
    CU_ASSERT_EQUAL(hd_board_cause(board, &cause), 0);
    CU_ASSERT_EQUAL(cause.exit_code, HD_EXIT_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(cause.message, "before it could give the reason"));
    hd_memory_give(board);
}

static void test_report(void)
{
    static const struct scene scene = {
        "", {GET, PUT, RUN, MET}, {1, 2, 0, NOBODY}, 2, NOBODY, NOBODY, 0, 0};
    struct hd_board *board = make_board();
    const uint64_t now_ns = hd_now_ns();
    char text[REPORT_BYTES], shorter[40];

    set_scene(board, &scene, now_ns, now_ns);
    const uint32_t length = hd_board_report(board, text, sizeof text);
    CU_ASSERT_EQUAL(length, strlen(text));
    CU_ASSERT_EQUAL(strncmp(text,
                            "rank 2 died at 2F2 (5 actions done in step 2)\nrank 0 is waiting "
                            "for 0F2 from rank 1, which has itself been waiting at 1F2 for ",
                            126),
                    0);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "\nrank 1 is waiting at 1F2 for a slot of rank 2, which died at 2F2 "
                     "(channel 3, sequence 10, 16384 bytes, waiting "));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "\nrank 3 has finished step 2 (5 actions done in step 2)\n"));
    hd_board_report(board, shorter, sizeof shorter);
    CU_ASSERT_EQUAL(strlen(shorter), sizeof shorter - 1);
    atomic_store(&board->rows[3].is_stopped, 1u);
    hd_board_report(board, text, sizeof text);
    const char *dead = strstr(text, "rank 2 died at 2F2");
    const char *stopped = strstr(text, "rank 3 has been stopped at the end of step 2");
    const char *waiting = strstr(text, "rank 0 is waiting");
    CU_ASSERT_FATAL(dead != NULL && stopped != NULL && waiting != NULL);
    CU_ASSERT(dead < stopped && stopped < waiting);
    hd_memory_give(board);
}

/* A reader never sees half of a state, however often it changes. */
struct racing {
    struct hd_board *board;
    atomic_uint is_over;
};

static void *write_states(void *argument)
{
    struct racing *racing = argument;

    for (uint32_t turn = 0; turn < 50000; turn++) {
        const struct hd_rank_state state = {.stage = turn, .microbatch = turn, .sequence = turn};
        hd_board_publish(racing->board, 1, &state);
        if (turn % 8 == 0) {
            sched_yield(); /* no rank does nothing but publish */
        }
    }
    atomic_store(&racing->is_over, 1u);
    return NULL;
}

static void test_whole_states(void)
{
    struct racing racing = {.board = make_board()};
    pthread_t writer;
    uint64_t torn_count = 0;

    CU_ASSERT_EQUAL_FATAL(pthread_create(&writer, NULL, write_states, &racing), 0);
    while (!atomic_load(&racing.is_over)) {
        struct hd_rank_state state;
        hd_board_read(racing.board, 1, &state);
        torn_count += state.stage != state.microbatch || state.stage != state.sequence;
    }
    pthread_join(writer, NULL);
    CU_ASSERT_EQUAL(torn_count, 0);
    hd_memory_give(racing.board);
}

/* --- the watchdog ----------------------------------------------------------------------------- */

static void count_abort(void *context, const char *reason)
{
    atomic_uint *count = context;

    (void)reason;
    atomic_fetch_add(count, 1);
}

/* Until the watchdog has called abort so often; the test's own runner ends what hangs. */
static void await_aborts(atomic_uint *count, uint32_t wanted)
{
    const struct timespec nap = {0, 1000000};

    while (atomic_load(count) < wanted) {
        nanosleep(&nap, NULL);
    }
}

static void test_watchdog_repeats_the_abort(void)
{
    struct hd_board *board = make_board();
    atomic_uint count = 0;
    struct hd_watchdog watchdog = {
        .board = board, .rank = 1, .abort = count_abort, .context = &count};
    struct hd_problem problem = {0};

    atomic_store(&board->rows[1].heartbeat_ns, 0);
    CU_ASSERT_EQUAL_FATAL(hd_watchdog_start(&watchdog), 0);
    CU_ASSERT(atomic_load(&board->rows[1].heartbeat_ns) > 0);
    hd_problem_set(&problem, HD_DEVICE, HD_EXIT_PLUGIN, "somebody failed");
    hd_board_abort(board, &problem);
    await_aborts(&count, 3);
    hd_watchdog_stop(&watchdog);
    hd_watchdog_stop(&watchdog); /* takes one that has ended */
    hd_memory_give(board);
}

static void test_watchdog_ends_a_wait(void)
{
    struct hd_board *board = make_board();
    atomic_uint count = 0;
    struct hd_watchdog watchdog = {
        .board = board, .rank = 0, .abort = count_abort, .context = &count};

    board->timeout_ns = 1;
    publish(board, 0, GET, 1, hd_now_ns());
    publish(board, 1, RUN, NOBODY, hd_now_ns());
    atomic_store(&board->rows[1].is_dead, 1u);
    CU_ASSERT_EQUAL_FATAL(hd_watchdog_start(&watchdog), 0);
    await_aborts(&count, 1);
    hd_watchdog_stop(&watchdog);
    CU_ASSERT_EQUAL(board->cause.exit_code, HD_EXIT_PEER);
    CU_ASSERT_EQUAL(strncmp(board->cause.message,
                            "rank 1 died at 1F2 (5 actions done in step 2); "
                            "no rank moved for 0.0 s: rank 0 is waiting for 0F2 from",
                            92),
                    0);
    hd_memory_give(board);
}

static const struct hd_check checks[] = {
    {"a wait is overdue when its chain ends at who cannot go on", test_overdue},
    {"a cycle counts from its last change", test_young_cycle},
    {"a meeting that the others have passed ends at the deadline", test_starved_meeting},
    {"the first step's deadline, and deadlines after a stop", test_deadlines},
    {"ranks are at rest when nobody moves", test_rest},
    {"the first cause stays", test_first_cause_stays},
    {"a cause whose writer died has a sentence", test_cause_of_the_dead},
    {"the report: dead and stopped ranks first, then who waits for whom", test_report},
    {"a state is read whole", test_whole_states},
    {"the watchdog repeats the abort until its rank rests", test_watchdog_repeats_the_abort},
    {"the watchdog ends a wait for the dead", test_watchdog_ends_a_wait},
};

int main(void)
{
    return hd_check_main("board and watchdog", checks, HD_CHECK_COUNT(checks));
}
