#include "registry/registry.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/option.h"
#include "base/text.h"
#include "registry/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* The limit of a first load.  Device libraries need a few seconds; a constructor may hang. */
#define TRIAL_NS (30 * HD_S_NS)

enum { DIRECTORY_COUNT_MAX = 64, CANDIDATE_COUNT_MAX = 4096, PATH_BYTES = 4096 };

struct hd_registry {
    uint32_t candidate_count;
    struct hd_candidate **candidates; /* by pointer, as the caller keeps what find returns */
    uint32_t directory_count;
    char directories[DIRECTORY_COUNT_MAX][PATH_BYTES];
};

/* Takes "heddle_schedule_1f1b.so" apart; false: the name has another form. */
static bool registry_read_file_name(const char *file_name, uint32_t *kind, char name[64])
{
    static const char prefix[] = "heddle_";
    const size_t length = strlen(file_name);

    if (strncmp(file_name, prefix, sizeof prefix - 1) != 0 || length < 4 ||
        strcmp(file_name + length - 3, ".so") != 0) {
        return false;
    }
    const char *at = file_name + sizeof prefix - 1;
    for (*kind = HD_KIND_SCHEDULE; *kind <= HD_KIND_KERNEL; ++*kind) {
        const char *word = hd_kind_name(*kind);
        const size_t word_length = strlen(word);
        if (strncmp(at, word, word_length) == 0 && at[word_length] == '_') {
            at += word_length + 1;
            snprintf(name, 64, "%.*s", (int)(file_name + length - 3 - at), at);
            return hd_text_is_name(name);
        }
    }
    return false;
}

static struct hd_candidate *registry_add_candidate(struct hd_registry *registry, const char *path)
{
    if (registry->candidate_count == CANDIDATE_COUNT_MAX || strlen(path) >= PATH_BYTES) {
        return NULL;
    }
    struct hd_candidate *candidate = calloc(1, sizeof *candidate);
    const size_t bytes = (registry->candidate_count + 1) * sizeof candidate;
    struct hd_candidate **grown = realloc(registry->candidates, bytes);
    if (grown != NULL) {
        registry->candidates = grown;
    }
    if (candidate == NULL || grown == NULL) {
        free(candidate);
        return NULL;
    }
    memcpy(candidate->path, path, strlen(path) + 1);
    const char *slash = strrchr(path, '/');
    if (!registry_read_file_name(slash != NULL ? slash + 1 : path, &candidate->kind,
                                 candidate->name)) {
        candidate->kind = 0;
        candidate->name[0] = '\0';
    }
    registry->candidates[registry->candidate_count++] = candidate;
    return candidate;
}

/* The index of the first candidate of this kind and name among `count`; or `count`. */
static uint32_t registry_place_of(const struct hd_registry *registry, uint32_t count, uint32_t kind,
                                  const char *name)
{
    uint32_t i = 0;
    while (i < count && (registry->candidates[i]->kind != kind ||
                         strcmp(registry->candidates[i]->name, name) != 0)) {
        i++;
    }
    return i;
}

static int registry_is_plugin_file(const struct dirent *entry)
{
    uint32_t kind;
    char name[64];
    return registry_read_file_name(entry->d_name, &kind, name);
}

static int registry_by_name(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

/* Adds the plugins of one directory, sorted by name; returns 0, or errno. */
static int registry_add_directory(struct hd_registry *registry, const char *directory)
{
    char path[2 * PATH_BYTES];
    struct dirent **entries = NULL;
    const int count = scandir(directory, &entries, registry_is_plugin_file, registry_by_name);

    if (registry->directory_count < DIRECTORY_COUNT_MAX && strlen(directory) < PATH_BYTES) {
        memcpy(registry->directories[registry->directory_count++], directory,
               strlen(directory) + 1);
    }
    if (count < 0) {
        const int error = errno;
        hd_log(HD_LOG_DEBUG, "registry: cannot read %s: %s", directory, strerror(error));
        return error;
    }
    hd_log(HD_LOG_DEBUG, "registry: %s has %d plugins", directory, count);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        struct hd_candidate *candidate = registry_add_candidate(registry, path);
        if (candidate != NULL) {
            const uint32_t before = registry->candidate_count - 1;
            candidate->is_shadowed =
                registry_place_of(registry, before, candidate->kind, candidate->name) < before;
        }
        free(entries[i]);
    }
    free(entries);
    return 0;
}

/* Colon separated; a missing directory is not an error, but is listed as searched. */
static void registry_add_environment(struct hd_registry *registry)
{
    const char *path = getenv("HEDDLE_PLUGIN_PATH");

    if (path == NULL || getauxval(AT_SECURE) != 0) {
        return;
    }
    char *copy = strdup(path);
    char *rest = copy;
    for (char *part; copy != NULL && (part = strsep(&rest, ":")) != NULL;) {
        if (part[0] != '\0') { /* an empty part would mean the working directory */
            registry_add_directory(registry, part);
        }
    }
    free(copy);
}

/* <exe>/../lib/heddle/abi1, in a build tree and in an installation. */
static void registry_add_own(struct hd_registry *registry)
{
    char path[PATH_BYTES];
    char directory[PATH_BYTES + 32];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);

    if (length <= 0) {
        return;
    }
    path[length] = '\0';
    for (int levels = 0; levels < 2; levels++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            return;
        }
        *slash = '\0';
    }
    snprintf(directory, sizeof directory, "%s/lib/heddle/abi%u", path, HD_ABI_MAJOR);
    registry_add_directory(registry, directory);
}

hd_status hd_registry_create(uint32_t directory_count, const char *const *directories,
                             struct hd_registry **registry, struct hd_problem *problem)
{
    struct hd_registry *made = calloc(1, sizeof *made);

    if (made == NULL) {
        return hd_problem_no_memory(problem, 0, "the registry");
    }
    for (uint32_t i = 0; i < directory_count; i++) {
        const int error = registry_add_directory(made, directories[i]);
        if (error != 0) {
            hd_problem_place(problem, "command line");
            hd_problem_key(problem, "--plugin-dir");
            hd_registry_destroy(made);
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%.1000s: %s", directories[i],
                                  strerror(error));
        }
    }
    registry_add_environment(made);
    registry_add_own(made);
    *registry = made;
    return HD_OK;
}

void hd_registry_destroy(struct hd_registry *registry)
{
    if (registry == NULL) {
        return;
    }
    for (uint32_t i = 0; i < registry->candidate_count; i++) {
        free((void *)registry->candidates[i]->plugin.ops); /* the copy, see load.c */
        free(registry->candidates[i]);
    }
    free(registry->candidates);
    free(registry);
}

/* Lists every candidate of that name with its reason, or the directories and the nearest name. */
static hd_status registry_say_not_found(const struct hd_registry *registry, uint32_t kind,
                                        const char *name, struct hd_problem *problem)
{
    struct hd_nearest nearest = {.wanted = name};
    char text[2048] = "";

    for (uint32_t i = 0; i < registry->candidate_count; i++) {
        const struct hd_candidate *candidate = registry->candidates[i];
        if (candidate->kind != kind) {
            continue;
        }
        hd_nearest_offer(&nearest, candidate->name);
        if (strcmp(candidate->name, name) == 0) {
            hd_text_append(
                text, sizeof text, "%s%.600s: %.600s", text[0] != '\0' ? "; " : "", candidate->path,
                candidate->is_shadowed         ? "a file in an earlier directory has the same name"
                : candidate->reason[0] != '\0' ? candidate->reason
                                               : "not loaded");
        }
    }
    hd_problem_key(problem, "%s", hd_kind_name(kind));
    if (text[0] != '\0') {
        hd_problem_remedy(problem, "build it again, or choose another one");
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN, "%s %s cannot be used: %s",
                              hd_kind_name(kind), name, text);
    }
    for (uint32_t i = 0; i < registry->directory_count; i++) {
        hd_text_append(text, sizeof text, "%s%.600s", i > 0 ? ", " : "", registry->directories[i]);
    }
    if (nearest.name != NULL) {
        hd_problem_remedy(problem, "the nearest one is %s; `heddle list %s` shows all",
                          nearest.name, hd_kind_name(kind));
    } else {
        hd_problem_remedy(problem, "give the directory of its file with --plugin-dir DIR");
    }
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                          "there is no %s %.200s; searched: %s", hd_kind_name(kind), name, text);
}

/* The message names the file; the caller sets the place, which is where the file is asked for. */
static hd_status registry_say_unusable(const struct hd_candidate *candidate, uint32_t kind,
                                       const char *path, struct hd_problem *problem)
{
    const char *const word = kind != 0 ? hd_kind_name(kind) : "";

    hd_problem_key(problem, "%s", word);
    hd_problem_remedy(problem, "give the .so of a %s, or a name that `heddle list%s%s` shows",
                      hd_kind_name(kind), kind != 0 ? " " : "", word);
    if (candidate->reason[0] != '\0') {
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN, "%.500s cannot be used: %s",
                              path, candidate->reason);
    }
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                          "%.500s cannot be used: it is a %s, not a %s", path,
                          hd_kind_name(candidate->plugin.kind), hd_kind_name(kind));
}

/* Runs all checks once: the bytes of the file, the trial, the load. */
static void registry_load(struct hd_candidate *candidate)
{
    if (candidate->is_loaded) {
        return;
    }
    candidate->is_loaded = true;
    if (hd_elf_is_loadable(candidate->path, candidate->reason) &&
        hd_trial_passes(candidate, TRIAL_NS)) {
        hd_candidate_open(candidate);
    }
    if (candidate->reason[0] == '\0') {
        hd_log(HD_LOG_DEBUG, "registry: loaded %s: %s %s", candidate->path,
               hd_kind_name(candidate->kind), candidate->name);
    } else {
        hd_log(HD_LOG_DEBUG, "registry: rejected %s: %s", candidate->path, candidate->reason);
    }
}

/* A path is that file and no other. */
static hd_status registry_find_file(struct hd_registry *registry, uint32_t kind, const char *path,
                                    const struct hd_candidate **found, struct hd_problem *problem)
{
    struct hd_candidate *candidate = NULL;

    for (uint32_t i = 0; i < registry->candidate_count && candidate == NULL; i++) {
        if (strcmp(registry->candidates[i]->path, path) == 0) {
            candidate = registry->candidates[i];
        }
    }
    if (candidate == NULL) {
        candidate = registry_add_candidate(registry, path);
    }
    if (candidate == NULL) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                              "there are too many plugins, or memory cannot be allocated");
    }
    registry_load(candidate);
    if (candidate->reason[0] != '\0' || (kind != 0 && candidate->plugin.kind != kind)) {
        return registry_say_unusable(candidate, kind, path, problem);
    }
    *found = candidate;
    return HD_OK;
}

hd_status hd_registry_find(struct hd_registry *registry, uint32_t kind, const char *name,
                           const struct hd_candidate **found, struct hd_problem *problem)
{
    const size_t length = strlen(name);

    if (strchr(name, '/') != NULL || (length > 3 && strcmp(name + length - 3, ".so") == 0)) {
        return registry_find_file(registry, kind, name, found, problem);
    }
    const uint32_t place = registry_place_of(registry, registry->candidate_count, kind, name);
    if (place < registry->candidate_count) {
        struct hd_candidate *candidate = registry->candidates[place];
        registry_load(candidate);
        if (candidate->reason[0] == '\0') {
            *found = candidate;
            return HD_OK;
        }
    }
    return registry_say_not_found(registry, kind, name, problem);
}

void hd_registry_load_all(struct hd_registry *registry)
{
    for (uint32_t i = 0; i < registry->candidate_count; i++) {
        registry_load(registry->candidates[i]);
    }
}

uint32_t hd_registry_count(const struct hd_registry *registry)
{
    return registry->candidate_count;
}

const struct hd_candidate *hd_registry_at(const struct hd_registry *registry, uint32_t index)
{
    return index < registry->candidate_count ? registry->candidates[index] : NULL;
}

bool hd_registry_knows(const struct hd_registry *registry, const char *kind, const char *name)
{
    return registry_place_of(registry, registry->candidate_count, hd_kind_of_name(kind), name) <
           registry->candidate_count;
}
