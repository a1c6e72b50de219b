#include "conform/schedule.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS_MOST = 6, STAGES_MOST = 3, MICROBATCHES_MOST = 12, SHAPE_TEXT_BYTES = 64 };

const struct hd_conform_check hd_conform_schedules[] = {
    {"descriptor", HD_CONFORM_LOAD, 10, "plugin.h", "the descriptor is valid",
     hd_conform_descriptor, NULL},
    {"options", HD_CONFORM_LOAD, 10, "plugin.h",
     "every option has a type, a range, a default and a help text", hd_conform_options, NULL},
    {"refusal", HD_CONFORM_API, 30, "refuse", "every refusal is a sentence that contains a number",
     hd_conform_schedule_refusal, NULL},
    {"placement", HD_CONFORM_API, 30, "rank_of, replica_of",
     "every stage has a rank, and all ranks have equally many stages",
     hd_conform_schedule_placement, NULL},
    {"counting", HD_CONFORM_API, 60, "hd_plan",
     "a plan counts actions past its capacity but does not write them",
     hd_conform_schedule_counting, NULL},
    {"scratch", HD_CONFORM_API, 60, "scratch_bytes",
     "a plan writes no byte outside of its scratch memory", hd_conform_schedule_scratch, NULL},
    {"laws", HD_CONFORM_SEMANTICS, 120, "laws 1 to 7", "every plan of the sweep keeps the laws",
     hd_conform_schedule_laws, NULL},
    {"forward_only", HD_CONFORM_SEMANTICS, 120, "HD_FORWARD_ONLY",
     "every forward-only plan of the sweep keeps the laws", hd_conform_schedule_forward_only, NULL},
    {"large", HD_CONFORM_SEMANTICS, 120, "laws 1 to 7", "plans of up to 64 ranks keep the laws",
     hd_conform_schedule_large, NULL},
    {"purity", HD_CONFORM_SEMANTICS, 120, "pure", "equal arguments always give equal plans",
     hd_conform_schedule_purity, NULL},
    {"quiet", HD_CONFORM_SEMANTICS, 30, "pure", "planning makes no system call",
     hd_conform_schedule_quiet, NULL},
    {"linear", HD_CONFORM_SEMANTICS, 120, "plan",
     "planning time is linear in the number of actions", hd_conform_schedule_linear, NULL},
    {"limits", HD_CONFORM_FAULT, 120, "HD_RANK_MAX", "the largest shapes are planned or refused",
     hd_conform_schedule_limits, NULL},
    {"planning_rate", HD_CONFORM_SPEED, 120, "-", "actions planned per second",
     hd_conform_schedule_speed, NULL},
    {0},
};

const struct hd_schedule_ops *hd_conform_schedule_ops(const struct hd_conform_case *check)
{
    return check->plugin->ops;
}

struct hd_shape hd_conform_shape(const struct hd_conform_case *check, uint32_t rank_count,
                                 uint32_t stages_per_rank, uint32_t microbatch_count)
{
    return (struct hd_shape){.size = sizeof(struct hd_shape),
                             .rank_count = rank_count,
                             .stage_count = rank_count * stages_per_rank,
                             .microbatch_count = microbatch_count,
                             .option_count = check->plugin->option_count,
                             .options = check->subject->options};
}

const char *hd_conform_shape_text(const struct hd_shape *shape)
{
    static char texts[4][SHAPE_TEXT_BYTES];
    static unsigned call;
    char *text = texts[call++ % 4];

    snprintf(text, SHAPE_TEXT_BYTES, "P=%u V=%u m=%u%s", shape->rank_count,
             shape->stage_count / shape->rank_count, shape->microbatch_count,
             shape->flags & HD_FORWARD_ONLY ? ", forward only" : "");
    return text;
}

bool hd_conform_is_refused(const struct hd_conform_case *check, const struct hd_shape *shape)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    char reason[1024];
    return ops->refuse != NULL && ops->refuse(shape, reason, sizeof reason) > 0;
}

/* --- sweeps -------------------------------------------------------------------------------- */

struct tally {
    uint32_t planned_count, refused_count;
};

static void schedule_offer(struct hd_conform_case *check, const struct hd_shape *shape,
                           struct tally *tally,
                           void (*visit)(struct hd_conform_case *, const struct hd_shape *))
{
    if (hd_conform_is_refused(check, shape)) {
        tally->refused_count++;
    } else {
        tally->planned_count++;
        hd_conform_at(check, "%s", hd_conform_shape_text(shape));
        visit(check, shape);
    }
}

static void schedule_remark(struct hd_conform_case *check, const struct tally *tally)
{
    const uint32_t all = tally->planned_count + tally->refused_count;

    HD_HOLD(check, tally->planned_count > 0 || hd_conform_is_decided(check),
            "refuses all %u shapes of the sweep", all);
    hd_conform_remark(check, "%u shapes, %u refused", all, tally->refused_count);
}

void hd_conform_sweep(struct hd_conform_case *check, uint32_t flags,
                      void (*visit)(struct hd_conform_case *check, const struct hd_shape *shape))
{
    struct tally tally = {0, 0};
    const uint32_t all = RANKS_MOST * STAGES_MOST * MICROBATCHES_MOST;

    for (uint32_t i = 0; i < all && !hd_conform_is_decided(check); i++) {
        struct hd_shape shape =
            hd_conform_shape(check, i / (STAGES_MOST * MICROBATCHES_MOST) + 1,
                             i / MICROBATCHES_MOST % STAGES_MOST + 1, i % MICROBATCHES_MOST + 1);
        shape.flags = flags;
        schedule_offer(check, &shape, &tally, visit);
    }
    schedule_remark(check, &tally);
}

void hd_conform_sweep_large(struct hd_conform_case *check,
                            void (*visit)(struct hd_conform_case *check,
                                          const struct hd_shape *shape))
{
    static const uint32_t shapes[][3] = {{7, 1, 29},  {7, 2, 29},   {8, 1, 64},  {8, 2, 32},
                                         {12, 2, 48}, {12, 3, 37},  {16, 1, 64}, {16, 4, 64},
                                         {32, 1, 96}, {24, 2, 120}, {64, 1, 80}, {64, 2, 256}};
    struct tally tally = {0, 0};

    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct hd_shape shape =
            hd_conform_shape(check, shapes[i][0], shapes[i][1], shapes[i][2]);
        schedule_offer(check, &shape, &tally, visit);
    }
    schedule_remark(check, &tally);
}

/* --- plans --------------------------------------------------------------------------------- */

void hd_conform_plan(const struct hd_conform_case *check, const struct hd_shape *shape,
                     const uint64_t *capacities, int fill, struct hd_conform_plans *out)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    const uint64_t scratch_bytes = ops->scratch_bytes != NULL ? ops->scratch_bytes(shape) : 0;

    *out = (struct hd_conform_plans){.rank_count = shape->rank_count};
    out->plans = calloc(shape->rank_count, sizeof *out->plans);
    out->pointers = calloc(shape->rank_count, sizeof(struct hd_plan *));
    out->scratch = scratch_bytes > 0 ? hd_guard_take(scratch_bytes, 64, fill) : NULL;
    assert(out->plans != NULL && out->pointers != NULL);
    assert(out->scratch != NULL || scratch_bytes == 0);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        struct hd_plan *plan = &out->plans[rank];
        out->pointers[rank] = plan;
        plan->size = sizeof *plan;
        if (capacities != NULL && capacities[rank] > 0) {
            plan->capacity = (uint32_t)capacities[rank];
            plan->actions =
                hd_guard_take(capacities[rank] * sizeof *plan->actions, sizeof(uint64_t), fill);
            assert(plan->actions != NULL);
        }
    }
    ops->plan(shape, out->scratch, out->pointers);
}

void hd_conform_plans_free(struct hd_conform_plans *plans)
{
    for (uint32_t rank = 0; rank < plans->rank_count; rank++) {
        hd_guard_give(plans->plans[rank].actions);
    }
    hd_guard_give(plans->scratch);
    free(plans->plans);
    free(plans->pointers);
}

bool hd_conform_plans_are_whole(const struct hd_conform_plans *plans)
{
    bool holds = plans->scratch == NULL || hd_guard_is_whole(plans->scratch);

    for (uint32_t rank = 0; rank < plans->rank_count; rank++) {
        const struct hd_action *actions = plans->plans[rank].actions;
        holds = holds && (actions == NULL || hd_guard_is_whole(actions));
    }
    return holds;
}
