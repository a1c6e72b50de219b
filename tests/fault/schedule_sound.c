/* Nothing is wrong: the yardstick of its neighbours. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "sound",
                                              .summary = "all is right", .ops = &ops};
