/* trace.json: the format's own rules, and what a reader looks for in it. */
#include "support/check.h"

#include "report/trace_json.h"

#include <heddle/schedule.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRACK_MAX = 64 };

static struct hd_rundir rundir = {.path = "/tmp/heddle-trace-json-XXXXXX", .metrics = -1};

static const struct hd_pipeline_channel channels[] = {
    {.boundary = 0, .direction = HD_FORWARD},
    {.boundary = 1, .direction = HD_FORWARD},
    {.boundary = 0, .direction = HD_BACKWARD},
    {.boundary = 1, .direction = HD_BACKWARD},
};

static cJSON *written(uint32_t rank_count, const struct hd_trace_record *records, uint32_t count)
{
    static char text[1 << 22];
    const struct hd_trace trace = {rank_count, HD_CHECK_COUNT(channels), count, channels, records};
    struct hd_problem problem = {0};
    char path[4200];

    CU_ASSERT_FATAL(hd_trace_json_write(&rundir, &trace, &problem) == HD_OK);
    snprintf(path, sizeof path, "%s/trace.json", rundir.path);
    FILE *const file = fopen(path, "r");
    CU_ASSERT_FATAL(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    cJSON *const root = cJSON_Parse(text);
    CU_ASSERT_FATAL(root != NULL);
    CU_ASSERT_FATAL(cJSON_IsArray(cJSON_GetObjectItem(root, "traceEvents")));
    return root;
}

static const cJSON *events_of(const cJSON *root)
{
    return cJSON_GetObjectItem(root, "traceEvents")->child;
}

static const char *text_of(const cJSON *event, const char *key)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(event, key);
    CU_ASSERT_FATAL(cJSON_IsString(item));
    return item->valuestring;
}

static double number_of(const cJSON *event, const char *key)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(event, key);
    CU_ASSERT_FATAL(cJSON_IsNumber(item));
    return item->valuedouble;
}

static int is_kind(const cJSON *event, const char *phase)
{
    return strcmp(text_of(event, "ph"), phase) == 0;
}

static int is_span(const cJSON *event)
{
    return is_kind(event, "X");
}

/* A flow event has its number and its track, a counter its value; both a time. */
static void check_other(const cJSON *event)
{
    const int is_flow = is_kind(event, "s") || is_kind(event, "t") || is_kind(event, "f");

    if (is_flow) {
        CU_ASSERT(number_of(event, "id") >= 0 && number_of(event, "tid") >= 1);
        CU_ASSERT(is_kind(event, "f") == cJSON_HasObjectItem(event, "bp"));
    } else if (is_kind(event, "C")) {
        CU_ASSERT(number_of(cJSON_GetObjectItem(event, "args"), "held") >= 0);
    } else {
        CU_ASSERT_STRING_EQUAL(text_of(event, "ph"), "M");
        CU_ASSERT(cJSON_IsObject(cJSON_GetObjectItem(event, "args")));
        return;
    }
    CU_ASSERT(number_of(event, "ts") >= 0);
}

/* The name that a metadata event gives to a process (thread < 0) or a track; "" if none does. */
static const char *name_of(const cJSON *root, double rank, double thread)
{
    const char *const wanted = thread < 0 ? "process_name" : "thread_name";

    for (const cJSON *event = events_of(root); event != NULL; event = event->next) {
        if (is_kind(event, "M") && strcmp(text_of(event, "name"), wanted) == 0 &&
            number_of(event, "pid") == rank && (thread < 0 || number_of(event, "tid") == thread)) {
            return text_of(cJSON_GetObjectItem(event, "args"), "name");
        }
    }
    return "";
}

/* The schema: every event has the members of its kind; on each track the spans follow each other;
   each track and process has a name.  Returns the number of spans. */
static uint32_t check_schema(const cJSON *root)
{
    struct {
        double rank, thread, end;
    } tracks[TRACK_MAX];
    uint32_t track_count = 0, span_count = 0;

    for (const cJSON *event = events_of(root); event != NULL; event = event->next) {
        if (!is_span(event)) {
            check_other(event);
            continue;
        }
        const double rank = number_of(event, "pid"), thread = number_of(event, "tid");
        const double begin = number_of(event, "ts"), length = number_of(event, "dur");
        uint32_t track = 0;
        while (track < track_count &&
               (tracks[track].rank != rank || tracks[track].thread != thread)) {
            track++;
        }
        CU_ASSERT_FATAL(track < TRACK_MAX);
        if (track == track_count) {
            track_count++;
            CU_ASSERT(name_of(root, rank, thread)[0] != '\0');
            CU_ASSERT(name_of(root, rank, -1)[0] != '\0');
        } else {
            CU_ASSERT(begin >= tracks[track].end - 1e-6);
        }
        tracks[track].rank = rank;
        tracks[track].thread = thread;
        tracks[track].end = begin + length;
        CU_ASSERT(begin >= 0 && length >= 0 && text_of(event, "cat")[0] != '\0');
        CU_ASSERT(number_of(cJSON_GetObjectItem(event, "args"), "step") >= 1);
        span_count++;
    }
    return span_count;
}

static const struct {
    const char *name, *category, *track;
    struct hd_trace_record record;
    double begin_us, length_us;
} kinds[] = {
    {"wait 4B2",
     "exposed_wait",
     "compute",
     {1, HD_TRACE_EXPOSED_WAIT, 3, 4, 2, 'B', 0, 0, 5000, 6001, 0},
     0,
     1.001},
    {"credit 4B2",
     "credit_wait",
     "compute",
     {1, HD_TRACE_CREDIT_WAIT, 3, 4, 2, 'B', 0, 0, 6001, 6500, 0},
     1.001,
     0.499},
    {"4B2",
     "compute",
     "compute",
     {1, HD_TRACE_COMPUTE, 3, 4, 2, 'B', 0, 0, 6500, 1006500, 0},
     1.5,
     1000},
    {"4B2",
     "transfer",
     "boundary 1 backward",
     {1, HD_TRACE_TRANSFER, 3, 4, 2, 'B', 3, 65536, 1006500, 1007000, 0},
     1001.5,
     0.5},
    {"0F17",
     "transfer",
     "boundary 0 forward",
     {1, HD_TRACE_TRANSFER, 3, 0, 17, 'F', 0, 65536, 1006500, 1007000, 0},
     1001.5,
     0.5},
    {"collective",
     "collective",
     "compute",
     {1, HD_TRACE_COLLECTIVE, 3, 9, 9, 0, 0, 0, 1007000, 1008000, 0},
     1002,
     1},
    {"launch 4B2",
     "launch",
     "compute",
     {1, HD_TRACE_LAUNCH, 3, 4, 2, 'B', 0, 0, 1006500, 1006750, 0},
     1001.5,
     0.25},
    {"resident 2F5",
     "resident_wait",
     "boundary 1 forward",
     {1, HD_TRACE_RESIDENT, 3, 2, 5, 'F', 1, 0, 1006000, 1006500, 0},
     1001,
     0.5},
    {"optimizer",
     "optimizer",
     "compute",
     {1, HD_TRACE_OPTIMIZER, 3, 9, 9, 0, 0, 0, 1008000, 1008000, 0},
     1003,
     0},
};

static const cJSON *find_span(const cJSON *root, const char *name, const char *category)
{
    for (const cJSON *event = events_of(root); event != NULL; event = event->next) {
        if (is_span(event) && strcmp(text_of(event, "name"), name) == 0 &&
            strcmp(text_of(event, "cat"), category) == 0) {
            return event;
        }
    }
    return NULL;
}

static void one_of_each(void)
{
    struct hd_trace_record records[HD_CHECK_COUNT(kinds)];
    for (unsigned i = 0; i < HD_CHECK_COUNT(kinds); i++) {
        records[i] = kinds[i].record;
    }
    cJSON *const root = written(2, records, HD_CHECK_COUNT(kinds));

    CU_ASSERT(check_schema(root) == HD_CHECK_COUNT(kinds));
    for (unsigned i = 0; i < HD_CHECK_COUNT(kinds); i++) {
        const cJSON *const event = find_span(root, kinds[i].name, kinds[i].category);
        CU_ASSERT_FATAL(event != NULL);
        CU_ASSERT(fabs(number_of(event, "ts") - kinds[i].begin_us) < 1e-9);
        CU_ASSERT(fabs(number_of(event, "dur") - kinds[i].length_us) < 1e-9);
        CU_ASSERT(number_of(event, "pid") == 1);
        CU_ASSERT_STRING_EQUAL(name_of(root, 1, number_of(event, "tid")), kinds[i].track);
        const cJSON *const arguments = cJSON_GetObjectItem(event, "args");
        CU_ASSERT(number_of(arguments, "step") == 3);
        if (kinds[i].record.action != 0) {
            CU_ASSERT(number_of(arguments, "stage") == kinds[i].record.stage);
            CU_ASSERT(number_of(arguments, "microbatch") == kinds[i].record.microbatch);
            CU_ASSERT(number_of(arguments, "bytes") == (double)kinds[i].record.bytes);
        }
    }
    CU_ASSERT_STRING_EQUAL(name_of(root, 0, -1), "rank 0");
    CU_ASSERT_STRING_EQUAL(name_of(root, 1, -1), "rank 1");
    cJSON_Delete(root);
}

static void no_records(void)
{
    cJSON *const root = written(1, NULL, 0);

    CU_ASSERT(check_schema(root) == 0);
    CU_ASSERT_STRING_EQUAL(name_of(root, 0, -1), "rank 0");
    cJSON_Delete(root);
}

/* Two transfers under way at once lie side by side, a third that begins as one ends goes on
   there. */
static void overlapping_transfers(void)
{
    static const struct hd_trace_record records[] = {
        {0, HD_TRACE_TRANSFER, 1, 0, 1, 'F', 0, 8, 1500, 2500, 0},
        {0, HD_TRACE_TRANSFER, 1, 0, 0, 'F', 0, 8, 1000, 2000, 0},
        {0, HD_TRACE_TRANSFER, 1, 0, 2, 'F', 0, 8, 2000, 3000, 0},
        {0, HD_TRACE_TRANSFER, 1, 0, 3, 'F', 1, 8, 1000, 3000, 0},
    };
    cJSON *const root = written(1, records, HD_CHECK_COUNT(records));
    static const char *const tracks[] = {"boundary 0 forward", "boundary 0 forward (2)",
                                         "boundary 0 forward", "boundary 1 forward"};
    uint32_t span = 0;

    CU_ASSERT(check_schema(root) == 4);
    for (const cJSON *event = events_of(root); event != NULL; event = event->next) {
        if (is_span(event)) {
            CU_ASSERT_FATAL(span < 4);
            CU_ASSERT_STRING_EQUAL(name_of(root, 0, number_of(event, "tid")), tracks[span]);
            span++;
        }
    }
    cJSON_Delete(root);
}

/* A clock that ran backwards gives a span of no length, not a negative one. */
static void end_before_begin(void)
{
    static const struct hd_trace_record records[] = {
        {0, HD_TRACE_COMPUTE, 1, 0, 0, 'F', 0, 0, 5000, 4000, 0},
        {0, HD_TRACE_COMPUTE, 1, 0, 1, 'F', 0, 0, 5000, 7000, 0}};
    cJSON *const root = written(1, records, 2);

    CU_ASSERT(check_schema(root) == 2);
    CU_ASSERT_STRING_EQUAL(name_of(root, 0, 2), "");
    cJSON_Delete(root);
}

/* A thousand spans in any order, many of them overlapping, keep to the schema. */
static void many_records(void)
{
    static struct hd_trace_record records[1000];
    uint32_t state = 12345;

    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t draws[4];
        for (uint32_t k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            draws[k] = state >> 8;
        }
        records[i] = (struct hd_trace_record){.rank = draws[0] % 3,
                                              .kind = draws[1] % 6,
                                              .step = 1 + i % 3,
                                              .stage = i % 8,
                                              .microbatch = i,
                                              .action = 'F',
                                              .channel = draws[1] / 6 % 4,
                                              .begin_ns = 1ull << 60 | draws[2] % 100000,
                                              .end_ns = 0};
        records[i].end_ns = records[i].begin_ns + draws[3] % 900;
    }
    cJSON *const root = written(3, records, 1000);
    CU_ASSERT(check_schema(root) == 1000);
    for (uint32_t rank = 0; rank < 3; rank++) {
        CU_ASSERT_STRING_EQUAL(name_of(root, rank, 1), "compute");
    }
    cJSON_Delete(root);
}

static const cJSON *find_event(const cJSON *root, const char *phase, const char *name,
                               unsigned place)
{
    for (const cJSON *event = events_of(root); event != NULL; event = event->next) {
        if (is_kind(event, phase) && strcmp(text_of(event, "name"), name) == 0 && place-- == 0) {
            return event;
        }
    }
    return NULL;
}

/* 0F0 on rank 0, its transfer, 1F0 and 1B0 on rank 1; the gradient's transfer has no consumer in
   the trace, so it has no arrow. */
static const struct hd_trace_record handed[] = {
    {0, HD_TRACE_COMPUTE, 1, 0, 0, 'F', 0, 0, 1000, 2000, 0},
    {0, HD_TRACE_TRANSFER, 1, 0, 0, 'F', 0, 8, 2000, 2500, 0},
    {1, HD_TRACE_COMPUTE, 1, 1, 0, 'F', 0, 0, 3000, 4000, 0},
    {1, HD_TRACE_COMPUTE, 1, 1, 0, 'B', 0, 0, 4000, 6000, 0},
    {1, HD_TRACE_TRANSFER, 1, 1, 0, 'B', 2, 8, 6000, 6500, 0},
};

static void arrows_join_a_handoff(void)
{
    static const struct {
        const char *phase;
        double rank, ts;
    } ends[] = {{"s", 0, 0.999}, {"t", 0, 1}, {"f", 1, 2}};
    cJSON *const root = written(2, handed, HD_CHECK_COUNT(handed));

    CU_ASSERT(check_schema(root) == HD_CHECK_COUNT(handed));
    for (unsigned i = 0; i < HD_CHECK_COUNT(ends); i++) {
        const cJSON *const event = find_event(root, ends[i].phase, "handoff", 0);
        CU_ASSERT_FATAL(event != NULL);
        CU_ASSERT(number_of(event, "pid") == ends[i].rank);
        CU_ASSERT(fabs(number_of(event, "ts") - ends[i].ts) < 1e-9);
        CU_ASSERT(number_of(event, "id") == number_of(find_event(root, "s", "handoff", 0), "id"));
        CU_ASSERT(find_event(root, ends[i].phase, "handoff", 1) == NULL);
    }
    cJSON_Delete(root);
}

static void counters_follow_leases(void)
{
    cJSON *const root = written(2, handed, HD_CHECK_COUNT(handed));
    const cJSON *const taken = find_event(root, "C", "leases of stage 1", 0);
    const cJSON *const given = find_event(root, "C", "leases of stage 1", 1);

    CU_ASSERT_FATAL(taken != NULL && given != NULL);
    CU_ASSERT(number_of(taken, "pid") == 1 && number_of(taken, "ts") == 2);
    CU_ASSERT(number_of(cJSON_GetObjectItem(taken, "args"), "held") == 1);
    CU_ASSERT(number_of(given, "ts") == 5);
    CU_ASSERT(number_of(cJSON_GetObjectItem(given, "args"), "held") == 0);
    CU_ASSERT(find_event(root, "C", "leases of stage 1", 2) == NULL);
    CU_ASSERT(find_event(root, "C", "copies", 2) != NULL);
    cJSON_Delete(root);
}

static void equal_input_equal_file(void)
{
    static const struct hd_trace_record records[] = {
        {0, HD_TRACE_TRANSFER, 1, 0, 0, 'F', 0, 8, 1000, 2000, 0},
        {0, HD_TRACE_TRANSFER, 1, 0, 1, 'F', 0, 8, 1000, 2000, 0},
        {0, HD_TRACE_TRANSFER, 1, 0, 2, 'F', 0, 8, 1000, 2000, 0}};
    cJSON *const first = written(1, records, 3), *const second = written(1, records, 3);

    CU_ASSERT(cJSON_Compare(first, second, 1));
    cJSON_Delete(first);
    cJSON_Delete(second);
}

static void not_writable(void)
{
    const struct hd_trace trace = {.rank_count = 1};
    const struct hd_rundir gone = {.path = "/tmp/heddle-trace-json-XXXXXX/no", .metrics = -1};
    struct hd_problem problem = {0};

    CU_ASSERT(hd_trace_json_write(&gone, &trace, &problem) < 0);
    CU_ASSERT(problem.exit_code == HD_EXIT_OUTPUT);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"each kind has its name, track, times and arguments", one_of_each},
        {"a trace of nothing names its ranks", no_records},
        {"transfers under way together take further tracks", overlapping_transfers},
        {"a span never has a negative length", end_before_begin},
        {"spans of a track never overlap", many_records},
        {"an arrow joins producer, transfer and consumer", arrows_join_a_handoff},
        {"counters follow the leases of payload slots", counters_follow_leases},
        {"equal records give an equal file", equal_input_equal_file},
        {"a directory that cannot be written is exit 7", not_writable},
    };
    if (mkdtemp(rundir.path) == NULL) {
        return 1;
    }
    const int failed = hd_check_main("trace_json", checks, HD_CHECK_COUNT(checks));
    char path[4200];
    snprintf(path, sizeof path, "%s/trace.json", rundir.path);
    return unlink(path) != 0 || rmdir(rundir.path) != 0 || failed;
}
