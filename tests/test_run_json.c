/* run.json: every member of docs/interface.md, before the first step and at the end. */
#include "support/check.h"

#include "report/run_json.h"

#include <heddle/schedule.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 65536 };

static struct hd_rundir rundir = {.path = "/tmp/heddle-run-json-XXXXXX", .metrics = -1};

static cJSON *written(const struct hd_run_record *record)
{
    static char text[TEXT_BYTES];
    struct hd_problem problem = {0};
    char path[4200];

    CU_ASSERT_FATAL(hd_run_json_write(&rundir, record, &problem) == HD_OK);
    snprintf(path, sizeof path, "%s/run.json", rundir.path);
    FILE *const file = fopen(path, "r");
    CU_ASSERT_FATAL(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    cJSON *const root = cJSON_Parse(text);
    CU_ASSERT_FATAL(root != NULL);
    return root;
}

/* A member by path, "corpus.bytes", "ranks.1.memory.payload". */
static const cJSON *at(const cJSON *item, const char *path)
{
    char copy[256];

    snprintf(copy, sizeof copy, "%s", path);
    for (char *part = strtok(copy, "."); part != NULL; part = strtok(NULL, ".")) {
        item = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, atoi(part))
                                   : cJSON_GetObjectItemCaseSensitive(item, part);
        if (item == NULL) {
            printf("\n    no %s in %s\n", part, path);
        }
        CU_ASSERT_FATAL(item != NULL);
    }
    return item;
}

static const double losses[] = {5.5, 1.0 / 3.0, NAN, 2.25};
static const double norms[] = {1.5, INFINITY, 0.1, 1e-300};
static const double seconds[] = {9.0, 8.0, 0.5, 0.25};
static const char *const hosts[] = {"loom"};
static const char *const devices[] = {"cpu: avx512_bf16", "cpu: avx512_bf16"};
static const struct hd_run_library libraries[] = {{"oneDNN", "3.1"}};
static const struct hd_run_plugin plugins[] = {
    {"schedule", "1f1b", "/opt/heddle_schedule_1f1b.so", "0.1.0"},
    {"transport", "shm", "/opt/heddle_transport_shm.so", "0.1.0"},
    {"kernel", "cpu", "/opt/heddle_kernel_cpu.so", "0.1.0"}};
static const struct hd_run_channel channels[] = {{0, HD_FORWARD, 0, 1, "memfd, in place", 0.25},
                                                 {0, HD_BACKWARD, 1, 0, "memfd, in place", 0}};
static const struct hd_rank_tag memory[] = {{"payload", 4096, 8192}, {"scratch", 64, 64}};
static const struct hd_run_rank ranks[] = {{.compute_seconds = 0.125,
                                            .exposed_wait_seconds = 0.0625,
                                            .launch_seconds = 0.001,
                                            .resident_wait_seconds = 0.03125,
                                            .peak_payload_slots = 3,
                                            .peak_bytes = 8256,
                                            .planned = {10, 20, 30, 40, 5},
                                            .measured = {11, 21, 31, 41, 6},
                                            .settled_bytes = 7,
                                            .held_bytes = 8,
                                            .resident_peak_bytes = 9,
                                            .memory_count = 2,
                                            .memory = memory},
                                           {.compute_seconds = 0.25,
                                            .exposed_wait_seconds = NAN,
                                            .launch_seconds = 0.002,
                                            .peak_payload_slots = 1,
                                            .peak_bytes = 1ull << 53}};

static struct hd_run_record whole(void)
{
    return (struct hd_run_record){.command_line = "heddle run 'a b.ini'",
                                  .started = "2026-11-30T05:35:10+00:00",
                                  .cpu = "a \"quoted\" processor",
                                  .hosts = hosts,
                                  .devices = devices,
                                  .libraries = libraries,
                                  .host_count = 1,
                                  .device_count = 2,
                                  .library_count = 1,
                                  .corpus_path = "kjv.txt",
                                  .corpus_bytes = 4298419,
                                  .corpus_sha256 = "c5b4",
                                  .plugin_count = 3,
                                  .channel_count = 2,
                                  .rank_count = 2,
                                  .plugins = plugins,
                                  .channels = channels,
                                  .ranks = ranks,
                                  .plan_hash = "0123",
                                  .step_count = 4,
                                  .losses = losses,
                                  .grad_norms = norms,
                                  .step_seconds = seconds,
                                  .step_tokens = 300,
                                  .parameters_hash = "4567",
                                  .bubble_planned = 3.0 / 11.0,
                                  .bubble_costed = 0.3,
                                  .bubble_measured = 0.35,
                                  .overlap = {.step_count = 3,
                                              .unknown_count = 2,
                                              .lost_count = 1,
                                              .counts = {4, 5, 6},
                                              .measured = {{0, 0, 0}, {4, 3, 1}, {8, 2, 6}},
                                              .costed = {{0, 0, 0}, {5, 5, 0}, {7, 0, 7}},
                                              .efficiency_measured = 5.0 / 12.0,
                                              .efficiency_costed = NAN,
                                              .kept = 0.625},
                                  .is_finished = 1,
                                  .exit_code = 0};
}

static void at_the_end(void)
{
    static const struct {
        const char *path, *text; /* text NULL: the number */
        double number;
    } rows[] = {
        {"version", "0.1.0", 0},
        {"command_line", "heddle run 'a b.ini'", 0},
        {"started", "2026-11-30T05:35:10+00:00", 0},
        {"hosts.0", "loom", 0},
        {"cpu", "a \"quoted\" processor", 0},
        {"devices.1", "cpu: avx512_bf16", 0},
        {"libraries.oneDNN", "3.1", 0},
        {"corpus.path", "kjv.txt", 0},
        {"corpus.bytes", NULL, 4298419},
        {"corpus.sha256", "c5b4", 0},
        {"plugins.0.kind", "schedule", 0},
        {"plugins.1.name", "shm", 0},
        {"plugins.2.path", "/opt/heddle_kernel_cpu.so", 0},
        {"plugins.2.version", "0.1.0", 0},
        {"channels.0.direction", "forward", 0},
        {"channels.1.direction", "backward", 0},
        {"channels.1.source", NULL, 1},
        {"channels.1.target", NULL, 0},
        {"channels.1.boundary", NULL, 0},
        {"channels.1.lane", "memfd, in place", 0},
        {"plan_hash", "0123", 0},
        {"losses.0", NULL, 5.5},
        {"losses.1", NULL, 1.0 / 3.0},
        {"grad_norms.3", NULL, 1e-300},
        {"parameters_hash", "4567", 0},
        {"tokens_per_second", NULL, 2 * 300 / 0.75},
        {"step_seconds.median", NULL, 0.375},
        {"step_seconds.p90", NULL, 0.5},
        {"step_seconds.min", NULL, 0.25},
        {"bubble.planned", NULL, 3.0 / 11.0},
        {"bubble.costed", NULL, 0.3},
        {"bubble.measured", NULL, 0.35},
        {"ranks.0.compute_seconds", NULL, 0.125},
        {"ranks.0.exposed_wait_seconds", NULL, 0.0625},
        {"ranks.1.launch_seconds", NULL, 0.002},
        {"ranks.0.peak_payload_slots", NULL, 3},
        {"ranks.1.peak_bytes", NULL, 0x1p53},
        {"ranks.0.resident_wait_seconds", NULL, 0.03125},
        {"channels.0.resident_seconds", NULL, 0.25},
        {"exit", NULL, 0},
    };
    const struct hd_run_record record = whole();
    cJSON *const root = written(&record);

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const cJSON *const item = at(root, rows[i].path);
        if (rows[i].text != NULL) {
            CU_ASSERT_FATAL(cJSON_IsString(item));
            CU_ASSERT_STRING_EQUAL(item->valuestring, rows[i].text);
        } else {
            CU_ASSERT(cJSON_IsNumber(item) && item->valuedouble == rows[i].number);
        }
    }
    CU_ASSERT(cJSON_IsNull(at(root, "losses.2")));
    CU_ASSERT(cJSON_IsNull(at(root, "grad_norms.1")));
    CU_ASSERT(cJSON_IsNull(at(root, "ranks.1.exposed_wait_seconds")));
    CU_ASSERT(cJSON_GetArraySize(at(root, "losses")) == 4);
    CU_ASSERT(cJSON_GetArraySize(at(root, "ranks")) == 2);
    CU_ASSERT(strlen(at(root, "commit")->valuestring) >= 7); /* "unknown", or a commit */
    CU_ASSERT(strlen(at(root, "compiler")->valuestring) > 3);
    CU_ASSERT(cJSON_IsString(at(root, "libraries.glibc")));
    cJSON_Delete(root);
}

static void transfers_by_class(void)
{
    static const struct {
        const char *path;
        double number;
    } rows[] = {
        {"overlap_efficiency.measured", 5.0 / 12.0},
        {"handoffs.local.count", 4},
        {"handoffs.exposed.count", 6},
        {"handoffs.hidden.costed.transfer_seconds", 5},
        {"handoffs.hidden.measured.hidden_seconds", 3},
        {"handoffs.exposed.measured.exposed_seconds", 6},
        {"transfers.steps", 3},
        {"transfers.unknown", 2},
        {"transfers.lost_reports", 1},
        {"transfers.hidden_as_costed", 0.625},
    };
    const struct hd_run_record record = whole();
    cJSON *const root = written(&record);

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        CU_ASSERT_EQUAL(at(root, rows[i].path)->valuedouble, rows[i].number);
    }
    CU_ASSERT(cJSON_IsNull(at(root, "overlap_efficiency.costed")));
    cJSON_Delete(root);
}

static void memory_of_ranks(void)
{
    static const struct {
        const char *path;
        double number;
    } rows[] = {
        {"ranks.0.memory.payload.bytes", 4096},
        {"ranks.0.memory.payload.peak_bytes", 8192},
        {"ranks.0.memory.scratch.bytes", 64},
        {"ranks.0.memory_planned.state_bytes", 10},
        {"ranks.0.memory_planned.total_bytes", 100},
        {"ranks.0.memory_measured.scratch_bytes", 41},
        {"ranks.0.memory_measured.total_bytes", 11 + 21 + 31 + 41},
        {"ranks.0.memory_measured.other_bytes", 6},
        {"ranks.0.settled_bytes", 7},
        {"ranks.0.held_bytes", 8},
        {"ranks.0.resident_peak_bytes", 9},
    };
    const struct hd_run_record record = whole();
    cJSON *const root = written(&record);

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const cJSON *const item = at(root, rows[i].path);
        CU_ASSERT(cJSON_IsNumber(item) && item->valuedouble == rows[i].number);
    }
    cJSON_Delete(root);
}

static void before_the_first_step(void)
{
    struct hd_run_record record = whole();
    record.is_finished = 0;
    record.step_count = 0;
    record.ranks = NULL;
    record.parameters_hash = NULL;
    record.bubble_measured = NAN;
    cJSON *const root = written(&record);

    CU_ASSERT(cJSON_IsNull(at(root, "exit")));
    CU_ASSERT(cJSON_IsNull(at(root, "parameters_hash")));
    CU_ASSERT(cJSON_IsNull(at(root, "tokens_per_second")));
    CU_ASSERT(cJSON_IsNull(at(root, "step_seconds.median")));
    CU_ASSERT(cJSON_IsNull(at(root, "bubble.measured")));
    CU_ASSERT(cJSON_GetArraySize(at(root, "losses")) == 0);
    CU_ASSERT(cJSON_GetArraySize(at(root, "ranks")) == 0);
    CU_ASSERT(at(root, "bubble.planned")->valuedouble == 3.0 / 11.0);
    cJSON_Delete(root);
}

static void exit_codes(void)
{
    static const int32_t codes[] = {0, 5, 6, 128 + 15};
    struct hd_run_record record = whole();

    for (unsigned i = 0; i < HD_CHECK_COUNT(codes); i++) {
        record.exit_code = codes[i];
        cJSON *const root = written(&record);
        CU_ASSERT(at(root, "exit")->valueint == codes[i]);
        cJSON_Delete(root);
    }
}

static void environment(void)
{
    static const char *const ours[] = {"HEDDLE_LOG", "UCX_TLS", "NCCL_DEBUG",
                                       "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"};
    static const char *const theirs[] = {"SECRET_TOKEN", "MY_HEDDLE_LOG", "HEDDLER"};
    const struct hd_run_record record = whole();

    for (unsigned i = 0; i < HD_CHECK_COUNT(ours); i++) {
        CU_ASSERT_FATAL(setenv(ours[i], "a=b", 1) == 0);
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(theirs); i++) {
        CU_ASSERT_FATAL(setenv(theirs[i], "x", 1) == 0);
    }
    cJSON *const root = written(&record);
    const cJSON *const list = at(root, "environment");
    for (unsigned i = 0; i < HD_CHECK_COUNT(ours); i++) {
        CU_ASSERT_STRING_EQUAL(at(list, ours[i])->valuestring, "a=b");
        unsetenv(ours[i]);
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(theirs); i++) {
        CU_ASSERT_PTR_NULL(cJSON_GetObjectItemCaseSensitive(list, theirs[i]));
        unsetenv(theirs[i]);
    }
    for (const cJSON *item = list->child; item->next != NULL; item = item->next) {
        CU_ASSERT(strcmp(item->string, item->next->string) < 0);
    }
    cJSON_Delete(root);
}

static void not_writable(void)
{
    const struct hd_run_record record = whole();
    const struct hd_rundir gone = {.path = "/tmp/heddle-run-json-XXXXXX/no/such", .metrics = -1};
    struct hd_problem problem = {0};

    CU_ASSERT(hd_run_json_write(&gone, &record, &problem) < 0);
    CU_ASSERT(problem.exit_code == HD_EXIT_OUTPUT);
}

static void speeds(void)
{
    static const struct {
        const char *name;
        uint32_t count;
        double seconds[12], median, p90, min, tokens_per_second;
    } rows[] = {
        {"no step", 0, {0}, NAN, NAN, NAN, NAN},
        {"warm-up alone", 2, {4, 3}, NAN, NAN, NAN, NAN},
        {"one step", 3, {4, 3, 2}, 2, 2, 2, 50},
        {"odd", 5, {9, 9, 1, 3, 2}, 2, 3, 1, 50},
        {"even", 6, {9, 9, 4, 1, 2, 3}, 2.5, 4, 1, 40},
        {"ten: the ninth", 12, {9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5.5, 9, 1, 1000.0 / 55},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_run_speed speed;
        hd_run_speed(rows[i].seconds, rows[i].count, 100, &speed);
        if (isnan(rows[i].median)) {
            CU_ASSERT(isnan(speed.median) && isnan(speed.p90) && isnan(speed.min));
            CU_ASSERT(isnan(speed.tokens_per_second));
            continue;
        }
        CU_ASSERT(speed.median == rows[i].median && speed.p90 == rows[i].p90);
        CU_ASSERT(speed.min == rows[i].min);
        CU_ASSERT(fabs(speed.tokens_per_second - rows[i].tokens_per_second) < 1e-9);
    }
}

static void started(void)
{
    char text[HD_RUN_STARTED_BYTES];
    unsigned year, month, day, hour, minute, second, offset_hour, offset_minute;
    char sign;

    hd_run_started(text);
    CU_ASSERT(strlen(text) == 25 && text[10] == 'T');
    CU_ASSERT(sscanf(text, "%4u-%2u-%2uT%2u:%2u:%2u%c%2u:%2u", &year, &month, &day, &hour, &minute,
                     &second, &sign, &offset_hour, &offset_minute) == 9);
    CU_ASSERT(year >= 2020 && month <= 12 && hour < 24 && (sign == '+' || sign == '-'));
}

static void processor(void)
{
    char text[256], little[4];

    hd_run_cpu(text, sizeof text);
    CU_ASSERT(text[0] != '\0' && text[0] != ' ' && strchr(text, '\n') == NULL);
    hd_run_cpu(little, sizeof little);
    CU_ASSERT(strlen(little) == 3 && strncmp(text, little, 3) == 0);
}

static void command_lines(void)
{
    static const struct {
        const char *const argv[4];
        const char *text;
    } rows[] = {
        {{"heddle", "run", "conf/x.ini", "train.steps=8"}, "heddle run conf/x.ini train.steps=8"},
        {{"heddle", "a b", "", "$x"}, "heddle 'a b' '' '$x'"},
        {{"it's", "a\"b", "*", "~"}, "'it'\\''s' 'a\"b' '*' '~'"},
    };
    char text[128];

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        hd_run_command_line(4, rows[i].argv, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, rows[i].text);
    }
    hd_run_command_line(4, rows[0].argv, text, 8);
    CU_ASSERT_STRING_EQUAL(text, "heddle ");
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"at the end, every member of docs/interface.md", at_the_end},
        {"of each rank, memory as planned and as measured", memory_of_ranks},
        {"transfers by class of handoff, as costed and as measured", transfers_by_class},
        {"before step 1, exit is null and what is not known too", before_the_first_step},
        {"the exit code is the run's", exit_codes},
        {"the environment is ours alone, by name", environment},
        {"a directory that cannot be written is exit 7", not_writable},
        {"median, p90 and least from step 3 on", speeds},
        {"the start is ISO 8601", started},
        {"the processor has a name", processor},
        {"the command line is what a shell takes", command_lines},
    };
    if (mkdtemp(rundir.path) == NULL) {
        return 1;
    }
    const int failed = hd_check_main("run_json", checks, HD_CHECK_COUNT(checks));
    char path[4200];
    snprintf(path, sizeof path, "%s/run.json", rundir.path);
    return unlink(path) != 0 || rmdir(rundir.path) != 0 || failed;
}
