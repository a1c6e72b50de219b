/*
 * engine/host.h - the table of functions that a plugin may call, for one plugin of one rank.
 *
 * Memory, clock and log are the same for all.  The bootstrap's keys get a prefix, so that a key of
 * one plugin or of one instance differs from the keys of every other.  What a plugin reports goes
 * to the caller.
 */
#ifndef HEDDLE_ENGINE_HOST_H
#define HEDDLE_ENGINE_HOST_H

#include "engine/engine.h"

struct hd_plugin_host {
    const struct hd_plugin *plugin;
    const struct hd_option_value *options; /* in the order of its table */
    uint32_t rank, rank_count;
    uint32_t instance;                    /* keeps apart what one rank opens at once */
    bool is_untraced;                     /* the plugin need not report transfers */
    struct hd_engine_bootstrap bootstrap; /* put NULL: the plugin gets no bootstrap */
    void *context;
    /* [any-thread] */
    void (*on_fail)(void *context, const struct hd_plugin *plugin, const struct hd_error *error);
    void (*on_transfer)(void *context, const struct hd_transfer *transfer); /* or NULL */

    struct hd_host host; /* filled by hd_plugin_host_init */
};

/* The caller sets all but `host`, and keeps the struct where it is. */
void hd_plugin_host_init(struct hd_plugin_host *host);

/* "plugin: text", as the first problem of `failure`. */
void hd_plugin_host_note(struct hd_problem *failure, const struct hd_plugin *plugin,
                         const struct hd_error *error);

#endif /* HEDDLE_ENGINE_HOST_H */
