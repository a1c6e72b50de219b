#include "base/child.h"
#include "base/clock.h"
#include "conform/schedule.h"
#include "plan/pipeline.h"

#include <assert.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROWTH = 16, ROUNDS = 5 };

/* --- the laws ------------------------------------------------------------------------------ */

/* Law 6 is checked with the fewest slots: every remote channel has as many as its depth. */
static hd_status schedule_laws_give_depths(struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    uint32_t *depths = calloc(pipeline->channel_count + 1, sizeof *depths);
    struct hd_slot_request request = {.transfer = depths};

    assert(depths != NULL);
    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        if (hd_pipeline_is_remote(&pipeline->channels[i])) {
            depths[request.transfer_count++] = pipeline->channels[i].depth;
        }
    }
    const hd_status status =
        request.transfer_count == 0 ? HD_OK : hd_pipeline_give_slots(pipeline, &request, problem);
    free(depths);
    return status;
}

static void schedule_laws_judge_laws(struct hd_conform_case *check, const struct hd_shape *shape)
{
    struct hd_pipeline *pipeline = NULL;
    struct hd_problem problem = {0};
    hd_status status = hd_pipeline_from_schedule(
        check->plugin->name, hd_conform_schedule_ops(check), shape, &pipeline, &problem);
    status = status == HD_OK ? schedule_laws_give_depths(pipeline, &problem) : status;
    status = status == HD_OK ? hd_pipeline_verify_serial(pipeline, &problem) : status;

    if (status != HD_OK && problem.law > 0) {
        hd_conform_fail(check, "%s: law %u: %s", hd_conform_shape_text(shape), problem.law,
                        problem.message);
    } else if (status != HD_OK) {
        hd_conform_fail(check, "%s: %s", hd_conform_shape_text(shape), problem.message);
    }
    hd_pipeline_destroy(pipeline);
}

void hd_conform_schedule_laws(struct hd_conform_case *check)
{
    hd_conform_sweep(check, 0, schedule_laws_judge_laws);
}

void hd_conform_schedule_forward_only(struct hd_conform_case *check)
{
    hd_conform_sweep(check, HD_FORWARD_ONLY, schedule_laws_judge_laws);
}

void hd_conform_schedule_large(struct hd_conform_case *check)
{
    hd_conform_sweep_large(check, schedule_laws_judge_laws);
}

/* --- purity -------------------------------------------------------------------------------- */

static void schedule_laws_count_all(const struct hd_conform_case *check,
                                    const struct hd_shape *shape, uint64_t *capacities)
{
    struct hd_conform_plans counted;

    hd_conform_plan(check, shape, NULL, 0, &counted);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        capacities[rank] = counted.plans[rank].count;
    }
    hd_conform_plans_free(&counted);
}

/* Plans the shape twice, with another shape in between, other contents of scratch, and a copy of
   the shape at another address. */
static void schedule_laws_judge_purity(struct hd_conform_case *check, const struct hd_shape *shape)
{
    const struct hd_shape between =
        hd_conform_shape(check, shape->rank_count, shape->stage_count / shape->rank_count,
                         shape->microbatch_count % 12 + 1);
    struct hd_conform_plans first, again, other;
    struct hd_shape moved = *shape;
    uint64_t capacities[8];

    assert(shape->rank_count <= 8);
    schedule_laws_count_all(check, shape, capacities);
    hd_conform_plan(check, shape, capacities, 0x00, &first);
    if (!hd_conform_is_refused(check, &between)) {
        hd_conform_plan(check, &between, NULL, 0x77, &other);
        hd_conform_plans_free(&other);
    }
    hd_conform_plan(check, &moved, capacities, 0xff, &again);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        const struct hd_plan *one = &first.plans[rank], *two = &again.plans[rank];
        HD_HOLD(check,
                one->count == two->count &&
                    memcmp(one->actions, two->actions, one->count * sizeof *one->actions) == 0,
                "%s: rank %u has another plan in the second call", hd_conform_shape_text(shape),
                rank);
    }
    hd_conform_plans_free(&first);
    hd_conform_plans_free(&again);
}

void hd_conform_schedule_purity(struct hd_conform_case *check)
{
    hd_conform_sweep(check, 0, schedule_laws_judge_purity);
}

/* --- quiet --------------------------------------------------------------------------------- */

/* After this every system call but exit_group kills the process. */
static bool schedule_laws_forbid_calls(void)
{
    struct sock_filter rows[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const struct sock_fprog filter = {.len = sizeof rows / sizeof rows[0], .filter = rows};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum { NOT_HERE = 7 }; /* the exit code if system calls cannot be forbidden */

struct quiet {
    const struct hd_conform_case *check;
    const struct hd_shape *shape;
    struct hd_conform_plans *plans;
};

static void schedule_laws_plan_quietly(void *context, void *answer)
{
    const struct quiet *const quiet = context;
    const struct hd_schedule_ops *const ops = hd_conform_schedule_ops(quiet->check);
    struct hd_conform_plans *const plans = quiet->plans;

    (void)answer;
    if (!schedule_laws_forbid_calls()) {
        _exit(NOT_HERE);
    }
    for (uint32_t rank = 0; rank < quiet->shape->rank_count; rank++) {
        plans->plans[rank].count = 0;
    }
    ops->plan(quiet->shape, plans->scratch, plans->pointers);
    for (uint32_t stage = 0; stage < quiet->shape->stage_count; stage++) {
        (void)ops->rank_of(quiet->shape, stage, 0);
    }
    syscall(SYS_exit_group, 0);
}

void hd_conform_schedule_quiet(struct hd_conform_case *check)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    const uint32_t per_rank = ops->stages_per_rank > 0 ? ops->stages_per_rank : 1;
    const struct hd_shape shape = hd_conform_shape(check, 4, per_rank, 8);
    struct hd_conform_plans plans;
    struct quiet quiet = {check, &shape, &plans};
    const struct hd_child_request request = {.work = schedule_laws_plan_quietly, .context = &quiet};
    struct hd_child child;

    if (hd_conform_is_refused(check, &shape)) {
        hd_conform_skip(check, "refuses %s", hd_conform_shape_text(&shape));
        return;
    }
    hd_conform_plan(check, &shape, NULL, 0, &plans);
    const hd_status started = hd_child_start(&child, &request);
    assert(started == HD_OK);
    hd_child_wait(&child, UINT64_MAX);
    const int status = hd_child_stop(&child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_HERE) {
        hd_conform_skip(check, "cannot forbid system calls here");
    }
    HD_HOLD(check, !WIFSIGNALED(status), "%s: plan makes a system call (%s)",
            hd_conform_shape_text(&shape), strsignal(WTERMSIG(status)));
    hd_conform_plans_free(&plans);
}

/* --- cost ---------------------------------------------------------------------------------- */

struct cost {
    uint64_t action_count;
    double ns_per_action;
};

/* The least CPU time of a few rounds, because other processes only add to it. */
static struct cost schedule_laws_cost_of(const struct hd_conform_case *check,
                                         const struct hd_shape *shape)
{
    const struct hd_schedule_ops *ops = hd_conform_schedule_ops(check);
    struct hd_conform_plans plans;
    struct cost cost = {0, 0};
    uint64_t least_ns = UINT64_MAX;
    uint64_t *capacities = calloc(shape->rank_count, sizeof *capacities);

    assert(capacities != NULL);
    schedule_laws_count_all(check, shape, capacities);
    hd_conform_plan(check, shape, capacities, 0, &plans);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        cost.action_count = 0;
        for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
            cost.action_count += capacities[rank];
            plans.plans[rank].count = 0;
        }
        const uint64_t begin_ns = hd_thread_cpu_ns();
        ops->plan(shape, plans.scratch, plans.pointers);
        const uint64_t took_ns = hd_thread_cpu_ns() - begin_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    hd_conform_plans_free(&plans);
    free(capacities);
    cost.ns_per_action = (double)least_ns / (double)cost.action_count;
    return cost;
}

/* With 16 times the microbatches or ranks an action may cost 6 times as much, because of caches.
   With a quadratic cost it would be 16 times. */
static void schedule_laws_judge_growth(struct hd_conform_case *check, const struct hd_shape *small,
                                       const struct hd_shape *large, const char *direction)
{
    if (hd_conform_is_refused(check, small) || hd_conform_is_refused(check, large)) {
        return;
    }
    const struct cost before = schedule_laws_cost_of(check, small),
                      after = schedule_laws_cost_of(check, large);
    HD_HOLD(check, after.ns_per_action < 6 * before.ns_per_action + 20,
            "16 times the %s: an action costs %.0f ns at %s and %.0f ns at %s", direction,
            before.ns_per_action, hd_conform_shape_text(small), after.ns_per_action,
            hd_conform_shape_text(large));
}

void hd_conform_schedule_linear(struct hd_conform_case *check)
{
    const uint32_t declared = hd_conform_schedule_ops(check)->stages_per_rank;
    const uint32_t per_rank = declared > 0 ? declared : 1;
    const struct hd_shape base = hd_conform_shape(check, 4, per_rank, 256);
    const struct hd_shape longer = hd_conform_shape(check, 4, per_rank, GROWTH * 256);
    const struct hd_shape wider = hd_conform_shape(check, GROWTH * 4, per_rank, 256);

    schedule_laws_judge_growth(check, &base, &longer, "microbatches");
    schedule_laws_judge_growth(check, &base, &wider, "ranks");
}

/* --- the edges ----------------------------------------------------------------------------- */

static void schedule_laws_judge_limit(struct hd_conform_case *check, const struct hd_shape *shape)
{
    struct hd_conform_plans plans;
    uint64_t action_count = 0;

    if (hd_conform_is_refused(check, shape)) {
        return;
    }
    hd_conform_plan(check, shape, NULL, 0xff, &plans);
    for (uint32_t rank = 0; rank < shape->rank_count; rank++) {
        action_count += plans.plans[rank].count;
    }
    HD_HOLD(check, action_count >= 2 * (uint64_t)shape->stage_count * shape->microbatch_count,
            "%s: %llu actions are fewer than two passes of %u stages and %u microbatches",
            hd_conform_shape_text(shape), (unsigned long long)action_count, shape->stage_count,
            shape->microbatch_count);
    HD_HOLD(check, hd_conform_plans_are_whole(&plans), "%s: plan writes outside of its scratch",
            hd_conform_shape_text(shape));
    hd_conform_plans_free(&plans);
}

void hd_conform_schedule_limits(struct hd_conform_case *check)
{
    static const uint32_t shapes[][3] = {
        {HD_RANK_MAX, 1, 1},           {HD_RANK_MAX, 4, 1},
        {HD_RANK_MAX, 2, 3},           {1, HD_STAGE_MAX, 1},
        {1, 1, HD_MICROBATCH_MAX},     {2, 1, HD_MICROBATCH_MAX},
        {3, 2, HD_MICROBATCH_MAX / 8}, {1, 1, 1},
    };

    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct hd_shape shape =
            hd_conform_shape(check, shapes[i][0], shapes[i][1], shapes[i][2]);
        schedule_laws_judge_limit(check, &shape);
    }
}

void hd_conform_schedule_speed(struct hd_conform_case *check)
{
    const uint32_t declared = hd_conform_schedule_ops(check)->stages_per_rank;
    const struct hd_shape shape = hd_conform_shape(check, 8, declared > 0 ? declared : 1, 512);

    if (hd_conform_is_refused(check, &shape)) {
        hd_conform_skip(check, "refuses %s", hd_conform_shape_text(&shape));
        return;
    }
    const struct cost cost = schedule_laws_cost_of(check, &shape);
    hd_conform_remark(check, "%s: %.1f ns per action, %.1f million per second",
                      hd_conform_shape_text(&shape), cost.ns_per_action, 1e3 / cost.ns_per_action);
}
