/* run/plugins.h - the plugins of one configuration, loaded, each with its options. */
#ifndef HEDDLE_RUN_PLUGINS_H
#define HEDDLE_RUN_PLUGINS_H

#include "registry/registry.h"

#include <stdbool.h>

enum { HD_PLUGINS_MAX = 4 };

struct hd_plugins {
    const struct hd_candidate *schedule;           /* NULL: pipeline.schedule is a CSV file */
    const struct hd_candidate *transport, *kernel; /* NULL: not needed, and not available */
    const struct hd_candidate *inner; /* what the hook `transport` wraps; NULL: it is not a hook */
    struct hd_option_value *schedule_options; /* owned, like the next three; in the order of the */
    struct hd_option_value *transport_options, *kernel_options, *inner_options; /* plugin's table */
    bool is_forward_only; /* the schedule is asked for the plan of an evaluation */
};

/* Frees the options. */
void hd_plugins_finish(struct hd_plugins *plugins);

/* The plugin that moves the tensors: the transport, or what it wraps.  NULL without a transport. */
const struct hd_plugin *hd_plugins_carrier(const struct hd_plugins *plugins);

/* Fills `list` with the plugins that are there; returns how many. */
uint32_t hd_plugins_list(const struct hd_plugins *plugins,
                         const struct hd_plugin *list[HD_PLUGINS_MAX]);

#endif /* HEDDLE_RUN_PLUGINS_H */
