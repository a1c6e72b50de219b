/*
 * registry/internal.h - what the files of core/registry share: is this file safe to load, and is
 * what it exports a plugin.  Not for anybody else. [setup]
 */
#ifndef HEDDLE_REGISTRY_INTERNAL_H
#define HEDDLE_REGISTRY_INTERNAL_H

#include "registry/registry.h"

#include <stdbool.h>

#define HD_CANDIDATE_REASON_BYTES 1024u

/* A regular ELF64 shared object of this machine with all its segments inside the file?  0 with
   a reason.  Looks only at the file's bytes; runs none of it. */
int hd_elf_is_loadable(const char *path, char reason[HD_CANDIDATE_REASON_BYTES]);

/* Does the file survive a first load, in a child that ends right after it?  0 with the reason.
   Not over after limit_ns is a reason too; leaves no process behind. */
bool hd_trial_passes(struct hd_candidate *candidate, uint64_t limit_ns);

/* Loads the file here and checks what it exports, in the order of plugin.h; fills
   candidate->plugin, or candidate->reason.  The handle of the library, NULL: the loader refuses. */
void *hd_candidate_open(struct hd_candidate *candidate);

/* The file's bytes, then the trial, then the load; candidate->is_loaded is set either way. */
void hd_candidate_load(struct hd_candidate *candidate);

/* Checks a descriptor of which `readable_bytes` may be read (0: not known). */
int hd_descriptor_check(struct hd_candidate *candidate, const void *symbol,
                        uint64_t readable_bytes);

#endif /* HEDDLE_REGISTRY_INTERNAL_H */
