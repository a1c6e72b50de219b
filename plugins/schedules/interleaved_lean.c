/*
 * plugins/schedules/interleaved_lean.c - interleaved 1F1B with half the warmup.
 *
 * The same placement, the same groups and, where transfers are free, the same length
 * as interleaved_1f1b.  A rank leads by one forward for each rank downstream, not
 * by two, as in plain 1F1B, so it retains P - 1 - rank copies fewer: 8 7 6 5 instead of
 * 11 9 7 5 on four ranks with two stages each and eight microbatches.
 *
 * Two ranks, two stages on each, four microbatches, as soon as possible:
 *
 *   rank 0  0F0 0F1 2F0 2F1 .   .   2B0 --  0F2 2B1 --  0F3 0B0 --
 *   rank 1  .   1F0 1F1 3F0 3B0 --  3F1 3B1 --  1F2 1B0 --  1F3 1B1
 *
 *   rank 0  2F2 0B1 --  2F3 2B2 --  .   2B3 --  0B2 --  0B3 --
 *   rank 1  --  3F2 3B2 --  3F3 3B3 --  1B2 --  1B3 --  .   .
 *
 * What it costs: more tensors are consumed by the receiver's very next action, so
 * fewer transfers hide.  Length in ticks at P = 4, V = 2, m = 8, if a transfer takes
 *
 *   ticks              0     .25    .5    1
 *   interleaved_lean   57    64.5   72    87
 *   interleaved_1f1b   57    60.5   64    71
 *
 * and the gap grows with m.  Choose it where memory is short and links are fast.
 *
 *   groups    those of interleaved_1f1b (interleaved.h); g0 is the first size
 *   length    3 V m + 3 (P - 1) ticks   for m >= P; 3 (P - 1) are empty on a rank
 *   copies    min(V m, (V - 1) g0 + (P - 1 - rank) + 1)
 *
 * tests/test_schedules.c checks this file against the picture and the formulas.
 *
 * Source: Narayanan et al. 2021 (Megatron-LM), with the warmup of Qi et al. 2024
 * (zero-bubble pipelines with controllable memory), whose group-interleaved order
 * this is once input and weight gradients are one pass.
 */
#include "interleaved.h"

static void interleaved_lean_plan(const struct hd_shape *shape, void *scratch,
                                  struct hd_plan *const *plans)
{
    (void)scratch;
    interleaved_plan(shape, 1, false, plans);
}

static const struct hd_schedule_ops interleaved_lean_ops = {
    .size = sizeof interleaved_lean_ops,
    .stages_per_rank = 2,
    .rank_of = interleaved_rank_of,
    .plan = interleaved_lean_plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "interleaved_lean",
    .summary = "interleaved_1f1b with fewer copies; fewer transfers hide: 57/64.5/72/87 ticks "
               "against 57/60.5/64/71 (P=4 V=2 m=8, transfers of 0/.25/.5/1 tick)",
    .source = "Narayanan et al. 2021 (Megatron-LM); Qi et al. 2024 (controllable memory)",
    .ops = &interleaved_lean_ops,
};
