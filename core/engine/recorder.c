#include "engine/recorder.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/number.h"

#include <assert.h>
#include <string.h>

hd_status hd_recorder_create(struct hd_recorder *recorder, uint32_t action_count, uint32_t step_max,
                             struct hd_problem *problem)
{
    const uint64_t bytes = (uint64_t)step_max * action_count * sizeof(struct hd_record);

    *recorder = (struct hd_recorder){.action_count = action_count, .step_max = step_max};
    pthread_mutex_init(&recorder->lock, NULL);
    if (bytes > 0) {
        recorder->records = hd_memory_take(bytes, 64, "recorder");
        if (recorder->records == NULL) {
            return hd_problem_no_memory(problem, bytes, "the times of %u actions of %u steps",
                                        action_count, step_max);
        }
    }
    return HD_OK;
}

void hd_recorder_finish(struct hd_recorder *recorder)
{
    hd_memory_give(recorder->records);
    recorder->records = NULL;
    pthread_mutex_destroy(&recorder->lock);
}

struct hd_passage hd_record_transfer(const struct hd_record *producer,
                                     const struct hd_record *consumer, uint32_t step)
{
    static const struct hd_passage unknown = {0};
    const struct hd_passage *out = producer->out.step == step ? &producer->out : &unknown;
    const struct hd_passage *in = consumer->in.step == step ? &consumer->in : &unknown;

    return (struct hd_passage){
        .begin_ns = hd_max_u64(out->begin_ns, in->begin_ns),
        .end_ns = in->end_ns > 0 ? in->end_ns : out->end_ns,
        .resident_ns = out->resident_ns + in->resident_ns,
        .step = step,
    };
}

void hd_record_shift(struct hd_record *record, int64_t offset_ns)
{
    uint64_t *times[] = {&record->begin_ns,     &record->ready_ns,   &record->claim_ns,
                         &record->run_ns,       &record->end_ns,     &record->sent_ns,
                         &record->out.begin_ns, &record->out.end_ns, &record->in.begin_ns,
                         &record->in.end_ns};

    for (unsigned i = 0; i < sizeof times / sizeof times[0]; i++) {
        *times[i] += *times[i] != 0 ? (uint64_t)offset_ns : 0;
    }
}

void hd_recorder_begin(struct hd_recorder *recorder, uint32_t step)
{
    assert(step > 0);
    pthread_mutex_lock(&recorder->lock);
    recorder->step = step;
    pthread_mutex_unlock(&recorder->lock);
    recorder->times = (struct hd_step_times){.begin_ns = hd_now_ns()};
}

static bool recorder_keeps(const struct hd_recorder *recorder, uint64_t step)
{
    return recorder->records != NULL && !(recorder->alternates && step % 2 == 0);
}

static struct hd_record *recorder_rows_of(const struct hd_recorder *recorder, uint64_t step)
{
    return &recorder->records[(step - 1) % recorder->step_max * recorder->action_count];
}

struct hd_record *hd_recorder_row(struct hd_recorder *recorder, uint32_t action)
{
    assert(action < recorder->action_count);
    return recorder_keeps(recorder, recorder->step)
               ? &recorder_rows_of(recorder, recorder->step)[action]
               : &recorder->scratch;
}

void hd_recorder_add(struct hd_recorder *recorder, const struct hd_record *record)
{
    recorder->times.wait_ns += record->ready_ns - record->begin_ns;
    recorder->times.credit_ns += record->claim_ns - record->ready_ns;
    recorder->times.compute_ns += record->end_ns - record->run_ns;
}

void hd_recorder_end(struct hd_recorder *recorder, uint64_t end_ns)
{
    struct hd_step_times *times = &recorder->times;

    times->end_ns = end_ns;
    times->launch_ns =
        times->end_ns - times->begin_ns - times->compute_ns - times->wait_ns - times->credit_ns;
}

/* The report belongs to a step that is kept, or to the next step: a peer may be ahead. */
static bool recorder_has_place(const struct hd_recorder *recorder,
                               const struct hd_recorder_report *report)
{
    return report->action < recorder->action_count && report->step > 0 &&
           report->step <= (uint64_t)recorder->step + 1 &&
           report->step + recorder->step_max > recorder->step;
}

static void recorder_join(struct hd_passage *passage, const struct hd_recorder_report *report)
{
    if (passage->step != report->step) {
        *passage = (struct hd_passage){.step = (uint32_t)report->step};
    }
    if (report->begin_ns > 0 && (passage->begin_ns == 0 || report->begin_ns < passage->begin_ns)) {
        passage->begin_ns = report->begin_ns;
    }
    passage->end_ns = hd_max_u64(passage->end_ns, report->end_ns);
    passage->resident_ns += report->resident_ns;
}

void hd_recorder_note(struct hd_recorder *recorder, const struct hd_recorder_report *report)
{
    pthread_mutex_lock(&recorder->lock);
    recorder->resident_ns += report->resident_ns;
    if (recorder->records != NULL && !recorder_has_place(recorder, report)) {
        recorder->lost_count++;
    } else if (recorder_keeps(recorder, report->step)) {
        struct hd_record *row = &recorder_rows_of(recorder, report->step)[report->action];
        recorder_join(report->is_in ? &row->in : &row->out, report);
    }
    pthread_mutex_unlock(&recorder->lock);
}

void hd_recorder_lose(struct hd_recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    recorder->lost_count++;
    pthread_mutex_unlock(&recorder->lock);
}

const struct hd_record *hd_recorder_step(const struct hd_recorder *recorder, uint32_t step)
{
    const bool is_kept = recorder_keeps(recorder, step) && step > 0 && step <= recorder->step &&
                         step + recorder->step_max > recorder->step;

    return is_kept ? recorder_rows_of(recorder, step) : NULL;
}

bool hd_recorder_copy(struct hd_recorder *recorder, uint32_t step, struct hd_record *out)
{
    pthread_mutex_lock(&recorder->lock);
    const struct hd_record *rows = hd_recorder_step(recorder, step);
    if (rows != NULL) {
        memcpy(out, rows, recorder->action_count * sizeof *out);
    }
    pthread_mutex_unlock(&recorder->lock);
    return rows != NULL;
}

uint64_t hd_recorder_resident_ns(struct hd_recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    const uint64_t resident_ns = recorder->resident_ns;
    pthread_mutex_unlock(&recorder->lock);
    return resident_ns;
}

uint64_t hd_recorder_lost_count(struct hd_recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    const uint64_t lost_count = recorder->lost_count;
    pthread_mutex_unlock(&recorder->lock);
    return lost_count;
}
