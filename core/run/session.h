/*
 * run/session.h - one run, from its request to its end.
 *
 *   session.c    opens the corpus, checks the checkpoint, makes the directory    hd_session_create
 *   supervise.c  the parent: forks the ranks, judges what happens to them        hd_supervise
 *   launched.c   the parent again, where a launcher has started the ranks: what the parents of the
 *                ranks tell each other over the link
 *   rank_main.c  a rank: opens its engine, sets its parameters, runs the steps (steps.c) or the
 *                evaluation (evaluate.c), saves (checkpoint.c), leaves its results
 *
 * Parent and ranks share the memory of run/shared.h.
 */
#ifndef HEDDLE_RUN_SESSION_H
#define HEDDLE_RUN_SESSION_H

#include "launch/launch.h"
#include "run/job.h"
#include "run/launched.h"
#include "run/resume.h"
#include "run/shared.h"
#include "train/corpus.h"
#include "train/rundir.h"
#include "train/step.h"

/* What a command asks of a run. */
struct hd_session_request {
    bool overwrite, is_quiet, is_terminal; /* is_terminal: stderr is one */
    bool has_files;                        /* the run leaves a directory */
    /* Makes it; NULL without has_files. */
    hd_status (*make_directory)(struct hd_rundir *rundir, const struct hd_config *config,
                                const struct hd_resume *resume, bool overwrites,
                                struct hd_problem *problem);
    bool counts_wait_cpu;      /* fill hd_rank_result.wait_cpu_ns (bench) */
    bool trace_alternates;     /* record odd steps only (bench) */
    bool is_evaluation;        /* forward only; has_files is false */
    uint32_t evaluation_steps; /* at most; 0: as run/evaluate.h says */
    struct hd_resume *resume;  /* borrowed; NULL: initial values, step 1 */
    struct hd_link *link; /* borrowed; NULL: all ranks are forked here; else see run/launched.h */
    int argument_count;
    char *const *arguments; /* of the command line, for run.json */
};

struct hd_session;

/*
 * Callbacks of a session, in the parent process (in a launched run: rank 0's).  A member may be
 * NULL.  A status other than HD_OK ends the run with the callback's `problem`, unless the run has
 * failed already.
 */
struct hd_session_listener {
    void *context;
    /* The directory exists, and no rank has started: session->shared is not mapped yet. */
    hd_status (*on_begin)(void *context, const struct hd_session *session,
                          struct hd_problem *problem);
    /* All ranks have ended: session->problem is the cause if the run failed, and session->report
       says where each rank was.  session->shared is still mapped. */
    hd_status (*on_end)(void *context, const struct hd_session *session, int32_t exit_code,
                        struct hd_problem *problem);
};

struct hd_session {
    struct hd_job *job;
    struct hd_session_request request;
    struct hd_session_listener listener;
    struct hd_corpus *corpus; /* NULL: no stage reads tokens */
    struct hd_rundir rundir;
    struct hd_exchange exchange;
    uint64_t samples_per_step, started_ns;
    uint64_t digest_count; /* tensors of a rank, at most; at least 1 */
    uint32_t steps_before; /* of the checkpoint that the run continues */
    uint64_t samples_before;
    char corpus_sha256[HD_HASH_TEXT_BYTES]; /* empty without files or corpus */
    char started[40];                       /* ISO 8601 */
    struct hd_shared shared;
    struct hd_launched launched;

    /* The parent's. */
    uint64_t signalled_ns, last_tick_ns;
    int32_t signal;
    int32_t signalled_rank;       /* that got the signal, and not its parent; -1: none */
    struct hd_launch_event death; /* the first; kind 0: none */
    struct hd_problem problem;    /* the cause, if the run failed */
    char *report; /* where each rank was, if the run failed; owned; NULL: nothing to say */
};

/* Checks the job and the request, opens the corpus, makes the directory; no rank runs yet.  On
   failure the session is finished already. */
hd_status hd_session_create(struct hd_session *session, struct hd_job *job,
                            const struct hd_session_request *request, struct hd_problem *problem);
void hd_session_finish(struct hd_session *session);

/* The first sample of a step, counted over the whole job. */
uint64_t hd_session_sample(const struct hd_session *session, uint32_t step);
/* The index of the first tensor of `stage` among the tensors of its rank. */
uint32_t hd_session_digest_offset(const struct hd_session *session, uint32_t stage);

#endif /* HEDDLE_RUN_SESSION_H */
