/* Built for a later ABI. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {.magic = HD_PLUGIN_MAGIC,
                                              .size = sizeof(struct hd_plugin),
                                              .abi_major = HD_ABI_MAJOR + 1,
                                              .kind = HD_KIND_SCHEDULE,
                                              .name = "major",
                                              .ops = &ops};
