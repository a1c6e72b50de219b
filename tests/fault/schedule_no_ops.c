/* No table at all. */
#include <heddle/schedule.h>
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "no_ops"};
