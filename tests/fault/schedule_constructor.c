/* Its constructor crashes where the environment says so; otherwise sound. */
#include "fault.h"

#include <stdlib.h>

__attribute__((constructor)) static void construct(void)
{
    if (getenv("FAULT_CONSTRUCTOR") != NULL) {
        abort();
    }
}

static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
                                              .name = "constructor", .summary = "crashes early",
                                              .ops = &ops};
