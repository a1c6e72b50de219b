/*
 * tests/support/story.h - one launch, played in a test: who runs, what the parent does, what came.
 */
#ifndef HD_TESTS_SUPPORT_STORY_H
#define HD_TESTS_SUPPORT_STORY_H

#include "launch/launch.h"

#include <stdatomic.h>

enum { STORY_RANK_MAX = 8, STORY_FAR_S = 120, STORY_HOUR_MS = 3600 * 1000 };

/* What parent and ranks share in these tests. */
struct story_board {
    _Atomic uint32_t events[HD_LAUNCH_ENDED + 1]; /* how many of each kind */
    _Atomic pid_t pids[STORY_RANK_MAX];
    _Atomic uint32_t go_on;
    _Atomic uint32_t wrong_count;
};

struct story {
    int32_t (*rank_main)(void *context, struct hd_bootstrap *bootstrap, void *shared);
    bool (*on_event)(void *context, void *shared, const struct hd_launch_event *event);
    uint32_t rank_count;
    uint32_t grace_ms; /* 0: an hour, which a test does not live to see */
    void *context;

    /* What came of it; `context` of the callbacks is this story. */
    struct hd_launch_outcome outcome;
    struct hd_problem problem;
    uint32_t events[HD_LAUNCH_ENDED + 1];
    uint32_t wrong_count;
};

/* The default for on_event: a rank that died or returned non-zero ends the run. */
bool story_end_on_failure(void *context, void *shared, const struct hd_launch_event *event);
bool story_never_end(void *context, void *shared, const struct hd_launch_event *event);

/* Plays it, and asserts that no child of this process is left. */
hd_status story_play(struct story *story);

void story_stay(void);       /* until killed */
uint64_t story_far_ns(void); /* a deadline that passes only when something hangs */

#endif /* HD_TESTS_SUPPORT_STORY_H */
