#include "cli/facts.h"
#include "base/number.h"
#include "base/option.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 16, BLOCKS_MAX = 256 };

/* --- files ------------------------------------------------------------------------------------ */

static void facts_add_file(FILE *text, int descriptor)
{
    static unsigned char block[BLOCK_BYTES];
    uint8_t digest[HD_HASH_BYTES];
    char hex[HD_HASH_TEXT_BYTES];
    struct hd_hash hash;
    struct stat facts;

    if (descriptor < 0 || fstat(descriptor, &facts) != 0) {
        fprintf(text, " cannot be read: %s", strerror(errno));
        return;
    }
    if (!S_ISREG(facts.st_mode)) {
        fprintf(text, " not a regular file");
        return;
    }
    const uint64_t bytes = (uint64_t)facts.st_size;
    const uint64_t block_count = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    const uint64_t read_count = hd_min_u64(block_count, BLOCKS_MAX);
    hd_hash_begin(&hash);
    for (uint64_t i = 0; i < read_count; i++) {
        const uint64_t at = read_count > 1 ? i * (block_count - 1) / (read_count - 1) : 0;
        const ssize_t got = pread(descriptor, block, sizeof block, (off_t)(at * BLOCK_BYTES));
        hd_hash_add(&hash, block, got > 0 ? (uint64_t)got : 0);
    }
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, hex);
    fprintf(text, " %llu bytes, SHA-256 %.16s..", (unsigned long long)bytes, hex);
}

/* Does not wait for a writer if `path` is a FIFO. */
static void facts_add_path(FILE *text, const char *path)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    facts_add_file(text, descriptor);
    if (descriptor >= 0) {
        close(descriptor);
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* One spelling for each value: of a number, of a flag, of each entry of a list. */
static void facts_add_value(FILE *text, const char *value)
{
    const size_t length = strcspn(value, ",");
    char part[64], spelled[HD_NUMBER_TEXT_BYTES];
    uint64_t whole;
    uint32_t flag;
    double number;

    snprintf(part, sizeof part, "%.*s", (int)hd_min_u64(length, sizeof part - 1), value);
    const char *word = hd_text_trim(part);
    if (length >= sizeof part) {
        fprintf(text, "%.*s", (int)length, value); /* too long for a number */
    } else if (hd_text_to_unsigned(word, &whole)) {
        fprintf(text, "%llu", (unsigned long long)whole);
    } else if (hd_text_to_number(word, &number)) {
        hd_text_from_number(number, spelled);
        fprintf(text, "%s", spelled);
    } else {
        fprintf(text, "%s", !hd_text_to_flag(word, &flag) ? word : flag ? "on" : "off");
    }
    if (value[length] == ',') {
        fputc(',', text);
        facts_add_value(text, value + length + 1);
    }
}

static void facts_add_plugin(FILE *text, const char *key, const struct hd_candidate *candidate)
{
    if (candidate != NULL) {
        fprintf(text, "%s = %s %s,", key, candidate->plugin.name,
                candidate->plugin.version != NULL ? candidate->plugin.version : "");
        facts_add_path(text, candidate->path);
        fputc('\n', text);
    }
}

static void facts_add_options(FILE *text, const struct hd_config *config,
                              const struct hd_candidate *candidate)
{
    for (uint32_t i = 0; candidate != NULL && i < candidate->plugin.option_count; i++) {
        const struct hd_plugin *plugin = &candidate->plugin;
        fprintf(text, "%s.%s.%s = ", hd_kind_name(plugin->kind), plugin->name,
                plugin->options[i].name);
        facts_add_value(text, hd_config_option_text(config, plugin, i));
        fputc('\n', text);
    }
}

/* A path may differ from host to host; what it names is compared as a plugin, a plan, or a file. */
static bool facts_is_of_host(const char *section, const char *key)
{
    static const char *const rows[][2] = {
        {"pipeline", "schedule"}, {"transport", "name"}, {"transport", "inner"},
        {"kernels", "name"},      {"data", "corpus"},    {"cost", "from"},
        {"output", "directory"},
    };
    bool is_found = strcmp(section, "bench") == 0;

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        is_found |= strcmp(section, rows[i][0]) == 0 && strcmp(key, rows[i][1]) == 0;
    }
    return is_found;
}

static void facts_add_key(void *context, const char *section, const char *key, const char *value,
                          const char *origin)
{
    FILE *const text = context;

    (void)origin;
    if (!facts_is_of_host(section, key)) {
        fprintf(text, "%s.%s = ", section, key);
        facts_add_value(text, value);
        fputc('\n', text);
    }
}

/* --- the text --------------------------------------------------------------------------------- */

static void facts_add_checkpoint(FILE *text, const struct hd_resume *resume)
{
    fprintf(text, "--resume = ");
    if (resume == NULL) {
        fprintf(text, "none\n");
        return;
    }
    fprintf(text, "step %u,", resume->state.step);
    for (uint32_t i = 0; i < HD_CHECKPOINT_FILE_COUNT; i++) {
        if (resume->files[i].descriptor >= 0) {
            facts_add_file(text, resume->files[i].descriptor);
        }
    }
    fputc('\n', text);
}

char *hd_facts_text(const struct hd_job *job, const struct hd_resume *resume, const char *words)
{
    const struct hd_config *const config = job->config;
    const struct hd_plugins *const plugins = &job->plugins;
    const char *const corpus = config->data.corpus;
    size_t byte_count = 0;
    char *bytes = NULL;
    FILE *const text = open_memstream(&bytes, &byte_count);

    if (text == NULL) {
        return NULL;
    }
    fputs(words, text);
    fprintf(text, "instruction set = %s\n", hd_job_instruction_set());
    facts_add_plugin(text, "pipeline.schedule", plugins->schedule);
    facts_add_plugin(text, "transport.name", plugins->transport);
    facts_add_plugin(text, "transport.inner", plugins->inner);
    facts_add_plugin(text, "kernels.name", plugins->kernel);
    hd_config_each(config, facts_add_key, text);
    facts_add_options(text, config, plugins->schedule);
    facts_add_options(text, config, plugins->transport);
    facts_add_options(text, config, plugins->inner);
    facts_add_options(text, config, plugins->kernel);
    fprintf(text, "data.corpus =");
    if (strcmp(corpus, "builtin") == 0) {
        fprintf(text, " builtin");
    } else {
        facts_add_path(text, corpus);
    }
    fputc('\n', text);
    facts_add_checkpoint(text, resume);
    fprintf(text, "plan = %s\n", job->hash);
    if (fclose(text) != 0) {
        free(bytes);
        return NULL;
    }
    return bytes;
}
