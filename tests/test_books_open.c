/*
 * tests/test_books_open.c - the steps of open that all transports share: their order, cards that do
 * not fit, what ended it; the setups that are refused, who is a neighbour, the warm-up's pattern.
 */
#include "support/books_world.h"

#define MAGIC 0x7475726e7465ull

struct card {
    struct book_card head;
    uint32_t number;
};

/* --- setups and places ----------------------------------------------------------------------- */

struct setup_row {
    const char *name;
    uint32_t alignment_bytes;
    struct hd_channel channel;
    int is_in_place;
    hd_status wanted;
};

static const struct setup_row setup_rows[] = {
    {"sound", 64, {0, 0, 0, 1, 2, 1, 8}, 0, HD_OK},
    {"a page", 4096, {0, 0, 0, 1, 2, 2, 8}, 0, HD_OK},
    {"no send slots, in place", 64, {0, 0, 0, 1, 2, 0, 8}, 1, HD_OK},
    {"no send slots", 64, {0, 0, 0, 1, 2, 0, 8}, 0, HD_INVALID},
    {"more send slots than slots", 64, {0, 0, 0, 1, 2, 3, 8}, 0, HD_INVALID},
    {"no slots", 64, {0, 0, 0, 1, 0, 0, 8}, 1, HD_INVALID},
    {"no bytes", 64, {0, 0, 0, 1, 2, 1, 0}, 0, HD_INVALID},
    {"to itself", 64, {0, 0, 1, 1, 2, 1, 8}, 0, HD_INVALID},
    {"from nobody", 64, {0, 0, 3, 1, 2, 1, 8}, 0, HD_INVALID},
    {"to nobody", 64, {0, 0, 1, 3, 2, 1, 8}, 0, HD_INVALID},
    {"no alignment", 0, {0, 0, 0, 1, 2, 1, 8}, 0, HD_UNSUPPORTED},
    {"no room for a seal", 32, {0, 0, 0, 1, 2, 1, 8}, 0, HD_UNSUPPORTED},
    {"no power of two", 96, {0, 0, 0, 1, 2, 1, 8}, 0, HD_UNSUPPORTED},
    {"past a page", 1u << 20, {0, 0, 0, 1, 2, 1, 8}, 0, HD_UNSUPPORTED},
};

static void setups_are_checked(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(setup_rows); i++) {
        const struct setup_row *row = &setup_rows[i];
        struct world world;
        struct book_sizes own = sizes;
        begin(&world);
        own.is_in_place = row->is_in_place;
        world.list[2] = &row->channel;
        world.setup.alignment_bytes = row->alignment_bytes;
        struct hd_transport *instance = book_create(&world.setup, "trial", &own);
        CU_ASSERT_PTR_NOT_NULL_FATAL(instance);
        const hd_status status = book_check(&instance->book);
        const int is_right = status == row->wanted &&
                             world.stage.report_count == (row->wanted != HD_OK) &&
                             (status != HD_INVALID || world.stage.report.channel == 2);
        CU_ASSERT(is_right);
        if (!is_right) {
            printf("%s: %s\n", row->name, world.stage.text);
        }
        book_destroy(instance);
    }
}

struct place_row {
    const char *name;
    struct book_place one, other;
    int is_on_host, is_in_reach;
};

static const struct place_row place_rows[] = {
    {"the same", {{5, 6}, 7, 1, 0}, {{5, 6}, 7, 2, 0}, 1, 1},
    {"another pid namespace", {{5, 6}, 7, 1, 0}, {{5, 6}, 8, 1, 0}, 1, 0},
    {"another boot", {{5, 6}, 7, 1, 0}, {{5, 9}, 7, 2, 0}, 0, 0},
    {"the kernel does not say", {{0, 0}, 7, 1, 0}, {{0, 0}, 7, 2, 0}, 0, 0},
    {"no pid namespaces", {{5, 6}, 0, 1, 0}, {{5, 6}, 0, 2, 0}, 1, 0},
};

static void neighbours_are_known(void)
{
    const struct book_place here = book_find_place(), again = book_find_place();
    struct book_peer peer = {0, -1};

    for (uint32_t i = 0; i < HD_CHECK_COUNT(place_rows); i++) {
        const struct place_row *row = &place_rows[i];
        const int is_right = book_is_on_host(&row->one, &row->other) == row->is_on_host &&
                             book_is_in_reach(&row->one, &row->other) == row->is_in_reach;
        CU_ASSERT(is_right);
        if (!is_right) {
            printf("%s\n", row->name);
        }
    }
    CU_ASSERT(book_is_in_reach(&here, &again) && here.pid > 0);
    CU_ASSERT(!book_has_ended(&peer)); /* of a peer that is not held nobody knows */
    CU_ASSERT(book_hold(&peer, here.pid) == 0 && !book_has_ended(&peer));
}

struct core_row {
    const char *name;
    struct book_cores one, other;
    uint32_t count; /* of one */
    int do_share;
};

static const struct core_row core_rows[] = {
    {"the same two", {{3}}, {{3}}, 2, 1},
    {"one of two", {{3}}, {{2}}, 2, 1},
    {"bound to one each", {{1}}, {{2}}, 1, 0},
    {"bound to one each, numbers apart", {{0, 0, 0x80}}, {{0, 0, 0, 0x80}}, 1, 0},
    {"not known", {{0}}, {{3}}, 0, 0},
};

static void cores_are_known(void)
{
    const struct book_cores here = book_find_cores();

    for (uint32_t i = 0; i < HD_CHECK_COUNT(core_rows); i++) {
        const struct core_row *row = &core_rows[i];
        const int is_right = book_core_count(&row->one) == row->count &&
                             book_share_core(&row->one, &row->other) == row->do_share &&
                             book_share_core(&row->other, &row->one) == row->do_share;
        CU_ASSERT(is_right);
        if (!is_right) {
            printf("%s\n", row->name);
        }
    }
    CU_ASSERT(book_core_count(&here) > 0 && book_share_core(&here, &here));
}

/* --- open ------------------------------------------------------------------------------------ */

/* What goes otherwise than well: at rank 2's card, or in a step. */
struct open_row {
    const char *name;
    uint32_t taken_count; /* keys of older instances */
    int is_other_version, is_other_plan;
    hd_status other_status, make, publish, connect, warm_up;
    uint32_t fence_count; /* so many succeed, then HD_TIMEOUT; 0: all do */
    hd_status wanted;
    const char *notes; /* the steps that there were */
    const char *says;
};

static const struct open_row open_rows[] = {
    {.name = "well", .notes = "make put publish fence get get get connect warm fence reset fence"},
    {.name = "the third instance here",
     .taken_count = 2,
     .notes = "make put put put publish fence get get get connect warm fence reset fence"},
    {.name = "this rank lacks something, and comes to the fence",
     .make = HD_NO_MEMORY,
     .wanted = HD_NO_MEMORY,
     .notes = "make put fence close",
     .says = "make says why"},
    {.name = "another rank lacks something",
     .other_status = HD_NO_MEMORY,
     .wanted = HD_NO_MEMORY,
     .notes = "make put publish fence get get get close",
     .says = "rank 2 could not open trial (its own error says why)"},
    {.name = "another version",
     .is_other_version = 1,
     .wanted = HD_PROTOCOL,
     .notes = "make put publish fence get get get close",
     .says = "rank 2 runs another version of trial: install one version everywhere"},
    {.name = "another plan",
     .is_other_plan = 1,
     .wanted = HD_PROTOCOL,
     .notes = "make put publish fence get get get close",
     .says = "rank 2 has other channels than this rank: the ranks must run one plan"},
    {.name = "publish fails",
     .publish = HD_NO_MEMORY,
     .wanted = HD_NO_MEMORY,
     .notes = "make put publish close",
     .says = "open: rank 1 was publishing its card when the bootstrap ran out of memory"},
    {.name = "nobody comes",
     .fence_count = 1,
     .wanted = HD_TIMEOUT,
     .notes = "make put publish fence close",
     .says = "open: rank 1 was waiting for the cards of all ranks when the deadline passed"},
    {.name = "connect fails",
     .connect = HD_UNSUPPORTED,
     .wanted = HD_UNSUPPORTED,
     .notes = "make put publish fence get get get connect close",
     .says = "open: rank 1 was connecting to its peers when the bootstrap failed"},
    {.name = "the warm-up fails",
     .warm_up = HD_PEER_LOST,
     .wanted = HD_PEER_LOST,
     .notes = "make put publish fence get get get connect warm close",
     .says = "channel 1: rank 2 ended during the warm-up"},
    {.name = "somebody does not come to the second fence",
     .fence_count = 2,
     .wanted = HD_TIMEOUT,
     .notes = "make put publish fence get get get connect warm fence close",
     .says = "open: rank 1 was waiting for the warm-up of all ranks when the deadline passed"},
    {.name = "nor to the third",
     .fence_count = 3,
     .wanted = HD_TIMEOUT,
     .notes = "make put publish fence get get get connect warm fence reset fence close",
     .says = "the deadline passed"},
};

static hd_status host_put(void *context, const char *key, const void *value, uint64_t bytes)
{
    struct stage *stage = context;
    char wanted[BOOK_KEY_BYTES];

    note(stage, "put");
    snprintf(wanted, sizeof wanted, "trial.rank.%u.%u", RANK, stage->put_count);
    CU_ASSERT_STRING_EQUAL(key, wanted);
    CU_ASSERT_FATAL(bytes == sizeof(struct card));
    if (stage->put_count++ < stage->row->taken_count) {
        return HD_INVALID;
    }
    memcpy(stage->card, value, bytes);
    return HD_OK;
}

/* The others' cards are this rank's, but for what the row says of the last. */
static hd_status host_get(void *context, const char *key, void *value, uint64_t bytes,
                          uint64_t deadline_ns)
{
    struct stage *stage = context;
    const struct open_row *row = stage->row;
    struct card card;

    note(stage, "get");
    CU_ASSERT_EQUAL(deadline_ns, 5);
    memcpy(&card, stage->card, sizeof card);
    if (strncmp(key, "trial.rank.2.", 13) == 0) {
        card.head.magic ^= (uint64_t)row->is_other_version;
        card.head.digest ^= (uint64_t)row->is_other_plan;
        card.head.status = row->other_status;
        card.number = 2;
    }
    memcpy(value, &card, bytes);
    return HD_OK;
}

static hd_status host_fence(void *context, uint64_t deadline_ns)
{
    struct stage *stage = context;

    (void)deadline_ns;
    note(stage, "fence");
    return ++stage->fence_count == stage->row->fence_count ? HD_TIMEOUT : HD_OK;
}

static void join_ranks(struct world *world, const struct open_row *row)
{
    world->stage.row = row;
    world->host.put = host_put;
    world->host.get = host_get;
    world->host.fence = host_fence;
}

static hd_status make(struct hd_transport *instance, const struct hd_transport_setup *setup,
                      void *card)
{
    const hd_status status = instance->stage->row->make;

    (void)setup;
    note(instance->stage, "make");
    ((struct card *)card)->number = RANK;
    return status == HD_OK ? HD_OK
                           : book_fail(&instance->book, book_own_fault(status), "make says why");
}

static hd_status publish(struct hd_transport *instance)
{
    note(instance->stage, "publish");
    return instance->stage->row->publish;
}

static hd_status connect_all(struct hd_transport *instance, const void *cards, uint64_t deadline_ns)
{
    const struct card *card = cards;

    (void)deadline_ns;
    note(instance->stage, "connect");
    CU_ASSERT(card[RANK].number == RANK && card[2].number == 2);
    return instance->stage->row->connect;
}

static hd_status warm_up(struct hd_transport *instance, uint64_t deadline_ns)
{
    const hd_status status = instance->stage->row->warm_up;

    (void)deadline_ns;
    note(instance->stage, "warm");
    return book_report_warm_up(&instance->book, instance->book.channel_of[1], status);
}

static void reset(struct hd_transport *instance)
{
    note(instance->stage, "reset");
}

static void close_all(struct hd_transport *instance, uint64_t deadline_ns)
{
    (void)deadline_ns;
    note(instance->stage, "close");
    book_destroy(instance);
}

static int opens(const struct open_row *row)
{
    static const struct book_steps steps = {.magic = MAGIC,
                                            .card_bytes = sizeof(struct card),
                                            .make = make,
                                            .publish = publish,
                                            .connect = connect_all,
                                            .warm_up = warm_up,
                                            .reset = reset,
                                            .close = close_all};
    struct world world;
    struct hd_transport *opened = NULL;
    struct hd_transport *instance = create(&world);
    const struct stage *stage = &world.stage;

    join_ranks(&world, row);
    const hd_status status = book_open(instance, &world.setup, &steps, &opened);
    int is_right = status == row->wanted && strcmp(stage->notes, row->notes) == 0;
    if (status == HD_OK) {
        is_right = is_right && opened == instance && stage->report_count == 0 &&
                   instance->book.generation == row->taken_count;
        book_destroy(instance);
    } else {
        is_right = is_right && opened == NULL && stage->report_count == 1 &&
                   strstr(stage->text, row->says) != NULL;
    }
    if (!is_right) {
        printf("%s: %d, %s, '%s'\n", row->name, (int)status, stage->notes, stage->text);
    }
    return is_right && stage->block_count == 0;
}

static void open_goes_in_its_order(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(open_rows); i++) {
        CU_ASSERT(opens(&open_rows[i]));
    }
}

/* Two ranks of one plan have one digest, and whatever differs changes it. */
static uint64_t digest_of(struct world *world)
{
    static const struct book_steps steps = {.magic = MAGIC,
                                            .card_bytes = sizeof(struct card),
                                            .make = make,
                                            .connect = connect_all,
                                            .reset = reset,
                                            .close = close_all};
    struct hd_transport *instance = book_create(&world->setup, "trial", &sizes);
    struct hd_transport *opened = NULL;
    struct card card;

    CU_ASSERT_PTR_NOT_NULL_FATAL(instance);
    instance->stage = &world->stage;
    join_ranks(world, &open_rows[0]);
    CU_ASSERT_EQUAL(book_open(instance, &world->setup, &steps, &opened), HD_OK);
    memcpy(&card, world->stage.card, sizeof card);
    book_destroy(opened);
    return card.head.digest;
}

static void what_differs_changes_the_digest(void)
{
    struct hd_channel other[7];
    struct world world;

    begin(&world);
    const uint64_t digest = digest_of(&world);
    begin(&world);
    CU_ASSERT_EQUAL(digest_of(&world), digest);
    for (uint32_t i = 0; i < HD_CHECK_COUNT(other); i++) {
        other[i] = channels[3]; /* also one between others */
    }
    other[0].boundary++;
    other[1].direction ^= 1;
    other[2].source = 1;
    other[3].target = 1;
    other[4].depth++;
    other[5].send_depth++;
    other[6].bytes++;
    for (uint32_t i = 0; i < HD_CHECK_COUNT(other); i++) {
        begin(&world);
        world.list[3] = &other[i];
        CU_ASSERT_NOT_EQUAL(digest_of(&world), digest);
    }
    begin(&world);
    world.setup.alignment_bytes = 128;
    CU_ASSERT_NOT_EQUAL(digest_of(&world), digest);
    begin(&world);
    world.setup.channel_count--;
    CU_ASSERT_NOT_EQUAL(digest_of(&world), digest);
}

static void the_pattern_is_checked_to_its_last_byte(void)
{
    struct world world;
    struct hd_transport *instance = create(&world);
    struct book_channel *channel = instance->book.channel_of[2]; /* of 20 bytes */
    unsigned char message[32];
    uint64_t word = 0;

    memset(message, 0x55, sizeof message);
    book_fill_pattern(channel, message);
    memcpy(&word, message + 8, sizeof word);
    CU_ASSERT_EQUAL(word, hd_pattern_word(2, UINT64_MAX, 1));
    CU_ASSERT_EQUAL(message[20], 0x55);
    CU_ASSERT_EQUAL(book_check_pattern(&instance->book, channel, message), HD_OK);
    message[19] ^= 1;
    CU_ASSERT_EQUAL(book_check_pattern(&instance->book, channel, message), HD_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(world.stage.text, "of rank 0 differs at byte 16"));
    book_destroy(instance);
}

static const struct hd_check checks[] = {
    {"setups are checked", setups_are_checked},
    {"neighbours are known, and strangers are not", neighbours_are_known},
    {"which cores a rank may run on, and whether two share one", cores_are_known},
    {"open goes in its order, and says once what ended it", open_goes_in_its_order},
    {"what differs changes the digest", what_differs_changes_the_digest},
    {"the pattern is checked to its last byte", the_pattern_is_checked_to_its_last_byte},
};

int main(void)
{
    return hd_check_main("books_open", checks, HD_CHECK_COUNT(checks));
}
