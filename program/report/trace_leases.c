#include "report/trace_leases.h"

#include <heddle/schedule.h>

#include <stdlib.h>

/* At one moment a release comes before the lease that takes the slot. */
static int trace_leases_compare_leases(const void *left, const void *right)
{
    const struct hd_trace_lease *const first = left, *const second = right;
    const uint64_t pairs[][2] = {{first->rank, second->rank},
                                 {first->at_ns, second->at_ns},
                                 {second->is_release, first->is_release},
                                 {first->stage, second->stage}};

    for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i][0] != pairs[i][1]) {
            return pairs[i][0] < pairs[i][1] ? -1 : 1;
        }
    }
    return 0;
}

/* An input gradient releases nothing: its W does. */
static bool trace_leases_changes_lease(const struct hd_trace_record *record)
{
    return record->kind == HD_TRACE_COMPUTE && record->action != HD_BACKWARD_INPUT;
}

/* Counts in the order of time; a release whose forward is not in the trace changes nothing. */
static void trace_leases_count_held(struct hd_trace_leases *leases, uint32_t *held)
{
    uint32_t copies = 0;

    for (uint32_t i = 0; i < leases->count; i++) {
        struct hd_trace_lease *const lease = &leases->leases[i];
        if (i == 0 || lease->rank != leases->leases[i - 1].rank) {
            copies = 0;
        }
        if (!lease->is_release) {
            held[lease->stage]++;
            copies++;
        } else if (held[lease->stage] > 0 && copies > 0) {
            held[lease->stage]--;
            copies--;
        }
        lease->held = held[lease->stage];
        lease->copies = copies;
    }
}

hd_status hd_trace_leases_create(struct hd_trace_leases *leases, const struct hd_trace *trace)
{
    struct hd_trace_leases made = {
        .leases = calloc((size_t)trace->record_count + 1, sizeof *made.leases)};
    uint32_t stage_last = 0;

    for (uint32_t i = 0; made.leases != NULL && i < trace->record_count; i++) {
        const struct hd_trace_record *const record = &trace->records[i];
        if (trace_leases_changes_lease(record)) {
            const bool is_release = record->action != HD_FORWARD;
            made.leases[made.count++] = (struct hd_trace_lease){
                .at_ns = is_release && record->end_ns > record->begin_ns ? record->end_ns
                                                                         : record->begin_ns,
                .rank = record->rank,
                .stage = record->stage,
                .is_release = is_release,
            };
            stage_last = record->stage > stage_last ? record->stage : stage_last;
        }
    }
    uint32_t *const held = calloc((size_t)stage_last + 1, sizeof *held);
    if (made.leases == NULL || held == NULL) {
        free(made.leases);
        free(held);
        return HD_NO_MEMORY;
    }
    qsort(made.leases, made.count, sizeof *made.leases, trace_leases_compare_leases);
    trace_leases_count_held(&made, held);
    free(held);
    *leases = made;
    return HD_OK;
}

void hd_trace_leases_finish(struct hd_trace_leases *leases)
{
    free(leases->leases);
    *leases = (struct hd_trace_leases){0};
}
