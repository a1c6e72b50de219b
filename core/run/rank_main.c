/* run/rank_main.c - one rank from its fork to its exit: engine, parameters, steps, results. */
#include "run/rank_main.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/try.h"
#include "run/checkpoint.h"
#include "run/evaluate.h"
#include "run/ledger.h"
#include "run/steps.h"
#include "train/initial.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Whether the channel crosses to or from this rank. */
static bool rank_main_has_channel(const struct hd_rank *rank,
                                  const struct hd_pipeline_channel *channel)
{
    return hd_pipeline_is_remote(channel) &&
           (channel->source == rank->rank || channel->target == rank->rank);
}

static void rank_main_log_channels(const struct hd_rank *rank)
{
    const struct hd_pipeline *pipeline = rank->session->job->pipeline;
    struct hd_channel_stats stats;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (rank_main_has_channel(rank, channel)) {
            hd_engine_channel(rank->engine, channel->remote_index, &stats);
            hd_log(HD_LOG_INFO, "channel %u: %s over boundary %u, rank %u to rank %u, by %s",
                   channel->remote_index, channel->direction == HD_FORWARD ? "forward" : "backward",
                   channel->boundary, channel->source, channel->target, stats.lane);
        }
    }
}

static hd_status rank_main_create_engine(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    const struct hd_job *job = session->job;
    const struct hd_config *config = job->config;
    const struct hd_engine_setup setup = {
        .pipeline = job->pipeline,
        .specs = job->model.specs,
        .needs = job->needs,
        .rank = rank->rank,
        .ordinal = session->request.link != NULL
                       ? hd_link_peer(session->request.link, rank->rank)->local_rank
                       : rank->rank,
        .kernel = &job->plugins.kernel->plugin,
        .transport = &job->plugins.transport->plugin,
        .kernel_options = job->plugins.kernel_options,
        .transport_options = job->plugins.transport_options,
        .inner = job->plugins.inner != NULL ? &job->plugins.inner->plugin : NULL,
        .inner_options = job->plugins.inner_options,
        .progress_thread = config->transport.progress_thread,
        .bootstrap = {rank->bootstrap, hd_bootstrap_put, hd_bootstrap_get, hd_bootstrap_fence,
                      hd_bootstrap_abort},
        .board = rank->shared->board,
        .overlap = config->pipeline.overlap,
        .poison = config->debug.poison,
        .fault = config->debug.fault,
        .checksum = config->debug.checksum,
        .trace_steps = config->output.trace ? config->output.trace_steps : 0,
        .trace_alternates = session->request.trace_alternates,
        .steps_before = session->steps_before,
        .counts_wait_cpu = session->request.counts_wait_cpu,
    };
    HD_TRY(hd_engine_create(&setup, &rank->engine, problem));
    rank_main_log_channels(rank);
    return HD_OK;
}

/* One tensor of this rank, with room for its values. */
struct tensor_visit {
    struct hd_tensor_place place;
    const struct hd_tensor *tensor;
    void *values;
    uint8_t *digest; /* [HD_HASH_BYTES] */
};

/* Visits the tensors of this rank.  The visitor gets, in turn, the digests of `digests`, which are
   in the order of hd_session_digest_offset; NULL: it needs none. */
static hd_status rank_main_each_tensor(struct hd_rank *rank,
                                       hd_status (*visit)(struct hd_rank *rank,
                                                          const struct tensor_visit *visit,
                                                          struct hd_problem *problem),
                                       uint8_t (*digests)[HD_HASH_BYTES],
                                       struct hd_problem *problem)
{
    hd_status status = HD_OK;

    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const uint32_t stage = hd_engine_stage(rank->engine, local);
        const uint32_t first = hd_session_digest_offset(rank->session, stage);
        const uint32_t count = rank->session->job->needs[stage].tensor_count;
        for (uint32_t i = 0; status == HD_OK && i < count; i++) {
            struct hd_tensor tensor;
            struct tensor_visit one = {.place = {local, i, HD_MASTER}, .tensor = &tensor};
            HD_TRY(hd_engine_tensor(rank->engine, one.place, &tensor, problem));
            one.digest = digests != NULL ? digests[first + i] : NULL;
            one.values = hd_memory_take(hd_tensor_count(&tensor) * sizeof(double), 64, "tensor");
            status =
                one.values != NULL ? visit(rank, &one, problem) : hd_rank_no_memory(rank, problem);
            hd_memory_give(one.values);
        }
    }
    return status;
}

static hd_status rank_main_draw(struct hd_rank *rank, const struct tensor_visit *visit,
                                struct hd_problem *problem)
{
    const struct hd_config *config = hd_rank_config(rank);

    hd_initial_fill(visit->tensor, config->train.seed, config->model.initial_deviation,
                    visit->values);
    return hd_engine_write(rank->engine, visit->place, visit->values, problem);
}

static hd_status rank_main_set_parameters(struct hd_rank *rank, struct hd_problem *problem)
{
    return rank->session->request.resume != NULL
               ? hd_rank_load(rank, problem)
               : rank_main_each_tensor(rank, rank_main_draw, NULL, problem);
}

/* For what this rank's stages read of the corpus, and for the exchange. */
static hd_status rank_main_take_buffers(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    const struct hd_config *config = session->job->config;
    const uint64_t microbatches = config->pipeline.microbatches;
    const uint64_t tokens = (uint64_t)config->data.microbatch_size * config->model.sequence;
    const uint64_t block_bytes = session->exchange.block_bytes;

    rank->block = hd_memory_take(block_bytes, 64, "exchange");
    rank->blocks = hd_memory_take(block_bytes * session->exchange.rank_count, 64, "exchange");
    rank->token_list = hd_memory_take(microbatches * sizeof(int32_t *), 64, "tokens");
    rank->target_list = hd_memory_take(microbatches * sizeof(int32_t *), 64, "tokens");
    rank->tokens = hd_memory_take(microbatches * tokens * sizeof(int32_t), 64, "tokens");
    rank->targets = hd_memory_take(microbatches * tokens * sizeof(int32_t), 64, "tokens");
    if (!rank->block || !rank->blocks || !rank->token_list || !rank->target_list || !rank->tokens ||
        !rank->targets) {
        return hd_rank_no_memory(rank, problem);
    }
    for (uint64_t i = 0; i < microbatches; i++) {
        rank->token_list[i] = rank->tokens + i * tokens;
        rank->target_list[i] = rank->targets + i * tokens;
    }
    return HD_OK;
}

static hd_status rank_main_digest(struct hd_rank *rank, const struct tensor_visit *visit,
                                  struct hd_problem *problem)
{
    const uint64_t item_bytes = visit->tensor->dtype == HD_F64 ? sizeof(double) : sizeof(float);
    struct hd_hash hash;

    const hd_status status = hd_engine_read(rank->engine, visit->place, visit->values, problem);
    hd_hash_begin(&hash);
    hd_hash_add_text(&hash, visit->tensor->name);
    hd_hash_add(&hash, visit->values, hd_tensor_count(visit->tensor) * item_bytes);
    hd_hash_end(&hash, visit->digest);
    return status;
}

/* The digest of all digests, in global order (stage, then index). */
static void rank_main_join_digests(struct hd_rank *rank, const uint8_t (*all)[HD_HASH_BYTES],
                                   uint64_t row_count)
{
    const struct hd_session *session = rank->session;
    struct hd_results *results = rank->shared->results;
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (uint32_t stage = 0; stage < session->exchange.stage_count; stage++) {
        const struct hd_exchange_stage *row = &session->exchange.stages[stage];
        hd_hash_add(&hash, all[row->rank * row_count + hd_session_digest_offset(session, stage)],
                    (uint64_t)row->tensor_count * HD_HASH_BYTES);
    }
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, results->parameters_hash);
    results->has_hash = 1;
}

static hd_status rank_main_hash_parameters(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    const uint64_t row_count = session->digest_count;
    const uint32_t rank_count = session->exchange.rank_count;
    uint8_t(*mine)[HD_HASH_BYTES] = hd_memory_take(row_count * HD_HASH_BYTES, 64, "hash");
    uint8_t(*all)[HD_HASH_BYTES] =
        hd_memory_take(rank_count * row_count * HD_HASH_BYTES, 64, "hash");
    const struct hd_meeting meeting = {"hashing the parameters", mine, row_count * HD_HASH_BYTES,
                                       all};
    hd_status status = mine != NULL && all != NULL ? HD_OK : hd_rank_no_memory(rank, problem);

    if (status == HD_OK) {
        status = rank_main_each_tensor(rank, rank_main_digest, mine, problem);
    }
    if (status == HD_OK) {
        status = hd_rank_gather(rank, &meeting, problem);
    }
    if (status == HD_OK && rank->rank == 0) {
        rank_main_join_digests(rank, (const uint8_t(*)[HD_HASH_BYTES])all, row_count);
    }
    hd_memory_give(mine);
    hd_memory_give(all);
    return status;
}

/* Both ends report the same carrier, and each its own numbers. */
static void rank_main_leave_channels(struct hd_rank *rank)
{
    const struct hd_pipeline *pipeline = rank->session->job->pipeline;
    struct hd_channel_stats stats;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (rank_main_has_channel(rank, channel)) {
            struct hd_channel_result *result = &rank->shared->channels[channel->remote_index];
            hd_engine_channel(rank->engine, channel->remote_index, &stats);
            if (stats.lane[0] != '\0') {
                memcpy(result->carrier, stats.lane, sizeof result->carrier);
            }
            result->resident_ns[channel->target == rank->rank] = stats.resident_ns;
        }
    }
}

/* Copies the steps that the recorder keeps. */
static void rank_main_leave_records(struct hd_rank *rank, struct hd_rank_result *result)
{
    struct hd_recorder *recorder = hd_engine_recorder(rank->engine);
    struct hd_record *records = hd_shared_records(rank->shared, rank->rank);

    hd_engine_settle(rank->engine);
    for (uint32_t step = 1; recorder->step_max > 0 && step <= recorder->step; step++) {
        const uint64_t row = (uint64_t)((step - 1) % recorder->step_max);
        hd_recorder_copy(recorder, step, records + row * rank->shared->actions_max);
    }
    result->lost_reports = hd_recorder_lost_count(recorder);
    if (result->lost_reports > 0) {
        hd_log(HD_LOG_WARN, "the trace lacks %llu transfers: it was full",
               (unsigned long long)result->lost_reports);
    }
}

/* Everything of run.json that only this process knows. */
static void rank_main_leave_results(struct hd_rank *rank)
{
    struct hd_rank_result *result = hd_rank_result(rank);
    struct hd_memory_use uses[HD_MEMORY_TAG_MAX];
    struct rusage usage;
    const uint32_t use_count = hd_memory_report(uses, HD_MEMORY_TAG_MAX);

    for (uint32_t i = 0; i < use_count; i++) {
        result->peak_bytes += uses[i].peak_bytes;
        if (result->tag_count < HD_RANK_TAG_MAX) {
            snprintf(result->tags[result->tag_count].tag, sizeof result->tags[0].tag, "%s",
                     uses[i].tag);
            result->tags[result->tag_count].bytes = uses[i].bytes;
            result->tags[result->tag_count++].peak_bytes = uses[i].peak_bytes;
        }
    }
    result->held_bytes = hd_rank_held_bytes();
    getrusage(RUSAGE_SELF, &usage);
    result->resident_peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
    result->peak_payload_slots = hd_engine_peak_slots(rank->engine);
    snprintf(result->device, sizeof result->device, "%s", hd_engine_device(rank->engine));
    rank_main_leave_channels(rank);
    rank_main_leave_records(rank, result);
}

static hd_status rank_main_run(struct hd_rank *rank, struct hd_problem *problem)
{
    hd_status (*const parts[])(struct hd_rank *, struct hd_problem *) = {
        rank_main_create_engine,
        hd_ledger_create,
        rank_main_set_parameters,
        rank_main_take_buffers,
        rank->session->request.is_evaluation ? hd_rank_evaluate : hd_rank_train,
        rank_main_hash_parameters,
    };
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < sizeof parts / sizeof parts[0]; i++) {
        status = parts[i](rank, problem);
    }
    if (status == HD_OK) {
        rank_main_leave_results(rank);
        hd_engine_phase(rank->engine, HD_PHASE_DONE);
    }
    hd_ledger_destroy(rank->ledger);
    hd_engine_destroy(rank->engine);
    return status;
}

int32_t hd_rank_main(void *context, struct hd_bootstrap *bootstrap, void *region)
{
    struct hd_session *session = context;
    struct hd_rank rank = {
        .session = session,
        .shared = &session->shared,
        .bootstrap = bootstrap,
        .rank = hd_bootstrap_rank(bootstrap),
    };
    struct hd_problem problem = {0};
    char path[sizeof session->rundir.path + 32];

    (void)region;
    snprintf(path, sizeof path, "%s/log/rank-%04u.log", session->rundir.path, rank.rank);
    const bool has_log = session->request.has_files && session->rundir.path[0] != '\0';
    const int error = hd_log_rank(rank.rank, has_log ? path : NULL);
    if (error != 0) {
        hd_problem_place(&problem, "%s", path);
        hd_problem_set(&problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot open the log: %s",
                       strerror(error));
        hd_board_abort(rank.shared->board, &problem);
        return HD_EXIT_OUTPUT;
    }
    const hd_status status = rank_main_run(&rank, &problem);
    if (status != HD_OK) {
        hd_log(HD_LOG_INFO, "ends: %s", problem.message);
        return problem.exit_code > 0 ? problem.exit_code : HD_EXIT_FAILED;
    }
    return rank.signal > 0 ? 128 + rank.signal : HD_EXIT_OK;
}
