/*
 * run/session.h - one run: what parent and ranks share, and who does what in it.
 *
 *   parent   makes the directory and opens the corpus, forks, supervises, and tells its listener
 *            when the run begins and ends
 *   rank     opens its engine, draws its parameters, runs the steps, leaves its results
 *
 * The region is the launcher's shared memory: the board, then the results, then the records of
 * the last steps.  Rank 0 alone writes losses, norms and times of the steps; every rank its own
 * row.
 */
#ifndef HEDDLE_RUN_SESSION_H
#define HEDDLE_RUN_SESSION_H

#include "base/memory.h"
#include "engine/board.h"
#include "engine/recorder.h"
#include "launch/clock.h"
#include "launch/launch.h"
#include "run/job.h"
#include "run/launched.h"
#include "run/resume.h"
#include "train/corpus.h"
#include "train/rundir.h"
#include "train/step.h"

#define HD_SESSION_TAG_MAX HD_MEMORY_TAG_MAX

/* What one rank leaves behind. */
struct hd_rank_result {
    double compute_seconds, exposed_wait_seconds, credit_wait_seconds, launch_seconds; /* sums */
    double resident_wait_seconds; /* likewise: as the transport reports it */
    uint64_t engine_cpu_ns;       /* CPU time of the step's thread inside hd_engine_step */
    uint64_t wait_cpu_ns;         /* of it in waits for other ranks; 0 unless the request asks */
    uint64_t action_count;        /* run in that time */
    uint64_t peak_payload_slots;
    uint64_t peak_bytes;
    uint64_t settled_bytes, held_bytes; /* after the second step here, and at the end */
    uint64_t resident_peak_bytes;       /* of the process, libraries included */
    uint32_t counted_steps; /* the sums are over these: from step 3 on, or all if there are fewer */
    uint32_t tag_count;
    struct {
        char tag[24];
        uint64_t bytes, peak_bytes;
    } tags[HD_SESSION_TAG_MAX];
    uint64_t lost_reports;           /* of transfers, that had no place in the trace */
    _Atomic int64_t clock_offset_ns; /* to add to its host's clock for rank 0's */
    struct hd_clock_reading clock_first, clock_last; /* at the start and at the end; at_ns 0: it is
                                                        on rank 0's machine */
    char device[160];
};

/* What both ends of a remote channel say of it. */
struct hd_session_lane {
    char text[36]; /* what really carries it; "": nobody has said */
    uint32_t reserved;
    uint64_t resident_ns[2]; /* at the source, at the target; of the whole run */
};

struct hd_results {
    uint32_t steps_done; /* losses and so on up to here are valid */
    uint32_t skipped;
    uint32_t has_hash;
    char parameters_hash[HD_HASH_TEXT_BYTES];
    double measured_bubble;       /* mean over the counted steps; NaN: none */
    double measured_span_seconds; /* mean: from the first action's begin to the last one's end */
    double balance_loss, z_loss;  /* of the last step */
    struct {
        uint32_t steps_done;
        uint64_t samples, labels; /* that were read, each once */
        double loss;              /* mean over the labels, in nats */
    } evaluation;
};

/* What a command asks of a run. */
struct hd_session_request {
    uint32_t overwrite, is_quiet, is_terminal; /* is_terminal: stderr is one */
    uint32_t has_files;                        /* 0: no directory at all (bench) */
    uint32_t counts_wait_cpu;                  /* hd_rank_result.wait_cpu_ns (bench) */
    uint32_t trace_alternates;                 /* only odd steps are recorded (bench) */
    uint32_t is_evaluation;                    /* forward only; has_files is 0 */
    uint32_t evaluation_steps;                 /* at most; 0: as run/evaluate.h says */
    struct hd_resume *resume;                  /* borrowed; NULL: initial values, step 1 */
    struct hd_link *link; /* borrowed; NULL: all ranks are forked here; else see run/launched.h */
    int argument_count;
    char *const *arguments; /* for run.json */
};

struct hd_session;

/* What a session tells of itself, in the parent process (of a launched run: the hub's).  Members
   may be NULL.  A status other than HD_OK ends the run with `problem`, unless it has failed
   already. */
struct hd_session_listener {
    void *context;
    /* The directory is there, and no rank has started. */
    hd_status (*on_begin)(void *context, const struct hd_session *session,
                          struct hd_problem *problem);
    /* All ranks are gone: session->problem is the cause if it ended badly, session->report says who
       was where.  The region is still there, and is gone afterwards. */
    hd_status (*on_end)(void *context, const struct hd_session *session, void *region,
                        int32_t exit_code, struct hd_problem *problem);
};

struct hd_session {
    struct hd_job *job;
    struct hd_session_request request;
    struct hd_corpus *corpus; /* NULL: no stage reads tokens */
    struct hd_rundir rundir;
    struct hd_exchange exchange;
    uint64_t samples_per_step, started_ns;
    double planned_bubble; /* of the asap timeline */
    uint32_t steps_before; /* of the checkpoint that the run goes on from */
    uint64_t samples_before;
    char corpus_sha256[HD_HASH_TEXT_BYTES]; /* empty without files or corpus */
    char started[40];                       /* ISO 8601 */

    /* Offsets into the region. */
    uint64_t results_offset, steps_offset, ranks_offset, lanes_offset, records_offset, region_bytes;
    uint64_t actions_max;  /* of a rank */
    uint64_t record_count; /* of one rank: trace_steps x actions_max */
    uint64_t digest_count; /* tensors of a rank, at most; at least 1 */

    /* The parent's. */
    struct hd_launched launched;
    uint64_t signalled_ns;
    int32_t signal;
    uint64_t last_tick_ns;
    struct hd_launch_event death; /* the first; kind 0: none */
    struct hd_problem problem;    /* the cause, when it ended badly */
    char *report;                 /* who was where, when it ended badly; owned; NULL: none */
    struct hd_session_listener listener;
};

/* Views of the region. */
struct hd_board *hd_session_board(void *region);
struct hd_results *hd_session_results(const struct hd_session *session, void *region);
double *hd_session_losses(const struct hd_session *session, void *region);       /* [steps] */
double *hd_session_norms(const struct hd_session *session, void *region);        /* [steps] */
double *hd_session_step_seconds(const struct hd_session *session, void *region); /* [steps] */
struct hd_rank_result *hd_session_rank(const struct hd_session *session, void *region,
                                       uint32_t rank);
struct hd_session_lane *hd_session_lane(const struct hd_session *session, void *region,
                                        uint32_t channel);
struct hd_record *hd_session_records(const struct hd_session *session, void *region, uint32_t rank);

/* Opens corpus and directory and lays out the region; nothing runs yet. */
hd_status hd_session_create(struct hd_session *session, struct hd_job *job,
                            const struct hd_session_request *request, struct hd_problem *problem);
/* What the launcher has seen, here or over the link.  1: the run is to end. */
uint32_t hd_session_on_event(struct hd_session *session, void *region,
                             const struct hd_launch_event *event);
/* Forks, trains, writes the files.  HD_OK: every step was done; else the problem says the cause. */
hd_status hd_session_run(struct hd_session *session, struct hd_problem *problem);
void hd_session_finish(struct hd_session *session);

/* run/start.c.  With corpus and exchange there: checks request.resume, makes the directory, and
   says where the run begins.  In the parent, before the first fork: what the region must hold. */
hd_status hd_session_start(struct hd_session *session, struct hd_problem *problem);
void hd_session_prepare_steps(const struct hd_session *session, void *region);
/* The first sample of a step, counted over the whole job. */
uint64_t hd_session_sample(const struct hd_session *session, uint32_t step);
/* Place of the first tensor of `stage` among the tensors of its rank. */
uint32_t hd_session_digest_offset(const struct hd_session *session, uint32_t stage);

/* run/rank.c: the main of a rank. */
int32_t hd_session_rank_main(void *context, struct hd_bootstrap *bootstrap, void *region);

#endif /* HEDDLE_RUN_SESSION_H */
