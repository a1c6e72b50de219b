/* engine/transfers.c - finds the action that a message belongs to, and its row in the recorder. */
#include "base/memory.h"
#include "engine/internal.h"

#include <assert.h>
#include <string.h>

static void transfers_map(struct hd_engine *engine, struct hd_program_message message,
                          uint32_t instruction)
{
    if (message.lane != HD_NO_LANE && engine->lanes[message.lane].action_of != NULL) {
        engine->lanes[message.lane].action_of[message.sequence] = instruction;
    }
}

hd_status hd_engine_map_transfers(struct hd_engine *engine, struct hd_problem *problem)
{
    const struct hd_program *program = &engine->program;

    engine->lane_of = hd_memory_take((engine->remote_count + 1) * sizeof(uint32_t), 64, "lanes");
    if (engine->lane_of == NULL) {
        return hd_engine_no_memory(engine, 0, "the messages of a step", problem);
    }
    memset(engine->lane_of, 0xFF, (engine->remote_count + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < engine->lane_count; i++) {
        struct hd_lane *lane = &engine->lanes[i];
        if (hd_lane_is_local(lane)) {
            continue;
        }
        lane->action_of =
            hd_memory_take((lane->message_count + 1u) * sizeof(uint32_t), 64, "lanes");
        if (lane->action_of == NULL) {
            return hd_engine_no_memory(engine, 0, "the messages of a step", problem);
        }
        engine->lane_of[lane->index] = i;
    }
    for (uint32_t i = 0; i < program->instruction_count; i++) {
        const struct hd_instruction *instruction = &program->instructions[i];
        transfers_map(engine, instruction->output, i);
        transfers_map(engine, hd_instruction_input(instruction), i);
    }
    return HD_OK;
}

void hd_engine_note_transfer(void *context, const struct hd_transfer *transfer)
{
    struct hd_engine *engine = context;
    const uint32_t index =
        transfer->channel < engine->remote_count ? engine->lane_of[transfer->channel] : HD_NO_LANE;

    if (transfer->sequence == UINT64_MAX) {
        return; /* of the warm-up */
    }
    if (index == HD_NO_LANE) {
        hd_recorder_lose(&engine->recorder);
        return;
    }
    const struct hd_lane *lane = &engine->lanes[index];
    const uint64_t count = lane->message_count;
    const struct hd_recorder_report report = {
        .step = engine->setup.steps_before + transfer->sequence / count + 1,
        .action = lane->action_of[transfer->sequence % count],
        .is_in = lane->is_target,
        .begin_ns = transfer->begin_ns,
        .end_ns = transfer->end_ns,
        .resident_ns = transfer->resident_ns,
    };
    hd_recorder_note(&engine->recorder, &report);
}
