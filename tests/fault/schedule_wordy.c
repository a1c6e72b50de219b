/* A schedule that is sound, with a summary of two lines and help that is no UTF-8. */
#include "fault.h"

static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
static const struct hd_option options[] = {
    {"depth", "1", "1..64", "how deep \xff", HD_OPTION_INTEGER, 0}};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
                                              .name = "wordy",
                                              .summary = "one line\nand another",
                                              .option_count = 1,
                                              .options = options,
                                              .ops = &ops};
