/*
 * tests/test_engine_parts.c - leases, lanes, programs and the cut of a model, each
 * alone: what the engine is made of.
 */
#include "base/memory.h"
#include "engine/lane.h"
#include "engine/lease.h"
#include "run/model.h"
#include "engine/program.h"
#include "support/check.h"
#include "support/schedule_harness.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 64, PAYLOAD_BYTES = 100, MESSAGE_BYTES = 200 };

static int has(const struct hd_problem *problem, const char *text)
{
    const int found = strstr(problem->message, text) != NULL;

    if (!found) {
        fprintf(stderr, "'%s' lacks '%s'\n", problem->message, text);
    }
    return found;
}

/* --- leases ---------------------------------------------------------------------------------- */

static const struct hd_regions regions = {.alignment = ALIGNMENT};

static struct hd_lease_pool make_pool(uint32_t slot_count, uint32_t poison)
{
    struct hd_lease_pool pool = {
        .regions = &regions, .stage = 3, .microbatch_count = 8, .poison = poison};
    struct hd_problem problem = {0};

    CU_ASSERT_EQUAL_FATAL(hd_lease_pool_create(&pool, slot_count, PAYLOAD_BYTES, &problem), HD_OK);
    CU_ASSERT_EQUAL(pool.slot_bytes, 128);
    return pool;
}

static void acquire(struct hd_lease_pool *pool, uint32_t microbatch)
{
    struct hd_problem problem = {0};
    CU_ASSERT_EQUAL(hd_lease_acquire(pool, microbatch, &problem), HD_OK);
}

static void test_pool_is_exact(void)
{
    struct hd_lease_pool pool = make_pool(2, 0);
    struct hd_problem full = {0}, twice = {0};

    acquire(&pool, 5);
    acquire(&pool, 6);
    CU_ASSERT_EQUAL(hd_lease_acquire(&pool, 7, &full), HD_PROTOCOL);
    CU_ASSERT(has(&full,
                  "stage 3: no payload slot is free for microbatch 7: all 2 are leased, slot 0 to "
                  "microbatch 5"));
    CU_ASSERT_EQUAL(hd_lease_acquire(&pool, 6, &twice), HD_PROTOCOL);
    CU_ASSERT(has(&twice, "stage 3: microbatch 6 already holds payload slot 1"));
    CU_ASSERT_EQUAL(pool.held_count, 2);
    CU_ASSERT_EQUAL(pool.peak_count, 2);
    hd_lease_pool_finish(&pool);
}

static void test_lease_ends_once(void)
{
    struct hd_lease_pool pool = make_pool(2, 0);
    struct hd_problem ended = {0}, never = {0}, problem = {0};
    void *payload;
    uint64_t generation;

    acquire(&pool, 1);
    CU_ASSERT_EQUAL(hd_lease_release(&pool, 1, &problem), HD_OK);
    CU_ASSERT_EQUAL(hd_lease_release(&pool, 1, &ended), HD_PROTOCOL);
    CU_ASSERT(has(&ended, "stage 3: microbatch 1 has no payload slot: its lease has ended"));
    CU_ASSERT_EQUAL(hd_lease_find(&pool, 4, &payload, &generation, &never), HD_PROTOCOL);
    CU_ASSERT(has(&never, "microbatch 4 has no payload slot"));
    CU_ASSERT_EQUAL(pool.held_count, 0);
    hd_lease_pool_finish(&pool);
}

/* A slot is used again, a generation never: a read under a stale lease is seen (report, 6.4). */
static void test_generations(void)
{
    struct hd_lease_pool pool = make_pool(2, 1);
    struct hd_problem problem = {0};
    unsigned char *first, *second;
    uint64_t generations[2];

    acquire(&pool, 0);
    hd_lease_find(&pool, 0, (void **)&first, &generations[0], &problem);
    memset(first, 7, PAYLOAD_BYTES);
    hd_lease_release(&pool, 0, &problem);
    for (uint32_t i = 0; i < pool.slot_bytes; i++) {
        CU_ASSERT_EQUAL(first[i], 0xFF);
    }
    acquire(&pool, 1);
    hd_lease_find(&pool, 1, (void **)&second, &generations[1], &problem);
    CU_ASSERT_PTR_EQUAL(first, second);
    CU_ASSERT(generations[1] > generations[0] && generations[0] > 0);
    CU_ASSERT_EQUAL((uintptr_t)first % ALIGNMENT, 0);
    CU_ASSERT_EQUAL(problem.exit_code, 0);
    hd_lease_pool_finish(&pool);
}

/* --- lanes ------------------------------------------------------------------------------------ */

static struct hd_channel channel = {
    .boundary = 3, .direction = HD_FORWARD, .depth = 3, .bytes = MESSAGE_BYTES};

static struct hd_lane make_local_lane(uint32_t checksum, uint32_t poison)
{
    struct hd_lane lane = {.channel = &channel,
                           .regions = &regions,
                           .index = HD_LANE_LOCAL,
                           .is_source = 1,
                           .is_target = 1,
                           .is_sealed = 1,
                           .has_checksum = checksum,
                           .poison = poison,
                           .dtype = HD_BF16,
                           .message_count = 6};
    struct hd_problem problem = {0};

    CU_ASSERT_EQUAL_FATAL(hd_lane_create(&lane, &problem), HD_OK);
    hd_lane_begin(&lane, 1);
    return lane;
}

static void send(struct hd_lane *lane, uint64_t sequence, uint32_t step)
{
    CU_ASSERT_EQUAL(hd_lane_reserve(lane, sequence), HD_OK);
    memset(hd_lane_slot(lane, sequence), (int)sequence + 1, MESSAGE_BYTES);
    CU_ASSERT_EQUAL(hd_lane_send(lane, sequence, step, (uint32_t)(sequence % 6)), HD_OK);
}

static hd_status check(struct hd_lane *lane, uint64_t sequence, uint32_t step)
{
    struct hd_problem problem = {0};
    return hd_lane_check(lane, sequence, step, (uint32_t)(sequence % 6), &problem);
}

static void test_local_ring(void)
{
    struct hd_lane lane = make_local_lane(0, 1);

    send(&lane, 0, 1);
    CU_ASSERT_EQUAL(hd_lane_test(&lane, 0), HD_OK);
    send(&lane, 1, 1);
    send(&lane, 2, 1);
    CU_ASSERT_EQUAL(hd_lane_reserve(&lane, 3), HD_PROTOCOL); /* the plan says it cannot be */
    CU_ASSERT_EQUAL(hd_lane_test(&lane, 3), HD_PROTOCOL);
    CU_ASSERT_EQUAL(check(&lane, 1, 1), HD_OK);
    /* A release that overtakes an older lease waits for it. */
    const unsigned char *overtaking = hd_lane_slot(&lane, 1);
    CU_ASSERT_EQUAL(hd_lane_release(&lane, 1), HD_OK);
    CU_ASSERT_EQUAL(lane.released_count, 0);
    CU_ASSERT_EQUAL(overtaking[0], 0xFF);
    CU_ASSERT_EQUAL(overtaking[MESSAGE_BYTES - 1], 0xFF);
    CU_ASSERT_EQUAL(hd_lane_reserve(&lane, 3), HD_PROTOCOL);
    CU_ASSERT_EQUAL(check(&lane, 0, 1), HD_OK);
    CU_ASSERT_EQUAL(hd_lane_release(&lane, 0), HD_OK);
    CU_ASSERT_EQUAL(lane.released_count, 2);
    send(&lane, 3, 1);
    send(&lane, 4, 1);
    CU_ASSERT_EQUAL(hd_lane_reserve(&lane, 5), HD_PROTOCOL);
    CU_ASSERT_EQUAL(((unsigned char *)hd_lane_slot(&lane, 2))[9], 3); /* still leased */
    hd_lane_finish(&lane);
}

/* C50: what a slot said in the last step is nothing in this one. */
static void test_seal(void)
{
    struct hd_lane lane = make_local_lane(1, 0);
    struct hd_problem stale = {0}, other = {0}, torn = {0};

    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        send(&lane, sequence, 1);
        CU_ASSERT_EQUAL(check(&lane, sequence, 1), HD_OK);
        hd_lane_release(&lane, sequence);
    }
    hd_lane_begin(&lane, 2);
    CU_ASSERT_EQUAL(lane.base, 6);
    CU_ASSERT_EQUAL(hd_lane_check(&lane, 6, 2, 0, &stale), HD_PROTOCOL);
    CU_ASSERT(has(&stale, "boundary 3 to 4, activation: expected step 2, microbatch 0, sequence 6, "
                          "200 bytes, type 2,"));
    CU_ASSERT(has(&stale, "got step 1, microbatch 3, sequence 3, 200 bytes"));
    send(&lane, 6, 2);
    CU_ASSERT_EQUAL(check(&lane, 6, 2), HD_OK);
    CU_ASSERT_EQUAL(hd_lane_check(&lane, 6, 2, 1, &other), HD_PROTOCOL);
    CU_ASSERT_EQUAL(other.exit_code, HD_EXIT_FAILED);
    ((unsigned char *)hd_lane_slot(&lane, 6))[MESSAGE_BYTES - 1] ^=
        0x40; /* in the tail of a word */
    CU_ASSERT_EQUAL(hd_lane_check(&lane, 6, 2, 0, &torn), HD_PROTOCOL);
    hd_lane_finish(&lane);
}

/* A transport that only counts; after `failing_at` calls of test it fails. */
struct hd_transport {
    uint64_t posted_count, released[8], release_count, test_count, failing_at;
    unsigned char slots[3][256];
};

static hd_status count_recv(struct hd_transport *transport, const struct hd_message *message)
{
    CU_ASSERT_EQUAL(message->sequence, transport->posted_count);
    transport->posted_count++;
    return HD_OK;
}

static hd_status count_release(struct hd_transport *transport, const struct hd_message *message,
                               void *stream)
{
    (void)stream;
    transport->released[transport->release_count++] = message->sequence;
    return HD_OK;
}

static void *fake_slot(struct hd_transport *transport, const struct hd_message *message)
{
    return transport->slots[message->sequence % 3];
}

static hd_status count_test(struct hd_transport *transport, const struct hd_message *message)
{
    (void)message;
    return ++transport->test_count < transport->failing_at ? HD_IN_PROGRESS : HD_ABORTED;
}

static void test_remote_target(void)
{
    static const struct hd_transport_ops ops = {.size = sizeof ops,
                                                .slot = fake_slot,
                                                .post_recv = count_recv,
                                                .test = count_test,
                                                .release = count_release};
    struct hd_transport transport = {.failing_at = 300};
    struct hd_problem problem = {0};
    struct hd_lane lane = {.channel = &channel,
                           .regions = &regions,
                           .index = 7,
                           .is_target = 1,
                           .dtype = HD_BF16,
                           .message_count = 6,
                           .transport = &transport,
                           .ops = &ops};

    CU_ASSERT_EQUAL_FATAL(hd_lane_create(&lane, &problem), HD_OK);
    hd_lane_begin(&lane, 1);
    CU_ASSERT_EQUAL(hd_lane_post_all(&lane), HD_OK);
    CU_ASSERT_EQUAL(transport.posted_count, 3); /* as many as have a slot */
    CU_ASSERT_EQUAL(hd_lane_post_until(&lane, 2), HD_OK);
    CU_ASSERT_EQUAL(transport.posted_count, 3);
    hd_lane_release(&lane, 2);
    hd_lane_release(&lane, 1);
    CU_ASSERT_EQUAL(transport.release_count, 0);
    hd_lane_release(&lane, 0);
    CU_ASSERT_EQUAL(transport.release_count, 3);
    for (uint64_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(transport.released[i], i); /* in the order of their sequence */
    }
    CU_ASSERT_EQUAL(hd_lane_post_all(&lane), HD_OK);
    CU_ASSERT_EQUAL(transport.posted_count, 6); /* and none of the next step */
    CU_ASSERT_EQUAL(hd_lane_wait(&lane, 3, HD_LANE_NO_DEADLINE),
                    HD_ABORTED); /* polled until it failed */
    CU_ASSERT_EQUAL(transport.test_count, 300);
    hd_lane_finish(&lane);
}

/* --- programs --------------------------------------------------------------------------------- */

static struct hd_pipeline *plan_by_hand(const char *text, uint32_t stages, uint32_t microbatches,
                                        const uint32_t *homes)
{
    struct hd_pipeline_source source = {0};
    struct hd_problem problem = {0};
    struct hd_pipeline *pipeline = NULL;

    hd_schedule_parse(text, stages, microbatches, homes, &source);
    CU_ASSERT_EQUAL_FATAL(hd_pipeline_from_actions(&source, &pipeline, &problem), HD_OK);
    return pipeline;
}

/* What an instruction reads, writes and gives back, as text: "act 0.1 grad - out 1.0 gives ap". */
static void describe(const struct hd_program *program, uint32_t at, char text[128])
{
    const struct hd_instruction *one = &program->instructions[at];
    const struct hd_program_message *messages[] = {&one->activation, &one->gradient, &one->output};
    static const char *const names[] = {"act", "grad", "out"};
    char action[32];
    int length = snprintf(text, 128, "%s", hd_action_text(&one->action, action));

    for (unsigned i = 0; i < 3; i++) {
        if (messages[i]->lane == HD_NO_LANE) {
            length += snprintf(text + length, 128 - (size_t)length, " %s -", names[i]);
        } else {
            length += snprintf(text + length, 128 - (size_t)length, " %s %u.%u", names[i],
                               program->lanes[messages[i]->lane], messages[i]->sequence);
        }
    }
    snprintf(text + length, 128 - (size_t)length, " gives %s%s%s",
             one->releases_activation ? "a" : "", one->releases_gradient ? "g" : "",
             one->releases_payload ? "p" : "");
}

static void expect_program(const struct hd_pipeline *pipeline, uint32_t rank,
                           const char *const *lines)
{
    struct hd_program program;
    struct hd_problem problem = {0};
    char text[128];

    CU_ASSERT_EQUAL_FATAL(hd_program_create(pipeline, rank, &program, &problem), HD_OK);
    for (uint32_t i = 0; i < program.instruction_count; i++) {
        describe(&program, i, text);
        CU_ASSERT_PTR_NOT_NULL_FATAL(lines[i]);
        CU_ASSERT_STRING_EQUAL(text, lines[i]);
    }
    CU_ASSERT_PTR_NULL(lines[program.instruction_count]);
    hd_program_finish(&program);
}

/* Channels of three stages: 0, 1 forward over boundary 0, 1; 2, 3 backward.  Stages 1 and 2 lie on
   rank 1, so channels 1 and 3 are local. */
static void test_program_with_local_handoffs(void)
{
    static const uint32_t homes[] = {0, 1, 1};
    static const char *const rank_0[] = {
        "0F0 act - grad - out 0.0 gives ", "0F1 act - grad - out 0.1 gives ",
        "0B0 act - grad 2.0 out - gives gp", "0B1 act - grad 2.1 out - gives gp", NULL};
    static const char *const rank_1[] = {"1F0 act 0.0 grad - out 1.0 gives ",
                                         "2F0 act 1.0 grad - out - gives ",
                                         "2B0 act 1.0 grad - out 3.0 gives ap",
                                         "1B0 act 0.0 grad 3.0 out 2.0 gives agp",
                                         "1F1 act 0.1 grad - out 1.1 gives ",
                                         "2F1 act 1.1 grad - out - gives ",
                                         "2B1 act 1.1 grad - out 3.1 gives ap",
                                         "1B1 act 0.1 grad 3.1 out 2.1 gives agp",
                                         NULL};
    struct hd_pipeline *pipeline =
        plan_by_hand("0F0 0F1 0B0 0B1; 1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1", 3, 2, homes);

    expect_program(pipeline, 0, rank_0);
    expect_program(pipeline, 1, rank_1);
    hd_pipeline_destroy(pipeline);
}

/* I gives the gradient back, W the activation and the payload; W writes nothing. */
static void test_program_with_halves(void)
{
    static const uint32_t homes[] = {0, 1};
    static const char *const rank_0[] = {"0F0 act - grad - out 0.0 gives ",
                                         "0I0 act - grad 1.0 out - gives g",
                                         "0W0 act - grad - out - gives p", NULL};
    static const char *const rank_1[] = {"1F0 act 0.0 grad - out - gives ",
                                         "1I0 act 0.0 grad - out 1.0 gives ",
                                         "1W0 act 0.0 grad - out - gives ap", NULL};
    struct hd_pipeline *pipeline = plan_by_hand("0F0 0I0 0W0; 1F0 1I0 1W0", 2, 1, homes);

    CU_ASSERT_EQUAL(pipeline->is_split, 1);
    expect_program(pipeline, 0, rank_0);
    expect_program(pipeline, 1, rank_1);
    hd_pipeline_destroy(pipeline);
}

/* --- the cut of a model ----------------------------------------------------------------------- */

struct cut {
    const char *name;
    uint32_t stage_count;
    const char *words[2];
    const char *split; /* NULL: refused, with `place` and `message` */
    const char *place, *message;
};

static const struct cut cuts[] = {
    {"30 layers on 4 stages (C34)", 4, {"model.layers=30", NULL}, "8,8,7,7", NULL, NULL},
    {"auto is 8 layers", 3, {NULL, NULL}, "3,3,2", NULL, NULL},
    {"or one a stage", 10, {NULL, NULL}, "1,1,1,1,1,1,1,1,1,1", NULL, NULL},
    {"80 layers on 16 ranks are all built (C35)",
     32,
     {"model.layers=80", NULL},
     "3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2",
     NULL,
     NULL},
    {"5 layers on 1 stage (C35)", 1, {"model.layers=5", NULL}, "5", NULL, NULL},
    {"a split of one's own", 4, {"model.split=4,4,4,3", NULL}, "4,4,4,3", NULL, NULL},
    {"its length is wrong",
     4,
     {"model.split=4,4,4", NULL},
     NULL,
     "command line",
     "3 entries for 4 stages"},
};

static void cut_model(const struct cut *cut)
{
    struct hd_config config;
    struct hd_problem problem = {0};
    struct hd_model model;
    const struct hd_pipeline pipeline = {.stage_count = cut->stage_count};
    uint32_t word_count = 0, block = 0;
    char text[256];

    while (word_count < 2 && cut->words[word_count] != NULL) {
        word_count++;
    }
    CU_ASSERT_EQUAL_FATAL(hd_config_load(&config, NULL, word_count, cut->words, &problem), HD_OK);
    const hd_status status = hd_model_create(&config, &pipeline, &model, &problem);
    if (cut->split == NULL) {
        CU_ASSERT_EQUAL(status, HD_INVALID);
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
        CU_ASSERT_STRING_EQUAL(problem.place, cut->place);
        CU_ASSERT(has(&problem, cut->message));
    } else {
        CU_ASSERT_EQUAL_FATAL(status, HD_OK);
        CU_ASSERT_STRING_EQUAL(hd_model_split_text(&model, text, sizeof text), cut->split);
        for (uint32_t stage = 0; stage < cut->stage_count; stage++) {
            CU_ASSERT_EQUAL(model.specs[stage].first_block, block);
            CU_ASSERT_EQUAL(model.specs[stage].has_embedding, stage == 0);
            CU_ASSERT_EQUAL(model.specs[stage].has_head, stage + 1 == cut->stage_count);
            block += model.specs[stage].block_count;
        }
        CU_ASSERT_EQUAL(block, model.layers); /* none is lost, none is there twice */
        hd_model_finish(&model);
    }
    hd_config_finish(&config);
}

static void test_cuts(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(cuts); i++) {
        cut_model(&cuts[i]);
    }
}

static const struct hd_check checks[] = {
    {"a pool holds exactly its slots, and one lease a microbatch", test_pool_is_exact},
    {"a lease ends once", test_lease_ends_once},
    {"a slot comes back poisoned, a generation never comes back", test_generations},
    {"a local ring: full when the plan says so, releases in order", test_local_ring},
    {"the seal tells steps, microbatches and bytes apart (C50, C58)", test_seal},
    {"a remote target posts what has a slot, releases in order, polls", test_remote_target},
    {"a program with local handoffs", test_program_with_local_handoffs},
    {"a program with halves: what I and W give back", test_program_with_halves},
    {"layers on stages: every layer once, or refused (C34, C35)", test_cuts},
};

int main(void)
{
    return hd_check_main("engine parts", checks, HD_CHECK_COUNT(checks));
}
