#include "run/evaluate.h"
#include "base/clock.h"
#include "base/number.h"
#include "base/try.h"
#include "run/steps.h"

void hd_evaluation_extent(const struct hd_session *session, struct hd_evaluation_extent *extent)
{
    const struct hd_config *config = session->job->config;
    const uint64_t per_step = session->samples_per_step;
    const uint32_t sequence = config->model.sequence;
    const bool is_endless = hd_corpus_is_endless(session->corpus);
    const uint64_t labels = is_endless ? hd_corpus_sample_count(session->corpus) * sequence
                                       : hd_corpus_id_count(session->corpus) - 1;
    const uint64_t all = (labels + sequence - 1) / sequence;
    const uint64_t whole = (all + per_step - 1) / per_step;
    const uint32_t asked = session->request.evaluation_steps;
    const uint64_t usual = is_endless ? config->train.steps : whole;
    const uint64_t steps = asked > 0 && asked < whole ? asked : usual;

    extent->step_count = (uint32_t)hd_min_u64(steps, UINT32_MAX - 1);
    extent->sample_count = hd_min_u64(extent->step_count * per_step, all);
    extent->label_count = hd_min_u64(extent->sample_count * sequence, labels);
}

static hd_status evaluate_refuse_nonfinite(struct hd_rank *rank, uint32_t step,
                                           struct hd_problem *problem)
{
    hd_problem_place(problem, "step %u", step);
    hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_NONFINITE,
                   "the loss is %g: these parameters do not give a finite loss on this corpus",
                   rank->result.loss);
    hd_board_abort(rank->shared->board, problem);
    return HD_PROTOCOL;
}

static void evaluate_show(struct hd_progress *progress, const struct hd_rank *rank, uint32_t step,
                          uint64_t begin_ns)
{
    const double seconds = (double)(hd_now_ns() - begin_ns) * 1e-9;
    const uint64_t tokens = rank->session->samples_per_step * hd_rank_config(rank)->model.sequence;
    const struct hd_metrics metrics = {
        .step = step,
        .result = rank->result,
        .tokens = tokens,
        .step_seconds = seconds,
        .tokens_per_second = (double)tokens / seconds,
    };
    hd_progress_step(progress, &metrics);
}

hd_status hd_rank_evaluate(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    struct hd_results *results = rank->shared->results;
    struct hd_evaluation_extent extent;
    hd_evaluation_extent(session, &extent);
    struct hd_progress progress = {
        .is_quiet = session->request.is_quiet || rank->rank != 0,
        .is_terminal = session->request.is_terminal,
        .steps = extent.step_count,
        .begin_ns = hd_now_ns(),
    };
    double loss = 0;
    const uint64_t per_step = session->samples_per_step;
    const uint64_t labels_per_step = per_step * hd_rank_config(rank)->model.sequence;
    uint64_t done = 0; /* labels */

    for (uint32_t step = 1; step <= extent.step_count && rank->signal == 0; step++) {
        const struct hd_batch batch = {step, (step - 1) * per_step,
                                       hd_min_u64(extent.label_count - done, labels_per_step)};
        const uint64_t begin_ns = hd_now_ns();
        HD_TRY(hd_rank_compute(rank, &batch, problem));
        HD_TRY(hd_rank_meet(rank, step, problem));
        if (!rank->result.is_finite) {
            return evaluate_refuse_nonfinite(rank, step, problem);
        }
        done += batch.labels;
        loss += rank->result.loss * ((double)batch.labels / (double)extent.label_count);
        if (rank->rank == 0) {
            evaluate_show(&progress, rank, step, begin_ns);
            results->evaluation.steps_done = step;
        }
    }
    if (rank->rank == 0) {
        hd_progress_end(&progress);
        results->evaluation.samples =
            hd_min_u64(results->evaluation.steps_done * per_step, extent.sample_count);
        results->evaluation.labels = done;
        results->evaluation.loss = loss * ((double)extent.label_count / (double)done);
    }
    return HD_OK;
}
