#include "run/plugins.h"

#include <stdlib.h>

void hd_plugins_finish(struct hd_plugins *plugins)
{
    free(plugins->schedule_options);
    free(plugins->transport_options);
    free(plugins->inner_options);
    free(plugins->kernel_options);
    *plugins = (struct hd_plugins){0};
}

const struct hd_plugin *hd_plugins_carrier(const struct hd_plugins *plugins)
{
    const struct hd_candidate *carrier =
        plugins->inner != NULL ? plugins->inner : plugins->transport;
    return carrier != NULL ? &carrier->plugin : NULL;
}

uint32_t hd_plugins_list(const struct hd_plugins *plugins,
                         const struct hd_plugin *list[HD_PLUGINS_MAX])
{
    const struct hd_candidate *const candidates[HD_PLUGINS_MAX] = {
        plugins->schedule, plugins->transport, plugins->inner, plugins->kernel};
    uint32_t count = 0;

    for (unsigned i = 0; i < HD_PLUGINS_MAX; i++) {
        if (candidates[i] != NULL) {
            list[count++] = &candidates[i]->plugin;
        }
    }
    return count;
}
