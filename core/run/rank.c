/* run/rank.c - the main of a rank: engine, parameters, steps, results. */
#include "run/rank.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "run/checkpoint.h"
#include "run/evaluate.h"
#include "train/initial.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

hd_status hd_rank_leave(struct hd_rank *rank, hd_status status, const char *what,
                        struct hd_problem *problem)
{
    if (hd_board_is_aborted(rank->board)) {
        hd_board_cause(rank->board, problem);
        return status;
    }
    hd_problem_place(problem, "rank %u", rank->rank);
    hd_problem_set(problem, status, status == HD_TIMEOUT ? HD_EXIT_PEER : HD_EXIT_FAILED, "%s: %s",
                   what, hd_status_name(status));
    hd_board_abort(rank->board, problem);
    hd_bootstrap_abort(rank->bootstrap);
    return status;
}

static hd_status rank_no_memory(struct hd_rank *rank, struct hd_problem *problem)
{
    hd_problem_remedy(problem, "%s", hd_engine_memory_remedy);
    return hd_rank_leave(rank, HD_NO_MEMORY, "allocating", problem);
}

/* Every channel of this rank is there before its first action. */
static void rank_say_channels(const struct hd_rank *rank)
{
    const struct hd_pipeline *pipeline = rank->session->job->pipeline;
    struct hd_channel_stats stats;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (!hd_pipeline_is_remote(channel)) {
            continue;
        }
        hd_engine_channel(rank->engine, channel->remote_index, &stats);
        if (channel->source == rank->rank || channel->target == rank->rank) {
            hd_log(HD_LOG_INFO, "channel %u: %s over boundary %u, rank %u to rank %u, by %s",
                   channel->remote_index, channel->direction == HD_FORWARD ? "forward" : "backward",
                   channel->boundary, channel->source, channel->target, stats.lane);
        }
    }
}

static hd_status rank_create_engine(struct hd_rank *rank, struct hd_problem *problem)
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
        .board = rank->board,
        .overlap = config->pipeline.overlap,
        .poison = config->debug.poison,
        .fault = config->debug.fault,
        .checksum = config->debug.checksum,
        .trace_steps = config->output.trace ? config->output.trace_steps : 0,
        .trace_alternates = session->request.trace_alternates,
        .steps_before = session->steps_before,
        .counts_wait_cpu = rank->session->request.counts_wait_cpu,
    };
    const hd_status status = hd_engine_create(&setup, &rank->engine, problem);
    if (status == HD_OK) {
        rank_say_channels(rank);
    }
    return status;
}

/* Ranks that disagree on the plan would exchange the wrong messages; they cannot here, after a
 * fork. */
static hd_status rank_agree(struct hd_rank *rank, struct hd_problem *problem)
{
    const uint32_t rank_count = hd_bootstrap_rank_count(rank->bootstrap);
    char(*all)[HD_HASH_TEXT_BYTES] = hd_memory_take(rank_count * sizeof *all, 64, "exchange");

    if (all == NULL) {
        return rank_no_memory(rank, problem);
    }
    const char *mine = rank->session->job->hash;
    hd_status status =
        hd_bootstrap_gather(rank->bootstrap, mine, HD_HASH_TEXT_BYTES, all, HD_RANK_FAR_NS);
    for (uint32_t other = 0; status == HD_OK && other < rank_count; other++) {
        if (memcmp(all[other], mine, HD_HASH_TEXT_BYTES) != 0) {
            hd_problem_set(
                problem, HD_PROTOCOL, HD_EXIT_USAGE,
                "rank %u has plan %.12s, rank %u has %.12s: plan, sizes, plugins, options "
                "or instruction set differ",
                rank->rank, mine, other, all[other]);
            status = HD_PROTOCOL;
        }
    }
    hd_memory_give(all);
    return status != HD_OK ? hd_rank_leave(rank, status, "comparing plans", problem) : HD_OK;
}

static hd_status rank_draw_stage(struct hd_rank *rank, uint32_t local, struct hd_problem *problem)
{
    const struct hd_config *config = hd_rank_config(rank);
    const uint32_t stage = hd_engine_stage(rank->engine, local);
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < rank->session->job->needs[stage].tensor_count;
         i++) {
        const struct hd_tensor_place place = {local, i, HD_MASTER};
        struct hd_tensor tensor;
        status = hd_engine_tensor(rank->engine, place, &tensor, problem);
        if (status != HD_OK) {
            return status;
        }
        void *values = hd_memory_take(hd_tensor_count(&tensor) * sizeof(double), 64, "initial");
        if (values == NULL) {
            return rank_no_memory(rank, problem);
        }
        hd_initial_fill(&tensor, config->train.seed, config->model.initial_deviation, values);
        status = hd_engine_write(rank->engine, place, values, problem);
        hd_memory_give(values);
    }
    return status;
}

/* The first values: drawn, or those of a checkpoint. */
static hd_status rank_set_parameters(struct hd_rank *rank, struct hd_problem *problem)
{
    hd_status status = HD_OK;

    if (rank->session->request.resume != NULL) {
        return hd_rank_load(rank, problem);
    }

    for (uint32_t local = 0; status == HD_OK && local < hd_engine_stage_count(rank->engine);
         local++) {
        status = rank_draw_stage(rank, local, problem);
    }
    return status;
}

/* Room for what this rank's stages read of the corpus, and for the exchange. */
static hd_status rank_take_buffers(struct hd_rank *rank, struct hd_problem *problem)
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
        return rank_no_memory(rank, problem);
    }
    for (uint64_t i = 0; i < microbatches; i++) {
        rank->token_list[i] = rank->tokens + i * tokens;
        rank->target_list[i] = rank->targets + i * tokens;
    }
    return HD_OK;
}

/* One digest a tensor, then one of all digests in global order (stage, then index). */
static hd_status rank_digest_stage(struct hd_rank *rank, uint32_t local,
                                   uint8_t (*digests)[HD_HASH_BYTES], struct hd_problem *problem)
{
    const uint32_t stage = hd_engine_stage(rank->engine, local);
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && i < rank->session->job->needs[stage].tensor_count;
         i++) {
        const struct hd_tensor_place place = {local, i, HD_MASTER};
        struct hd_tensor tensor;
        struct hd_hash hash;
        status = hd_engine_tensor(rank->engine, place, &tensor, problem);
        if (status != HD_OK) {
            return status;
        }
        const uint64_t item_bytes = tensor.dtype == HD_F64 ? sizeof(double) : sizeof(float);
        const uint64_t bytes = hd_tensor_count(&tensor) * item_bytes;
        void *values = hd_memory_take(bytes, 64, "hash");
        if (values == NULL) {
            return rank_no_memory(rank, problem);
        }
        status = hd_engine_read(rank->engine, place, values, problem);
        hd_hash_begin(&hash);
        hd_hash_add_text(&hash, tensor.name);
        hd_hash_add(&hash, values, bytes);
        hd_hash_end(&hash, digests[i]);
        hd_memory_give(values);
    }
    return status;
}

static void rank_join_digests(struct hd_rank *rank, const uint8_t (*all)[HD_HASH_BYTES],
                              uint64_t row_count)
{
    const struct hd_session *session = rank->session;
    struct hd_results *results = hd_session_results(session, rank->region);
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

static hd_status rank_hash_parameters(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    const uint64_t row_count = session->digest_count;
    const uint32_t rank_count = session->exchange.rank_count;
    uint8_t(*mine)[HD_HASH_BYTES] = hd_memory_take(row_count * HD_HASH_BYTES, 64, "hash");
    uint8_t(*all)[HD_HASH_BYTES] =
        hd_memory_take(rank_count * row_count * HD_HASH_BYTES, 64, "hash");
    hd_status status = mine != NULL && all != NULL ? HD_OK : rank_no_memory(rank, problem);

    for (uint32_t local = 0; status == HD_OK && local < hd_engine_stage_count(rank->engine);
         local++) {
        const uint32_t offset =
            hd_session_digest_offset(session, hd_engine_stage(rank->engine, local));
        status = rank_digest_stage(rank, local, mine + offset, problem);
    }
    if (status == HD_OK) {
        hd_engine_phase(rank->engine, HD_PHASE_TOGETHER);
        status = hd_bootstrap_gather(rank->bootstrap, mine, row_count * HD_HASH_BYTES, all,
                                     HD_RANK_FAR_NS);
        status = status != HD_OK ? hd_rank_leave(rank, status, "hashing the parameters", problem)
                                 : HD_OK;
    }
    if (status == HD_OK && rank->rank == 0) {
        rank_join_digests(rank, (const uint8_t(*)[HD_HASH_BYTES])all, row_count);
    }
    hd_memory_give(mine);
    hd_memory_give(all);
    return status;
}

uint64_t hd_rank_held_bytes(void)
{
    struct hd_memory_use uses[HD_MEMORY_TAG_MAX];
    const uint32_t count = hd_memory_report(uses, HD_MEMORY_TAG_MAX);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++) {
        bytes += uses[i].bytes;
    }
    return bytes;
}

/* Both ends leave the same text, and each its own numbers. */
static void rank_leave_lanes(struct hd_rank *rank)
{
    const struct hd_session *session = rank->session;
    const struct hd_pipeline *pipeline = session->job->pipeline;
    struct hd_channel_stats stats;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (!hd_pipeline_is_remote(channel)) {
            continue;
        }
        struct hd_session_lane *lane =
            hd_session_lane(session, rank->region, channel->remote_index);
        hd_engine_channel(rank->engine, channel->remote_index, &stats);
        if (stats.lane[0] != '\0') {
            memcpy(lane->text, stats.lane, sizeof lane->text);
        }
        if (channel->source == rank->rank || channel->target == rank->rank) {
            lane->resident_ns[channel->target == rank->rank] = stats.resident_ns;
        }
    }
}

/* What the recorder keeps, to the same rows of the region. */
static void rank_leave_records(struct hd_rank *rank, struct hd_rank_result *result)
{
    const struct hd_session *session = rank->session;
    struct hd_recorder *recorder = hd_engine_recorder(rank->engine);
    struct hd_record *records = hd_session_records(session, rank->region, rank->rank);

    hd_engine_settle(rank->engine);
    for (uint32_t step = 1; recorder->step_max > 0 && step <= recorder->step; step++) {
        const uint64_t row = (uint64_t)((step - 1) % recorder->step_max);
        hd_recorder_copy(recorder, step, records + row * session->actions_max);
    }
    result->lost_reports = hd_recorder_lost_count(recorder);
    if (result->lost_reports > 0) {
        hd_log(HD_LOG_WARN, "%llu reports of transfers had no place in the trace",
               (unsigned long long)result->lost_reports);
    }
}

/* Everything of run.json that only this process knows. */
static void rank_leave_results(struct hd_rank *rank)
{
    const struct hd_session *session = rank->session;
    struct hd_rank_result *result = hd_session_rank(session, rank->region, rank->rank);
    struct hd_memory_use uses[HD_MEMORY_TAG_MAX];
    struct rusage usage;
    const uint32_t use_count = hd_memory_report(uses, HD_MEMORY_TAG_MAX);

    for (uint32_t i = 0; i < use_count; i++) {
        result->peak_bytes += uses[i].peak_bytes;
        if (result->tag_count < HD_SESSION_TAG_MAX) {
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
    rank_leave_lanes(rank);
    rank_leave_records(rank, result);
}

static hd_status rank_run(struct hd_rank *rank, struct hd_problem *problem)
{
    hd_status (*const parts[])(struct hd_rank *, struct hd_problem *) = {
        rank_create_engine,
        rank_agree,
        hd_rank_list_tensors,
        rank_set_parameters,
        rank_take_buffers,
        rank->session->request.is_evaluation ? hd_rank_evaluate : hd_rank_train,
        rank_hash_parameters,
    };
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < sizeof parts / sizeof parts[0]; i++) {
        status = parts[i](rank, problem);
    }
    if (status == HD_OK) {
        rank_leave_results(rank);
        hd_engine_phase(rank->engine, HD_PHASE_DONE);
    }
    hd_rank_forget_tensors(rank);
    hd_engine_destroy(rank->engine);
    return status;
}

int32_t hd_session_rank_main(void *context, struct hd_bootstrap *bootstrap, void *region)
{
    struct hd_session *session = context;
    struct hd_rank rank = {
        .session = session,
        .bootstrap = bootstrap,
        .region = region,
        .board = hd_session_board(region),
        .rank = hd_bootstrap_rank(bootstrap),
    };
    struct hd_problem problem = {0};
    char path[sizeof session->rundir.path + 32];

    snprintf(path, sizeof path, "%s/log/rank-%04u.log", session->rundir.path, rank.rank);
    const uint32_t has_log = session->request.has_files && session->rundir.path[0] != '\0';
    const int error = hd_log_rank(rank.rank, has_log ? path : NULL);
    if (error != 0) {
        hd_problem_place(&problem, "%s", path);
        hd_problem_set(&problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot be opened: %s",
                       strerror(error));
        hd_board_abort(rank.board, &problem);
        return HD_EXIT_OUTPUT;
    }
    const hd_status status = rank_run(&rank, &problem);
    if (status != HD_OK) {
        hd_log(HD_LOG_INFO, "leaves: %s", problem.message);
        return problem.exit_code > 0 ? problem.exit_code : HD_EXIT_FAILED;
    }
    return rank.signal > 0 ? 128 + rank.signal : HD_EXIT_OK;
}
