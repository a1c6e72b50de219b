#include "engine/recorder.h"
#include "base/clock.h"
#include "base/memory.h"

#include <assert.h>

hd_status hd_recorder_create(struct hd_recorder *recorder, uint32_t action_count, uint32_t step_max,
                             struct hd_problem *problem)
{
    const uint64_t bytes = (uint64_t)step_max * action_count * sizeof(struct hd_record);

    *recorder = (struct hd_recorder){.action_count = action_count, .step_max = step_max};
    if (bytes > 0) {
        recorder->records = hd_memory_take(bytes, 64, "recorder");
        if (recorder->records == NULL) {
            return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                                  "no memory to record %u actions of %u steps", action_count,
                                  step_max);
        }
    }
    return HD_OK;
}

void hd_recorder_finish(struct hd_recorder *recorder)
{
    hd_memory_give(recorder->records);
    recorder->records = NULL;
}

void hd_recorder_begin(struct hd_recorder *recorder, uint32_t step)
{
    assert(step > 0);
    recorder->step = step;
    recorder->times = (struct hd_step_times){.begin_ns = hd_now_ns()};
}

struct hd_record *hd_recorder_row(struct hd_recorder *recorder, uint32_t action)
{
    assert(action < recorder->action_count);
    if (recorder->records == NULL) {
        return &recorder->scratch;
    }
    const uint64_t row = (recorder->step - 1) % recorder->step_max;
    return &recorder->records[row * recorder->action_count + action];
}

void hd_recorder_add(struct hd_recorder *recorder, const struct hd_record *record)
{
    recorder->times.wait_ns += record->ready_ns - record->begin_ns;
    recorder->times.credit_ns += record->claim_ns - record->ready_ns;
    recorder->times.compute_ns += record->end_ns - record->run_ns;
}

void hd_recorder_end(struct hd_recorder *recorder)
{
    struct hd_step_times *times = &recorder->times;

    times->end_ns = hd_now_ns();
    times->launch_ns =
        times->end_ns - times->begin_ns - times->compute_ns - times->wait_ns - times->credit_ns;
}

const struct hd_record *hd_recorder_step(const struct hd_recorder *recorder, uint32_t step)
{
    const uint32_t is_kept = recorder->records != NULL && step > 0 && step <= recorder->step &&
                             step + recorder->step_max > recorder->step;

    if (!is_kept) {
        return NULL;
    }
    return &recorder->records[(uint64_t)((step - 1) % recorder->step_max) * recorder->action_count];
}
