/* run/start.c - at which step and sample a session begins, and what it knows of the steps
   before. */
#include "run/session.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

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

/* One directory, however it is written. */
static uint32_t start_is_same_directory(const char *one, const char *other)
{
    struct stat first, second;

    return stat(one, &first) == 0 && stat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static hd_status start_make_directory(struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_config *const config = session->job->config;
    const struct hd_resume *const resume = session->request.resume;
    const uint32_t overwrites = session->request.overwrite;
    uint32_t mode = overwrites ? HD_RUNDIR_OVERWRITE : HD_RUNDIR_NEW;

    if (resume != NULL && resume->kind == HD_RESUME_RUN &&
        start_is_same_directory(resume->directory, config->output.directory)) {
        mode = HD_RUNDIR_RESUME;
        if (overwrites) {
            hd_problem_place(problem, "command line");
            hd_problem_remedy(problem, "leave one of them out, or set output.directory");
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                                  "--overwrite removes what --resume goes on from");
        }
    }
    return hd_rundir_create(&session->rundir, config->output.directory, config->name, mode,
                            problem);
}

hd_status hd_session_start(struct hd_session *session, struct hd_problem *problem)
{
    struct hd_resume *const resume = session->request.resume;
    hd_status status = HD_OK;

    if (resume != NULL) {
        status = hd_resume_check_model(resume, session->job, problem);
    }
    if (status != HD_OK || !session->request.has_files) {
        return status;
    }
    if (resume != NULL) {
        status = hd_resume_check_run(resume, session->job, session->corpus, problem);
        if (status != HD_OK) {
            return status;
        }
        session->steps_before = resume->state.step;
        session->samples_before = resume->state.samples;
    }
    if (session->corpus != NULL) {
        hd_corpus_sha256(session->corpus, session->corpus_sha256);
    }
    if (hd_launched_is_member(session)) {
        return HD_OK; /* the hub's */
    }
    status = start_make_directory(session, problem);
    return status == HD_OK && resume != NULL ? hd_resume_metrics(resume, &session->rundir, problem)
                                             : status;
}

void hd_session_prepare_steps(const struct hd_session *session, void *region)
{
    const struct hd_resume *const resume = session->request.resume;
    const uint64_t bytes = session->steps_before * sizeof(double);

    hd_session_board(region)->steps_before = session->steps_before;
    if (session->steps_before == 0 || hd_launched_is_member(session)) {
        return; /* the numbers of the steps before are the hub's to write again */
    }
    memcpy(hd_session_losses(session, region), resume->losses, bytes);
    memcpy(hd_session_norms(session, region), resume->grad_norms, bytes);
    memcpy(hd_session_step_seconds(session, region), resume->step_seconds, bytes);
    hd_session_results(session, region)->steps_done = session->steps_before;
    hd_session_results(session, region)->skipped = resume->state.skipped;
}
