#include "run/ledger.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/try.h"
#include "train/initial.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool hd_ledger_is_saved(const struct hd_session *session)
{
    return session->request.has_files && !session->request.is_evaluation &&
           session->job->config->output.checkpoint_every >= 0;
}

static hd_status ledger_take(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;
    struct hd_ledger *ledger = hd_memory_take(sizeof *ledger, 64, "checkpoint");
    uint64_t count = 0;

    if (ledger == NULL) {
        return hd_rank_no_memory(rank, problem);
    }
    rank->ledger = ledger;
    for (uint32_t stage = 0; stage < session->exchange.stage_count; stage++) {
        count += session->exchange.stages[stage].tensor_count;
    }
    assert(count < UINT32_MAX);
    const uint64_t block_bytes = session->digest_count * sizeof(struct hd_tensor);
    const struct {
        void **out;
        uint64_t bytes;
    } rows[] = {
        {(void **)&ledger->tensors, count * sizeof(struct hd_tensor)},
        {(void **)&ledger->moment_names, count * sizeof ledger->moment_names[0]},
        {(void **)&ledger->rows[0], count * sizeof(struct hd_safetensors_tensor)},
        {(void **)&ledger->rows[1], 2 * count * sizeof(struct hd_safetensors_tensor)},
        {(void **)&ledger->digests, count * sizeof ledger->digests[0]},
        {(void **)&ledger->mine, block_bytes},
        {(void **)&ledger->all, block_bytes * session->exchange.rank_count},
        {(void **)&ledger->stage_first, session->exchange.stage_count * sizeof(uint32_t)},
    };
    ledger->tensor_count = (uint32_t)count;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i].out = hd_memory_take(rows[i].bytes, 64, "checkpoint");
        if (*rows[i].out == NULL) {
            return hd_rank_no_memory(rank, problem);
        }
    }
    return HD_OK;
}

void hd_ledger_destroy(struct hd_ledger *ledger)
{
    if (ledger == NULL) {
        return;
    }
    hd_memory_give(ledger->tensors);
    hd_memory_give(ledger->moment_names);
    hd_memory_give(ledger->rows[0]);
    hd_memory_give(ledger->rows[1]);
    hd_memory_give(ledger->digests);
    hd_memory_give(ledger->mine);
    hd_memory_give(ledger->all);
    hd_memory_give(ledger->values);
    hd_memory_give(ledger->stage_first);
    hd_memory_give(ledger);
}

/* The tensors of this rank, in the order of its stages. */
static hd_status ledger_describe_mine(struct hd_rank *rank, struct hd_problem *problem)
{
    struct hd_tensor *const mine = (struct hd_tensor *)(void *)rank->ledger->mine;
    uint64_t largest_bytes = 0;
    uint32_t row = 0;

    for (uint32_t local = 0; local < hd_engine_stage_count(rank->engine); local++) {
        const uint32_t stage = hd_engine_stage(rank->engine, local);
        for (uint32_t i = 0; i < rank->session->job->needs[stage].tensor_count; i++) {
            const struct hd_tensor_place place = {local, i, HD_MASTER};
            HD_TRY(hd_engine_tensor(rank->engine, place, &mine[row], problem));
            const uint64_t bytes = hd_tensor_count(&mine[row++]) * sizeof(double);
            largest_bytes = hd_max_u64(largest_bytes, bytes);
        }
    }
    rank->ledger->values = hd_memory_take(largest_bytes, 64, "checkpoint");
    return rank->ledger->values != NULL ? HD_OK : hd_rank_no_memory(rank, problem);
}

static void ledger_fill_row(struct hd_safetensors_tensor *row, const struct hd_tensor *tensor,
                            const char *name)
{
    static_assert(HD_DIMENSION_MAX <= HD_SAFETENSORS_DIMENSION_MAX, "a shape fits");
    *row = (struct hd_safetensors_tensor){
        .name = name,
        .type = tensor->dtype == HD_F64 ? "F64" : "F32",
        .dimension_count = tensor->dimension_count,
    };
    memcpy(row->shape, tensor->shape, tensor->dimension_count * sizeof tensor->shape[0]);
}

/* Sorts the blocks of all ranks into global order, and lays out both files. */
static void ledger_join(struct hd_rank *rank)
{
    const struct hd_session *session = rank->session;
    struct hd_ledger *const ledger = rank->ledger;
    const struct hd_tensor *const all = (const struct hd_tensor *)(const void *)ledger->all;
    uint32_t index = 0;

    for (uint32_t stage = 0; stage < session->exchange.stage_count; stage++) {
        const struct hd_exchange_stage *const row = &session->exchange.stages[stage];
        const struct hd_tensor *const from =
            all + row->rank * session->digest_count + hd_session_digest_offset(session, stage);
        ledger->stage_first[stage] = index;
        for (uint32_t i = 0; i < row->tensor_count; i++, index++) {
            struct hd_tensor *const tensor = &ledger->tensors[index];
            *tensor = from[i];
            ledger_fill_row(&ledger->rows[HD_CHECKPOINT_MODEL][index], tensor, tensor->name);
            for (uint32_t moment = 0; moment < 2; moment++) {
                char *const name = ledger->moment_names[index][moment];
                snprintf(name, sizeof ledger->moment_names[0][0], "%s.moment%u", tensor->name,
                         moment + 1);
                ledger_fill_row(&ledger->rows[HD_CHECKPOINT_OPTIMIZER][2 * index + moment], tensor,
                                name);
            }
        }
    }
    assert(index == ledger->tensor_count);
    ledger->file_bytes[HD_CHECKPOINT_MODEL] =
        hd_safetensors_lay_out(ledger->rows[HD_CHECKPOINT_MODEL], index);
    ledger->file_bytes[HD_CHECKPOINT_OPTIMIZER] =
        hd_safetensors_lay_out(ledger->rows[HD_CHECKPOINT_OPTIMIZER], 2 * index);
}

hd_status hd_ledger_create(struct hd_rank *rank, struct hd_problem *problem)
{
    const struct hd_session *session = rank->session;

    if (!hd_ledger_is_saved(session) && session->request.resume == NULL) {
        return HD_OK;
    }
    HD_TRY(ledger_take(rank, problem));
    HD_TRY(ledger_describe_mine(rank, problem));
    const struct hd_meeting meeting = {"comparing tensors", rank->ledger->mine,
                                       session->digest_count * sizeof(struct hd_tensor),
                                       rank->ledger->all};
    HD_TRY(hd_rank_gather(rank, &meeting, problem));
    hd_engine_phase(rank->engine, HD_PHASE_OPEN);
    ledger_join(rank);
    hd_log(HD_LOG_DEBUG, "checkpoints hold %u tensors, %llu + %llu bytes",
           rank->ledger->tensor_count, (unsigned long long)rank->ledger->file_bytes[0],
           (unsigned long long)rank->ledger->file_bytes[1]);
    return HD_OK;
}
