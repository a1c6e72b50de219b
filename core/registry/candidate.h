/* registry/candidate.h - one file that may be a plugin. */
#ifndef HEDDLE_REGISTRY_CANDIDATE_H
#define HEDDLE_REGISTRY_CANDIDATE_H

#include <heddle/plugin.h>

#include <stdbool.h>

#define HD_CANDIDATE_REASON_BYTES 1024u

struct hd_candidate {
    uint32_t kind; /* from the file name; enum hd_plugin_kind */
    char name[64]; /* from the file name */
    char path[4096];
    char reason[HD_CANDIDATE_REASON_BYTES]; /* why the file is rejected; empty: it is not */
    bool is_loaded;          /* all checks have run: `plugin` is set, or `reason` is */
    bool is_shadowed;        /* an earlier directory has a plugin of this kind and name */
    struct hd_plugin plugin; /* a copy over zeros; its ops is a copy too, of the full size */
};

#endif /* HEDDLE_REGISTRY_CANDIDATE_H */
