#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "base/try.h"
#include "run/job_check.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

uint64_t hd_session_sample(const struct hd_session *session, uint32_t step)
{
    assert(step > session->steps_before);
    return session->samples_before +
           (uint64_t)(step - session->steps_before - 1) * session->samples_per_step;
}

uint32_t hd_session_digest_offset(const struct hd_session *session, uint32_t stage)
{
    uint32_t offset = 0;

    for (uint32_t i = 0; i < stage; i++) {
        if (session->exchange.stages[i].rank == session->exchange.stages[stage].rank) {
            offset += session->exchange.stages[i].tensor_count;
        }
    }
    return offset;
}

static hd_status session_lay_out_exchange(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_job *job = session->job;
    const struct hd_pipeline *pipeline = job->pipeline;
    struct hd_exchange_stage *rows =
        hd_memory_take(pipeline->stage_count * sizeof *rows, 64, "exchange");
    uint64_t *tensors = hd_memory_take(pipeline->rank_count * sizeof *tensors, 64, "exchange");
    hd_status status = rows != NULL && tensors != NULL ? HD_OK : HD_NO_MEMORY;

    session->digest_count = 1;
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        const uint32_t rank = pipeline->stage_rank[stage];
        rows[stage] = (struct hd_exchange_stage){
            .rank = rank,
            .tensor_count = job->needs[stage].tensor_count,
            .term_count = job->needs[stage].term_count,
            .has_head = job->model.specs[stage].has_head && job->needs[stage].term_count > 0,
        };
        tensors[rank] += rows[stage].tensor_count;
        session->digest_count = hd_max_u64(session->digest_count, tensors[rank]);
    }
    if (status == HD_OK) {
        status = hd_exchange_layout(&session->exchange, pipeline->rank_count, pipeline->stage_count,
                                    rows);
    }
    hd_memory_give(rows);
    hd_memory_give(tensors);
    return status != HD_OK ? hd_problem_no_memory(problem, 0, "the exchange of the ranks") : HD_OK;
}

static hd_status session_open_corpus(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_config *config = session->job->config;
    const struct hd_corpus_request request = {
        .path = config->data.corpus,
        .format = config->data.format,
        .token_bytes = config->data.token_bytes,
        .vocabulary = config->model.vocabulary,
        .sequence = config->model.sequence,
        .samples_per_step = session->request.is_evaluation ? 1 : session->samples_per_step,
    };

    if (session->job->needs[session->job->pipeline->stage_count - 1].term_count == 0) {
        return HD_OK; /* a kernel without a loss (synthetic) reads no tokens */
    }
    return hd_corpus_open(&request, &session->corpus, problem);
}

/* Where the run begins: checks the checkpoint, and makes the directory. */
static hd_status session_start(struct hd_session *session, struct hd_problem *problem)
{
    struct hd_resume *const resume = session->request.resume;

    if (resume != NULL) {
        HD_TRY(hd_resume_check_model(resume, session->job, problem));
    }
    if (!session->request.has_files) {
        return HD_OK;
    }
    if (resume != NULL) {
        HD_TRY(hd_resume_check_run(resume, session->job, session->corpus, problem));
        session->steps_before = resume->state.step;
        session->samples_before = resume->state.samples;
        hd_log(HD_LOG_DEBUG, "resume: %s, step %u, %llu samples read", resume->directory,
               session->steps_before, (unsigned long long)session->samples_before);
    }
    if (session->corpus != NULL) {
        hd_corpus_sha256(session->corpus, session->corpus_sha256);
    }
    if (hd_launched_is_member(&session->launched)) {
        return HD_OK; /* the hub makes the directory */
    }
    HD_TRY(session->request.make_directory(&session->rundir, session->job->config, resume,
                                           session->request.overwrite, problem));
    hd_log(HD_LOG_DEBUG, "run directory: %s", session->rundir.path);
    return resume != NULL ? hd_resume_metrics(resume, &session->rundir, problem) : HD_OK;
}

/* All of a session that can fail. */
static hd_status session_open(struct hd_session *session, struct hd_problem *problem)
{
    HD_TRY(hd_job_check(session->job, problem));
    HD_TRY(hd_launched_create(&session->launched, session->request.link,
                              hd_plugins_carrier(&session->job->plugins), problem));
    HD_TRY(session_open_corpus(session, problem));
    HD_TRY(session_lay_out_exchange(session, problem));
    return session_start(session, problem);
}

hd_status hd_session_create(struct hd_session *session, struct hd_job *job,
                            const struct hd_session_request *request, struct hd_problem *problem)
{
    const struct hd_config *config = job->config;
    const time_t now = time(NULL);
    struct tm local;

    *session = (struct hd_session){.job = job, .request = *request, .started_ns = hd_now_ns()};
    session->rundir.metrics = -1;
    session->signalled_rank = -1;
    session->samples_per_step =
        (uint64_t)config->pipeline.microbatches * config->data.microbatch_size;
    localtime_r(&now, &local);
    strftime(session->started, sizeof session->started, "%Y-%m-%dT%H:%M:%S%z", &local);
    const hd_status status = session_open(session, problem);
    if (status != HD_OK) {
        hd_session_finish(session);
    }
    return status;
}

void hd_session_finish(struct hd_session *session)
{
    hd_corpus_close(session->corpus);
    session->corpus = NULL;
    hd_exchange_finish(&session->exchange);
    hd_rundir_close(&session->rundir);
    hd_launched_finish(&session->launched);
    free(session->report);
    session->report = NULL;
}
