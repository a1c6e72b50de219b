/*
 * config/config_ini.c - the words of one ini file and of the command line.
 *
 * inih knows the grammar but neither line numbers, nor lines of more than its buffer, nor
 * indented keys; so every line is checked here and then handed to it alone, without its
 * comment and its margins.
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

/* Where the reader is, and what it adds to. */
struct reader {
    struct hd_config *config;
    struct hd_problem *problem;
    const char *file;
    uint32_t line;
    char section[64];
    int has_section;
    hd_status status; /* of the handler that inih calls */
};

/* A place also stands in comments of `heddle config`: clean text, whatever a file may be called. */
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
    const int is_long = length > 400;
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

/* The entry of this section and key, new or old, with its value replaced. */
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
                              "more than %u keys, or out of memory", HD_ENTRY_COUNT_MAX);
    }
    free(entry->value);
    *entry = *given;
    entry->value = value;
    return HD_OK;
}

/* Checks section and key against the table where it has them, then keeps the word. */
static hd_status config_ini_take_word(struct hd_config *config, const struct hd_config_entry *given,
                                      struct hd_problem *problem)
{
    const int is_core = strchr(given->section, '.') == NULL;

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

/* inih's handler: one key and its value. */
static int config_ini_on_word(void *context, const char *section, const char *name,
                              const char *value)
{
    struct reader *reader = context;
    struct hd_config_entry given = {.value = (char *)value};
    const struct hd_config_entry *earlier;

    (void)section; /* each line comes alone; the section is the reader's */
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
        hd_problem_remedy(reader->problem, "keep one of them");
        hd_problem_place(reader->problem, "%s", given.place);
        reader->status =
            hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE,
                           "the key stands a second time, the first is at %s", earlier->place);
        return 0;
    }
    reader->status = config_ini_take_word(reader->config, &given, reader->problem);
    return reader->status == HD_OK;
}

static int config_ini_is_white(char byte)
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
                                 "end it with ], and put its keys on lines of their own");
    }
    *end = '\0';
    const char *name = hd_text_trim(line + 1);
    if (strlen(name) >= sizeof reader->section) {
        return config_ini_refuse(reader, "the section's name is longer than 63 bytes", "");
    }
    memcpy(reader->section, name, strlen(name) + 1);
    memcpy(given.section, name, strlen(name) + 1);
    reader->has_section = 1;
    config_ini_say_place(reader, given.place);
    return config_ini_take_word(reader->config, &given, reader->problem);
}

static hd_status config_ini_read_pair(struct reader *reader, const char *line)
{
    const char *equals = strchr(line, '=');
    const char *colon = strchr(line, ':');

    if (colon != NULL && (equals == NULL || colon < equals)) {
        return config_ini_refuse(
            reader, "a key and its value are joined by =, not by :", "write key = value");
    }
    if (equals == NULL || equals == line) {
        return config_ini_refuse(reader,
                                 equals == NULL ? "the line has no =" : "the line has no key",
                                 "write key = value; a value cannot go on in the next line");
    }
    if (!reader->has_section) {
        return config_ini_refuse(reader, "a key stands before the first section",
                                 "put a line such as [pipeline] above it");
    }
    const char *const value = equals + 1 + strspn(equals + 1, " \t");
    if (value[0] == '"' || value[0] == '\'') {
        return config_ini_refuse(reader, "the value is in quotes",
                                 "remove them: a value ends with its line");
    }
    if (value[0] == '\0') {
        return config_ini_refuse(reader, "the key has no value",
                                 "give one, or remove the line: every key has a default");
    }
    /* "a =#b": `heddle config` puts a blank there, and then it is a comment. */
    const char *const fault = hd_text_ini_fault(value);
    if (fault != NULL) {
        return config_ini_refuse(reader, fault, "begin the value with another letter");
    }
    reader->status = HD_OK;
    const int answer = ini_parse_string(line, config_ini_on_word, reader);
    assert(reader->status != HD_OK || answer == 0);
    return reader->status;
}

/* One line, without its end; it ends in a zero that is not part of it. */
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
            return config_ini_refuse(reader, reason, "is this an ini file? remove the byte");
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
    static const char mark[] = "\xef\xbb\xbf"; /* of byte order */
    char *line = text;
    char *const end = text + length;

    if (length >= 3 && memcmp(text, mark, 3) == 0) {
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
    hd_problem_remedy(problem, "give a readable ini file, or none for the defaults");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

/* The whole file, with room for one zero; NULL with a problem. */
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
        config_ini_refuse_file(problem, file, "this is a directory");
        goto close_file;
    }
    text = malloc(HD_FILE_BYTES_MAX + 1);
    if (text == NULL) {
        hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "out of memory");
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

/* "ranks=8" lacks its section; some key may be meant. */
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
        return config_ini_refuse_word(problem, "the word has more than 4095 bytes");
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
        return config_ini_refuse_word(problem, "the word names no section and key");
    }
    const char *key = dot + 1;
    *dot = '\0';
    if (strlen(left) >= sizeof given.section || strlen(key) >= sizeof given.key) {
        return config_ini_refuse_word(problem, "section or key is longer than 63 bytes");
    }
    /* A run leaves it in its config.ini, which must read back. */
    const char *reason = hd_text_ini_fault(given.value);
    if (reason != NULL) {
        return config_ini_refuse_word(problem, reason);
    }
    memcpy(given.section, left, strlen(left) + 1);
    memcpy(given.key, key, strlen(key) + 1);
    problem->key[0] = '\0';
    return config_ini_take_word(config, &given, problem);
}
