#include "run/resume.h"
#include "base/log.h"
#include "base/try.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* 'f': a file; 'd': a directory; 0: neither. */
static char resume_kind_of(const char *directory, const char *name)
{
    char path[4096];
    struct stat facts;
    const int length = snprintf(path, sizeof path, "%s%s%s", directory, name[0] ? "/" : "", name);

    if (length >= (int)sizeof path || stat(path, &facts) != 0) {
        return 0;
    }
    return S_ISDIR(facts.st_mode) ? 'd' : (S_ISREG(facts.st_mode) ? 'f' : 0);
}

static hd_status resume_open_weights(struct hd_resume *resume, const char *path,
                                     struct hd_problem *problem)
{
    resume->kind = HD_RESUME_WEIGHTS;
    return hd_safetensors_open(&resume->files[HD_CHECKPOINT_MODEL], path, problem);
}

/* The header must have the digest of state.json. */
static hd_status resume_open_file(struct hd_resume *resume, uint32_t index,
                                  struct hd_problem *problem)
{
    struct hd_safetensors *const file = &resume->files[index];
    char path[4096], text[HD_HASH_TEXT_BYTES];

    HD_TRY(hd_checkpoint_path(resume->directory, hd_checkpoint_files[index], path, problem));
    HD_TRY(hd_safetensors_open(file, path, problem));
    hd_hash_text(file->header_digest, text);
    hd_problem_place(problem, "%.500s", path);
    if (file->file_bytes != resume->state.file_bytes[index]) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "has %llu bytes, but %llu in state.json",
                              (unsigned long long)file->file_bytes,
                              (unsigned long long)resume->state.file_bytes[index]);
    }
    if (strcmp(text, resume->state.header_sha256[index]) != 0) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "its header has SHA-256 %.12s.., but %.12s.. in state.json: the file "
                              "is damaged or from another checkpoint",
                              text, resume->state.header_sha256[index]);
    }
    return HD_OK;
}

static hd_status resume_open_run(struct hd_resume *resume, bool wants_optimizer,
                                 struct hd_problem *problem)
{
    resume->kind = HD_RESUME_RUN;
    HD_TRY(hd_checkpoint_read_state(resume->directory, &resume->state, problem));
    HD_TRY(resume_open_file(resume, HD_CHECKPOINT_MODEL, problem));
    if (wants_optimizer) {
        HD_TRY(resume_open_file(resume, HD_CHECKPOINT_OPTIMIZER, problem));
        resume->has_optimizer = true;
    }
    return HD_OK;
}

static hd_status resume_open_any(struct hd_resume *resume, const char *path, bool wants_optimizer,
                                 struct hd_problem *problem)
{
    char model[4096];
    const char kind = resume_kind_of(path, "");

    if (kind == 'f') {
        return resume_open_weights(resume, path, problem);
    }
    if (strlen(path) + sizeof "/checkpoint/optimizer.safetensors" > sizeof model) {
        hd_problem_place(problem, "--resume");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "the path is too long");
    }
    /* A process that still runs there may be between the two renames itself. */
    if (!hd_rundir_is_busy(path)) {
        HD_TRY(hd_checkpoint_recover(path, problem));
    }
    const bool is_run =
        resume_kind_of(path, "checkpoint") == 'd' || resume_kind_of(path, "run.json") == 'f';
    if (kind == 'd' && !is_run && resume_kind_of(path, "model.safetensors") == 'f') {
        snprintf(model, sizeof model, "%s/model.safetensors", path);
        return resume_open_weights(resume, model, problem);
    }
    snprintf(resume->directory, sizeof resume->directory, "%s", path);
    return resume_open_run(resume, wants_optimizer, problem);
}

hd_status hd_resume_open(struct hd_resume *resume, const char *path, bool wants_optimizer,
                         struct hd_problem *problem)
{
    *resume = (struct hd_resume){.files = {{.descriptor = -1}, {.descriptor = -1}}};
    const hd_status status = resume_open_any(resume, path, wants_optimizer, problem);
    if (status == HD_OK) {
        hd_problem_place(problem, "%s", "");
        hd_problem_key(problem, "%s", "");
        hd_problem_remedy(problem, "%s", "");
    } else {
        hd_resume_close(resume);
    }
    return status;
}

void hd_resume_close(struct hd_resume *resume)
{
    if (resume->kind == 0) {
        return;
    }
    for (uint32_t i = 0; i < HD_CHECKPOINT_FILE_COUNT; i++) {
        hd_safetensors_close(&resume->files[i]);
    }
    free(resume->losses);
    resume->losses = NULL;
    resume->kind = 0;
}

void hd_resume_model(const struct hd_job *job, struct hd_checkpoint_model *model)
{
    const struct hd_config *config = job->config;

    *model = (struct hd_checkpoint_model){
        .layers = job->model.layers,
        .width = config->model.width,
        .heads = config->model.heads,
        .key_value_heads =
            config->model.key_value_heads > 0 ? config->model.key_value_heads : config->model.heads,
        .experts = config->model.experts,
        .experts_per_token = config->model.experts > 0 ? config->model.experts_per_token : 0,
        .expert_width = config->model.expert_width,
        .vocabulary = config->model.vocabulary,
        .sequence = config->model.sequence,
        .normalize_gates = config->model.normalize_gates,
        .rope_theta = config->model.rope_theta,
        .norm_epsilon = config->model.norm_epsilon,
    };
}

static hd_status resume_check_corpus(const struct hd_resume *resume, const struct hd_job *job,
                                     const struct hd_corpus *corpus, struct hd_problem *problem)
{
    char text[HD_HASH_TEXT_BYTES];

    if (resume->kind != HD_RESUME_RUN || corpus == NULL || resume->state.corpus_sha256[0] == '\0' ||
        strcmp(hd_config_place(job->config, "data", "corpus"), "command line") == 0) {
        return HD_OK;
    }
    hd_corpus_sha256(corpus, text);
    if (strcmp(text, resume->state.corpus_sha256) == 0) {
        return HD_OK;
    }
    hd_config_blame(job->config, "data", "corpus", problem);
    hd_problem_remedy(problem, "give data.corpus=%.200s on the command line to use it anyway",
                      job->config->data.corpus);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "%.200s (SHA-256 %.12s..) is not the corpus of the checkpoint, "
                          "%.200s (%.12s..)",
                          job->config->data.corpus, text, resume->state.corpus,
                          resume->state.corpus_sha256);
}

hd_status hd_resume_check_model(const struct hd_resume *resume, const struct hd_job *job,
                                struct hd_problem *problem)
{
    struct hd_checkpoint_model ours;
    char text[2][32];

    if (resume->kind != HD_RESUME_RUN) {
        return HD_OK;
    }
    hd_resume_model(job, &ours);
    const char *const key = hd_checkpoint_differs(&ours, &resume->state.model, text);
    if (key != NULL) {
        hd_config_blame(job->config, "model", key, problem);
        hd_problem_remedy(problem, "set it to %s, or start a new run", text[1]);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "is %s, but %s in the model of the checkpoint in %.300s", text[0],
                              text[1], resume->directory);
    }
    return HD_OK;
}

hd_status hd_resume_check_run(const struct hd_resume *resume, const struct hd_job *job,
                              const struct hd_corpus *corpus, struct hd_problem *problem)
{
    if (resume->state.step > job->config->train.steps) {
        hd_config_blame(job->config, "train", "steps", problem);
        hd_problem_remedy(problem, "raise it: it counts the steps before the checkpoint, too");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "is %u, but the checkpoint in %.300s is of step %u",
                              job->config->train.steps, resume->directory, resume->state.step);
    }
    return resume_check_corpus(resume, job, corpus, problem);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static double resume_number_of(const cJSON *object, const char *name)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Keeps the numbers of a line, if the checkpoint includes its step; returns whether it does. */
static bool resume_keep_line(struct hd_resume *resume, const char *line)
{
    cJSON *const object = cJSON_Parse(line);
    const double step = resume_number_of(object, "step");
    const bool is_kept = step >= 1 && step <= resume->state.step;

    if (is_kept) {
        const uint32_t row = (uint32_t)step - 1;
        resume->losses[row] = resume_number_of(object, "loss");
        resume->grad_norms[row] = resume_number_of(object, "grad_norm");
        resume->step_seconds[row] = resume_number_of(object, "step_seconds");
    }
    cJSON_Delete(object);
    return is_kept;
}

static void resume_copy_lines(struct hd_resume *resume, FILE *from, FILE *to)
{
    char *line = NULL;
    size_t capacity = 0;

    while (from != NULL && getline(&line, &capacity, from) >= 0) {
        if (resume_keep_line(resume, line)) {
            fputs(line, to);
        }
    }
    free(line);
}

hd_status hd_resume_metrics(struct hd_resume *resume, const struct hd_rundir *rundir,
                            struct hd_problem *problem)
{
    const uint64_t steps = resume->state.step;
    char path[4096];
    FILE *to = NULL;

    if (resume->kind != HD_RESUME_RUN) {
        return HD_OK;
    }
    assert(resume->losses == NULL);
    resume->losses = malloc((3 * steps + 1) * sizeof(double));
    if (resume->losses == NULL) {
        return hd_problem_no_memory(problem, 0, "the metrics");
    }
    resume->grad_norms = resume->losses + steps;
    resume->step_seconds = resume->losses + 2 * steps;
    for (uint64_t i = 0; i < 3 * steps; i++) {
        resume->losses[i] = NAN;
    }
    HD_TRY(hd_rundir_open(rundir, "metrics.jsonl", &to, problem));
    const int length = snprintf(path, sizeof path, "%s/metrics.jsonl", resume->directory);
    FILE *const from = length < (int)sizeof path ? fopen(path, "re") : NULL;
    resume_copy_lines(resume, from, to);
    if (from != NULL) {
        fclose(from);
    } else {
        hd_log(HD_LOG_WARN, "%s is missing: the losses before step %llu are unknown", path,
               (unsigned long long)steps + 1);
    }
    return hd_rundir_commit(rundir, "metrics.jsonl", to, problem);
}
