/*
 * registry/registry.h - finds, checks and loads plugins; the only dlopen of the project.
 *
 * Searches, in this order: each --plugin-dir, HEDDLE_PLUGIN_PATH (colon separated; ignored if
 * AT_SECURE is set), <exe>/../lib/heddle/abi1.  Only these directories are read, never ld.so's or
 * the working directory, and only files heddle_<kind>_<name>.so.  A name that has a slash or ends
 * in .so is that file and no other.
 *
 * Before dlopen, a file must be a regular ELF64 file of this machine with every PT_LOAD inside the
 * file (a truncated file would be a SIGBUS).  Then a child process loads the file first, because
 * ld.so crashes on a damaged file and a constructor may end the process; either is then the reason
 * to reject the file.  After dlopen (NOW|LOCAL|NODELETE) are checked: the symbol hd_plugin, magic,
 * major, size (at least the members of version 1.0), kind and name against the file name, an option
 * table whose defaults pass their own types and ranges, and the members of the ops table that every
 * plugin of the kind needs.  Every rejected candidate keeps its reason.  Loaded plugins are never
 * unloaded.  Descriptor and ops are copies over zeros of min(size, own size), so the core may read
 * every member that it knows.  [setup] one thread, because it forks.
 */
#ifndef HEDDLE_REGISTRY_REGISTRY_H
#define HEDDLE_REGISTRY_REGISTRY_H

#include "base/problem.h"
#include "registry/candidate.h"

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

struct hd_registry; /* owns the candidates */

/* Reads the directories; loads nothing.  `directories` are those of --plugin-dir. */
hd_status hd_registry_create(uint32_t directory_count, const char *const *directories,
                             struct hd_registry **registry, struct hd_problem *problem);
void hd_registry_destroy(struct hd_registry *registry); /* takes NULL; the libraries stay loaded */

/*
 * Loads and checks the plugin of `kind` with this `name` (or a path to a .so).
 * On failure the problem (HD_EXIT_PLUGIN) lists every candidate with its reason, the nearest
 * names, and the directories searched.  The result lives as long as the registry.
 */
hd_status hd_registry_find(struct hd_registry *registry, uint32_t kind, const char *name,
                           const struct hd_candidate **found, struct hd_problem *problem);

/* Loads and checks every candidate (for `heddle list`); each keeps its reason. */
void hd_registry_load_all(struct hd_registry *registry);
uint32_t hd_registry_count(const struct hd_registry *registry);
const struct hd_candidate *hd_registry_at(const struct hd_registry *registry, uint32_t index);

/* Whether the search path has a file of this kind and name.  Loads nothing. */
bool hd_registry_knows(const struct hd_registry *registry, const char *kind, const char *name);

#endif /* HEDDLE_REGISTRY_REGISTRY_H */
