/* output/files.c - the files that the parent writes: config.ini, run.json, hang.json. */
#include "base/clock.h"
#include "output/config_write.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/try.h"
#include "output/output.h"
#include "output/overlap.h"
#include "output/page.h"
#include "report/run_json.h"
#include "report/timeline.h"
#include "run/session.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 8192 };

/* Everything that a record borrows. */
struct facts {
    char command_line[LINE_BYTES], cpu[256], host[64], sha256[HD_HASH_TEXT_BYTES];
    const char **hosts, **devices; /* [rank_count], each once */
    struct hd_run_plugin plugins[4];
    struct hd_run_channel *channels; /* [channel_count] */
    struct hd_run_rank *ranks;       /* [rank_count] */
    struct hd_run_clock *clocks;     /* [rank_count] */
    struct hd_run_record record;
};

static void files_add_once(const char **list, uint32_t *count, const char *text)
{
    for (uint32_t i = 0; i < *count; i++) {
        if (strcmp(list[i], text) == 0) {
            return;
        }
    }
    list[(*count)++] = text;
}

static void files_add_plugin(struct facts *facts, const char *kind,
                             const struct hd_candidate *candidate)
{
    if (candidate != NULL) {
        facts->plugins[facts->record.plugin_count++] = (struct hd_run_plugin){
            .kind = kind,
            .name = candidate->plugin.name,
            .path = candidate->path,
            .version = candidate->plugin.version,
        };
    }
}

static void files_add_channels(struct facts *facts, const struct hd_session *session)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        const bool is_remote = hd_pipeline_is_remote(channel);
        const char *carrier = is_remote ? "" : "local";
        double resident = 0;
        if (is_remote && session->shared.channels != NULL) {
            const struct hd_channel_result *row = &session->shared.channels[channel->remote_index];
            carrier = row->carrier;
            resident = (double)(row->resident_ns[0] + row->resident_ns[1]) * 1e-9;
        }
        facts->channels[i] = (struct hd_run_channel){channel->boundary, channel->direction,
                                                     channel->source,   channel->target,
                                                     carrier,           resident};
    }
    facts->record.channels = facts->channels;
    facts->record.channel_count = pipeline->channel_count;
}

static struct hd_run_memory files_planned_memory(const struct hd_job *job, uint32_t rank)
{
    const struct hd_footprint *row = &job->footprints[rank];
    struct hd_run_memory memory = {row->state_bytes, row->payload_bytes, row->transfer_bytes,
                                   row->scratch_bytes, 0};

    for (uint32_t stage = 0; stage < job->pipeline->stage_count; stage++) {
        if (job->pipeline->stage_rank[stage] == rank) {
            memory.other += job->needs[stage].private_bytes;
        }
    }
    return memory;
}

/* The peaks of the tags, added up as the plan divides memory. */
static struct hd_run_memory files_measured_memory(const struct hd_rank_result *result)
{
    struct hd_run_memory memory = {0};
    const struct {
        const char *tag;
        uint64_t *bytes;
    } rows[] = {
        {"parameters", &memory.state}, {"optimizer", &memory.state},   {"gradients", &memory.state},
        {"payload", &memory.payload},  {"transfer", &memory.transfer}, {"scratch", &memory.scratch},
    };

    for (uint32_t i = 0; i < result->tag_count; i++) {
        uint64_t *bytes = &memory.other;
        for (unsigned row = 0; row < sizeof rows / sizeof rows[0]; row++) {
            bytes = strcmp(rows[row].tag, result->tags[i].tag) == 0 ? rows[row].bytes : bytes;
        }
        *bytes += result->tags[i].peak_bytes;
    }
    return memory;
}

static void files_add_ranks(struct facts *facts, const struct hd_session *session)
{
    for (uint32_t rank = 0; rank < session->job->pipeline->rank_count; rank++) {
        const struct hd_rank_result *result = &session->shared.ranks[rank];
        const double steps = result->counted_steps;
        if (result->device[0] != '\0') { /* else the rank ended early */
            files_add_once(facts->devices, &facts->record.device_count, result->device);
        }
        facts->ranks[rank] = (struct hd_run_rank){
            .compute_seconds = result->compute_seconds / steps,
            .exposed_wait_seconds = result->exposed_wait_seconds / steps,
            .launch_seconds = result->launch_seconds / steps,
            .resident_wait_seconds = result->resident_wait_seconds / steps,
            .peak_payload_slots = result->peak_payload_slots,
            .peak_bytes = result->peak_bytes,
            .planned = files_planned_memory(session->job, rank),
            .measured = files_measured_memory(result),
            .settled_bytes = result->settled_bytes,
            .held_bytes = result->held_bytes,
            .resident_peak_bytes = result->resident_peak_bytes,
            .memory_count = result->tag_count,
            .memory = result->tags,
        };
    }
    facts->record.devices = facts->devices;
    facts->record.ranks = facts->ranks;
}

static void files_add_clocks(struct facts *facts, const struct hd_session *session)
{
    for (uint32_t rank = 0; rank < session->job->pipeline->rank_count; rank++) {
        const struct hd_rank_result *result = &session->shared.ranks[rank];
        const struct hd_clock_reading *first = &result->clock_first, *last = &result->clock_last;
        if (first->at_ns > 0) {
            facts->clocks[facts->record.clock_count++] = (struct hd_run_clock){
                .rank = rank,
                .first_seconds = (double)first->offset_ns * 1e-9,
                .last_seconds = (double)last->offset_ns * 1e-9,
                .error_seconds = 1e-9 * (double)(first->error_ns > last->error_ns ? first->error_ns
                                                                                  : last->error_ns),
            };
        }
    }
    facts->record.clocks = facts->clocks;
}

static void files_add_results(struct facts *facts, const struct hd_session *session)
{
    const struct hd_results *results = session->shared.results;
    struct hd_run_record *record = &facts->record;

    record->step_count = results->steps_done;
    record->losses = session->shared.losses;
    record->grad_norms = session->shared.norms;
    record->step_seconds = session->shared.step_seconds;
    record->parameters_hash = results->has_hash ? results->parameters_hash : NULL;
    record->bubble_measured = results->steps_done > 0 ? results->measured_bubble : NAN;
}

static void files_add_hosts(struct facts *facts, const struct hd_session *session)
{
    const struct hd_link *link = session->request.link;

    gethostname(facts->host, sizeof facts->host - 1);
    files_add_once(facts->hosts, &facts->record.host_count, facts->host);
    for (uint32_t rank = 1; link != NULL && rank < hd_link_rank_count(link); rank++) {
        files_add_once(facts->hosts, &facts->record.host_count, hd_link_peer(link, rank)->host);
    }
    facts->record.hosts = facts->hosts;
}

static void files_add_origin(struct facts *facts, const struct hd_session *session)
{
    const struct hd_job *job = session->job;
    struct hd_run_record *record = &facts->record;

    hd_run_command_line(session->request.argument_count,
                        (const char *const *)session->request.arguments, facts->command_line,
                        LINE_BYTES);
    hd_run_cpu(facts->cpu, sizeof facts->cpu);
    files_add_hosts(facts, session);
    record->command_line = facts->command_line;
    record->started = session->started;
    record->cpu = facts->cpu;
    record->plan_hash = job->hash;
    record->plugins = facts->plugins;
    record->rank_count = job->pipeline->rank_count;
    record->step_tokens = session->samples_per_step * job->config->model.sequence;
    record->bubble_planned = hd_timeline_asap_bubble(session->job->pipeline);
    record->bubble_measured = NAN;
    files_add_plugin(facts, "schedule", job->plugins.schedule);
    files_add_plugin(facts, "transport", job->plugins.transport);
    files_add_plugin(facts, "transport", job->plugins.inner);
    files_add_plugin(facts, "kernel", job->plugins.kernel);
    if (session->corpus != NULL) {
        hd_corpus_sha256(session->corpus, facts->sha256);
        record->corpus_path = hd_corpus_path(session->corpus);
        record->corpus_bytes = hd_corpus_bytes(session->corpus);
        record->corpus_sha256 = facts->sha256;
    }
}

static void files_free_facts(struct facts *facts)
{
    if (facts != NULL) {
        free(facts->hosts);
        free(facts->devices);
        free(facts->channels);
        free(facts->ranks);
        free(facts->clocks);
    }
    free(facts);
}

static hd_status files_write_run(const struct hd_session *session, int32_t exit_code,
                                 struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = session->job->pipeline;
    struct facts *facts = calloc(1, sizeof *facts);
    hd_status status = HD_NO_MEMORY;

    if (exit_code >= 0) {
        hd_checkpoint_discard(session->rundir.path); /* a full disk needs the space for run.json */
    }
    if (facts != NULL) {
        facts->channels = calloc(pipeline->channel_count + 1u, sizeof *facts->channels);
        facts->ranks = calloc(pipeline->rank_count, sizeof *facts->ranks);
        facts->clocks = calloc(pipeline->rank_count, sizeof *facts->clocks);
        facts->hosts = calloc(pipeline->rank_count, sizeof *facts->hosts);
        facts->devices = calloc(pipeline->rank_count, sizeof *facts->devices);
    }
    if (facts != NULL && facts->hosts != NULL && facts->devices != NULL &&
        facts->channels != NULL && facts->ranks != NULL && facts->clocks != NULL) {
        files_add_origin(facts, session);
        files_add_channels(facts, session);
        facts->record.bubble_costed = hd_overlap_measure(session, &facts->record.overlap);
        if (session->shared.results != NULL) { /* the ranks have run */
            files_add_ranks(facts, session);
            files_add_clocks(facts, session);
            files_add_results(facts, session);
        }
        facts->record.is_finished = exit_code >= 0;
        facts->record.exit_code = exit_code;
        status = hd_run_json_write(&session->rundir, &facts->record, problem);
    } else {
        hd_problem_no_memory(problem, 0, "run.json");
    }
    files_free_facts(facts);
    return status;
}

static void files_add_lines(struct cJSON *list, const char *text)
{
    char line[LINE_BYTES];

    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1) {
        snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
        hd_json_text(list, NULL, line);
    }
}

static hd_status files_write_hang(const struct hd_session *session, struct hd_problem *problem)
{
    FILE *stream = NULL;
    HD_TRY(hd_rundir_open(&session->rundir, "hang.json", &stream, problem));
    struct cJSON *root = hd_json_new();
    hd_json_problem(root, &session->problem);
    files_add_lines(hd_json_array(root, "ranks"), session->report);
    hd_json_print(root, stream); /* commit asks the stream */
    hd_json_free(root);
    return hd_rundir_commit(&session->rundir, "hang.json", stream, problem);
}

/* A complete configuration: `heddle run DIR/config.ini` repeats the run. */
static hd_status files_write_config(const struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_plugin *list[HD_PLUGINS_MAX];
    const uint32_t count = hd_plugins_list(&session->job->plugins, list);
    FILE *stream = NULL;

    HD_TRY(hd_rundir_open(&session->rundir, "config.ini", &stream, problem));
    hd_config_make_absolute(session->job->config);
    hd_config_write(session->job->config, stream, 0, count, list);
    return hd_rundir_commit(&session->rundir, "config.ini", stream, problem);
}

hd_status hd_output_begin(void *context, const struct hd_session *session,
                          struct hd_problem *problem)
{
    (void)context;
    HD_TRY(files_write_config(session, problem));
    return files_write_run(session, -1, problem);
}

hd_status hd_output_end(const struct hd_session *session, int32_t exit_code,
                        struct hd_problem *problem)
{
    HD_TRY(files_write_run(session, exit_code, problem));
    if (session->job->config->output.trace) {
        HD_TRY(hd_output_write_trace(session, problem));
    }
    HD_TRY(hd_output_write_page(session, problem));
    return session->report != NULL ? files_write_hang(session, problem) : HD_OK;
}
