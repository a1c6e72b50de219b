/*
 * run/resume.h - what a run starts from, other than initial values.
 *
 *   RUN      the directory of a run: its checkpoint, and its metrics up to the checkpoint
 *   WEIGHTS  a .safetensors file, or a directory that holds only model.safetensors, as
 *            transformers writes it: masters, by the names of Hugging Face's OLMoE; step 0
 *
 * The command opens it before it reads the configuration (a RUN has a config.ini), so a wrong
 * header is reported before any rank starts.  The ranks inherit the open files; each reads and
 * checks the tensors of its own stages (run/checkpoint.h).
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
    bool has_optimizer;               /* its file is open, too */
    char directory[4096];             /* RUN: of the run */
    struct hd_checkpoint_state state; /* WEIGHTS: zeroes, the state before step 1 */
    struct hd_safetensors files[HD_CHECKPOINT_FILE_COUNT];
    double *losses, *grad_norms, *step_seconds; /* [state.step], of metrics.jsonl; NaN: unknown;
                                                   owned, in one block; NULL until kept */
};

/* Opens what `path` names, and checks all that can be checked without a model.  Without
   wants_optimizer only the masters will be read.  HD_EXIT_USAGE; it is then closed already. */
hd_status hd_resume_open(struct hd_resume *resume, const char *path, bool wants_optimizer,
                         struct hd_problem *problem);
void hd_resume_close(struct hd_resume *resume);

/* Checks that the checkpoint is of this model, except for the shapes.  HD_EXIT_USAGE. */
hd_status hd_resume_check_model(const struct hd_resume *resume, const struct hd_job *job,
                                struct hd_problem *problem);
/* Checks that a step is left, and that `corpus` (NULL: none) is the checkpoint's; only the command
   line may set another data.corpus.  HD_EXIT_USAGE. */
hd_status hd_resume_check_run(const struct hd_resume *resume, const struct hd_job *job,
                              const struct hd_corpus *corpus, struct hd_problem *problem);

/* Writes the lines of the run's metrics.jsonl up to the checkpoint into `rundir`, which may be the
   same directory, and keeps their losses, norms and times.  HD_EXIT_OUTPUT. */
hd_status hd_resume_metrics(struct hd_resume *resume, const struct hd_rundir *rundir,
                            struct hd_problem *problem);

/* The part of the job that a checkpoint must agree with. */
void hd_resume_model(const struct hd_job *job, struct hd_checkpoint_model *model);

#endif /* HEDDLE_RUN_RESUME_H */
