/*
 * tests/test_registry_damage.c - a damaged plugin is a reason, never the end of heddle.
 *
 * The loader believes a file's headers and its dynamic section, and dies where they lie.
 * The bytes that are changed follow from fixed seeds, so that each run damages the same ones.
 */
#include "base/clock.h"
#include "registry/internal.h"
#include "registry/registry.h"
#include "support/check.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FLIP_COUNT = 64, WORD_BYTES = 4 };

static char made_directory[4096];
static char damaged_path[4200];

/* A plugin's file, and the stretches of it that the loader believes. */
struct image {
    unsigned char *bytes;
    size_t count;
    struct {
        size_t begin, count;
    } parts[3]; /* ELF header, program headers, dynamic section */
};

static struct image read_image(const char *name)
{
    struct image image = {.bytes = NULL};
    struct stat about;
    Elf64_Ehdr header;
    FILE *file = fopen(hd_check_plugin(name), "rb");

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fstat(fileno(file), &about), 0);
    image.count = (size_t)about.st_size;
    image.bytes = malloc(image.count);
    CU_ASSERT_PTR_NOT_NULL_FATAL(image.bytes);
    CU_ASSERT_EQUAL_FATAL(fread(image.bytes, 1, image.count, file), image.count);
    fclose(file);
    memcpy(&header, image.bytes, sizeof header);
    image.parts[0].count = sizeof header;
    image.parts[1].begin = header.e_phoff;
    image.parts[1].count = header.e_phnum * sizeof(Elf64_Phdr);
    for (uint32_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, image.bytes + header.e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_DYNAMIC) {
            image.parts[2].begin = segment.p_offset;
            image.parts[2].count = segment.p_filesz;
        }
    }
    CU_ASSERT_FATAL(image.parts[2].count > 0);
    return image;
}

/* Under a new name each time: a name that is loaded already is not read again. */
static void write_damaged(const struct image *image)
{
    static unsigned number;

    unlink(damaged_path);
    snprintf(damaged_path, sizeof damaged_path, "%s/%u.so", made_directory, number++);
    FILE *file = fopen(damaged_path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fwrite(image->bytes, 1, image->count, file), image->count);
    CU_ASSERT_EQUAL_FATAL(fclose(file), 0);
}

/* What the registry says of a file; empty: it is served.  Static. */
static const char *reason_of(const char *path)
{
    static struct hd_problem problem;
    struct hd_registry *registry = NULL;
    const struct hd_candidate *found = NULL;

    memset(&problem, 0, sizeof problem);
    CU_ASSERT_EQUAL_FATAL(hd_registry_create(0, NULL, &registry, &problem), HD_OK);
    if (hd_registry_find(registry, HD_KIND_SCHEDULE, path, &found, &problem) == HD_OK) {
        CU_ASSERT_STRING_EQUAL(found->plugin.name, "gpipe");
    }
    hd_registry_destroy(registry);
    return problem.message;
}

/* The registry is asked in a process of its own: a death is then one failure and not the last.
   The exit code: 0 served, 1 refused with a reason; -1: a death. */
static int outcome(void)
{
    int status = 0;

    fflush(NULL);
    const pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        exit(reason_of(damaged_path)[0] != '\0'); /* with what the loader does at the end */
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) <= 1 ? WEXITSTATUS(status) : -1;
}

static void check_no_child_is_left(void)
{
    CU_ASSERT_EQUAL(waitpid(-1, NULL, WNOHANG), -1);
    CU_ASSERT_EQUAL(errno, ECHILD);
}

static void check_known_death(void)
{
    struct image image = read_image("heddle_schedule_gpipe.so");

    memset(image.bytes + image.parts[1].begin, 0xff, WORD_BYTES); /* p_type */
    write_damaged(&image);
    free(image.bytes);
    CU_ASSERT_EQUAL_FATAL(outcome(), 1);
    CU_ASSERT_PTR_NOT_NULL(strstr(reason_of(damaged_path), "the loader crashes on it (signal 11)"));
    check_no_child_is_left();
}

/* xorshift; its quality does not matter, that it is the same everywhere does. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void check_flips(void)
{
    struct image image = read_image("heddle_schedule_gpipe.so");
    uint64_t state = 20261130;
    unsigned refused = 0;

    for (unsigned i = 0; i < FLIP_COUNT; i++) {
        const unsigned part = i % HD_CHECK_COUNT(image.parts);
        const size_t at = image.parts[part].begin + next_random(&state) % image.parts[part].count;
        const unsigned char was = image.bytes[at];
        image.bytes[at] = (unsigned char)(was ^ (1 + next_random(&state) % 255));
        write_damaged(&image);
        const int answer = outcome();
        refused += answer == 1;
        if (answer < 0) {
            printf("\nflip %u: byte %zu from 0x%02x to 0x%02x\n", i, at, was, image.bytes[at]);
            CU_FAIL("a damaged plugin ends the process that looks at it");
        }
        image.bytes[at] = was;
    }
    CU_ASSERT(refused > FLIP_COUNT / 4); /* most of what is read there matters */
    free(image.bytes);
}

/* So that the flips fail for what they damage. */
static void check_whole(void)
{
    struct image image = read_image("heddle_schedule_gpipe.so");

    write_damaged(&image);
    CU_ASSERT_STRING_EQUAL(reason_of(damaged_path), "");
    free(image.bytes);
}

/* A constructor that does its worst, as FAULT_CONSTRUCTOR says. */
static void refuse_constructor(const char *does, uint64_t limit_ns, const char *reason)
{
    struct hd_candidate candidate = {.kind = HD_KIND_SCHEDULE, .name = "constructor"};

    snprintf(candidate.path, sizeof candidate.path, "%s",
             hd_check_build("tests/fault/heddle_schedule_constructor.so"));
    CU_ASSERT_EQUAL_FATAL(setenv("FAULT_CONSTRUCTOR", does, 1), 0);
    CU_ASSERT_EQUAL(hd_trial_passes(&candidate, limit_ns), 0);
    CU_ASSERT_STRING_EQUAL(candidate.reason, reason);
    check_no_child_is_left();
    CU_ASSERT_EQUAL_FATAL(unsetenv("FAULT_CONSTRUCTOR"), 0);
}

static void check_constructors(void)
{
    refuse_constructor("abort", 60 * HD_S_NS, "the loader crashes on it (signal 6)");
    refuse_constructor("exit", 60 * HD_S_NS, "loading it ends the process");
    refuse_constructor("hang", 100 * HD_MS_NS,
                       "its constructors or destructors do not return in time");
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the whole file is served", check_whole},
        {"a program header of no type is the loader's death, and a reason", check_known_death},
        {"one wrong byte in what the loader believes ends nothing", check_flips},
        {"a constructor that crashes, exits or hangs is a reason", check_constructors},
    };

    snprintf(made_directory, sizeof made_directory, "%s", hd_check_build("tests/damaged"));
    mkdir(made_directory, 0755);
    return hd_check_main("registry_damage", checks, HD_CHECK_COUNT(checks));
}
