/*
 * tests/test_config.c - the ini file and the command line, as docs/interface.md says:
 * the liberties of the grammar, each type in its member, and what `heddle config` writes reads back
 * to itself.  Some thousand broken files must be refused or served, never crash.  What is refused,
 * and in which words: tests/test_config_refused.c.
 */
#include "base/option.h"
#include "output/config_write.h"
#include "base/problem.h"
#include "config/internal.h"
#include "support/check.h"
#include "support/ini.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MUTATION_COUNT = 2000 };

struct good_row {
    const char *name;
    const char *text;
    const char *section, *key, *value; /* as hd_config_each gives it */
};

static const struct good_row good_rows[] = {
    {"CRLF and a byte order mark", "\xef\xbb\xbf[pipeline]\r\nranks = 2\r\n", "pipeline", "ranks",
     "2"},
    {"indentation means nothing", "  [pipeline]\n\t  ranks=2", "pipeline", "ranks", "2"},
    {"a comment after white space", "[pipeline]\nranks = 2 # two\n", "pipeline", "ranks", "2"},
    {"a comment with ;", "; x\n[pipeline] ; y\nranks = 2\t; two\n", "pipeline", "ranks", "2"},
    {"; and # inside a word are no comment", "[data]\ncorpus = a;b#c\n", "data", "corpus", "a;b#c"},
    {"= and : inside a value", "[data]\ncorpus = a=b:c\n", "data", "corpus", "a=b:c"},
    {"a section may come again", "[pipeline]\nranks=2\n[model]\n[pipeline]\noverlap=no\n",
     "pipeline", "overlap", "no"},
    {"a text in UTF-8", "[data]\ncorpus = \xc3\xbc.txt\n", "data", "corpus", "\xc3\xbc.txt"},
    {"an empty file is all defaults", "", "pipeline", "ranks", "4"},
    {"the default checkpoints at the end", "", "output", "checkpoint_every", "0"},
};

struct wanted {
    const struct good_row *row;
    int is_found;
};

static void compare(void *context, const char *section, const char *key, const char *value,
                    const char *origin)
{
    struct wanted *wanted = context;
    (void)origin;
    if (strcmp(section, wanted->row->section) == 0 && strcmp(key, wanted->row->key) == 0) {
        CU_ASSERT_STRING_EQUAL(value, wanted->row->value);
        wanted->is_found = 1;
    }
}

static void check_good_rows(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(good_rows); i++) {
        struct wanted wanted = {.row = &good_rows[i]};
        struct hd_config config;
        char line[HD_INI_LINE_BYTES];
        if (hd_ini_load(&config, good_rows[i].text, NULL, line) != HD_OK) {
            printf("\n%s: %s\n", good_rows[i].name, line);
            CU_FAIL("a good configuration was refused");
            continue;
        }
        hd_config_each(&config, compare, &wanted);
        CU_ASSERT_TRUE(wanted.is_found);
        hd_config_finish(&config);
    }
}

static const char *const typed_words[] = {
    "pipeline.schedule=gpipe",
    "pipeline.stages_per_rank=3",
    "pipeline.overlap=false",
    "pipeline.transfer_slots=3, 4,5",
    "transport.timeout_s=0.25",
    "kernels.precision=f32",
    "model.layers=30",
    "model.key_value_heads=2",
    "model.normalize_gates=yes",
    "model.experts=0",
    "model.experts_per_token=9",
    "data.format=tokens",
    "data.token_bytes=4",
    "train.learning_rate=1e-4",
    "train.decay=cosine",
    "train.seed=18446744073709551615",
    "cost.transfer=0,.25",
    "cost.mode=blocking",
    "memory.budget_gb=12.5",
    "output.directory=runs/a",
    "output.trace=0",
    "debug.poison=1",
    "debug.checksum=true",
    "bench.iterations=7",
    "train.seed=7",
    "pipeline.ranks=2",
};

static void check_typed(void)
{
    struct hd_config config;
    struct hd_problem problem = {.exit_code = 0};

    CU_ASSERT_EQUAL_FATAL(
        hd_config_load(&config, NULL, HD_CHECK_COUNT(typed_words), typed_words, &problem), HD_OK);
    CU_ASSERT_STRING_EQUAL(config.pipeline.schedule, "gpipe");
    CU_ASSERT_EQUAL(config.pipeline.stages_per_rank, 3);
    CU_ASSERT_EQUAL(config.pipeline.overlap, 0);
    CU_ASSERT_EQUAL_FATAL(config.pipeline.transfer_slots.count, 3);
    CU_ASSERT_EQUAL(config.pipeline.transfer_slots.values[2], 5);
    CU_ASSERT_EQUAL(config.pipeline.payload_slots.count, 0);
    CU_ASSERT_EQUAL(config.transport.timeout_s, 0.25);
    CU_ASSERT_EQUAL(config.kernels.precision, HD_CONFIG_F32);
    CU_ASSERT_EQUAL(config.kernels.recompute, HD_CONFIG_NONE);
    CU_ASSERT_EQUAL(config.model.layers, 30);
    CU_ASSERT_EQUAL(config.model.key_value_heads, 2);
    CU_ASSERT_EQUAL(config.model.normalize_gates, 1);
    CU_ASSERT_EQUAL(config.data.format, HD_CONFIG_TOKENS);
    CU_ASSERT_EQUAL(config.data.token_bytes, 4);
    CU_ASSERT_EQUAL(config.train.learning_rate, 1e-4);
    CU_ASSERT_EQUAL(config.train.decay, 1);
    CU_ASSERT_EQUAL(config.train.seed, 7); /* the last word wins */
    CU_ASSERT_EQUAL_FATAL(config.cost.transfer.count, 2);
    CU_ASSERT_EQUAL(config.cost.transfer.values[1], 0.25);
    CU_ASSERT_EQUAL_FATAL(config.cost.backward.count, 1);
    CU_ASSERT_EQUAL(config.cost.backward.values[0], 2);
    CU_ASSERT_EQUAL(config.cost.mode, 1);
    CU_ASSERT_EQUAL(config.memory.budget_gb, 12.5);
    CU_ASSERT_TRUE(isnan(config.memory.copy_gb));
    CU_ASSERT_STRING_EQUAL(config.output.directory, "runs/a");
    CU_ASSERT_EQUAL(config.output.checkpoint_every, 0);
    CU_ASSERT_EQUAL(config.debug.poison + config.debug.checksum, 2);
    CU_ASSERT_EQUAL(config.bench.iterations, 7);
    CU_ASSERT_EQUAL(config.bench.window, 0);
    CU_ASSERT_STRING_EQUAL(config.name, "heddle");
    CU_ASSERT_STRING_EQUAL(hd_config_place(&config, "train", "seed"), "command line");
    CU_ASSERT_STRING_EQUAL(hd_config_place(&config, "train", "beta1"), "default");
    hd_config_finish(&config);
}

static void check_command_line_wins(void)
{
    struct hd_config config;
    char line[HD_INI_LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(hd_ini_load(&config, "[pipeline]\nranks = 2\n", "pipeline.ranks=3", line),
                          HD_OK);
    CU_ASSERT_EQUAL(config.pipeline.ranks, 3);
    CU_ASSERT_STRING_EQUAL(config.name, "test_config");
    hd_config_finish(&config);
}

static void check_options(void)
{
    struct hd_option_value values[HD_INI_OPTION_COUNT];
    struct hd_problem problem = {.exit_code = 0};
    struct hd_config config;
    char line[HD_INI_LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(hd_ini_load(&config,
                                      "[schedule.probe]\npull_ahead = yes\nring = 1M\nmode=slow\n",
                                      "schedule.probe.depth=64", line),
                          HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_config_options(&config, &hd_ini_plugin, values, &problem), HD_OK);
    CU_ASSERT_EQUAL(values[0].integer, 1);
    CU_ASSERT_EQUAL(values[1].integer, 64);
    CU_ASSERT_EQUAL(values[2].integer, 1 << 20);
    CU_ASSERT_EQUAL(values[3].number, 0.5);
    CU_ASSERT_STRING_EQUAL(values[4].text, "slow");
    hd_config_finish(&config);
}

/* What is written, as text; the caller frees it. */
static char *written(const struct hd_config *config, uint32_t only_changed)
{
    const struct hd_plugin *const plugins[] = {&hd_ini_plugin};
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_EQUAL(hd_config_write(config, stream, only_changed, 1, plugins), HD_OK);
    fclose(stream);
    return text;
}

static void compare_all(const struct hd_config *left, const struct hd_config *right)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (!hd_key_equal(&hd_keys[i], left, right)) {
            printf("\n%s.%s\n", hd_keys[i].section, hd_keys[i].name);
            CU_FAIL("a key does not read back to itself");
        }
    }
}

static void check_fixpoint(void)
{
    struct hd_problem problem = {.exit_code = 0};
    char line[HD_INI_LINE_BYTES];

    for (uint32_t count = 0; count <= HD_CHECK_COUNT(typed_words);
         count += HD_CHECK_COUNT(typed_words)) {
        for (uint32_t only_changed = 0; only_changed < 2; only_changed++) {
            struct hd_config first;
            struct hd_config second;
            CU_ASSERT_EQUAL_FATAL(hd_config_load(&first, NULL, count, typed_words, &problem),
                                  HD_OK);
            char *text = written(&first, only_changed);
            CU_ASSERT_EQUAL_FATAL(hd_ini_load(&second, text, NULL, line), HD_OK);
            compare_all(&first, &second);
            CU_ASSERT_EQUAL(strstr(text, "beta1") == NULL, only_changed);
            CU_ASSERT_EQUAL(strstr(text, "pull_ahead = off") == NULL, only_changed);
            free(text);
            hd_config_finish(&first);
            hd_config_finish(&second);
        }
    }
}

static void check_long_list_reads_back(void)
{
    static char word[HD_LINE_BYTES_MAX + 1];
    struct hd_problem problem = {.exit_code = 0};
    const char *words[] = {word};
    struct hd_config first;
    struct hd_config second;
    char line[HD_INI_LINE_BYTES];

    strcpy(word, "cost.forward=1e10");
    while (strlen(word) + 5 < sizeof word) {
        strcat(word, ",1e10");
    }
    CU_ASSERT_EQUAL_FATAL(hd_config_load(&first, NULL, 1, words, &problem), HD_OK);
    char *text = written(&first, 1);
    CU_ASSERT_EQUAL_FATAL(hd_ini_load(&second, text, NULL, line), HD_OK);
    compare_all(&first, &second);
    free(text);
    hd_config_finish(&first);
    hd_config_finish(&second);
}

/* Every key: its default is in its own range and served, and both kinds of row agree on its
   name. */
static void check_every_key(void)
{
    struct hd_problem problem = {.exit_code = 0};
    char word[256];

    for (uint32_t i = 0; i < hd_key_count; i++) {
        const struct hd_key *key = &hd_keys[i];
        const char *words[] = {word};
        struct hd_config config;
        struct hd_config defaults;

        snprintf(word, sizeof word, "%s.%s=%s", key->section, key->name, key->initial);
        CU_ASSERT_EQUAL_FATAL(hd_config_load(&config, NULL, 1, words, &problem), HD_OK);
        CU_ASSERT_EQUAL_FATAL(hd_config_load(&defaults, NULL, 0, NULL, &problem), HD_OK);
        CU_ASSERT_TRUE(hd_key_equal(key, &config, &defaults));
        CU_ASSERT_FALSE(hd_config_is_changed(&config, key->section, key->name));
        CU_ASSERT_PTR_EQUAL(hd_key_find(key->section, key->name), key);
        hd_config_finish(&config);
        hd_config_finish(&defaults);
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static void check_mutations(void)
{
    static const char bytes[] = "[]=:;#., \t\r\n\"\\09afx-+\xff\xc3\xa9\0";
    struct hd_problem problem = {.exit_code = 0};
    struct hd_config config;
    uint64_t state = 1;
    uint32_t served = 0;

    CU_ASSERT_EQUAL_FATAL(hd_config_load(&config, NULL, 0, NULL, &problem), HD_OK);
    char *text = written(&config, 0);
    const size_t length = strlen(text);
    char *mutant = malloc(length);
    hd_config_finish(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mutant);
    for (int run = 0; run < MUTATION_COUNT; run++) {
        size_t kept = length - next_random(&state) % 2 * (next_random(&state) % length);
        memcpy(mutant, text, length);
        for (uint32_t left = 1 + next_random(&state) % 3; left > 0; left--) {
            mutant[next_random(&state) % length] = bytes[next_random(&state) % sizeof bytes];
        }
        hd_ini_write(mutant, kept);
        memset(&problem, 0, sizeof problem);
        if (hd_config_load(&config, hd_ini_path(), 0, NULL, &problem) == HD_OK) {
            served++;
            hd_config_finish(&config);
        } else {
            CU_ASSERT(problem.exit_code == HD_EXIT_USAGE && problem.message[0] != '\0' &&
                      problem.place[0] != '\0');
        }
    }
    CU_ASSERT(served > 0 && served < MUTATION_COUNT); /* both ways were taken */
    free(mutant);
    free(text);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the grammar's liberties are taken", check_good_rows},
        {"every type lands in its member", check_typed},
        {"a word of the command line wins over the file", check_command_line_wins},
        {"a plugin's options are read by its own table", check_options},
        {"what is written reads back to the same configuration", check_fixpoint},
        {"a list as long as a line reads back", check_long_list_reads_back},
        {"every key's default is in its range and served", check_every_key},
        {"no mutation of a file crashes the reader", check_mutations},
    };
    return hd_check_main("config", checks, HD_CHECK_COUNT(checks));
}
