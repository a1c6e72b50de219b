#include "run/checkpoint.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/try.h"
#include "run/ledger.h"
#include "train/initial.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hd_status checkpoint_blame(struct hd_rank *rank, hd_status status,
                                  const struct hd_problem *problem)
{
    return status == HD_ABORTED ? status : hd_rank_blame(rank, status, problem);
}

/* All ranks meet and, with `bytes`, exchange the ledger's blocks. */
static hd_status checkpoint_meet(struct hd_rank *rank, uint64_t bytes, struct hd_problem *problem)
{
    const struct hd_meeting meeting = {"meeting the other ranks at the checkpoint",
                                       rank->ledger->mine, bytes, rank->ledger->all};

    HD_TRY(hd_rank_gather(rank, &meeting, problem));
    hd_engine_phase(rank->engine, HD_PHASE_SAVE);
    return HD_OK;
}

/* --- saving ----------------------------------------------------------------------------------- */

/* The first value that is not finite; `count` if all are. */
static uint64_t checkpoint_first_wild(const struct hd_tensor *tensor, const void *values)
{
    const uint64_t count = hd_tensor_count(tensor);
    uint64_t i = 0;

    if (tensor->dtype == HD_F64) {
        for (const double *numbers = values; i < count && isfinite(numbers[i]); i++) {
        }
    } else {
        for (const float *numbers = values; i < count && isfinite(numbers[i]); i++) {
        }
    }
    return i;
}

/* The last update may have overflowed; only the next loss would show it. */
static hd_status checkpoint_check_finite(struct hd_rank *rank, const struct hd_tensor *tensor,
                                         struct hd_problem *problem)
{
    const uint64_t index = checkpoint_first_wild(tensor, rank->ledger->values);

    if (index == hd_tensor_count(tensor)) {
        return HD_OK;
    }
    hd_problem_place(problem, "rank %u", rank->rank);
    hd_problem_key(problem, "%.120s", tensor->name);
    hd_problem_remedy(problem,
                      "lower train.learning_rate; the previous checkpoint, if any, is intact");
    hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_NONFINITE,
                   "element %llu is not finite after the update, so no checkpoint is written",
                   (unsigned long long)index);
    return checkpoint_blame(rank, HD_PROTOCOL, problem);
}

/* Writes one copy of one tensor, and keeps its digest. */
static hd_status checkpoint_put_copy(struct hd_rank *rank, struct hd_tensor_place place,
                                     uint32_t index, const int *descriptors,
                                     struct hd_problem *problem)
{
    struct hd_ledger *const ledger = rank->ledger;
    const uint32_t file = place.copy == HD_MASTER ? HD_CHECKPOINT_MODEL : HD_CHECKPOINT_OPTIMIZER;
    const uint32_t row = place.copy == HD_MASTER ? index : 2 * index + place.copy - HD_MOMENT1;
    const struct hd_safetensors_tensor *const target = &ledger->rows[file][row];
    struct hd_hash hash;

    HD_TRY(hd_engine_read(rank->engine, place, ledger->values, problem));
    if (place.copy == HD_MASTER) {
        HD_TRY(checkpoint_check_finite(rank, &ledger->tensors[index], problem));
    }
    hd_hash_begin(&hash);
    hd_hash_add(&hash, ledger->values, target->bytes);
    hd_hash_end(&hash, ledger->digests[index][place.copy]);
    const hd_status written = hd_checkpoint_put(descriptors[file], ledger->values, target->bytes,
                                                target->offset, problem);
    return written != HD_OK ? checkpoint_blame(rank, written, problem) : HD_OK;
}

static hd_status checkpoint_put_stages(struct hd_rank *rank, const int *descriptors,
                                       struct hd_problem *problem)
{
    hd_status status = HD_OK;

    static_assert(HD_MASTER == 0 && HD_MOMENT1 == 1 && HD_MOMENT2 == 2, "digests by copy");
    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const uint32_t stage = hd_engine_stage(rank->engine, local);
        const uint32_t count = rank->session->job->needs[stage].tensor_count;
        for (uint32_t i = 0; status == HD_OK && i < 3 * count; i++) {
            const struct hd_tensor_place place = {local, i / 3, i % 3};
            status = checkpoint_put_copy(
                rank, place, rank->ledger->stage_first[stage] + place.index, descriptors, problem);
        }
    }
    return status;
}

static hd_status checkpoint_put_tensors(struct hd_rank *rank, struct hd_problem *problem)
{
    const char *const run = rank->session->rundir.path;
    int descriptors[HD_CHECKPOINT_FILE_COUNT] = {-1, -1};
    hd_status status = HD_OK;

    for (uint32_t file = 0; status == HD_OK && file < HD_CHECKPOINT_FILE_COUNT; file++) {
        status = hd_checkpoint_open(run, file, &descriptors[file], problem);
    }
    status = status != HD_OK ? checkpoint_blame(rank, status, problem)
                             : checkpoint_put_stages(rank, descriptors, problem);
    for (uint32_t file = 0; file < HD_CHECKPOINT_FILE_COUNT; file++) {
        if (descriptors[file] >= 0) {
            close(descriptors[file]);
        }
    }
    return status;
}

static hd_status checkpoint_gather_digests(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    struct hd_ledger *const ledger = rank->ledger;
    const uint64_t item_bytes = sizeof ledger->digests[0];
    const uint64_t block_bytes = session->digest_count * item_bytes;

    static_assert(sizeof ledger->digests[0] <= sizeof(struct hd_tensor), "the blocks hold them");
    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const uint32_t stage = hd_engine_stage(rank->engine, local);
        memcpy(ledger->mine + hd_session_digest_offset(session, stage) * item_bytes,
               ledger->digests[ledger->stage_first[stage]],
               session->exchange.stages[stage].tensor_count * item_bytes);
    }
    HD_TRY(checkpoint_meet(rank, block_bytes, problem));
    for (uint32_t stage = 0; stage < session->exchange.stage_count; stage++) {
        const struct hd_exchange_stage *const row = &session->exchange.stages[stage];
        memcpy(ledger->digests[ledger->stage_first[stage]],
               ledger->all + row->rank * block_bytes +
                   hd_session_digest_offset(session, stage) * item_bytes,
               row->tensor_count * item_bytes);
    }
    return HD_OK;
}

static void checkpoint_fill_state(const struct hd_rank *rank, uint32_t step,
                                  struct hd_checkpoint_state *state)
{
    const struct hd_session *session = rank->session;

    *state = (struct hd_checkpoint_state){
        .step = step,
        .samples = hd_session_sample(session, step + 1),
        .skipped = rank->skipped,
        .skipped_in_row = rank->skipped_in_row,
        .seed = hd_rank_config(rank)->train.seed,
        .learning_rate = rank->learning_rate,
    };
    hd_resume_model(session->job, &state->model);
    if (session->corpus != NULL) {
        snprintf(state->corpus, sizeof state->corpus, "%s", hd_corpus_path(session->corpus));
        snprintf(state->corpus_sha256, sizeof state->corpus_sha256, "%s", session->corpus_sha256);
    }
}

/* Writes the header of one file, and notes its digest in `state`. */
static hd_status checkpoint_put_header(struct hd_rank *rank, uint32_t file,
                                       struct hd_checkpoint_state *state,
                                       struct hd_problem *problem)
{
    const struct hd_ledger *const ledger = rank->ledger;
    const bool is_model = file == HD_CHECKPOINT_MODEL;
    const uint32_t count = is_model ? ledger->tensor_count : 2 * ledger->tensor_count;
    uint8_t(*digests)[HD_HASH_BYTES] = malloc((count + 1ull) * sizeof *digests);
    uint8_t digest[HD_HASH_BYTES];
    uint64_t bytes = 0;
    struct hd_hash hash;
    int descriptor = -1;

    assert(digests != NULL);
    for (uint32_t row = 0; row < count; row++) {
        memcpy(digests[row],
               is_model ? ledger->digests[row][0] : ledger->digests[row / 2][1 + row % 2],
               HD_HASH_BYTES);
    }
    char *const text = hd_safetensors_header(ledger->rows[file], count,
                                             (const uint8_t(*)[HD_HASH_BYTES])digests, &bytes);
    hd_hash_begin(&hash);
    hd_hash_add(&hash, text, bytes);
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, state->header_sha256[file]);
    state->file_bytes[file] = ledger->file_bytes[file];
    hd_status status = hd_checkpoint_open(rank->session->rundir.path, file, &descriptor, problem);
    if (status == HD_OK) {
        status = hd_checkpoint_put(descriptor, text, bytes, 0, problem);
        close(descriptor);
    }
    free(text);
    free(digests);
    return status;
}

/* Rank 0: writes what all ranks waited for, and gives the directory its name. */
static hd_status checkpoint_finish(struct hd_rank *rank, uint32_t step, struct hd_problem *problem)
{
    struct hd_checkpoint_state state;
    hd_status status = HD_OK;

    checkpoint_fill_state(rank, step, &state);
    for (uint32_t file = 0; status == HD_OK && file < HD_CHECKPOINT_FILE_COUNT; file++) {
        status = checkpoint_put_header(rank, file, &state, problem);
    }
    if (status == HD_OK && rank->session->rundir.metrics >= 0 &&
        fsync(rank->session->rundir.metrics) != 0) {
        hd_log(HD_LOG_WARN,
               "metrics.jsonl may lack lines of this checkpoint after a power failure");
    }
    if (status == HD_OK) {
        status = hd_checkpoint_commit(rank->session->rundir.path, &state, problem);
    }
    return status != HD_OK ? checkpoint_blame(rank, status, problem) : HD_OK;
}

bool hd_rank_is_due(const struct hd_rank *rank, uint32_t step)
{
    const struct hd_config *config = hd_rank_config(rank);
    const int64_t every = config->output.checkpoint_every;

    return hd_ledger_is_saved(rank->session) &&
           (step == config->train.steps || rank->signal != 0 || (every > 0 && step % every == 0));
}

hd_status hd_rank_save(struct hd_rank *rank, uint32_t step, struct hd_problem *problem)
{
    const uint64_t begin_ns = hd_now_ns();

    assert(rank->ledger != NULL);
    hd_engine_phase(rank->engine, HD_PHASE_SAVE);
    if (rank->rank == 0) {
        const hd_status status =
            hd_checkpoint_begin(rank->session->rundir.path, rank->ledger->file_bytes, problem);
        if (status != HD_OK) {
            return checkpoint_blame(rank, status, problem);
        }
    }
    HD_TRY(checkpoint_meet(rank, 0, problem));
    HD_TRY(checkpoint_put_tensors(rank, problem));
    HD_TRY(checkpoint_gather_digests(rank, problem));
    if (rank->rank == 0) {
        HD_TRY(checkpoint_finish(rank, step, problem));
    }
    hd_log(HD_LOG_DEBUG, "checkpoint of step %u: saved in %.1f ms", step,
           (double)(hd_now_ns() - begin_ns) * 1e-6);
    return HD_OK;
}

/* --- loading ---------------------------------------------------------------------------------- */

static void checkpoint_shape_text(const uint64_t *shape, uint32_t count, char text[96])
{
    strcpy(text, "[");
    for (uint32_t i = 0; i < count; i++) {
        hd_text_append(text, 96, "%s%llu", i > 0 ? ", " : "", (unsigned long long)shape[i]);
    }
    hd_text_append(text, 96, "]");
}

static hd_status checkpoint_check_shape(const struct hd_safetensors_tensor *row,
                                        const struct hd_tensor *tensor, struct hd_problem *problem)
{
    char theirs[96], ours[96];

    if (row->dimension_count == tensor->dimension_count &&
        memcmp(row->shape, tensor->shape, row->dimension_count * sizeof row->shape[0]) == 0) {
        return HD_OK;
    }
    checkpoint_shape_text(row->shape, row->dimension_count, theirs);
    checkpoint_shape_text(tensor->shape, tensor->dimension_count, ours);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "has shape %s, but this model needs %s", theirs, ours);
}

static hd_status checkpoint_load_copy(struct hd_rank *rank, struct hd_tensor_place place,
                                      uint32_t index, struct hd_problem *problem)
{
    const struct hd_resume *const resume = rank->session->request.resume;
    const struct hd_ledger *const ledger = rank->ledger;
    const struct hd_tensor *const tensor = &ledger->tensors[index];
    const bool is_master = place.copy == HD_MASTER;
    const struct hd_safetensors *const file =
        &resume->files[is_master ? HD_CHECKPOINT_MODEL : HD_CHECKPOINT_OPTIMIZER];
    const char *const name =
        is_master ? tensor->name : ledger->moment_names[index][place.copy - HD_MOMENT1];
    const struct hd_safetensors_target target = {tensor->dtype, ledger->values};

    const struct hd_safetensors_tensor *const row = hd_safetensors_find(file, name);
    hd_problem_place(problem, "%.500s", file->path);
    hd_problem_key(problem, "%.120s", name);
    if (row == NULL) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "is not in the file: it is from another model");
    }
    HD_TRY(checkpoint_check_shape(row, tensor, problem));
    HD_TRY(hd_safetensors_read(file, row, target, problem));
    hd_problem_place(problem, "%s", "");
    hd_problem_key(problem, "%s", "");
    return hd_engine_write(rank->engine, place, ledger->values, problem);
}

/* Old versions of transformers save this beside the parameters. */
static bool checkpoint_is_derived(const char *name)
{
    static const char end[] = "rotary_emb.inv_freq";
    const size_t length = strlen(name);

    return length >= sizeof end - 1 && strcmp(name + length - (sizeof end - 1), end) == 0;
}

/* A tensor that the model lacks is as wrong as one that the file lacks. */
static hd_status checkpoint_check_extra(const struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_resume *const resume = rank->session->request.resume;
    const struct hd_ledger *const ledger = rank->ledger;

    for (uint32_t index = 0; index <= (resume->has_optimizer ? 1u : 0u); index++) {
        const struct hd_safetensors *const file = &resume->files[index];
        const uint32_t wanted = (index + 1) * ledger->tensor_count;
        for (uint32_t i = 0; file->tensor_count != wanted && i < file->tensor_count; i++) {
            const char *const name = file->tensors[i].name;
            bool is_known = checkpoint_is_derived(name);
            for (uint32_t row = 0; !is_known && row < wanted; row++) {
                is_known = strcmp(ledger->rows[index][row].name, name) == 0;
            }
            if (!is_known) {
                hd_problem_place(problem, "%.500s", file->path);
                hd_problem_key(problem, "%.120s", name);
                return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                                      "this model has no such tensor");
            }
        }
    }
    return HD_OK;
}

hd_status hd_rank_load(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_resume *const resume = rank->session->request.resume;
    const uint32_t copies = resume->has_optimizer ? 3 : 1;
    hd_status status = rank->rank == 0 ? checkpoint_check_extra(rank, problem) : HD_OK;

    hd_engine_phase(rank->engine, HD_PHASE_SAVE);
    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const uint32_t stage = hd_engine_stage(rank->engine, local);
        const uint32_t count = rank->session->job->needs[stage].tensor_count;
        for (uint32_t i = 0; status == HD_OK && i < copies * count; i++) {
            const struct hd_tensor_place place = {local, i / copies, i % copies};
            status = checkpoint_load_copy(rank, place,
                                          rank->ledger->stage_first[stage] + place.index, problem);
        }
    }
    if (status != HD_OK) {
        return checkpoint_blame(rank, status, problem);
    }
    rank->skipped = resume->state.skipped;
    rank->skipped_in_row = resume->state.skipped_in_row;
    rank->learning_rate = resume->state.learning_rate;
    return HD_OK;
}
