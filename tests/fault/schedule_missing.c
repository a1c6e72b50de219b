/* The table has no `rank_of`. */
#include <heddle/schedule.h>

#include <stddef.h>

static void plan(const struct hd_shape *shape, void *scratch, struct hd_plan *const *plans)
{
    (void)shape;
    (void)scratch;
    (void)plans;
}
static const struct hd_schedule_ops ops = {.size = sizeof ops, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "missing",
                                              .ops = &ops};
