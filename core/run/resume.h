/*
 * run/resume.h - where a run begins when it does not begin at nothing.
 *
 *   RUN      a directory that a run left: its checkpoint, and its metrics up to there
 *   WEIGHTS  a .safetensors file, or a directory that holds only model.safetensors, as
 *            transformers writes it: masters, by the names of Hugging Face's OLMoE; step 0
 *
 * The command opens it before the configuration is read (a RUN brings its config.ini), so that a
 * header that is wrong is said before any rank starts.  The ranks inherit the open files, and each
 * reads and checks the tensors of its own stages (run/checkpoint.h).
 */
#ifndef HEDDLE_RUN_RESUME_H
#define HEDDLE_RUN_RESUME_H

#include "run/job.h"
#include "train/checkpoint.h"
#include "train/corpus.h"
#include "train/rundir.h"
#include "train/safetensors.h"

enum hd_resume_kind { HD_RESUME_RUN = 1, HD_RESUME_WEIGHTS = 2 };

struct hd_resume {
    uint32_t kind;                    /* enum hd_resume_kind; 0: not open */
    uint32_t has_optimizer;           /* its file is open, too */
    char directory[4096];             /* RUN: of the run */
    struct hd_checkpoint_state state; /* WEIGHTS: zeroes, the beginning */
    struct hd_safetensors files[HD_CHECKPOINT_FILE_COUNT];
    double *losses, *grad_norms, *step_seconds; /* [state.step], of metrics.jsonl; NaN: unknown;
                                                   owned, in one block; NULL until kept */
};

/* Opens what `path` names and checks what can be checked without a model.  wants_optimizer 0: only
   the masters will be read.  HD_EXIT_USAGE; it is then closed already. */
hd_status hd_resume_open(struct hd_resume *resume, const char *path, uint32_t wants_optimizer,
                         struct hd_problem *problem);
void hd_resume_close(struct hd_resume *resume);

/* Is the checkpoint of this model, as far as shapes do not say it?  HD_EXIT_USAGE. */
hd_status hd_resume_check_model(const struct hd_resume *resume, const struct hd_job *job,
                                struct hd_problem *problem);
/* Can this job go on from it: is a step left, and is it the corpus (NULL: none) that it was trained
   on?  data.corpus may be another one only if the command line says so.  HD_EXIT_USAGE. */
hd_status hd_resume_check_run(const struct hd_resume *resume, const struct hd_job *job,
                              const struct hd_corpus *corpus, struct hd_problem *problem);

/* Writes the lines of the run's metrics.jsonl up to the checkpoint into `rundir`, which may be the
   same directory, and keeps their losses, norms and times.  HD_EXIT_OUTPUT. */
hd_status hd_resume_metrics(struct hd_resume *resume, const struct hd_rundir *rundir,
                            struct hd_problem *problem);

/* What of the job a checkpoint must agree with. */
void hd_resume_model(const struct hd_job *job, struct hd_checkpoint_model *model);

#endif /* HEDDLE_RUN_RESUME_H */
