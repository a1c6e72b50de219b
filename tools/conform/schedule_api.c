#include "base/text.h"
#include "conform/schedule.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_BYTES = 1024, SHORT_BYTES = 12 };

/* --- refuse -------------------------------------------------------------------------------- */

static bool schedule_api_has_digit(const char *text)
{
    bool found = false;
    for (; *text != '\0'; text++) {
        found |= isdigit((unsigned char)*text) != 0;
    }
    return found;
}

/* Like snprintf, refuse returns the whole length for every capacity, terminates the text if
   there is room, and writes nothing beyond the capacity. */
static void schedule_api_judge_refusal(struct hd_conform_case *check, const struct hd_shape *shape)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    const char *where = hd_conform_shape_text(shape);
    char reason[REASON_BYTES];
    char cut[SHORT_BYTES + 4];

    memset(reason, 'x', sizeof reason);
    memset(cut, 'x', sizeof cut);
    const uint32_t length = ops->refuse(shape, reason, sizeof reason);
    HD_HOLD(check,
            ops->refuse(shape, NULL, 0) == length && ops->refuse(shape, cut, SHORT_BYTES) == length,
            "%s: refuse returns another length with a smaller buffer", where);
    HD_HOLD(check, memcmp(cut + SHORT_BYTES, "xxxx", 4) == 0,
            "%s: refuse writes past its buffer of %d bytes", where, SHORT_BYTES);
    if (length == 0) {
        return;
    }
    HD_HOLD(check, length < REASON_BYTES, "%s: the refusal is %u bytes long", where, length);
    HD_HOLD(check, memchr(reason, '\0', sizeof reason) != NULL && strlen(reason) == length,
            "%s: refuse returns %u, which is not the length of its text", where, length);
    HD_HOLD(check, hd_text_utf8_bytes(reason, length) == length, "%s: the refusal is not UTF-8",
            where);
    HD_HOLD(check,
            memcmp(cut, reason, length < SHORT_BYTES - 1 ? length : SHORT_BYTES - 1) == 0 &&
                memchr(cut, '\0', SHORT_BYTES) != NULL,
            "%s: the refusal cut to %d bytes has another text", where, SHORT_BYTES);
    HD_HOLD(check, schedule_api_has_digit(reason) && strchr(reason, ' ') != NULL,
            "%s: \"%s\" contains no number", where, reason);
}

void hd_conform_schedule_refusal(struct hd_conform_case *check)
{
    uint32_t refused_count = 0;

    if (hd_conform_schedule_ops(check)->refuse == NULL) {
        hd_conform_skip(check, "accepts every shape");
        return;
    }
    for (uint32_t ranks = 1; ranks <= 6; ranks++) {
        for (uint32_t stages = 1; stages <= 5; stages++) {
            for (uint32_t microbatches = 1; microbatches <= 9; microbatches++) {
                const struct hd_shape shape = hd_conform_shape(check, ranks, stages, microbatches);
                schedule_api_judge_refusal(check, &shape);
                refused_count += (uint32_t)hd_conform_is_refused(check, &shape);
            }
        }
    }
    hd_conform_remark(check, "%u of 270 refused", refused_count);
}

/* --- placement ----------------------------------------------------------------------------- */

static uint32_t schedule_api_replica_count_of(const struct hd_schedule_ops *ops)
{
    return ops->replica_count > 0 ? ops->replica_count : 1;
}

static void schedule_api_judge_placement(struct hd_conform_case *check,
                                         const struct hd_shape *shape)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    const uint32_t per_rank = shape->stage_count / shape->rank_count;
    const char *where = hd_conform_shape_text(shape);
    uint32_t counts[8];

    assert(shape->rank_count <= 8);
    for (uint32_t replica = 0; replica < schedule_api_replica_count_of(ops); replica++) {
        memset(counts, 0, sizeof counts);
        for (uint32_t stage = 0; stage < shape->stage_count; stage++) {
            const uint32_t rank = ops->rank_of(shape, stage, replica);
            HD_HOLD(check, rank < shape->rank_count,
                    "%s: stage %u is on rank %u, which does not exist", where, stage, rank);
            counts[rank]++;
        }
        for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
            HD_HOLD(check, counts[rank] == per_rank, "%s: rank %u holds %u stages, not %u", where,
                    rank, counts[rank], per_rank);
        }
    }
    for (uint32_t i = 0; ops->replica_of != NULL && i < shape->microbatch_count; i++) {
        HD_HOLD(check, ops->replica_of(shape, i) < schedule_api_replica_count_of(ops),
                "%s: microbatch %u runs in replica %u of %u", where, i, ops->replica_of(shape, i),
                schedule_api_replica_count_of(ops));
    }
}

void hd_conform_schedule_placement(struct hd_conform_case *check)
{
    HD_HOLD(check, hd_conform_schedule_ops(check)->replica_count <= UINT8_MAX,
            "%u replicas are more than the 255 of an action",
            hd_conform_schedule_ops(check)->replica_count);
    hd_conform_sweep(check, 0, schedule_api_judge_placement);
}

/* --- counting and scratch ------------------------------------------------------------------- */

/* Plans with no capacity, with the whole capacity, and with less. */
static void schedule_api_judge_counts(struct hd_conform_case *check, const struct hd_shape *shape)
{
    const char *where = hd_conform_shape_text(shape);
    struct hd_conform_plans counted, whole, cut;
    uint64_t capacities[8], less[8];

    assert(shape->rank_count <= 8);
    hd_conform_plan(check, shape, NULL, 0xff, &counted);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        capacities[rank] = counted.plans[rank].count;
        less[rank] = capacities[rank] * (rank + 1) / (rank + 2);
    }
    hd_conform_plan(check, shape, capacities, 0x5a, &whole);
    hd_conform_plan(check, shape, less, 0x00, &cut);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        HD_HOLD(check, capacities[rank] > 0, "%s: rank %u has no actions", where, rank);
        HD_HOLD(
            check,
            whole.plans[rank].count == capacities[rank] &&
                cut.plans[rank].count == capacities[rank],
            "%s: rank %u counts %llu actions with no capacity, %llu with the whole, %llu with less",
            where, rank, (unsigned long long)capacities[rank],
            (unsigned long long)whole.plans[rank].count, (unsigned long long)cut.plans[rank].count);
        HD_HOLD(check,
                less[rank] == 0 || memcmp(whole.plans[rank].actions, cut.plans[rank].actions,
                                          less[rank] * sizeof(struct hd_action)) == 0,
                "%s: rank %u has other actions when its capacity is smaller", where, rank);
        HD_HOLD(check, counted.plans[rank].actions == NULL && counted.plans[rank].capacity == 0,
                "%s: the plan of rank %u without capacity was given one by the plugin", where,
                rank);
    }
    HD_HOLD(check, hd_conform_plans_are_whole(&cut) && hd_conform_plans_are_whole(&whole),
            "%s: plan writes outside of its array of actions", where);
    hd_conform_plans_free(&counted);
    hd_conform_plans_free(&whole);
    hd_conform_plans_free(&cut);
}

void hd_conform_schedule_counting(struct hd_conform_case *check)
{
    hd_conform_sweep(check, 0, schedule_api_judge_counts);
}

static void schedule_api_judge_scratch(struct hd_conform_case *check, const struct hd_shape *shape)
{
    struct hd_conform_plans plans;

    hd_conform_plan(check, shape, NULL, 0xff, &plans);
    HD_HOLD(check, hd_conform_plans_are_whole(&plans),
            "%s: plan writes outside of its %llu bytes of scratch", hd_conform_shape_text(shape),
            (unsigned long long)hd_conform_schedule_ops(check)->scratch_bytes(shape));
    hd_conform_plans_free(&plans);
}

void hd_conform_schedule_scratch(struct hd_conform_case *check)
{
    if (hd_conform_schedule_ops(check)->scratch_bytes == NULL) {
        hd_conform_skip(check, "needs no scratch memory");
        return;
    }
    hd_conform_sweep(check, 0, schedule_api_judge_scratch);
}
