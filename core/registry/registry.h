/*
 * registry/registry.h - finds, checks and loads plugins; the only dlopen of the project.
 *
 * Searched, in this order: each --plugin-dir, HEDDLE_PLUGIN_PATH (colon separated; ignored when
 * AT_SECURE is set), <exe>/../lib/heddle/abi1.  Only those directories are read, never ld.so's
 * nor the working directory, and only files heddle_<kind>_<name>.so.  A name with a slash or
 * that ends in .so is that file and nothing else.
 *
 * Before dlopen: a regular file, ELF64 of this machine, every PT_LOAD inside the file (a truncated
 * file would be a SIGBUS).  Then a trial in a child of its own, for ld.so dies of a damaged file
 * and a constructor may end the process: that is then the reason.  Then NOW|LOCAL|NODELETE, the
 * symbol hd_plugin, magic, major, size (at least the members of version 1.0), kind and name as the
 * file name says, an option table whose defaults pass their own types and ranges, and the members
 * of the ops table that its kind cannot do without.  Every candidate that fails keeps its reason.
 * Loaded plugins stay to the end.  The descriptor and ops handed out are copies over zeros of
 * min(size, own size), so the core may look at any member it knows.  [setup] one thread: it forks.
 */
#ifndef HEDDLE_REGISTRY_REGISTRY_H
#define HEDDLE_REGISTRY_REGISTRY_H

#include "base/problem.h"

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

/* One file that might be a plugin. */
struct hd_candidate {
    uint32_t kind; /* by its file name; enum hd_plugin_kind */
    char name[64]; /* by its file name */
    char path[4096];
    char reason[1024];       /* why it cannot be used; empty: it can */
    uint32_t is_loaded;      /* checked to the end: `plugin` is set, or `reason` is */
    uint32_t is_shadowed;    /* an earlier directory has the same kind and name */
    struct hd_plugin plugin; /* a copy over zeros; its ops is a copy too, of the full size */
};

struct hd_registry; /* owns all of it; freed never or by destroy, the libraries stay */

/* Lists the directories; loads nothing.  `directories` are those of --plugin-dir. */
hd_status hd_registry_create(uint32_t directory_count, const char *const *directories,
                             struct hd_registry **registry, struct hd_problem *problem);
void hd_registry_destroy(struct hd_registry *registry); /* takes NULL */

/*
 * The plugin of `kind` that `name` asks for (a name, or a path to a .so), loaded and checked.
 * On failure the problem (HD_EXIT_PLUGIN) lists every candidate with its reason, the nearest
 * names, and the directories searched.  The result lives as long as the registry.
 */
hd_status hd_registry_find(struct hd_registry *registry, uint32_t kind, const char *name,
                           const struct hd_candidate **found, struct hd_problem *problem);

/* Loads and checks every candidate (for `heddle list`); each keeps its reason. */
void hd_registry_load_all(struct hd_registry *registry);
uint32_t hd_registry_count(const struct hd_registry *registry);
const struct hd_candidate *hd_registry_at(const struct hd_registry *registry, uint32_t index);

/* Does a file of this kind and name exist in the search path?  Loads nothing. */
int hd_registry_knows(const struct hd_registry *registry, const char *kind, const char *name);

#endif /* HEDDLE_REGISTRY_REGISTRY_H */
