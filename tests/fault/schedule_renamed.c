/* The descriptor has another name than the file. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "other",
                                              .ops = &ops};
