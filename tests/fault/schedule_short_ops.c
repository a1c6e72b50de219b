/* The table ends before `plan`: that counts as NULL, and a schedule cannot do without it. */
#include "fault.h"
static const struct hd_schedule_ops ops = {
    .size = offsetof(struct hd_schedule_ops, plan), .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "short_ops",
                                              .ops = &ops};
