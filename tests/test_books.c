/*
 * tests/test_books.c - what all transports share: call order, when a wait is over, the
 * first failure, each by a table; no transport is behind them.
 */
#include "support/books_world.h"

/* --- books ----------------------------------------------------------------------------------- */

static void books_say_what_the_setup_says(void)
{
    struct world world;
    struct hd_transport *instance = create(&world);
    const struct book *book = &instance->book;

    CU_ASSERT_EQUAL(book->own_count, 3);
    CU_ASSERT_PTR_NULL(book->channel_of[3]);
    const struct book_channel *comes = book->channel_of[0], *goes = book->channel_of[1];
    CU_ASSERT(!comes->is_source && comes->peer_rank == 0 && comes->slot_count == 4);
    CU_ASSERT(goes->is_source && goes->peer_rank == 2 && goes->slot_count == 3);
    CU_ASSERT(goes == &((struct world_channel *)book->own_channels)[1].book && goes->number == 1);
    const struct peer *peers = book->peers;
    CU_ASSERT(peers[2].book.rank == 2 && peers[2].book.pidfd == -1);
    book_destroy(instance);
    CU_ASSERT_EQUAL(world.stage.block_count, 0);

    const struct book_sizes in_place = {.instance_bytes = sizeof(struct hd_transport),
                                        .channel_bytes = sizeof(struct world_channel),
                                        .is_in_place = 1};
    begin(&world);
    instance = book_create(&world.setup, "trial", &in_place);
    CU_ASSERT_PTR_NOT_NULL_FATAL(instance);
    CU_ASSERT_EQUAL(instance->book.channel_of[1]->slot_count, 4);
    book_destroy(instance);
    book_destroy(NULL);
    CU_ASSERT_EQUAL(world.stage.block_count, 0);
}

static void without_memory_there_are_no_books(void)
{
    for (uint32_t count = 0; count < 4; count++) {
        struct world world;
        begin(&world);
        world.stage.is_full = 1;
        world.stage.alloc_left = count;
        CU_ASSERT_PTR_NULL(book_create(&world.setup, "trial", &sizes));
        CU_ASSERT_EQUAL(world.stage.report_count, 1);
        CU_ASSERT_EQUAL(world.stage.report.status, HD_NO_MEMORY);
        CU_ASSERT_EQUAL(world.stage.block_count, 0);
    }
}

/* --- turns ----------------------------------------------------------------------------------- */

enum call { RESERVE, POST_SEND, POST_RECV, ASK, ASK_TARGET, RELEASE };

struct book_row {
    const char *name;
    enum call call;
    uint32_t channel; /* 0 comes here, depth 4; 1 goes from here; 3 is not of this rank */
    uint64_t reserved_count, posted_count, readable_count, released_count;
    uint64_t sequence;
    const char *says; /* of the refusal; NULL: it is its turn */
};

static const struct book_row book_rows[] = {
    {"reserve: the first", RESERVE, 1, 0, 0, 0, 0, 0, NULL},
    {"reserve: the next", RESERVE, 1, 7, 5, 0, 0, 7, NULL},
    {"reserve: twice", RESERVE, 1, 7, 5, 0, 0, 6, "reserve of message 6 out of order: 7 is next"},
    {"reserve: one left out", RESERVE, 1, 7, 5, 0, 0, 8, "7 is next"},
    {"reserve: at the target", RESERVE, 0, 0, 0, 0, 0, 0,
     "channel 0: this rank is not at that end"},
    {"reserve: of others", RESERVE, 3, 0, 0, 0, 0, 0, "channel 3: this rank is not at that end"},
    {"reserve: no such channel", RESERVE, 4, 0, 0, 0, 0, 0, "channel 4: this rank is not at that"},
    {"post_send: reserved", POST_SEND, 1, 7, 5, 0, 0, 5, NULL},
    {"post_send: a later one", POST_SEND, 1, 7, 5, 0, 0, 6, "post_send of message 6 out of order"},
    {"post_send: not reserved", POST_SEND, 1, 5, 5, 0, 0, 5, "5 is next, and not yet allowed"},
    {"post_send: at the target", POST_SEND, 0, 1, 0, 0, 0, 0, "not at that end"},
    {"post_recv: a free slot", POST_RECV, 0, 0, 5, 4, 2, 5, NULL},
    {"post_recv: no free slot", POST_RECV, 0, 0, 6, 4, 2, 6, "6 is next, and not yet allowed"},
    {"post_recv: a later one", POST_RECV, 0, 0, 3, 2, 2, 4, "post_recv of message 4 out of order"},
    {"post_recv: at the source", POST_RECV, 1, 0, 0, 0, 0, 0, "not at that end"},
    {"wait, source: the next to reserve", ASK, 1, 7, 5, 0, 0, 7, NULL},
    {"wait, source: an old one", ASK, 1, 7, 5, 0, 0, 0, NULL},
    {"wait, source: beyond", ASK, 1, 7, 5, 0, 0, 8, "test or wait of message 8 out of order: 7"},
    {"wait, source: by a stream", ASK_TARGET, 1, 7, 5, 0, 0, 7, "not at that end"},
    {"wait, target: the next", ASK, 0, 0, 6, 4, 2, 4, NULL},
    {"wait, target: again", ASK, 0, 0, 6, 4, 2, 2, NULL},
    {"wait, target: a stream", ASK_TARGET, 0, 0, 6, 4, 2, 4, NULL},
    {"wait, target: released", ASK, 0, 0, 6, 4, 2, 1, "test or wait of message 1 out of order"},
    {"wait, target: not posted", ASK, 0, 0, 4, 4, 2, 4, "4 is next, and not yet allowed"},
    {"wait, target: over the next", ASK, 0, 0, 6, 4, 2, 5,
     "test or wait of message 5 out of order"},
    {"release: the oldest lease", RELEASE, 0, 0, 6, 4, 2, 2, NULL},
    {"release: a younger one", RELEASE, 0, 0, 6, 4, 2, 3,
     "release of message 3 out of order: 2 is"},
    {"release: not yet read", RELEASE, 0, 0, 6, 2, 2, 2, "2 is next, and not yet allowed"},
    {"release: at the source", RELEASE, 1, 0, 0, 0, 0, 0, "not at that end"},
};

static hd_status call(struct book *book, enum call which, const struct hd_message *message)
{
    struct book_channel *channel = NULL;

    switch (which) {
    case RESERVE:
        return book_to_reserve(book, message, &channel);
    case POST_SEND:
        return book_to_post(book, message, BOOK_SOURCE, &channel);
    case POST_RECV:
        return book_to_post(book, message, BOOK_TARGET, &channel);
    case ASK:
        return book_to_ask(book, message, BOOK_EITHER, &channel);
    case ASK_TARGET:
        return book_to_ask(book, message, BOOK_TARGET, &channel);
    case RELEASE:
    default:
        return book_to_release(book, message, &channel);
    }
}

static int keeps_turn(const struct book_row *row)
{
    const struct hd_message message = {.sequence = row->sequence, .channel = row->channel};
    struct world world;
    struct hd_transport *instance = create(&world);
    struct book_channel *channel =
        row->channel < 3 ? instance->book.channel_of[row->channel] : NULL;
    const struct stage *stage = &world.stage;

    if (channel != NULL) {
        channel->reserved_count = row->reserved_count;
        channel->posted_count = row->posted_count;
        channel->readable_count = row->readable_count;
        channel->released_count = row->released_count;
    }
    const hd_status status = call(&instance->book, row->call, &message);
    int is_right = row->says == NULL ? status == HD_OK && stage->report_count == 0
                                     : status == HD_INVALID && stage->report_count == 1 &&
                                           strstr(stage->text, row->says) != NULL &&
                                           stage->report.sequence == row->sequence;
    /* Whoever has failed says nothing else, and says it once. */
    if (row->says != NULL) {
        const struct hd_message first = {.sequence = 0, .channel = 1};
        is_right = is_right && call(&instance->book, RESERVE, &first) == HD_INVALID &&
                   stage->report_count == 1;
    }
    book_destroy(instance);
    return is_right;
}

static void calls_have_their_turn(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(book_rows); i++) {
        const int is_right = keeps_turn(&book_rows[i]);
        CU_ASSERT(is_right);
        if (!is_right) {
            printf("%s\n", book_rows[i].name);
        }
    }
}

static void a_reserve_is_counted_once_it_is_free(void)
{
    struct world world;
    struct hd_transport *instance = create(&world);
    struct book_channel *channel = instance->book.channel_of[1];

    CU_ASSERT_EQUAL(book_reserved(channel, HD_IN_PROGRESS), HD_BUSY);
    CU_ASSERT_EQUAL(book_reserved(NULL, HD_INVALID), HD_INVALID);
    CU_ASSERT_EQUAL(channel->reserved_count, 0);
    CU_ASSERT_EQUAL(book_reserved(channel, HD_OK), HD_OK);
    CU_ASSERT_EQUAL(channel->reserved_count, 1);
    struct hd_channel_stats stats = {.size = sizeof stats};
    snprintf(channel->carrier, sizeof channel->carrier, "string");
    book_stats(channel, 5, &stats);
    CU_ASSERT(stats.busy_count == 1 && stats.finished_count == 5 && stats.size == sizeof stats);
    CU_ASSERT_STRING_EQUAL(stats.lane, "string");
    book_stats(NULL, 5, &stats);
    CU_ASSERT(stats.busy_count == 0 && stats.finished_count == 0 && stats.lane[0] == '\0');
    book_destroy(instance);
}

/* --- what is over ---------------------------------------------------------------------------- */

struct answer_row {
    const char *name;
    uint32_t channel;
    uint64_t posted_count, readable_count;
    uint64_t sequence, done_count;
    hd_status wanted;
    uint64_t readable_after;
};

static const struct answer_row answer_rows[] = {
    {"source: a slot never used", 1, 0, 0, 2, 0, HD_OK, 0},
    {"source: its message is under way", 1, 3, 0, 3, 0, HD_IN_PROGRESS, 0},
    {"source: its message has left", 1, 3, 0, 3, 1, HD_OK, 0},
    {"source: a posted one itself", 1, 3, 0, 1, 1, HD_IN_PROGRESS, 0},
    {"source: a posted one has left", 1, 3, 0, 1, 2, HD_OK, 0},
    {"target: it has not come", 0, 3, 1, 1, 1, HD_IN_PROGRESS, 1},
    {"target: it has come", 0, 3, 1, 1, 2, HD_OK, 2},
    {"target: asked again", 0, 3, 2, 1, 3, HD_OK, 2},
};

static void done_messages_answer(void)
{
    for (uint32_t i = 0; i < HD_CHECK_COUNT(answer_rows); i++) {
        const struct answer_row *row = &answer_rows[i];
        struct world world;
        struct hd_transport *instance = create(&world);
        struct book_channel *channel = instance->book.channel_of[row->channel];
        channel->posted_count = row->posted_count;
        channel->readable_count = row->readable_count;
        const hd_status status = book_answer(channel, row->sequence, row->done_count);
        const int is_right =
            status == row->wanted && channel->readable_count == row->readable_after;
        CU_ASSERT(is_right);
        if (!is_right) {
            printf("%s\n", row->name);
        }
        book_destroy(instance);
    }
}

static void a_peer_cannot_have_counted_more(void)
{
    static const uint64_t wrong[] = {2, 8};
    struct world world;
    struct hd_transport *instance = create(&world);
    struct book_channel *comes = instance->book.channel_of[0], *goes = instance->book.channel_of[1];

    comes->released_count = 3;
    goes->posted_count = 5;
    CU_ASSERT(book_most(comes) == 7 && book_most(goes) == 5);
    const struct book_range range = {3, book_most(comes)};
    CU_ASSERT(book_check_news(&instance->book, comes, 3, range) == HD_OK);
    CU_ASSERT(book_check_news(&instance->book, comes, 7, range) == HD_OK);
    book_destroy(instance);
    for (uint32_t i = 0; i < HD_CHECK_COUNT(wrong); i++) {
        instance = create(&world);
        comes = instance->book.channel_of[0];
        CU_ASSERT(book_check_news(&instance->book, comes, wrong[i], range) == HD_PROTOCOL);
        CU_ASSERT(world.stage.report.rank == 0 && world.stage.report.channel == 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(world.stage.text, "the number must be 3 to 7"));
        book_destroy(instance);
    }
}

static void the_first_failure_stays(void)
{
    struct world world;
    struct hd_transport *instance = create(&world);
    const struct book_fault late = book_peer_fault(instance->book.channel_of[1], HD_TIMEOUT, 6);
    const struct book_fault lost = book_own_fault(HD_DEVICE);

    snprintf(instance->book.channel_of[1]->carrier, sizeof late, "string");
    CU_ASSERT(book_report_wait(&instance->book, instance->book.channel_of[1], late, 3) ==
              HD_TIMEOUT);
    CU_ASSERT_STRING_EQUAL(world.stage.text,
                           "channel 1 (forward over boundary 1, by string): rank 2 did not "
                           "answer by the deadline: message 6 is waiting for a free slot; 3 "
                           "messages have left their slots");
    CU_ASSERT(book_fail(&instance->book, lost, "again") == HD_TIMEOUT);
    book_abort(&instance->book);
    CU_ASSERT(book_failed(&instance->book) == HD_TIMEOUT && world.stage.report_count == 1);
    book_destroy(instance);

    instance = create(&world);
    book_abort(&instance->book);
    CU_ASSERT(book_fail(&instance->book, lost, "after an abort") == HD_ABORTED);
    CU_ASSERT(world.stage.report_count == 0);
    book_destroy(instance);
}

static void a_transfer_is_told_where_somebody_keeps_it(void)
{
    struct world world;
    struct hd_transport *instance = create(&world);

    book_report(&instance->book, (struct hd_transfer){.channel = 1});
    CU_ASSERT_STRING_EQUAL(world.stage.notes, "traced");
    instance->book.is_traced = 0;
    book_report(&instance->book, (struct hd_transfer){.channel = 1});
    CU_ASSERT_STRING_EQUAL(world.stage.notes, "traced");
    book_destroy(instance);
}

static const struct hd_check checks[] = {
    {"books say what the setup says", books_say_what_the_setup_says},
    {"without memory there are no books, and one report", without_memory_there_are_no_books},
    {"a call out of order is refused, and reported once", calls_have_their_turn},
    {"a reserve is counted once its slot is free", a_reserve_is_counted_once_it_is_free},
    {"done messages answer, of this slot or of the one before", done_messages_answer},
    {"a peer cannot have counted more, or back", a_peer_cannot_have_counted_more},
    {"the first failure stays (G7)", the_first_failure_stays},
    {"a transfer is told where somebody keeps it", a_transfer_is_told_where_somebody_keeps_it},
};

int main(void)
{
    return hd_check_main("books", checks, HD_CHECK_COUNT(checks));
}
