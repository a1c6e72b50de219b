#include "report/run_json.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void hd_run_started(char text[HD_RUN_STARTED_BYTES])
{
    const time_t now = time(NULL);
    struct tm local;
    char offset[8];

    localtime_r(&now, &local);
    const size_t length = strftime(text, HD_RUN_STARTED_BYTES, "%Y-%m-%dT%H:%M:%S", &local);
    strftime(offset, sizeof offset, "%z", &local); /* +hhmm; ISO 8601 needs a colon */
    snprintf(text + length, HD_RUN_STARTED_BYTES - length, "%.3s:%.2s", offset, offset + 3);
}

void hd_run_cpu(char *text, uint32_t capacity)
{
    char line[512];
    FILE *const file = fopen("/proc/cpuinfo", "re");

    assert(capacity > 0);
    snprintf(text, capacity, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *const colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            const char *const name = colon + 1 + strspn(colon + 1, " \t");
            snprintf(text, capacity, "%.*s", (int)strcspn(name, "\n"), name);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

struct writer {
    char *text;
    uint32_t capacity, length;
};

static void run_facts_put(struct writer *writer, char letter)
{
    if (writer->length + 1 < writer->capacity) {
        writer->text[writer->length++] = letter;
        writer->text[writer->length] = '\0';
    }
}

static bool run_facts_is_plain(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./:,@%";
    return word[0] != '\0' && strspn(word, plain) == strlen(word);
}

/* In single quotes if it has characters with a meaning to the shell. */
static void run_facts_put_word(struct writer *writer, const char *word)
{
    const bool quotes = !run_facts_is_plain(word);

    if (quotes) {
        run_facts_put(writer, '\'');
    }
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            run_facts_put(writer, '\'');
            run_facts_put(writer, '\\');
            run_facts_put(writer, '\'');
        }
        run_facts_put(writer, *word);
    }
    if (quotes) {
        run_facts_put(writer, '\'');
    }
}

void hd_run_command_line(int argc, const char *const *argv, char *text, uint32_t capacity)
{
    struct writer writer = {.text = text, .capacity = capacity};

    assert(capacity > 0);
    text[0] = '\0';
    for (int i = 0; i < argc; i++) {
        if (i > 0) {
            run_facts_put(&writer, ' ');
        }
        run_facts_put_word(&writer, argv[i]);
    }
}
