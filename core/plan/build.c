/* Makes a plan: takes the actions of a schedule or a file, checks the laws, derives the rest. */
#include "base/memory.h"
#include "base/text.h"
#include "plan/derive.h"
#include "plan/flow.h"
#include "plan/refuse.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { REASON_BYTES = 1024, REPLICA_MAX = 2 };

static void build_give_source(struct hd_pipeline_source *source)
{
    hd_memory_give(source->stage_rank);
    hd_memory_give(source->replica_of);
    hd_memory_give(source->rank_begin);
    hd_memory_give(source->actions);
    *source = (struct hd_pipeline_source){0};
}

static hd_status build_refuse_limit(struct hd_problem *problem, const char *what, uint64_t value,
                                    uint64_t most)
{
    hd_problem_remedy(problem, "choose from 1 to %llu", (unsigned long long)most);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                          "the plan has %llu %s, but must have from 1 to %llu",
                          (unsigned long long)value, what, (unsigned long long)most);
}

static hd_status build_check_limits(const struct hd_pipeline_source *source,
                                    struct hd_problem *problem)
{
    const struct {
        const char *what;
        uint64_t value, most;
    } rows[] = {
        {"ranks", source->rank_count, HD_RANK_MAX},
        {"stages", source->stage_count, HD_STAGE_MAX},
        {"microbatches", source->microbatch_count, HD_MICROBATCH_MAX},
        {"replicas", source->replica_count, REPLICA_MAX},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value == 0 || rows[i].value > rows[i].most) {
            return build_refuse_limit(problem, rows[i].what, rows[i].value, rows[i].most);
        }
    }
    const uint64_t passes = (source->is_forward_only ? 1u : 2u) * (uint64_t)source->stage_count *
                            source->microbatch_count;
    return passes <= HD_PLAN_ACTION_MAX
               ? HD_OK
               : build_refuse_limit(problem, "actions of all ranks", passes, HD_PLAN_ACTION_MAX);
}

static hd_status build_check_placement(const struct hd_pipeline_source *source,
                                       struct hd_problem *problem)
{
    for (uint32_t replica = 0; replica < source->replica_count; replica++) {
        for (uint32_t stage = 0; stage < source->stage_count; stage++) {
            const uint32_t rank =
                source->stage_rank[(uint64_t)replica * source->stage_count + stage];
            if (rank >= source->rank_count) {
                return hd_law_refuse(problem, 3, rank,
                                     "stage %u is placed on this rank, but the last rank is %u",
                                     stage, source->rank_count - 1);
            }
        }
    }
    for (uint32_t i = 0; source->replica_of != NULL && i < source->microbatch_count; i++) {
        if (source->replica_of[i] >= source->replica_count) {
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                                  "microbatch %u runs in replica %u, but the last replica is %u", i,
                                  source->replica_of[i], source->replica_count - 1);
        }
    }
    return HD_OK;
}

/* Leaves idle ticks out, and counts them in idle_before of the action that follows them. */
static void build_copy_actions(struct hd_pipeline *pipeline,
                               const struct hd_pipeline_source *source)
{
    uint64_t filled = 0;

    for (uint32_t rank = 0; rank < source->rank_count; rank++) {
        uint32_t idle = 0;
        pipeline->rank_begin[rank] = filled;
        for (uint64_t i = source->rank_begin[rank]; i < source->rank_begin[rank + 1]; i++) {
            if (source->actions[i].kind == HD_IDLE) {
                idle += source->actions[i].ticks;
                continue;
            }
            pipeline->actions[filled] = source->actions[i];
            if (pipeline->has_idle) {
                pipeline->idle_before[filled] = idle;
            }
            idle = 0;
            filled++;
        }
    }
    assert(filled == pipeline->action_count);
    pipeline->rank_begin[source->rank_count] = filled;
}

static hd_status build_take_actions(struct hd_pipeline *pipeline,
                                    const struct hd_pipeline_source *source,
                                    struct hd_problem *problem)
{
    const uint64_t total = source->rank_begin[source->rank_count];
    uint64_t idle_count = 0;

    assert(source->rank_begin[0] == 0);
    for (uint64_t i = 0; i < total; i++) {
        idle_count += source->actions[i].kind == HD_IDLE;
    }
    if (total - idle_count > HD_PLAN_ACTION_MAX) {
        return build_refuse_limit(problem, "actions of all ranks", total - idle_count,
                                  HD_PLAN_ACTION_MAX);
    }
    pipeline->action_count = total - idle_count;
    pipeline->has_idle = idle_count > 0;
    pipeline->rank_begin =
        hd_plan_take(source->rank_count + 1, sizeof *pipeline->rank_begin, problem);
    pipeline->actions = hd_plan_take(pipeline->action_count, sizeof *pipeline->actions, problem);
    if (pipeline->has_idle) {
        pipeline->idle_before = hd_plan_take(pipeline->action_count, sizeof(uint32_t), problem);
    }
    if (pipeline->rank_begin == NULL || pipeline->actions == NULL ||
        (pipeline->has_idle && pipeline->idle_before == NULL)) {
        return HD_NO_MEMORY;
    }
    build_copy_actions(pipeline, source);
    return HD_OK;
}

static hd_status build_take_rows(struct hd_pipeline *pipeline, struct hd_pipeline_source *source,
                                 struct hd_problem *problem)
{
    pipeline->stage_rank = source->stage_rank;
    source->stage_rank = NULL;
    pipeline->replica_of = source->replica_of;
    source->replica_of = NULL;
    if (pipeline->replica_of == NULL) {
        pipeline->replica_of = hd_plan_take(source->microbatch_count, 1, problem);
    }
    pipeline->retention = hd_plan_take(source->stage_count, sizeof(uint32_t), problem);
    pipeline->payload_slots = hd_plan_take(source->stage_count, sizeof(uint32_t), problem);
    pipeline->peak_copies = hd_plan_take(source->rank_count, sizeof(uint32_t), problem);
    pipeline->loss_ranks = hd_plan_take(source->replica_count, sizeof(uint32_t), problem);
    if (pipeline->replica_of == NULL || pipeline->retention == NULL ||
        pipeline->payload_slots == NULL || pipeline->peak_copies == NULL ||
        pipeline->loss_ranks == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t replica = 0; replica < source->replica_count; replica++) {
        const uint64_t last = (uint64_t)(replica + 1) * source->stage_count - 1;
        pipeline->loss_ranks[replica] = pipeline->stage_rank[last];
    }
    return HD_OK;
}

/* Checks the laws in the order in which they are reported, and derives what each makes possible. */
static hd_status build_derive(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    static hd_status (*const steps[])(struct hd_pipeline * pipeline,
                                      struct hd_problem * problem) = {
        hd_laws_home,    hd_laws_complete, hd_laws_causal,      hd_derive_channels,
        hd_laws_matched, hd_derive_asap,   hd_derive_retention,
    };
    hd_status status = HD_OK;

    for (unsigned i = 0; status == HD_OK && i < sizeof steps / sizeof steps[0]; i++) {
        status = steps[i](pipeline, problem);
    }
    if (status == HD_OK) {
        hd_laws_ascending(pipeline);
        hd_derive_depths(pipeline);
        hd_flow_count_handoffs(pipeline, pipeline->asap_start, &pipeline->handoffs);
    }
    return status;
}

static hd_status build(struct hd_pipeline *pipeline, struct hd_pipeline_source *source,
                       struct hd_problem *problem)
{
    snprintf(pipeline->schedule, sizeof pipeline->schedule, "%s", source->name);
    pipeline->rank_count = source->rank_count;
    pipeline->stage_count = source->stage_count;
    pipeline->microbatch_count = source->microbatch_count;
    pipeline->replica_count = source->replica_count;
    pipeline->is_forward_only = source->is_forward_only;

    hd_status status = build_take_actions(pipeline, source, problem);
    if (status == HD_OK) {
        status = build_take_rows(pipeline, source, problem);
    }
    build_give_source(source); /* before the large tables: the peak is smaller */
    return status == HD_OK ? build_derive(pipeline, problem) : status;
}

hd_status hd_pipeline_from_actions(struct hd_pipeline_source *source, struct hd_pipeline **pipeline,
                                   struct hd_problem *problem)
{
    hd_status status = build_check_limits(source, problem);

    if (status == HD_OK) {
        status = build_check_placement(source, problem);
    }
    if (status != HD_OK) {
        build_give_source(source);
        return status;
    }
    struct hd_pipeline *const made = hd_plan_take(1, sizeof *made, problem);
    if (made == NULL) {
        build_give_source(source);
        return HD_NO_MEMORY;
    }
    status = build(made, source, problem);
    if (status != HD_OK) {
        hd_pipeline_destroy(made);
        return status;
    }
    *pipeline = made;
    return HD_OK;
}

/* One call of the schedule: its arguments, its scratch memory, its plans. */
struct asking {
    const struct hd_schedule_ops *ops;
    const struct hd_shape *shape;
    void *scratch;
    struct hd_plan *plans;  /* [rank_count] */
    struct hd_plan **table; /* [rank_count] */
};

static void build_ask(const struct asking *asking)
{
    for (uint32_t rank = 0; rank < asking->shape->rank_count; rank++) {
        asking->plans[rank].size = sizeof(struct hd_plan);
        asking->plans[rank].count = 0;
        asking->table[rank] = &asking->plans[rank];
    }
    asking->ops->plan(asking->shape, asking->scratch, asking->table);
}

/* Asks for the lengths first, with capacity 0, then for the actions. */
static hd_status build_ask_twice(struct asking *asking, struct hd_pipeline_source *source,
                                 struct hd_problem *problem)
{
    build_ask(asking);
    for (uint32_t rank = 0; rank < source->rank_count; rank++) {
        const uint64_t count = asking->plans[rank].count;
        source->rank_begin[rank + 1] = source->rank_begin[rank] + count;
        if (source->rank_begin[rank + 1] > HD_PLAN_ACTION_MAX) {
            return build_refuse_limit(problem, "actions of all ranks, idle ones included",
                                      source->rank_begin[rank + 1], HD_PLAN_ACTION_MAX);
        }
    }
    source->actions =
        hd_plan_take(source->rank_begin[source->rank_count], sizeof *source->actions, problem);
    if (source->actions == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < source->rank_count; rank++) {
        asking->plans[rank].capacity = (uint32_t)asking->plans[rank].count;
        asking->plans[rank].actions = source->actions + source->rank_begin[rank];
    }
    build_ask(asking);
    for (uint32_t rank = 0; rank < source->rank_count; rank++) {
        if (asking->plans[rank].count != asking->plans[rank].capacity) {
            return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_PLUGIN,
                                  "schedule %s planned %u actions for rank %u, then %llu with the "
                                  "same arguments",
                                  source->name, asking->plans[rank].capacity, rank,
                                  (unsigned long long)asking->plans[rank].count);
        }
    }
    return HD_OK;
}

static hd_status build_ask_placement(const struct hd_schedule_ops *ops,
                                     const struct hd_shape *shape,
                                     struct hd_pipeline_source *source, struct hd_problem *problem)
{
    const uint64_t homes = (uint64_t)source->replica_count * source->stage_count;

    source->stage_rank = hd_plan_take(homes, sizeof *source->stage_rank, problem);
    source->replica_of = hd_plan_take(source->microbatch_count, 1, problem);
    source->rank_begin = hd_plan_take(source->rank_count + 1, sizeof(uint64_t), problem);
    if (source->stage_rank == NULL || source->replica_of == NULL || source->rank_begin == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint64_t i = 0; i < homes; i++) {
        source->stage_rank[i] = ops->rank_of(shape, (uint32_t)(i % source->stage_count),
                                             (uint32_t)(i / source->stage_count));
    }
    for (uint32_t i = 0; ops->replica_of != NULL && i < source->microbatch_count; i++) {
        const uint32_t replica = ops->replica_of(shape, i);
        source->replica_of[i] = (uint8_t)(replica < UINT8_MAX ? replica : UINT8_MAX);
    }
    return build_check_placement(source, problem);
}

static hd_status build_ask_plan(const struct hd_schedule_ops *ops, const struct hd_shape *shape,
                                struct hd_pipeline_source *source, struct hd_problem *problem)
{
    struct asking asking = {.ops = ops, .shape = shape};
    const uint64_t scratch_bytes = ops->scratch_bytes != NULL ? ops->scratch_bytes(shape) : 0;
    hd_status status = HD_NO_MEMORY;

    asking.scratch = scratch_bytes > 0 ? hd_plan_take(scratch_bytes, 1, problem) : NULL;
    asking.plans = hd_plan_take(shape->rank_count, sizeof *asking.plans, problem);
    asking.table = hd_plan_take(shape->rank_count, sizeof *asking.table, problem);
    if (asking.plans != NULL && asking.table != NULL &&
        (scratch_bytes == 0 || asking.scratch != NULL)) {
        status = build_ask_twice(&asking, source, problem);
    }
    hd_memory_give(asking.table);
    hd_memory_give(asking.plans);
    hd_memory_give(asking.scratch);
    return status;
}

hd_status hd_pipeline_from_schedule(const char *name, const struct hd_schedule_ops *ops,
                                    const struct hd_shape *shape, struct hd_pipeline **pipeline,
                                    struct hd_problem *problem)
{
    struct hd_pipeline_source source = {
        .rank_count = shape->rank_count,
        .stage_count = shape->stage_count,
        .microbatch_count = shape->microbatch_count,
        .replica_count = ops->replica_count > 0 ? ops->replica_count : 1,
        .is_forward_only = (shape->flags & HD_FORWARD_ONLY) != 0,
    };
    char reason[REASON_BYTES] = "";

    snprintf(source.name, sizeof source.name, "%s", name);
    hd_status status = build_check_limits(&source, problem);
    if (status == HD_OK && source.stage_count % source.rank_count != 0) {
        status = hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                                "%u stages cannot be divided evenly among %u ranks",
                                source.stage_count, source.rank_count);
    }
    if (status == HD_OK && ops->refuse != NULL && ops->refuse(shape, reason, sizeof reason) > 0) {
        reason[sizeof reason - 1] = '\0';
        status = hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN, "%s", reason);
    }
    if (status == HD_OK) {
        status = build_ask_placement(ops, shape, &source, problem);
    }
    if (status == HD_OK) {
        status = build_ask_plan(ops, shape, &source, problem);
    }
    if (status != HD_OK) {
        build_give_source(&source);
        return status;
    }
    return hd_pipeline_from_actions(&source, pipeline, problem);
}
