/* run/steps.c - the training loop of one rank. */
#include "run/steps.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "base/try.h"
#include "run/checkpoint.h"

#include <math.h>
#include <string.h>

/* COUNTED_FROM: the means begin here, if the run is that long; earlier steps warm up caches and
   kernels.  SETTLED_AFTER: after this step no code allocates memory that it keeps. */
enum { COUNTED_FROM = 3, SETTLED_AFTER = 2 };

static bool steps_reads_corpus(const struct hd_rank *rank)
{
    bool reads = false;

    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const struct hd_stage_spec *spec =
            &rank->session->job->model.specs[hd_engine_stage(rank->engine, local)];
        reads |= spec->has_embedding || spec->has_head;
    }
    return reads && rank->session->corpus != NULL;
}

/* Fills the step's tokens and targets.  Of the last sample of a corpus only a part may be there. */
static void steps_read_batch(struct hd_rank *rank, const struct hd_batch *batch)
{
    const struct hd_session *session = rank->session;
    const uint64_t sequence = session->job->config->model.sequence;
    const struct hd_corpus_range range = {
        .first = batch->first,
        .sample_count = (uint32_t)session->samples_per_step,
    };

    hd_corpus_samples(session->corpus, range, rank->tokens, rank->targets);
    const uint64_t whole = batch->labels / sequence, at = whole * sequence;
    const uint64_t position = (batch->first + whole) * sequence;
    const uint32_t rest = (uint32_t)(batch->labels % sequence);
    if (rest > 0) {
        hd_corpus_ids(session->corpus, position, rest, rank->tokens + at);
        hd_corpus_ids(session->corpus, position + 1, rest, rank->targets + at);
    }
    for (uint64_t i = batch->labels; i < session->samples_per_step * sequence; i++) {
        rank->targets[i] = -1;
    }
}

hd_status hd_rank_compute(struct hd_rank *rank, const struct hd_batch *batch,
                          struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    const struct hd_config *config = session->job->config;
    const struct hd_step_input input = {
        .step = batch->step,
        .tokens = rank->token_list,
        .targets = rank->target_list,
        .label_scale = 1.0 / (double)batch->labels,
        .auxiliary_scale = 1.0 / config->pipeline.microbatches,
    };

    if (steps_reads_corpus(rank)) {
        steps_read_batch(rank, batch);
    }
    const uint64_t cpu_ns = hd_thread_cpu_ns();
    const hd_status status = hd_engine_step(rank->engine, &input, problem);
    struct hd_rank_result *result = hd_rank_result(rank);
    result->engine_cpu_ns += hd_thread_cpu_ns() - cpu_ns;
    result->wait_cpu_ns += hd_engine_recorder(rank->engine)->times.wait_cpu_ns;
    result->action_count += hd_engine_recorder(rank->engine)->action_count;
    return status;
}

static hd_status steps_fill_block(struct hd_rank *rank, uint32_t step, struct hd_problem *problem)
{
    const struct hd_exchange *exchange = &rank->session->exchange;
    const uint32_t microbatches = hd_rank_config(rank)->pipeline.microbatches;
    const struct hd_step_times *times = &hd_engine_recorder(rank->engine)->times;
    /* 0 unless the run is launched; then the parent keeps it up to date. */
    const uint64_t offset_ns = (uint64_t)atomic_load(&hd_rank_result(rank)->clock_offset_ns);
    double *values = hd_exchange_values(rank->block);
    hd_status status = HD_OK;

    for (uint32_t local = 0; status == HD_OK && local < hd_engine_stage_count(rank->engine);
         local++) {
        const struct hd_exchange_stage *stage =
            &exchange->stages[hd_engine_stage(rank->engine, local)];
        hd_exchange_sum_terms(hd_engine_terms(rank->engine, local), microbatches, stage->term_count,
                              values + stage->term_offset);
        if (!rank->session->request.is_evaluation) {
            status = hd_engine_norms(rank->engine, local, values + stage->square_offset, problem);
        }
    }
    const struct hd_exchange_header header = {
        .vote = status == HD_OK && hd_engine_is_sound(rank->engine),
        .step = step,
        .compute_seconds = (double)times->compute_ns * 1e-9,
        .exposed_wait_seconds = (double)times->wait_ns * 1e-9,
        .launch_seconds = (double)times->launch_ns * 1e-9,
        .credit_wait_seconds = (double)times->credit_ns * 1e-9,
        .peak_payload_slots = hd_engine_peak_slots(rank->engine),
        .begin_ns = times->begin_ns + offset_ns,
        .end_ns = times->end_ns + offset_ns,
        .stop_signal = atomic_load(&rank->shared->board->stop_signal),
    };
    memcpy(rank->block, &header, sizeof header);
    return status;
}

static const struct hd_exchange_header *steps_header_of(const struct hd_rank *rank, uint32_t other)
{
    return (const struct hd_exchange_header *)(rank->blocks +
                                               other * rank->session->exchange.block_bytes);
}

/* All ranks judge from equal blocks, so their verdicts are equal. */
hd_status hd_rank_meet(struct hd_rank *rank, uint32_t step, struct hd_problem *problem)
{
    const struct hd_exchange *exchange = &rank->session->exchange;
    const struct hd_meeting meeting = {"meeting the other ranks at the end of the step",
                                       rank->block, exchange->block_bytes, rank->blocks};

    HD_TRY(steps_fill_block(rank, step, problem));
    HD_TRY(hd_rank_gather(rank, &meeting, problem));
    hd_engine_phase(rank->engine, HD_PHASE_UPDATE);
    hd_step_judge(exchange, rank->blocks, hd_rank_config(rank)->train.clip_norm, &rank->result);
    rank->signal = (int32_t)steps_header_of(rank, 0)->stop_signal;
    if (!rank->result.is_sound) {
        return hd_rank_leave(rank, HD_ABORTED, "a rank did not vote for the step", problem);
    }
    return HD_OK;
}

/* A step that is not finite changes no parameter, on any rank. */
static hd_status steps_update(struct hd_rank *rank, uint32_t step, double rate,
                              struct hd_problem *problem)
{
    const struct hd_config *config = hd_rank_config(rank);
    const struct hd_update update = {
        .size = sizeof update,
        .step = step - rank->skipped,
        .learning_rate = rate,
        .beta1 = config->train.beta1,
        .beta2 = config->train.beta2,
        .epsilon = config->train.epsilon,
        .weight_decay = config->train.weight_decay,
        .gradient_scale = rank->result.gradient_scale,
    };

    if (!rank->result.is_finite) {
        rank->skipped++;
        rank->skipped_in_row++;
        return HD_OK;
    }
    rank->skipped_in_row = 0;
    return hd_engine_update(rank->engine, &update, problem);
}

/* More such steps in a row than train.skip_max end the run. */
static hd_status steps_judge_nonfinite(struct hd_rank *rank, uint32_t step,
                                       struct hd_problem *problem)
{
    const uint32_t skip_max = hd_rank_config(rank)->train.skip_max;

    if (rank->skipped_in_row <= skip_max) {
        return HD_OK;
    }
    hd_problem_remedy(problem, "lower train.learning_rate, or allow skips with train.skip_max");
    hd_problem_place(problem, "step %u", step);
    hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_NONFINITE,
                   "the loss is %g and the gradient norm %g; parameters are those of step %u, %u "
                   "steps were skipped and train.skip_max is %u",
                   fabs(rank->result.loss), fabs(rank->result.grad_norm), step - 1,
                   rank->skipped - 1, skip_max);
    /* An abort ends every wait, so all ranks first wait here until rank 0 has kept the step. */
    hd_engine_phase(rank->engine, HD_PHASE_TOGETHER);
    hd_bootstrap_fence(rank->bootstrap, HD_RANK_FAR_NS);
    hd_board_abort(rank->shared->board, problem);
    return HD_PROTOCOL;
}

/* Adds the step to the sums of run.json. */
static void steps_count(struct hd_rank *rank, uint32_t step)
{
    const uint32_t first = rank->session->steps_before, steps = hd_rank_config(rank)->train.steps;
    struct hd_rank_result *result = hd_rank_result(rank);
    const struct hd_exchange_header *mine = steps_header_of(rank, rank->rank);
    const uint64_t resident_ns = hd_recorder_resident_ns(hd_engine_recorder(rank->engine));
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    double compute = 0;

    if (step < first + COUNTED_FROM && steps >= first + COUNTED_FROM) {
        rank->resident_before_ns = resident_ns;
        return;
    }
    result->counted_steps++;
    result->compute_seconds += mine->compute_seconds;
    result->exposed_wait_seconds += mine->exposed_wait_seconds;
    result->credit_wait_seconds += mine->credit_wait_seconds;
    result->launch_seconds += mine->launch_seconds;
    result->resident_wait_seconds += (double)(resident_ns - rank->resident_before_ns) * 1e-9;
    rank->resident_before_ns = resident_ns;
    for (uint32_t other = 0; other < rank->session->exchange.rank_count; other++) {
        const struct hd_exchange_header *header = steps_header_of(rank, other);
        begin_ns = hd_min_u64(begin_ns, header->begin_ns);
        end_ns = hd_max_u64(end_ns, header->end_ns);
        compute += header->compute_seconds;
    }
    rank->span_sum += (double)(end_ns - begin_ns) * 1e-9;
    rank->compute_sum += compute;
    rank->span_count++;
}

/* Rank 0 keeps the numbers of the step, on disk and in the region. */
static hd_status steps_keep(struct hd_rank *rank, struct hd_progress *progress,
                            const struct hd_metrics *metrics, struct hd_problem *problem)
{
    struct hd_session *session = rank->session;
    const struct hd_shared *shared = rank->shared;
    struct hd_results *results = shared->results;
    hd_status status = HD_OK;

    shared->losses[metrics->step - 1] = metrics->lacks_loss ? NAN : metrics->result.loss;
    shared->norms[metrics->step - 1] = metrics->result.grad_norm;
    shared->step_seconds[metrics->step - 1] = metrics->step_seconds;
    results->steps_done = metrics->step;
    results->balance_loss = metrics->result.balance_loss;
    results->z_loss = metrics->result.z_loss;
    if (rank->span_count > 0) {
        const double total = rank->span_sum * session->exchange.rank_count;
        results->measured_span_seconds = rank->span_sum / rank->span_count;
        results->measured_bubble = total > 0 ? 1 - rank->compute_sum / total : 0;
    }
    if (session->request.has_files) {
        status = hd_rundir_metrics(&session->rundir, metrics, problem);
    }
    hd_progress_step(progress, metrics);
    return status != HD_OK ? hd_rank_blame(rank, status, problem) : HD_OK;
}

static hd_status steps_train_step(struct hd_rank *rank, struct hd_progress *progress, uint32_t step,
                                  struct hd_problem *problem)
{
    const struct hd_config *config = hd_rank_config(rank);
    const struct hd_rate rate = {
        .learning_rate = config->train.learning_rate,
        .final_rate = config->train.final_rate,
        .warmup_steps = config->train.warmup_steps,
        .steps = config->train.steps,
        .is_cosine = config->train.decay,
    };
    const uint64_t tokens = rank->session->samples_per_step * config->model.sequence;
    const struct hd_batch batch = {step, hd_session_sample(rank->session, step), tokens};
    const uint64_t begin_ns = hd_now_ns();

    HD_TRY(hd_rank_compute(rank, &batch, problem));
    HD_TRY(hd_rank_meet(rank, step, problem));
    const double learning_rate = hd_rate_at(&rate, step);
    rank->learning_rate = learning_rate;
    HD_TRY(steps_update(rank, step, learning_rate, problem));
    steps_count(rank, step);
    if (rank->rank == 0) {
        const double seconds = (double)(hd_now_ns() - begin_ns) * 1e-9;
        const struct hd_metrics metrics = {
            .step = step,
            .time_s = (double)(hd_now_ns() - rank->session->started_ns) * 1e-9,
            .result = rank->result,
            .learning_rate = learning_rate,
            .tokens = tokens,
            .step_seconds = seconds,
            .tokens_per_second = (double)tokens / seconds,
            .skipped = !rank->result.is_finite,
            .lacks_loss = rank->session->corpus == NULL,
        };
        HD_TRY(steps_keep(rank, progress, &metrics, problem));
        rank->shared->results->skipped = rank->skipped;
    }
    return steps_judge_nonfinite(rank, step, problem);
}

/* Rank 0 warns once, when the corpus begins again. */
static void steps_warn_wrap(const struct hd_rank *rank, uint32_t step)
{
    const struct hd_session *session = rank->session;
    const uint64_t count = session->samples_per_step;
    const uint64_t first = hd_session_sample(session, step);

    if (rank->rank != 0 || session->corpus == NULL) {
        return;
    }
    const struct hd_corpus_range now = {first, (uint32_t)count};
    const struct hd_corpus_range before = {first - count, (uint32_t)count};
    if (hd_corpus_wraps(session->corpus, now) &&
        (first < count || !hd_corpus_wraps(session->corpus, before))) {
        hd_log(HD_LOG_WARN,
               "step %u: %s has been read to its end (%llu samples); reading starts again", step,
               hd_corpus_path(session->corpus),
               (unsigned long long)hd_corpus_sample_count(session->corpus));
    }
}

hd_status hd_rank_train(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_config *config = hd_rank_config(rank);
    struct hd_progress progress = {
        .is_quiet = rank->session->request.is_quiet || rank->rank != 0,
        .is_terminal = rank->session->request.is_terminal,
        .steps = config->train.steps,
        .begin_ns = hd_now_ns(),
        .first_step = rank->session->steps_before,
    };
    hd_status status = HD_OK;

    for (uint32_t step = rank->session->steps_before + 1;
         status == HD_OK && step <= config->train.steps && rank->signal == 0; step++) {
        steps_warn_wrap(rank, step);
        status = steps_train_step(rank, &progress, step, problem);
        if (step == rank->session->steps_before + SETTLED_AFTER) {
            hd_rank_result(rank)->settled_bytes = hd_rank_held_bytes();
        }
        if (status == HD_OK && hd_rank_is_due(rank, step)) {
            status = hd_rank_save(rank, step, problem);
        }
    }
    if (rank->rank == 0) {
        hd_progress_end(&progress);
    }
    /* No step was left, but the checkpoint may belong in another directory now. */
    if (rank->session->steps_before == config->train.steps &&
        hd_rank_is_due(rank, config->train.steps)) {
        status = hd_rank_save(rank, config->train.steps, problem);
    }
    return status;
}
