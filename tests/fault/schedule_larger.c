/* Built with later headers of the same major: descriptor and table have members more.  Served. */
#include "fault.h"
static const struct {
    struct hd_schedule_ops known;
    uint64_t more[4];
} ops = {{.size = sizeof ops, .rank_of = rank_of, .plan = plan}, {1, 2, 3, 4}};
HD_EXPORT const struct {
    struct hd_plugin known;
    uint64_t more[4];
} hd_plugin = {{.magic = HD_PLUGIN_MAGIC,
                .size = sizeof hd_plugin,
                .abi_major = HD_ABI_MAJOR,
                .abi_minor = HD_ABI_MINOR + 7,
                .kind = HD_KIND_SCHEDULE,
                .name = "larger",
                .summary = "from the future",
                .ops = &ops},
               {1, 2, 3, 4}};
