#include "report/run_json.h"
#include "base/json.h"
#include "base/try.h"
#include <heddle_build.h>

#include <heddle/schedule.h>

#include <assert.h>
#include <cjson/cJSON.h>
#include <gnu/libc-version.h>
#include <math.h>
#include <nettle/version.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION_TEXT(major, minor) #major "." #minor
#define VERSION_OF(major, minor)   VERSION_TEXT(major, minor)

static void run_json_add_texts(cJSON *root, const char *key, const char *const *texts,
                               uint32_t count)
{
    cJSON *const list = hd_json_array(root, key);

    for (uint32_t i = 0; i < count; i++) {
        hd_json_text(list, NULL, texts[i]);
    }
}

static void run_json_add_numbers(cJSON *root, const char *key, const double *values, uint32_t count)
{
    cJSON *const list = hd_json_array(root, key);

    for (uint32_t i = 0; i < count; i++) {
        hd_json_number(list, NULL, values[i]);
    }
}

static void run_json_add_libraries(cJSON *root, const struct hd_run_record *record)
{
    static const struct hd_run_library own[] = {
        {"cJSON", VERSION_OF(CJSON_VERSION_MAJOR, CJSON_VERSION_MINOR)},
        {"nettle", VERSION_OF(NETTLE_VERSION_MAJOR, NETTLE_VERSION_MINOR)}};
    cJSON *const list = hd_json_object(root, "libraries");

    hd_json_text(list, "glibc", gnu_get_libc_version());
    for (uint32_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        hd_json_text(list, own[i].name, own[i].version);
    }
    for (uint32_t i = 0; i < record->library_count; i++) {
        hd_json_text(list, record->libraries[i].name, record->libraries[i].version);
    }
}

/* --- environment ------------------------------------------------------------------------------ */

static bool run_json_is_ours(const char *variable)
{
    static const char *const heads[] = {"HEDDLE_", "UCX_", "NCCL_", "CUDA_", "OMP_"};

    for (unsigned i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        if (strncmp(variable, heads[i], strlen(heads[i])) == 0) {
            return strchr(variable, '=') != NULL;
        }
    }
    return false;
}

static int run_json_compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static void run_json_add_variable(cJSON *list, const char *variable)
{
    const char *const equals = strchr(variable, '=');
    char *const name = strndup(variable, (size_t)(equals - variable));

    assert(name != NULL);
    hd_json_text(list, name, equals + 1);
    free(name);
}

/* Sorted by name, so that two runs can be compared. */
static void run_json_add_environment(cJSON *root)
{
    cJSON *const list = hd_json_object(root, "environment");
    size_t count = 0, kept_count = 0;

    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    const char **const kept = calloc(count + 1, sizeof *kept);
    assert(kept != NULL);
    for (size_t i = 0; i < count; i++) {
        if (run_json_is_ours(environ[i])) {
            kept[kept_count++] = environ[i];
        }
    }
    qsort(kept, kept_count, sizeof *kept, run_json_compare_texts);
    for (size_t i = 0; i < kept_count; i++) {
        run_json_add_variable(list, kept[i]);
    }
    free(kept);
}

/* --- plan, plugins and ranks ------------------------------------------------------------------ */

static void run_json_add_plan(cJSON *root, const struct hd_run_record *record)
{
    cJSON *const plugins = hd_json_array(root, "plugins");
    cJSON *const channels = hd_json_array(root, "channels");

    for (uint32_t i = 0; i < record->plugin_count; i++) {
        const struct hd_run_plugin *const plugin = &record->plugins[i];
        cJSON *const item = hd_json_object(plugins, NULL);
        hd_json_text(item, "kind", plugin->kind);
        hd_json_text(item, "name", plugin->name);
        hd_json_text(item, "path", plugin->path);
        hd_json_text(item, "version", plugin->version);
    }
    for (uint32_t i = 0; i < record->channel_count; i++) {
        const struct hd_run_channel *const channel = &record->channels[i];
        cJSON *const item = hd_json_object(channels, NULL);
        hd_json_u64(item, "boundary", channel->boundary);
        hd_json_text(item, "direction", channel->direction == HD_FORWARD ? "forward" : "backward");
        hd_json_u64(item, "source", channel->source);
        hd_json_u64(item, "target", channel->target);
        hd_json_text(item, "lane", channel->lane);
        hd_json_number(item, "resident_seconds", channel->resident_seconds);
    }
    hd_json_text(root, "plan_hash", record->plan_hash);
}

static void run_json_add_memory(cJSON *parent, const char *key, const struct hd_run_memory *memory)
{
    cJSON *const item = hd_json_object(parent, key);

    hd_json_u64(item, "state_bytes", memory->state);
    hd_json_u64(item, "payload_bytes", memory->payload);
    hd_json_u64(item, "transfer_bytes", memory->transfer);
    hd_json_u64(item, "scratch_bytes", memory->scratch);
    hd_json_u64(item, "total_bytes",
                memory->state + memory->payload + memory->transfer + memory->scratch);
    hd_json_u64(item, "other_bytes", memory->other);
}

static void run_json_add_rank(cJSON *list, const struct hd_run_rank *rank)
{
    cJSON *const item = hd_json_object(list, NULL);

    hd_json_number(item, "compute_seconds", rank->compute_seconds);
    hd_json_number(item, "exposed_wait_seconds", rank->exposed_wait_seconds);
    hd_json_number(item, "launch_seconds", rank->launch_seconds);
    hd_json_number(item, "resident_wait_seconds", rank->resident_wait_seconds);
    hd_json_u64(item, "peak_payload_slots", rank->peak_payload_slots);
    hd_json_u64(item, "peak_bytes", rank->peak_bytes);
    run_json_add_memory(item, "memory_planned", &rank->planned);
    run_json_add_memory(item, "memory_measured", &rank->measured);
    hd_json_u64(item, "settled_bytes", rank->settled_bytes);
    hd_json_u64(item, "held_bytes", rank->held_bytes);
    hd_json_u64(item, "resident_peak_bytes", rank->resident_peak_bytes);
    cJSON *const memory = hd_json_object(item, "memory");
    for (uint32_t i = 0; i < rank->memory_count; i++) {
        cJSON *const use = hd_json_object(memory, rank->memory[i].tag);
        hd_json_u64(use, "bytes", rank->memory[i].bytes);
        hd_json_u64(use, "peak_bytes", rank->memory[i].peak_bytes);
    }
}

static void run_json_add_ranks(cJSON *root, const struct hd_run_record *record)
{
    cJSON *const list = hd_json_array(root, "ranks");

    for (uint32_t i = 0; record->ranks != NULL && i < record->rank_count; i++) {
        run_json_add_rank(list, &record->ranks[i]);
    }
}

/* --- how it went ------------------------------------------------------------------------------ */

static int run_json_compare_numbers(const void *left, const void *right)
{
    const double first = *(const double *)left, second = *(const double *)right;
    return (first > second) - (first < second);
}

void hd_run_speed(const double *step_seconds, uint32_t step_count, uint64_t step_tokens,
                  struct hd_run_speed *speed)
{
    const uint32_t skipped = HD_RUN_STEP_FIRST - 1;
    double sum = 0.0;

    *speed = (struct hd_run_speed){NAN, NAN, NAN, NAN};
    if (step_count <= skipped) {
        return;
    }
    const uint32_t count = step_count - skipped;
    double *const sorted = malloc(count * sizeof *sorted);
    assert(sorted != NULL);
    memcpy(sorted, step_seconds + skipped, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, run_json_compare_numbers);
    for (uint32_t i = 0; i < count; i++) {
        sum += sorted[i];
    }
    speed->median = 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
    speed->p90 = sorted[(9 * (uint64_t)count + 9) / 10 - 1];
    speed->min = sorted[0];
    speed->tokens_per_second = (double)step_tokens * count / sum;
    free(sorted);
}

static void run_json_add_result(cJSON *root, const struct hd_run_record *record)
{
    struct hd_run_speed speed;

    hd_run_speed(record->step_seconds, record->step_count, record->step_tokens, &speed);
    run_json_add_numbers(root, "losses", record->losses, record->step_count);
    run_json_add_numbers(root, "grad_norms", record->grad_norms, record->step_count);
    hd_json_text(root, "parameters_hash", record->parameters_hash);
    hd_json_number(root, "tokens_per_second", speed.tokens_per_second);
    cJSON *const seconds = hd_json_object(root, "step_seconds");
    hd_json_number(seconds, "median", speed.median);
    hd_json_number(seconds, "p90", speed.p90);
    hd_json_number(seconds, "min", speed.min);
    cJSON *const bubble = hd_json_object(root, "bubble");
    hd_json_number(bubble, "planned", record->bubble_planned);
    hd_json_number(bubble, "costed", record->bubble_costed);
    hd_json_number(bubble, "measured", record->bubble_measured);
}

static void run_json_add_transfers(cJSON *parent, const char *key,
                                   const struct hd_run_transfers *row)
{
    cJSON *const item = hd_json_object(parent, key);

    hd_json_number(item, "transfer_seconds", row->transfer_seconds);
    hd_json_number(item, "hidden_seconds", row->hidden_seconds);
    hd_json_number(item, "exposed_seconds", row->exposed_seconds);
}

static void run_json_add_overlap(cJSON *root, const struct hd_run_overlap *overlap)
{
    static const char *const names[HD_HANDOFF_CLASS_COUNT] = {"local", "hidden", "exposed"};
    cJSON *const efficiency = hd_json_object(root, "overlap_efficiency");

    hd_json_number(efficiency, "costed", overlap->efficiency_costed);
    hd_json_number(efficiency, "measured", overlap->efficiency_measured);
    cJSON *const handoffs = hd_json_object(root, "handoffs");
    for (unsigned i = 0; i < HD_HANDOFF_CLASS_COUNT; i++) {
        cJSON *const item = hd_json_object(handoffs, names[i]);
        hd_json_u64(item, "count", overlap->counts[i]);
        run_json_add_transfers(item, "costed", &overlap->costed[i]);
        run_json_add_transfers(item, "measured", &overlap->measured[i]);
    }
    cJSON *const transfers = hd_json_object(root, "transfers");
    hd_json_u64(transfers, "steps", overlap->step_count);
    hd_json_u64(transfers, "unknown", overlap->unknown_count);
    hd_json_u64(transfers, "lost_reports", overlap->lost_count);
    hd_json_number(transfers, "hidden_as_costed", overlap->kept);
}

static void run_json_add_clocks(cJSON *root, const struct hd_run_record *record)
{
    cJSON *const list = hd_json_array(root, "clocks");

    for (uint32_t i = 0; i < record->clock_count; i++) {
        const struct hd_run_clock *const clock = &record->clocks[i];
        cJSON *const item = hd_json_object(list, NULL);
        hd_json_u64(item, "rank", clock->rank);
        hd_json_number(item, "first_seconds", clock->first_seconds);
        hd_json_number(item, "last_seconds", clock->last_seconds);
        hd_json_number(item, "error_seconds", clock->error_seconds);
    }
}

static cJSON *run_json_document(const struct hd_run_record *record)
{
    cJSON *const root = hd_json_new();

    hd_json_text(root, "version", HD_VERSION);
    hd_json_text(root, "commit", HD_COMMIT);
    hd_json_text(root, "command_line", record->command_line);
    hd_json_text(root, "started", record->started);
    run_json_add_texts(root, "hosts", record->hosts, record->host_count);
    hd_json_text(root, "cpu", record->cpu);
    run_json_add_texts(root, "devices", record->devices, record->device_count);
    hd_json_text(root, "compiler", HD_COMPILER);
    run_json_add_libraries(root, record);
    run_json_add_environment(root);
    cJSON *const corpus = hd_json_object(root, "corpus");
    hd_json_text(corpus, "path", record->corpus_path);
    hd_json_u64(corpus, "bytes", record->corpus_bytes);
    hd_json_text(corpus, "sha256", record->corpus_sha256);
    run_json_add_plan(root, record);
    run_json_add_result(root, record);
    run_json_add_overlap(root, &record->overlap);
    run_json_add_clocks(root, record);
    run_json_add_ranks(root, record);
    if (record->is_finished) {
        hd_json_i64(root, "exit", record->exit_code);
    } else {
        hd_json_null(root, "exit");
    }
    return root;
}

hd_status hd_run_json_write(const struct hd_rundir *rundir, const struct hd_run_record *record,
                            struct hd_problem *problem)
{
    FILE *stream = NULL;

    HD_TRY(hd_rundir_open(rundir, "run.json", &stream, problem));
    cJSON *const root = run_json_document(record);
    hd_json_print(root, stream); /* commit checks the stream */
    hd_json_free(root);
    return hd_rundir_commit(rundir, "run.json", stream, problem);
}
