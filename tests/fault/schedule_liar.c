/* The descriptor says that it is larger than the symbol. */
#include "fault.h"
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {.magic = HD_PLUGIN_MAGIC,
                                              .size = 1u << 20,
                                              .abi_major = HD_ABI_MAJOR,
                                              .kind = HD_KIND_SCHEDULE,
                                              .name = "liar",
                                              .ops = &ops};
