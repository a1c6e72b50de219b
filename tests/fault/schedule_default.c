/* An option's default is outside of its own range. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
static const struct hd_option options[] = {
    {"depth", "65", "1..64", "never to be had", HD_OPTION_INTEGER, 0}};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "default",
                                              .option_count = 1, .options = options, .ops = &ops};
