/* The descriptor ends before its table of operations. */
#include <heddle/schedule.h>

#include <stddef.h>

HD_EXPORT const struct hd_plugin hd_plugin = {.magic = HD_PLUGIN_MAGIC,
                                              .size = offsetof(struct hd_plugin, ops),
                                              .abi_major = HD_ABI_MAJOR,
                                              .kind = HD_KIND_SCHEDULE,
                                              .name = "smaller"};
