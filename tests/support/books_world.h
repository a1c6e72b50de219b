/*
 * tests/support/books_world.h - a host of one rank of three, and a transport that moves nothing:
 * what the tests of plugins/transports/books stand on.  Only they see its headers, so all of it is
 * here.
 */
#ifndef HD_TESTS_SUPPORT_BOOKS_WORLD_H
#define HD_TESTS_SUPPORT_BOOKS_WORLD_H

#include "support/check.h"

#include "books_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 1, RANK_COUNT = 3, CHANNEL_COUNT = 4, NOTE_BYTES = 256 };

/* What a host was told, and what it answers. */
struct stage {
    uint32_t report_count;
    struct hd_error report; /* the last */
    char text[NOTE_BYTES];
    char notes[NOTE_BYTES];     /* the steps, in order */
    uint32_t block_count;       /* of memory that has not come back */
    uint32_t alloc_left;        /* so many more succeed */
    int is_full;                /* only alloc_left of them */
    const struct open_row *row; /* of test_books_open.c, as what follows */
    uint32_t put_count, fence_count;
    unsigned char card[256];
};

struct world_channel {
    struct book_channel book;
    int own;
};

struct hd_transport {
    struct book book;
    struct stage *stage;
};

struct peer {
    struct book_peer book;
    int own;
};

static const struct hd_channel channels[CHANNEL_COUNT] = {
    {0, HD_FORWARD, 0, 1, 4, 2, 64},  /* comes here */
    {1, HD_FORWARD, 1, 2, 4, 3, 64},  /* goes from here */
    {0, HD_BACKWARD, 1, 0, 2, 1, 20}, /* goes from here */
    {3, HD_BACKWARD, 2, 0, 2, 1, 64}, /* between others */
};

static inline void note(struct stage *stage, const char *word)
{
    const size_t length = strlen(stage->notes);
    snprintf(stage->notes + length, sizeof stage->notes - length, "%s%s", length > 0 ? " " : "",
             word);
}

static inline void *host_alloc(void *context, uint64_t bytes, uint64_t alignment_bytes,
                               const char *tag)
{
    struct stage *stage = context;

    (void)alignment_bytes;
    (void)tag;
    if (stage->is_full && stage->alloc_left-- == 0) {
        stage->alloc_left = 0;
        return NULL;
    }
    stage->block_count++;
    return calloc(1, bytes);
}

static inline void host_free(void *context, void *memory)
{
    struct stage *stage = context;

    stage->block_count -= memory != NULL;
    free(memory);
}

static inline uint64_t host_now_ns(void *context)
{
    (void)context;
    return 1;
}

static inline hd_status host_fail(void *context, const struct hd_error *error)
{
    struct stage *stage = context;

    stage->report_count++;
    stage->report = *error;
    snprintf(stage->text, sizeof stage->text, "%s", error->text);
    return error->status;
}

static inline void host_log(void *context, uint32_t level, const char *text)
{
    (void)context;
    (void)level;
    (void)text;
}

static inline void host_trace(void *context, const struct hd_transfer *transfer)
{
    note(context, transfer->size == sizeof *transfer ? "traced" : "traced without a size");
}

static inline struct hd_host host_of(struct stage *stage)
{
    return (struct hd_host){.size = sizeof(struct hd_host),
                            .rank = RANK,
                            .rank_count = RANK_COUNT,
                            .context = stage,
                            .alloc = host_alloc,
                            .free = host_free,
                            .now_ns = host_now_ns,
                            .log = host_log,
                            .fail = host_fail,
                            .trace_transfer = host_trace};
}

/* One world of a test: all of it lies here. */
struct world {
    struct stage stage;
    struct hd_host host;
    const struct hd_channel *list[CHANNEL_COUNT];
    struct hd_transport_setup setup;
};

static inline void begin(struct world *world)
{
    *world = (struct world){.setup = {.size = sizeof world->setup,
                                      .channel_count = CHANNEL_COUNT,
                                      .alignment_bytes = 64,
                                      .deadline_ns = 5}};
    for (uint32_t i = 0; i < CHANNEL_COUNT; i++) {
        world->list[i] = &channels[i];
    }
    world->host = host_of(&world->stage);
    world->setup.host = &world->host;
    world->setup.channels = world->list;
}

static const struct book_sizes sizes = {.instance_bytes = sizeof(struct hd_transport),
                                        .channel_bytes = sizeof(struct world_channel),
                                        .peer_bytes = sizeof(struct peer)};

static inline struct hd_transport *create(struct world *world)
{
    begin(world);
    struct hd_transport *instance = book_create(&world->setup, "trial", &sizes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(instance);
    instance->stage = &world->stage;
    return instance;
}

#endif /* HD_TESTS_SUPPORT_BOOKS_WORLD_H */
