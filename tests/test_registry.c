/*
 * tests/test_registry.c - which files become plugins, and the reason of each that does not.
 *
 * The plugins of tests/fault/ are wrong in one place each; files that no compiler would make
 * (truncated, text, another machine) are made here from a sound one.
 */
#include "registry/registry.h"
#include "support/check.h"

#include <elf.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char fault_directory[4096];
static char made_directory[4096];

static struct hd_registry *open_registry(const char *directory)
{
    const char *const directories[] = {directory};
    struct hd_problem problem = {.exit_code = 0};
    struct hd_registry *registry = NULL;

    CU_ASSERT_EQUAL_FATAL(hd_registry_create(1, directories, &registry, &problem), HD_OK);
    return registry;
}

struct fault_row {
    uint32_t kind;
    const char *name;
    const char *fragment; /* of the problem's message */
};

static const struct fault_row fault_rows[] = {
    {HD_KIND_SCHEDULE, "magic", "wrong magic"},
    {HD_KIND_SCHEDULE, "major", "built for ABI 2, this heddle has 1"},
    {HD_KIND_SCHEDULE, "smaller", "its descriptor gives its size as"},
    {HD_KIND_SCHEDULE, "liar", "its descriptor gives its size as 1048576 bytes"},
    {HD_KIND_SCHEDULE, "short_ops", "lacks plan"},
    {HD_KIND_SCHEDULE, "missing", "lacks rank_of"},
    {HD_KIND_SCHEDULE, "no_ops", "no table of operations"},
    {HD_KIND_SCHEDULE, "default", "option depth: its own default 65 is not in 1..64"},
    {HD_KIND_SCHEDULE, "renamed", "its name is other, but its file name says renamed"},
    {HD_KIND_TRANSPORT, "kind", "is a schedule, but its file name says transport"},
    {HD_KIND_SCHEDULE, "symbol", "does not export hd_plugin"},
    {HD_KIND_SCHEDULE, "function", "is a function"},
    {HD_KIND_KERNEL, "half", "only one of backward_input and backward_weight"},
    {HD_KIND_KERNEL, "boaster", "only some of abort, allocate, copy, mark and reached"},
    {HD_KIND_KERNEL, "spoiled", "its table gives its size as 0 bytes"},
    {HD_KIND_TRANSPORT, "spoiled", "its table gives its size as 0 bytes"},
};

static void check_faults(void)
{
    struct hd_registry *registry = open_registry(fault_directory);

    for (unsigned i = 0; i < HD_CHECK_COUNT(fault_rows); i++) {
        const struct fault_row *row = &fault_rows[i];
        const struct hd_candidate *found = NULL;
        struct hd_problem problem = {.exit_code = 0};
        const hd_status status = hd_registry_find(registry, row->kind, row->name, &found, &problem);
        CU_ASSERT_NOT_EQUAL(status, HD_OK);
        CU_ASSERT_PTR_NULL(found);
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_PLUGIN);
        if (strstr(problem.message, row->fragment) == NULL) {
            printf("\n%s: `%s` lacks `%s`\n", row->name, problem.message, row->fragment);
            CU_FAIL("a rejected plugin's reason lacks what it must say");
        }
    }
    hd_registry_destroy(registry);
}

static void check_served(void)
{
    static const char *const names[] = {"sound", "larger", "abi10"};
    struct hd_registry *registry = open_registry(fault_directory);

    for (unsigned i = 0; i < HD_CHECK_COUNT(names); i++) {
        const struct hd_candidate *found = NULL;
        const struct hd_candidate *again = NULL;
        struct hd_problem problem = {.exit_code = 0};
        CU_ASSERT_EQUAL_FATAL(
            hd_registry_find(registry, HD_KIND_SCHEDULE, names[i], &found, &problem), HD_OK);
        const struct hd_schedule_ops *ops = found->plugin.ops;
        CU_ASSERT_STRING_EQUAL(found->plugin.name, names[i]);
        CU_ASSERT_STRING_EQUAL(found->plugin.vendor, ""); /* NULL in the file */
        CU_ASSERT(ops->plan != NULL && ops->rank_of != NULL && ops->refuse == NULL);
        struct hd_plan plan = {.size = sizeof plan};
        struct hd_plan *const plans[] = {&plan};
        const struct hd_shape shape = {
            .size = sizeof shape, .rank_count = 1, .stage_count = 1, .microbatch_count = 3};
        ops->plan(&shape, NULL, plans);
        CU_ASSERT_EQUAL(plan.count, 6);
        CU_ASSERT_EQUAL(hd_registry_find(registry, HD_KIND_SCHEDULE, names[i], &again, &problem),
                        HD_OK);
        CU_ASSERT_PTR_EQUAL(found, again);
    }
    hd_registry_destroy(registry);
}

static void check_list_keeps_every_reason(void)
{
    struct hd_registry *registry = open_registry(fault_directory);
    uint32_t rejected = 0;

    hd_registry_load_all(registry);
    for (uint32_t i = 0; i < hd_registry_count(registry); i++) {
        const struct hd_candidate *candidate = hd_registry_at(registry, i);
        CU_ASSERT(candidate->is_loaded != 0);
        if (strncmp(candidate->path, fault_directory, strlen(fault_directory)) == 0) {
            rejected += (uint32_t)(candidate->reason[0] != '\0');
        }
    }
    CU_ASSERT_EQUAL(rejected, HD_CHECK_COUNT(fault_rows));
    hd_registry_destroy(registry);
}

/* A copy of the sound plugin's bytes; the caller frees them. */
static unsigned char *sound_bytes(size_t *count)
{
    char path[4200];
    struct stat about;

    snprintf(path, sizeof path, "%s/heddle_schedule_sound.so", fault_directory);
    FILE *file = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fstat(fileno(file), &about), 0);
    *count = (size_t)about.st_size;
    unsigned char *bytes = malloc(*count);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    CU_ASSERT_EQUAL_FATAL(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

static void make_file(const char *path, const void *bytes, size_t count)
{
    unlink(path); /* a file that is loaded already must not change under the loader */
    FILE *file = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fwrite(bytes, 1, count, file), count);
    CU_ASSERT_EQUAL_FATAL(fclose(file), 0);
}

/* The reason for which a file is rejected; static. */
static const char *reason_of(const char *path)
{
    static char reason[2048];
    struct hd_registry *registry = open_registry(fault_directory);
    const struct hd_candidate *found = NULL;
    struct hd_problem problem = {.exit_code = 0};

    if (hd_registry_find(registry, HD_KIND_SCHEDULE, path, &found, &problem) != HD_OK) {
        CU_ASSERT_EQUAL(strncmp(problem.message, path, strlen(path)), 0);
        CU_ASSERT_STRING_EQUAL(problem.key, "schedule");
        CU_ASSERT_PTR_NOT_NULL(strstr(problem.remedy, "`heddle list schedule` shows"));
    }
    snprintf(reason, sizeof reason, "%s", problem.message);
    hd_registry_destroy(registry);
    return reason;
}

/* Where the last segment ends; what lies behind it (symbols for a debugger) may be missing. */
static size_t loaded_bytes(const unsigned char *bytes)
{
    Elf64_Ehdr header;
    size_t end = 0;

    memcpy(&header, bytes, sizeof header);
    for (uint32_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, bytes + header.e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > end) {
            end = segment.p_offset + segment.p_filesz;
        }
    }
    CU_ASSERT_FATAL(end > 1024);
    return end;
}

static void check_broken_files(void)
{
    char path[4200];
    size_t count;
    unsigned char *bytes = sound_bytes(&count);

    snprintf(path, sizeof path, "%s/heddle_schedule_cut.so", made_directory);
    const size_t needed = loaded_bytes(bytes);
    const size_t cuts[] = {0, 1, 63, 64, 100, needed / 4, needed / 2, needed - 1};
    for (unsigned i = 0; i < HD_CHECK_COUNT(cuts); i++) {
        make_file(path, bytes, cuts[i]);
        CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(path), "truncated"));
    }
    make_file(path, "#!/bin/sh\necho this is a script and no object at all, long enough\n", 66);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(path), "not an ELF file"));
    bytes[offsetof(Elf64_Ehdr, e_machine)] = EM_S390;
    make_file(path, bytes, count);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(path), "another machine"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(path), "No such file"));
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0); /* must not block */
    CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(path), "not a regular file"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    free(bytes);
}

static void check_file_of_any_name(void)
{
    char path[4200];
    size_t count;
    unsigned char *bytes = sound_bytes(&count);
    const struct hd_candidate *found = NULL;
    struct hd_problem problem = {.exit_code = 0};
    struct hd_registry *registry = open_registry(fault_directory);

    snprintf(path, sizeof path, "%s/vendor-7.so", made_directory);
    make_file(path, bytes, count);
    CU_ASSERT_EQUAL(hd_registry_find(registry, HD_KIND_SCHEDULE, path, &found, &problem), HD_OK);
    CU_ASSERT_STRING_EQUAL(found->name, "sound");
    CU_ASSERT_NOT_EQUAL(hd_registry_find(registry, HD_KIND_KERNEL, path, &found, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "it is a schedule, not a kernel"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    free(bytes);
    hd_registry_destroy(registry);
}

static void check_search(void)
{
    char path[4200];
    size_t count;
    unsigned char *bytes = sound_bytes(&count);
    struct hd_problem problem = {.exit_code = 0};
    const struct hd_candidate *found = NULL;
    const char *const both[] = {made_directory, fault_directory};
    struct hd_registry *registry = NULL;
    unsigned shadowed = 0;

    snprintf(path, sizeof path, "%s/heddle_schedule_sound.so", made_directory);
    make_file(path, bytes, count);
    CU_ASSERT_EQUAL_FATAL(hd_registry_create(2, both, &registry, &problem), HD_OK);
    CU_ASSERT_EQUAL(hd_registry_find(registry, HD_KIND_SCHEDULE, "sound", &found, &problem), HD_OK);
    CU_ASSERT_STRING_EQUAL(found->path, path); /* the first directory wins */
    for (uint32_t i = 0; i < hd_registry_count(registry); i++) {
        shadowed += (unsigned)hd_registry_at(registry, i)->is_shadowed;
    }
    CU_ASSERT_EQUAL(shadowed, 1);
    CU_ASSERT_TRUE(hd_registry_knows(registry, "schedule", "magic"));
    CU_ASSERT_FALSE(hd_registry_knows(registry, "transport", "magic"));
    hd_registry_destroy(registry);

    /* No fallback: a broken first one is an error that names both. */
    make_file(path, bytes, loaded_bytes(bytes) / 2);
    CU_ASSERT_EQUAL_FATAL(hd_registry_create(2, both, &registry, &problem), HD_OK);
    CU_ASSERT_NOT_EQUAL(hd_registry_find(registry, HD_KIND_SCHEDULE, "sound", &found, &problem),
                        HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "truncated"));
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, fault_directory));
    hd_registry_destroy(registry);
    CU_ASSERT_EQUAL(unlink(path), 0);
    free(bytes);
}

static void check_environment(void)
{
    struct hd_problem problem = {.exit_code = 0};
    struct hd_registry *registry = NULL;
    char path[4300];

    snprintf(path, sizeof path, "/nowhere::%s", fault_directory);
    CU_ASSERT_EQUAL_FATAL(setenv("HEDDLE_PLUGIN_PATH", path, 1), 0);
    CU_ASSERT_EQUAL_FATAL(hd_registry_create(0, NULL, &registry, &problem), HD_OK);
    CU_ASSERT_TRUE(hd_registry_knows(registry, "schedule", "sound"));
    hd_registry_destroy(registry);
    CU_ASSERT_EQUAL_FATAL(unsetenv("HEDDLE_PLUGIN_PATH"), 0);
}

static void check_unknown(void)
{
    struct hd_registry *registry = open_registry(fault_directory);
    const struct hd_candidate *found = NULL;
    struct hd_problem problem = {.exit_code = 0};
    const char *const nowhere[] = {"/nowhere"};
    struct hd_registry *none = NULL;

    CU_ASSERT_NOT_EQUAL(hd_registry_find(registry, HD_KIND_SCHEDULE, "soudn", &found, &problem),
                        HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.remedy, "the nearest one is sound"));
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, fault_directory));
    hd_registry_destroy(registry);
    memset(&problem, 0, sizeof problem);
    CU_ASSERT_NOT_EQUAL(hd_registry_create(1, nowhere, &none, &problem), HD_OK);
    CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
    CU_ASSERT_PTR_NULL(none);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"each fault plugin is rejected for its own reason", check_faults},
        {"larger structs and the first headers are served", check_served},
        {"every candidate is loaded once and keeps its reason", check_list_keeps_every_reason},
        {"truncated and foreign files are seen before the loader", check_broken_files},
        {"a path is that file, whatever its name", check_file_of_any_name},
        {"the first directory wins, and there is no fallback", check_search},
        {"HEDDLE_PLUGIN_PATH is searched", check_environment},
        {"an unknown name tells the nearest and where was searched", check_unknown},
    };

    unsetenv("HEDDLE_PLUGIN_PATH");
    unsetenv("HD_PLUGIN_DIR"); /* where the spoiled kernel would find the one that it lies over */
    snprintf(fault_directory, sizeof fault_directory, "%s", hd_check_build("tests/fault"));
    snprintf(made_directory, sizeof made_directory, "%s", hd_check_build("tests/made"));
    mkdir(made_directory, 0755);
    return hd_check_main("registry", checks, HD_CHECK_COUNT(checks));
}
