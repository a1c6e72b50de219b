#include "report/trace_json.h"
#include "base/try.h"
#include "report/trace_leases.h"
#include "report/trace_links.h"

#include <heddle/schedule.h>

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

/* A row of the picture: spans that overlap take further rows of their track. */
struct row {
    uint64_t end_ns; /* of its last span */
    uint32_t thread; /* the format's tid */
};

struct writer {
    FILE *stream;
    const struct hd_trace *trace;
    uint64_t origin_ns;
    struct row *rows; /* [record_count], of the track being written */
    uint32_t row_count;
    uint32_t thread_count; /* of the rank being written */
    uint32_t event_count;
    struct hd_trace_links links;
    struct hd_trace_leases leases;
};

static bool trace_json_is_of_channel(const struct hd_trace_record *record)
{
    return record->kind == HD_TRACE_TRANSFER || record->kind == HD_TRACE_RESIDENT;
}

/* 0 for the rank's own track, then one for each channel. */
static uint32_t trace_json_track_of(const struct hd_trace_record *record)
{
    return trace_json_is_of_channel(record) ? record->channel + 1 : 0;
}

static uint64_t trace_json_end_of(const struct hd_trace_record *record)
{
    return record->end_ns > record->begin_ns ? record->end_ns : record->begin_ns;
}

static int trace_json_order(uint64_t left, uint64_t right)
{
    return (left > right) - (left < right);
}

/* By rank, track, begin, end, then as given, so that equal input has one order. */
static int trace_json_compare_records(const void *left, const void *right)
{
    const struct hd_trace_record *const first = *(const struct hd_trace_record *const *)left;
    const struct hd_trace_record *const second = *(const struct hd_trace_record *const *)right;
    const int orders[] = {trace_json_order(first->rank, second->rank),
                          trace_json_order(trace_json_track_of(first), trace_json_track_of(second)),
                          trace_json_order(first->begin_ns, second->begin_ns),
                          trace_json_order(trace_json_end_of(first), trace_json_end_of(second)),
                          trace_json_order((uintptr_t)first, (uintptr_t)second)};

    for (unsigned i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (orders[i] != 0) {
            return orders[i];
        }
    }
    return 0;
}

static void trace_json_begin_event(struct writer *writer)
{
    fputs(writer->event_count++ == 0 ? "\n" : ",\n", writer->stream);
}

/* {"ph": "M", ..}: names a process or one of its threads, and sorts them by their numbers. */
static void trace_json_write_name(struct writer *writer, uint32_t rank, const struct row *row,
                                  const char *name)
{
    const char *const what = row != NULL ? "thread" : "process";
    const uint32_t thread = row != NULL ? row->thread : 0;
    const uint32_t place = row != NULL ? thread : rank;

    trace_json_begin_event(writer);
    fprintf(writer->stream,
            "{\"ph\": \"M\", \"pid\": %u, \"tid\": %u, \"name\": \"%s_name\", \"args\": {\"name\": "
            "\"%s\"}}",
            rank, thread, what, name);
    trace_json_begin_event(writer);
    fprintf(writer->stream,
            "{\"ph\": \"M\", \"pid\": %u, \"tid\": %u, \"name\": \"%s_sort_index\", \"args\": "
            "{\"sort_index\": %u}}",
            rank, thread, what, place);
}

static void trace_json_name_track(const struct writer *writer, uint32_t track, char text[64])
{
    const uint32_t number = writer->row_count; /* of this row on its track, from 1 */
    char more[16] = "";

    if (number > 1) {
        snprintf(more, sizeof more, " (%u)", number);
    }
    if (track == 0) {
        snprintf(text, 64, "compute%s", more);
        return;
    }
    assert(track <= writer->trace->channel_count);
    const struct hd_pipeline_channel *const channel = &writer->trace->channels[track - 1];
    snprintf(text, 64, "boundary %u %s%s", channel->boundary,
             channel->direction == HD_FORWARD ? "forward" : "backward", more);
}

/* The first row of the track that is free at the begin of the record, or a new one. */
static struct row *trace_json_row_for(struct writer *writer, const struct hd_trace_record *record)
{
    char name[64];

    for (uint32_t i = 0; i < writer->row_count; i++) {
        if (writer->rows[i].end_ns <= record->begin_ns) {
            return &writer->rows[i];
        }
    }
    struct row *const row = &writer->rows[writer->row_count++];
    row->thread = ++writer->thread_count;
    trace_json_name_track(writer, trace_json_track_of(record), name);
    trace_json_write_name(writer, record->rank, row, name);
    return row;
}

static void trace_json_name_span(const struct hd_trace_record *record, char text[64])
{
    static const char *const heads[] = {[HD_TRACE_COMPUTE] = "",
                                        [HD_TRACE_EXPOSED_WAIT] = "wait ",
                                        [HD_TRACE_CREDIT_WAIT] = "credit ",
                                        [HD_TRACE_TRANSFER] = "",
                                        [HD_TRACE_LAUNCH] = "launch ",
                                        [HD_TRACE_RESIDENT] = "resident "};

    if (record->kind == HD_TRACE_COLLECTIVE || record->kind == HD_TRACE_OPTIMIZER) {
        snprintf(text, 64, "%s", record->kind == HD_TRACE_OPTIMIZER ? "optimizer" : "collective");
    } else {
        snprintf(text, 64, "%s%u%c%u", heads[record->kind], record->stage, record->action,
                 record->microbatch);
    }
}

/* Nanoseconds as the format's microseconds. */
static void trace_json_write_time(struct writer *writer, const char *key, uint64_t time_ns)
{
    fprintf(writer->stream, ", \"%s\": %llu.%03u", key, (unsigned long long)(time_ns / 1000),
            (unsigned)(time_ns % 1000));
}

/* One end of an arrow, bound to the span around `at_ns` on the same track. */
static void trace_json_write_arrow(struct writer *writer, const struct hd_trace_record *record,
                                   const struct row *row, const char *phase)
{
    const uint32_t link = phase[0] == 's' ? hd_trace_link_out(&writer->links, record)
                          : phase[0] == 'f'
                              ? hd_trace_link_in(&writer->links, record)
                              : hd_trace_link_of(&writer->links, writer->trace, record);
    uint64_t at_ns = record->begin_ns;

    if (link == HD_TRACE_NO_LINK) {
        return;
    }
    /* An output is sent at the end of its pass, still within the span. */
    if (phase[0] == 's' && record->end_ns > record->begin_ns) {
        at_ns = record->end_ns - 1;
    }
    trace_json_begin_event(writer);
    fprintf(writer->stream,
            "{\"ph\": \"%s\", \"pid\": %u, \"tid\": %u, \"name\": \"handoff\", \"cat\": "
            "\"handoff\", \"id\": %u%s",
            phase, record->rank, row->thread, link, phase[0] == 'f' ? ", \"bp\": \"e\"" : "");
    trace_json_write_time(writer, "ts", at_ns - writer->origin_ns);
    fputc('}', writer->stream);
}

/* Producer, transfer, consumer: one arrow a handoff. */
static void trace_json_write_arrows(struct writer *writer, const struct hd_trace_record *record,
                                    const struct row *row)
{
    trace_json_write_arrow(writer, record, row, "s");
    trace_json_write_arrow(writer, record, row, "t");
    trace_json_write_arrow(writer, record, row, "f");
}

/* A counter of a rank: the slots of one stage, or all copies. */
static void trace_json_write_counter(struct writer *writer, const struct hd_trace_lease *lease,
                                     const char *name, uint32_t value)
{
    trace_json_begin_event(writer);
    fprintf(writer->stream, "{\"ph\": \"C\", \"pid\": %u, \"name\": \"%s\"", lease->rank, name);
    trace_json_write_time(writer, "ts", lease->at_ns - writer->origin_ns);
    fprintf(writer->stream, ", \"args\": {\"held\": %u}}", value);
}

static void trace_json_write_counters(struct writer *writer)
{
    char name[64];

    for (uint32_t i = 0; i < writer->leases.count; i++) {
        const struct hd_trace_lease *const lease = &writer->leases.leases[i];
        snprintf(name, sizeof name, "leases of stage %u", lease->stage);
        trace_json_write_counter(writer, lease, name, lease->held);
        trace_json_write_counter(writer, lease, "copies", lease->copies);
    }
}

static void trace_json_write_span(struct writer *writer, const struct hd_trace_record *record)
{
    static const char *const categories[] = {"compute",  "exposed_wait", "credit_wait",
                                             "transfer", "collective",   "optimizer",
                                             "launch",   "resident_wait"};
    static const char *const unknown[] = {"", "begin", "end", "begin and end"};
    struct row *const row = trace_json_row_for(writer, record);
    char name[64];

    row->end_ns = trace_json_end_of(record);
    trace_json_name_span(record, name);
    trace_json_begin_event(writer);
    fprintf(writer->stream,
            "{\"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"name\": \"%s\", \"cat\": \"%s\"",
            record->rank, row->thread, name, categories[record->kind]);
    trace_json_write_time(writer, "ts", record->begin_ns - writer->origin_ns);
    trace_json_write_time(writer, "dur", trace_json_end_of(record) - record->begin_ns);
    fprintf(writer->stream, ", \"args\": {\"step\": %u", record->step);
    if (record->kind != HD_TRACE_COLLECTIVE && record->kind != HD_TRACE_OPTIMIZER) {
        fprintf(writer->stream, ", \"stage\": %u, \"microbatch\": %u, \"bytes\": %llu",
                record->stage, record->microbatch, (unsigned long long)record->bytes);
    }
    if (record->unknown != 0) {
        fprintf(writer->stream, ", \"unknown\": \"%s\"", unknown[record->unknown]);
    }
    fputs("}}", writer->stream);
    trace_json_write_arrows(writer, record, row);
}

static void trace_json_write_events(struct writer *writer,
                                    const struct hd_trace_record *const *sorted)
{
    char name[64];

    for (uint32_t rank = 0; rank < writer->trace->rank_count; rank++) {
        snprintf(name, sizeof name, "rank %u", rank);
        trace_json_write_name(writer, rank, NULL, name);
    }
    for (uint32_t i = 0; i < writer->trace->record_count; i++) {
        const bool is_new_rank = i == 0 || sorted[i]->rank != sorted[i - 1]->rank;
        if (is_new_rank) {
            writer->thread_count = 0;
        }
        if (is_new_rank || trace_json_track_of(sorted[i]) != trace_json_track_of(sorted[i - 1])) {
            writer->row_count = 0;
        }
        trace_json_write_span(writer, sorted[i]);
    }
    trace_json_write_counters(writer);
}

/* Checks what the writer relies on, and finds the earliest begin. */
static uint64_t trace_json_index_records(const struct hd_trace *trace,
                                         const struct hd_trace_record **sorted)
{
    uint64_t origin_ns = UINT64_MAX;

    for (uint32_t i = 0; i < trace->record_count; i++) {
        const struct hd_trace_record *const record = &trace->records[i];
        assert(record->rank < trace->rank_count && record->kind <= HD_TRACE_RESIDENT);
        assert(record->unknown <= (HD_TRACE_BEGIN_UNKNOWN | HD_TRACE_END_UNKNOWN));
        assert(!trace_json_is_of_channel(record) || record->channel < trace->channel_count);
        sorted[i] = record;
        origin_ns = record->begin_ns < origin_ns ? record->begin_ns : origin_ns;
    }
    qsort(sorted, trace->record_count, sizeof *sorted, trace_json_compare_records);
    return origin_ns;
}

static hd_status trace_json_write_file(const struct hd_rundir *rundir, struct writer *writer,
                                       const struct hd_trace_record *const *sorted,
                                       struct hd_problem *problem)
{
    HD_TRY(hd_rundir_open(rundir, "trace.json", &writer->stream, problem));
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", writer->stream);
    trace_json_write_events(writer, sorted);
    fputs("\n]}\n", writer->stream);
    return hd_rundir_commit(rundir, "trace.json", writer->stream, problem);
}

hd_status hd_trace_json_write(const struct hd_rundir *rundir, const struct hd_trace *trace,
                              struct hd_problem *problem)
{
    const size_t capacity = (size_t)trace->record_count + 1;
    const struct hd_trace_record **const sorted = malloc(capacity * sizeof *sorted);
    struct writer writer = {.trace = trace, .rows = malloc(capacity * sizeof *writer.rows)};
    hd_status status;

    if (sorted != NULL && writer.rows != NULL &&
        hd_trace_links_create(&writer.links, trace) == HD_OK &&
        hd_trace_leases_create(&writer.leases, trace) == HD_OK) {
        writer.origin_ns = trace_json_index_records(trace, sorted);
        status = trace_json_write_file(rundir, &writer, sorted, problem);
    } else {
        status = hd_problem_no_memory(problem, 0, "sorting the %u records of the trace",
                                      trace->record_count);
    }
    hd_trace_links_finish(&writer.links);
    hd_trace_leases_finish(&writer.leases);
    free(writer.rows);
    free(sorted);
    return status;
}
