#include "cli/run_evaluate.h"
#include "base/text.h"
#include "run/evaluate.h"
#include "run/job_check.h"
#include "run/supervise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NATS_PER_BIT 0.69314718055994530942

static hd_status run_evaluate_keep_results(void *context, const struct hd_session *session,
                                           int32_t exit_code, struct hd_problem *problem)
{
    (void)exit_code;
    (void)problem;
    *(struct hd_results *)context = *session->shared.results;
    return HD_OK;
}

static void run_evaluate_print_header(const struct hd_cli *cli, const struct hd_session *session)
{
    const struct hd_resume *resume = session->request.resume;
    const struct hd_pipeline *pipeline = session->job->pipeline;
    struct hd_evaluation_extent extent;

    if (cli->is_quiet || cli->is_json) {
        return;
    }
    hd_evaluation_extent(session, &extent);
    fprintf(
        stderr,
        "evaluation: %s on %u rank%s, %u stage%s, %u microbatch%s, %u tick%s a step; kernel %s\n",
        pipeline->schedule, pipeline->rank_count, hd_cli_s(pipeline->rank_count),
        pipeline->stage_count, hd_cli_s(pipeline->stage_count), pipeline->microbatch_count,
        hd_cli_es(pipeline->microbatch_count), pipeline->asap_ticks, hd_cli_s(pipeline->asap_ticks),
        session->job->plugins.kernel->name);
    char format[HD_CORPUS_FORMAT_BYTES];
    fprintf(stderr, "corpus %s: %s; %llu sample%s of %u tokens in %u step%s; parameters: ",
            hd_corpus_path(session->corpus), hd_corpus_format(session->corpus, format),
            (unsigned long long)extent.sample_count, hd_cli_s(extent.sample_count),
            session->job->config->model.sequence, extent.step_count, hd_cli_s(extent.step_count));
    if (resume == NULL) {
        fprintf(stderr, "initial values\n");
    } else if (resume->kind == HD_RESUME_RUN) {
        fprintf(stderr, "%s, step %u\n", resume->directory, resume->state.step);
    } else {
        fprintf(stderr, "%s\n", resume->files[HD_CHECKPOINT_MODEL].path);
    }
}

static void run_evaluate_print_results(const struct hd_session *session,
                                       const struct hd_results *results)
{
    const double bits = results->evaluation.loss / NATS_PER_BIT;

    printf("loss %.6f nats a token, %.6f bits a %s; %llu labels of %llu samples\n",
           results->evaluation.loss, bits, hd_corpus_is_text(session->corpus) ? "byte" : "token",
           (unsigned long long)results->evaluation.labels,
           (unsigned long long)results->evaluation.samples);
    if (results->has_hash) {
        printf("parameters %.16s, unchanged\n", results->parameters_hash);
    }
}

static void run_evaluate_add_json(struct cJSON *json, const struct hd_session *session,
                                  const struct hd_results *results)
{
    const double bits = results->evaluation.loss / NATS_PER_BIT;
    const bool is_text = hd_corpus_is_text(session->corpus) != 0;

    hd_json_number(json, "loss", results->evaluation.loss);
    hd_json_number(json, "bits_per_token", bits);
    hd_json_number(json, "bits_per_byte", is_text ? bits : NAN);
    hd_json_u64(json, "samples", results->evaluation.samples);
    hd_json_u64(json, "labels", results->evaluation.labels);
    hd_json_u64(json, "steps", results->evaluation.steps_done);
    hd_json_u64(json, "ticks", session->job->pipeline->asap_ticks);
    hd_json_text(json, "parameters_hash", results->has_hash ? results->parameters_hash : NULL);
}

bool hd_cli_evaluate_refuse(struct hd_cli *cli, const struct hd_job *job)
{
    const struct hd_pipeline *pipeline = job->pipeline;

    if (!pipeline->is_forward_only) {
        hd_problem_remedy(&cli->problem, "use a schedule plugin");
        hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLAN,
                       "%s has backwards, and an evaluation runs forwards only",
                       pipeline->schedule);
        return true;
    }
    if (job->needs != NULL && job->needs[pipeline->stage_count - 1].term_count == 0) {
        hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_USAGE, "kernel %s computes no loss",
                       job->plugins.kernel->name);
        return true;
    }
    return false;
}

/* --steps N; leaves *steps if it is not given. */
static int run_evaluate_read_steps(struct hd_cli *cli, uint32_t *steps)
{
    const char *const text = hd_cli_option(cli, "--steps", 0);
    uint64_t number = 0;

    if (text != NULL &&
        (!hd_text_to_unsigned(text, &number) || number == 0 || number >= UINT32_MAX)) {
        return hd_cli_refuse(cli, "--steps must be a whole number, at least 1, not %.60s", text);
    }
    *steps = (uint32_t)number;
    return 0;
}

hd_status hd_cli_supervise(struct hd_cli *cli, struct hd_session *session)
{
    const hd_status status = hd_supervise(session, &cli->problem);

    cli->report = session->report;
    session->report = NULL;
    return status;
}

void hd_cli_evaluate(struct hd_cli *cli, struct hd_job *job, struct hd_session_request *request)
{
    struct hd_results results = {0};
    struct hd_session session;

    if (run_evaluate_read_steps(cli, &request->evaluation_steps) != 0 ||
        hd_job_check(job, &cli->problem) != HD_OK || hd_cli_evaluate_refuse(cli, job) ||
        hd_session_create(&session, job, request, &cli->problem) != HD_OK) {
        return;
    }
    session.listener =
        (struct hd_session_listener){.context = &results, .on_end = run_evaluate_keep_results};
    run_evaluate_print_header(cli, &session);
    const hd_status status = hd_cli_supervise(cli, &session);
    const bool prints = status == HD_OK && !hd_launched_is_member(&session.launched);
    if (prints && cli->is_json) {
        run_evaluate_add_json(cli->json, &session, &results);
    } else if (prints) {
        run_evaluate_print_results(&session, &results);
    }
    hd_session_finish(&session);
}
