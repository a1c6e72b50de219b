#include "support/story.h"

#include "base/clock.h"
#include "support/check.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t story_far_ns(void)
{
    return hd_now_ns() + STORY_FAR_S * HD_S_NS;
}

void story_stay(void)
{
    for (;;) {
        pause();
    }
}

bool story_never_end(void *context, void *shared, const struct hd_launch_event *event)
{
    (void)context;
    (void)shared;
    (void)event;
    return 0;
}

bool story_end_on_failure(void *context, void *shared, const struct hd_launch_event *event)
{
    (void)context;
    (void)shared;
    return event->kind == HD_LAUNCH_KILLED ||
           (event->kind == HD_LAUNCH_EXITED && event->exit_code != 0);
}

static bool note_event(void *context, void *shared, const struct hd_launch_event *event)
{
    struct story *const story = context;
    struct story_board *const board = shared;

    atomic_fetch_add(&board->events[event->kind], 1);
    if (event->kind == HD_LAUNCH_ENDED) {
        story->wrong_count = atomic_load(&board->wrong_count);
        for (unsigned kind = 0; kind <= HD_LAUNCH_ENDED; kind++) {
            story->events[kind] = atomic_load(&board->events[kind]);
        }
    }
    return story->on_event != NULL ? story->on_event(context, shared, event)
                                   : story_end_on_failure(context, shared, event);
}

static int32_t run_story_rank(void *context, struct hd_bootstrap *bootstrap, void *shared)
{
    struct story_board *const board = shared;

    atomic_store(&board->pids[hd_bootstrap_rank(bootstrap)], getpid());
    return ((struct story *)context)->rank_main(context, bootstrap, shared);
}

hd_status story_play(struct story *story)
{
    const struct hd_launch launch = {
        .rank_count = story->rank_count,
        .shared_bytes = sizeof(struct story_board),
        .gather_bytes = 64,
        .context = story,
        .rank_main = run_story_rank,
        .on_event = note_event,
        .grace_ms = story->grace_ms > 0 ? story->grace_ms : STORY_HOUR_MS,
    };
    const hd_status status = hd_launch_run(&launch, &story->outcome, &story->problem);

    /* Whatever happened, every child is reaped. */
    CU_ASSERT_EQUAL(waitpid(-1, NULL, WNOHANG), -1);
    CU_ASSERT_EQUAL(errno, ECHILD);
    return status;
}
