/*
 * plugins/schedules/interleaved_1f1b.c - 1F1B over several stages per rank.
 *
 * 1F1B waits 3 (P - 1) ticks of whole stages.  Cut each rank's work into V smaller
 * stages and hand them out in a loop (rank r holds r, r + P, r + 2P, ...): the
 * pipeline fills V times faster, and the bubble shrinks by V.  Microbatches go
 * in groups: a rank runs a group through its first stage, then through its second,
 * and backwards from the last stage to the first.
 *
 * Two ranks, two stages on each, four microbatches, as soon as possible:
 *
 *   rank 0  0F0 0F1 2F0 2F1 0F2 .   2B0 --  0F3 2B1 --  2F2 0B0 --
 *   rank 1  .   1F0 1F1 3F0 3B0 --  3F1 3B1 --  1F2 1B0 --  1F3 1B1
 *
 *   rank 0  2F3 0B1 --  .   2B2 --  .   2B3 --  0B2 --  0B3 --
 *   rank 1  --  3F2 3B2 --  3F3 3B3 --  1B2 --  1B3 --  .   .
 *
 * The warmup is twice as deep as 1F1B's, 2 (P - 1 - rank) beyond the full groups:
 * a tensor then arrives one whole pair of actions before its consumer, so a transfer
 * can hide behind other work.  interleaved_lean halves it, for less memory.
 *
 *   groups    max(1, floor(m / P)), sizes differ by at most one, larger first; g0
 *             is the first size (P divides m: all are P)
 *   length    3 V m + 3 (P - 1) ticks   for m >= P; 3 (P - 1) are empty on a rank
 *   bubble    (P - 1) / (V m + P - 1)   empty ticks over all ticks
 *   copies    min(V m, (V - 1) g0 + 2 (P - 1 - rank) + 1)
 *
 * The idle ticks draw the report's figure, which pairs every forward with the backward
 * after it; an engine ignores them.  interleaved.h has the order itself.
 * tests/test_schedules.c checks this file against the picture and the formulas.
 *
 * Source: Narayanan et al. 2021 (Megatron-LM), section 2.2; the report, figure 25.
 */
#include "interleaved.h"

static void interleaved_1f1b_plan(const struct hd_shape *shape, void *scratch,
                                  struct hd_plan *const *plans)
{
    (void)scratch;
    interleaved_plan(shape, 2, true, plans);
}

static const struct hd_schedule_ops interleaved_1f1b_ops = {
    .size = sizeof interleaved_1f1b_ops,
    .stages_per_rank = 2,
    .rank_of = interleaved_rank_of,
    .plan = interleaved_1f1b_plan,
};

HD_EXPORT const struct hd_plugin hd_plugin = {
    HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
    .name = "interleaved_1f1b",
    .summary = "1F1B over V stages per rank in a loop: the bubble over V, for more copies",
    .source = "Narayanan et al. 2021 (Megatron-LM), section 2.2",
    .ops = &interleaved_1f1b_ops,
};
