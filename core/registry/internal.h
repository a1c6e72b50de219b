/* registry/internal.h - the steps of loading a candidate, for core/registry and its tests. */
#ifndef HEDDLE_REGISTRY_INTERNAL_H
#define HEDDLE_REGISTRY_INTERNAL_H

#include "registry/candidate.h"

/* Whether the file is a regular ELF64 shared object of this machine with all segments inside the
   file; false with a reason.  Reads the file's bytes, and runs none of its code. */
bool hd_elf_is_loadable(const char *path, char reason[HD_CANDIDATE_REASON_BYTES]);

/* Whether the file survives a first load in a child process that ends after it; false with the
   reason, as when the child has not ended after limit_ns.  Leaves no process behind. */
bool hd_trial_passes(struct hd_candidate *candidate, uint64_t limit_ns);

/* Loads the file in this process and checks what it exports, in the order of plugin.h; fills
   candidate->plugin, or candidate->reason.  Returns the library's handle; NULL: dlopen failed. */
void *hd_candidate_open(struct hd_candidate *candidate);

#endif /* HEDDLE_REGISTRY_INTERNAL_H */
