/* A plugin of the first headers (abi1.0/, frozen), compiled with them and never again changed. */
#include "fault.h"

static const struct hd_option options[] = {
    {"depth", "4", "1..64", "as at the beginning", HD_OPTION_INTEGER, 0}};
static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
                                              .name = "abi10",
                                              .summary = "built with the headers of ABI 1.0",
                                              .option_count = 1,
                                              .options = options,
                                              .ops = &ops};
