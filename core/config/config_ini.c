/*
 * config/config_ini.c - reads the entries of one ini file and of the command line, and finds them.
 *
 * inih knows the grammar, but reports no line numbers, truncates long lines and joins indented
 * ones.  So every line is checked here, and then given to inih alone, without its comment and its
 * margins.
 */
#include "base/text.h"
#include "config/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reader {
    struct hd_config *config;
    struct hd_problem *problem;
    const char *file;
    uint32_t line;
    char section[64];
    bool has_section;
    hd_status status; /* of config_ini_on_pair, which inih calls */
};

/* A place is also printed in comments of `heddle config`: replaces bytes that a file name may have,
   and text may not. */
static void config_ini_clean(char *text)
{
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f) {
            *at = '?';
        }
    }
    while (text += hd_text_utf8_bytes(text, strlen(text)), *text != '\0') {
        *text++ = '?';
    }
}

static void config_ini_say_place(const struct reader *reader, char place[512])
{
    const size_t length = strlen(reader->file);
    const bool is_long = length > 400;
    snprintf(place, 512, "%s%s:%u", is_long ? "..." : "",
             reader->file + (is_long ? length - 400 : 0), reader->line);
    config_ini_clean(place);
}

static hd_status config_ini_refuse(const struct reader *reader, const char *reason,
                                   const char *remedy)
{
    char place[512];

    config_ini_say_place(reader, place);
    hd_problem_place(reader->problem, "%s", place);
    hd_problem_remedy(reader->problem, "%s", remedy);
    return hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

struct hd_config_entry *hd_entry_find(const struct hd_config *config, const char *section,
                                      const char *key)
{
    for (uint32_t i = 0; i < config->entry_count; i++) {
        struct hd_config_entry *entry = &config->entries[i];
        if (strcmp(entry->key, key) == 0 && strcmp(entry->section, section) == 0) {
            return entry;
        }
    }
    return NULL;
}

const char *hd_config_place(const struct hd_config *config, const char *section, const char *key)
{
    const struct hd_config_entry *entry = hd_entry_find(config, section, key);
    return entry != NULL ? entry->place : "default";
}

void hd_config_blame(const struct hd_config *config, const char *section, const char *key,
                     struct hd_problem *problem)
{
    hd_problem_place(problem, "%s", hd_config_place(config, section, key));
    hd_problem_key(problem, "%s.%s", section, key);
}

/* Adds an entry, or replaces the value of the entry with this section and key. */
static hd_status config_ini_put_entry(struct hd_config *config, const struct hd_config_entry *given,
                                      struct hd_problem *problem)
{
    struct hd_config_entry *entry = hd_entry_find(config, given->section, given->key);
    char *value = strdup(given->value);

    if (value != NULL && entry == NULL && config->entry_count < HD_ENTRY_COUNT_MAX) {
        const size_t bytes = (config->entry_count + 1) * sizeof *entry;
        struct hd_config_entry *grown = realloc(config->entries, bytes);
        if (grown != NULL) {
            config->entries = grown;
            entry = &grown[config->entry_count++];
            entry->value = NULL;
        }
    }
    if (value == NULL || entry == NULL) {
        free(value);
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_USAGE,
                              "there are more than %u keys, or memory cannot be allocated",
                              HD_ENTRY_COUNT_MAX);
    }
    free(entry->value);
    *entry = *given;
    entry->value = value;
    return HD_OK;
}

/* Checks section and key against the table, except a plugin's, then adds the entry. */
static hd_status config_ini_take_entry(struct hd_config *config,
                                       const struct hd_config_entry *given,
                                       struct hd_problem *problem)
{
    const bool is_core = strchr(given->section, '.') == NULL;

    hd_problem_place(problem, "%s", given->place);
    hd_status status = hd_section_check(given->section, problem);
    if (status == HD_OK && given->key[0] != '\0' && is_core &&
        hd_key_find(given->section, given->key) == NULL) {
        status = hd_key_unknown(given->section, given->key, problem);
    }
    if (status == HD_OK && (given->key[0] != '\0' || !is_core)) {
        status = config_ini_put_entry(config, given, problem);
    }
    if (status == HD_OK) {
        problem->place[0] = '\0';
    }
    return status;
}

/* The handler of inih: one key and its value. */
static int config_ini_on_pair(void *context, const char *section, const char *name,
                              const char *value)
{
    struct reader *reader = context;
    struct hd_config_entry given = {.value = (char *)value};
    const struct hd_config_entry *earlier;

    (void)section; /* inih gets each line alone, so only the reader knows the section */
    if (strlen(name) >= sizeof given.key) {
        reader->status = config_ini_refuse(reader, "the key is longer than 63 bytes", "");
        return 0;
    }
    memcpy(given.section, reader->section, sizeof given.section);
    memcpy(given.key, name, strlen(name) + 1);
    config_ini_say_place(reader, given.place);
    earlier = hd_entry_find(reader->config, given.section, given.key);
    if (earlier != NULL) {
        hd_problem_key(reader->problem, "%.60s.%.60s", given.section, given.key);
        hd_problem_remedy(reader->problem, "keep one of the two lines");
        hd_problem_place(reader->problem, "%s", given.place);
        reader->status = hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE,
                                        "the key is set twice, first at %s", earlier->place);
        return 0;
    }
    reader->status = config_ini_take_entry(reader->config, &given, reader->problem);
    return reader->status == HD_OK;
}

static bool config_ini_is_white(char byte)
{
    return byte == ' ' || byte == '\t';
}

/* A comment starts with ; or # at the line's start or after white space. */
static void config_ini_cut_comment(char *line)
{
    for (char *at = line; *at != '\0'; at++) {
        if ((*at == ';' || *at == '#') && (at == line || config_ini_is_white(at[-1]))) {
            *at = '\0';
            return;
        }
    }
}

static hd_status config_ini_read_section(struct reader *reader, char *line)
{
    struct hd_config_entry given = {.value = (char *)""};
    char *end = strchr(line, ']');

    if (end == NULL || end[1] != '\0') {
        return config_ini_refuse(reader, "a section line is [name] and nothing else",
                                 "end the line with ], and put each key on its own line");
    }
    *end = '\0';
    const char *name = hd_text_trim(line + 1);
    if (strlen(name) >= sizeof reader->section) {
        return config_ini_refuse(reader, "the section's name is longer than 63 bytes", "");
    }
    memcpy(reader->section, name, strlen(name) + 1);
    memcpy(given.section, name, strlen(name) + 1);
    reader->has_section = true;
    config_ini_say_place(reader, given.place);
    return config_ini_take_entry(reader->config, &given, reader->problem);
}

static hd_status config_ini_read_pair(struct reader *reader, const char *line)
{
    const char *equals = strchr(line, '=');
    const char *colon = strchr(line, ':');

    if (colon != NULL && (equals == NULL || colon < equals)) {
        return config_ini_refuse(reader, "the line has : instead of = after the key",
                                 "write key = value");
    }
    if (equals == NULL || equals == line) {
        return config_ini_refuse(reader,
                                 equals == NULL ? "the line has no =" : "the line has no key",
                                 "write key = value; a value cannot continue in the next line");
    }
    if (!reader->has_section) {
        return config_ini_refuse(reader, "the key comes before the first section",
                                 "put a line such as [pipeline] above it");
    }
    const char *const value = equals + 1 + strspn(equals + 1, " \t");
    if (value[0] == '"' || value[0] == '\'') {
        return config_ini_refuse(reader, "the value is in quotes",
                                 "remove the quotes: a value ends with its line");
    }
    if (value[0] == '\0') {
        return config_ini_refuse(reader, "the key has no value",
                                 "give a value, or remove the line: every key has a default");
    }
    /* `heddle config` writes "a =#b" with a blank after =, which makes the value a comment. */
    const char *const fault = hd_text_ini_fault(value);
    if (fault != NULL) {
        return config_ini_refuse(reader, fault, "begin the value with another character");
    }
    reader->status = HD_OK;
    const int answer = ini_parse_string(line, config_ini_on_pair, reader);
    assert(reader->status != HD_OK || answer == 0);
    return reader->status;
}

/* Reads one line, which ends in a zero instead of a newline. */
static hd_status config_ini_read_line(struct reader *reader, char *line, size_t length)
{
    char reason[96];

    if (length > 0 && line[length - 1] == '\r') {
        line[--length] = '\0';
    }
    if (length > HD_LINE_BYTES_MAX) {
        snprintf(reason, sizeof reason, "the line has %zu bytes, more than %u", length,
                 HD_LINE_BYTES_MAX);
        return config_ini_refuse(reader, reason, "shorten it");
    }
    for (size_t i = 0; i < length; i++) {
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 0x7f) {
            snprintf(reason, sizeof reason, "byte %zu of the line is the control character 0x%02x",
                     i + 1, (unsigned)line[i]);
            return config_ini_refuse(reader, reason, "remove the byte, if this is an ini file");
        }
    }
    const uint64_t good_bytes = hd_text_utf8_bytes(line, length);
    if (good_bytes < length) {
        snprintf(reason, sizeof reason, "byte %llu of the line is not UTF-8",
                 (unsigned long long)good_bytes + 1);
        return config_ini_refuse(reader, reason, "save the file as UTF-8");
    }
    config_ini_cut_comment(line);
    line = hd_text_trim(line);
    if (line[0] == '\0') {
        return HD_OK;
    }
    return line[0] == '[' ? config_ini_read_section(reader, line)
                          : config_ini_read_pair(reader, line);
}

static hd_status config_ini_read_lines(struct reader *reader, char *text, size_t length)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    char *line = text;
    char *const end = text + length;

    if (length >= 3 && memcmp(text, byte_order_mark, 3) == 0) {
        line += 3;
    }
    while (line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) {
            stop = end;
        }
        *stop = '\0';
        reader->line++;
        const hd_status status = config_ini_read_line(reader, line, (size_t)(stop - line));
        if (status != HD_OK) {
            return status;
        }
        line = stop + 1;
    }
    return HD_OK;
}

static hd_status config_ini_refuse_file(struct hd_problem *problem, const char *file,
                                        const char *reason)
{
    const size_t length = strlen(file);

    hd_problem_place(problem, "%s%s", length > 400 ? "..." : "",
                     file + (length > 400 ? length - 400 : 0));
    hd_problem_remedy(problem, "give a readable ini file, or no file for the defaults");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* The whole file, with space for a zero; NULL with a problem. */
static char *config_ini_load_file(const char *file, size_t *length, struct hd_problem *problem)
{
    struct stat about;
    char *text = NULL;
    const int opened = open(file, O_RDONLY | O_CLOEXEC);

    if (opened < 0) {
        config_ini_refuse_file(problem, file, strerror(errno));
        return NULL;
    }
    if (fstat(opened, &about) == 0 && S_ISDIR(about.st_mode)) {
        config_ini_refuse_file(problem, file, "it is a directory");
        goto close_file;
    }
    text = malloc(HD_FILE_BYTES_MAX + 1);
    if (text == NULL) {
        hd_problem_no_memory(problem, HD_FILE_BYTES_MAX, "the ini file");
        goto close_file;
    }
    ssize_t got = 1;
    for (*length = 0; got > 0 && *length <= HD_FILE_BYTES_MAX; *length += (size_t)got) {
        got = read(opened, text + *length, HD_FILE_BYTES_MAX + 1 - *length);
        if (got < 0) {
            break;
        }
    }
    if (got < 0 || *length > HD_FILE_BYTES_MAX) {
        config_ini_refuse_file(problem, file,
                               got < 0 ? strerror(errno) : "the file is larger than 1 MiB");
        free(text);
        text = NULL;
    }
close_file:
    close(opened);
    return text;
}

hd_status hd_entries_read(struct hd_config *config, const char *file, struct hd_problem *problem)
{
    struct reader reader = {.config = config, .problem = problem, .file = file};
    size_t length = 0;
    char *text = config_ini_load_file(file, &length, problem);

    if (text == NULL) {
        return HD_INVALID;
    }
    ini_max_line = (int)HD_LINE_BYTES_MAX + 3;
    ini_allow_multiline = false;
    const hd_status status = config_ini_read_lines(&reader, text, length);
    free(text);
    return status;
}

static hd_status config_ini_refuse_word(struct hd_problem *problem, const char *reason)
{
    hd_problem_place(problem, "command line");
    if (problem->remedy[0] == '\0') {
        hd_problem_remedy(problem, "write section.key=value");
    }
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* "ranks=8" has no section; suggests the section that has such a key. */
static void config_ini_suggest_section(const char *name, struct hd_problem *problem)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].name, name) == 0) {
            hd_problem_remedy(problem, "write %s.%s=value", hd_keys[i].section, name);
            return;
        }
    }
}

hd_status hd_entries_override(struct hd_config *config, const char *word,
                              struct hd_problem *problem)
{
    struct hd_config_entry given = {.place = "command line"};
    char copy[HD_LINE_BYTES_MAX + 1];
    const size_t length = strlen(word);

    if (length > HD_LINE_BYTES_MAX) {
        return config_ini_refuse_word(problem, "the word is longer than 4095 bytes");
    }
    memcpy(copy, word, length + 1);
    char *value = strchr(copy, '=');
    if (value == NULL) {
        hd_problem_key(problem, "%.120s", word);
        return config_ini_refuse_word(problem, "this is not section.key=value");
    }
    *value++ = '\0';
    const char *left = hd_text_trim(copy);
    given.value = hd_text_trim(value);
    hd_problem_key(problem, "%.120s", left);
    char *dot = strrchr(copy, '.');
    if (dot == NULL || dot == left || dot[1] == '\0') {
        config_ini_suggest_section(left, problem);
        return config_ini_refuse_word(problem, "the word does not name a section and a key");
    }
    const char *key = dot + 1;
    *dot = '\0';
    if (strlen(left) >= sizeof given.section || strlen(key) >= sizeof given.key) {
        return config_ini_refuse_word(problem, "the section or the key is longer than 63 bytes");
    }
    /* A run writes the value to its config.ini, from which it must read back. */
    const char *reason = hd_text_ini_fault(given.value);
    if (reason != NULL) {
        return config_ini_refuse_word(problem, reason);
    }
    memcpy(given.section, left, strlen(left) + 1);
    memcpy(given.key, key, strlen(key) + 1);
    problem->key[0] = '\0';
    return config_ini_take_entry(config, &given, problem);
}
