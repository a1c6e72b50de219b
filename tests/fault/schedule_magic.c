/* Another program's plugin: the magic is wrong. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {.magic = 0x6e6967756c70ull,
                                              .size = sizeof(struct hd_plugin),
                                              .abi_major = HD_ABI_MAJOR,
                                              .kind = HD_KIND_SCHEDULE,
                                              .name = "magic",
                                              .ops = &ops};
