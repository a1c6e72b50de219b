/*
 * tests/test_config.c - the ini file and the command line, as INTERFACE.md ("The ini file") says.
 *
 * Rows of bad input, each with the fragments that its one line must hold; rows of good input, each
 * with a value of the struct; what `heddle config` writes reads back to itself; and some thousand
 * broken files that must be refused or served, never crash.
 */
#include "base/option.h"
#include "base/problem.h"
#include "config/internal.h"
#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 8192, MUTATION_COUNT = 4000 };

static const char *test_file(void)
{
    static char path[4096];
    if (path[0] == '\0') {
        snprintf(path, sizeof path, "%s", hd_check_build("tests/test_config.ini"));
    }
    return path;
}

static void write_file(const char *text, size_t bytes)
{
    FILE *file = fopen(test_file(), "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL_FATAL(fwrite(text, 1, bytes, file), bytes);
    CU_ASSERT_EQUAL_FATAL(fclose(file), 0);
}

/* Loads text as a file, with at most one override; the error line, or "" . */
static hd_status load(struct hd_config *config, const char *text, const char *override,
                      char line[LINE_BYTES])
{
    struct hd_problem problem = {.exit_code = 0};

    write_file(text, strlen(text));
    const hd_status status =
        hd_config_load(config, test_file(), override != NULL, &override, &problem);
    hd_problem_line(&problem, line, LINE_BYTES);
    CU_ASSERT_EQUAL(status == HD_OK, problem.exit_code == 0);
    CU_ASSERT_EQUAL(status == HD_OK, line[0] == '\0');
    if (status != HD_OK) {
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
        CU_ASSERT_PTR_NULL(strchr(line, '\n'));
    }
    return status;
}

struct bad_row {
    const char *name; /* the behaviour */
    const char *text;
    const char *override;
    const char *fragments[4]; /* of the line; the first begins after the file's name */
};

static const struct bad_row bad_rows[] = {
    {"an unknown key names the nearest",
     "[pipeline]\nrank = 4\n",
     NULL,
     {".ini:2: pipeline.rank: ", "pipeline.ranks"}},
    {"a key of another section is sent there",
     "[pipeline]\nwidth = 4\n",
     NULL,
     {".ini:2: pipeline.width: ", "[model]"}},
    {"an unknown section names the nearest, even empty",
     "\n[pipelines]\n",
     NULL,
     {".ini:2: [pipelines]: ", "[pipeline]"}},
    {"a plugin's section with a wrong name", "[schedule.A-b]\n", NULL, {".ini:1: ", "a-z"}},
    {"a duplicate names both places",
     "[model]\nwidth = 8\n\n[model]\nwidth = 8\n",
     NULL,
     {".ini:5: model.width: ", ".ini:2"}},
    {"a duplicate in a plugin's section",
     "[schedule.x]\na = 1\na = 1\n",
     NULL,
     {".ini:3: schedule.x.a: ", ".ini:2"}},
    {"8x is not 8",
     "[pipeline]\nmicrobatches = 8x\n",
     NULL,
     {".ini:2: pipeline.microbatches: ", "8x is not a whole number"}},
    {"8.5 is not a whole number", "[pipeline]\nmicrobatches = 8.5\n", NULL, {"8.5 is not a whole"}},
    {"hexadecimal is no number", "[train]\nlearning_rate = 0x1p-3\n", NULL, {"is not a number"}},
    {"inf is no number", "[train]\nlearning_rate = inf\n", NULL, {"inf is not a number"}},
    {"a comma is no decimal point",
     "[train]\nlearning_rate = 0,1\n",
     NULL,
     {"0,1 is not a number"}},
    {"below the range says it", "[pipeline]\nranks = 0\n", NULL, {"0 is not in 1..4096"}},
    {"above the range says it", "[pipeline]\nranks = 4097\n", NULL, {"4097 is not in 1..4096"}},
    {"an end that does not belong", "[train]\nbeta2 = 1\n", NULL, {"1 is not in 0..<1"}},
    {"far above any integer", "[train]\nseed = 18446744073709551616\n", NULL, {"train.seed"}},
    {"a choice that is none", "[train]\ndecay = linear\n", NULL, {"not one of none | cosine"}},
    {"a flag that is none", "[pipeline]\noverlap = maybe\n", NULL, {"maybe is not a flag"}},
    {"an empty entry of a list", "[cost]\nforward = 1,,2\n", NULL, {"empty entry"}},
    {"a wrong entry of a list", "[model]\nsplit = 4,4,x\n", NULL, {"x is not a whole number"}},
    {"a colon joins nothing", "[pipeline]\nranks: 4\n", NULL, {".ini:2: ", "not by :"}},
    {"a line without =", "[pipeline]\nranks\n", NULL, {".ini:2: ", "no ="}},
    {"no continued lines", "[cost]\nforward = 1,\n  2\n", NULL, {".ini:3: ", "next line"}},
    {"a key without a value", "[pipeline]\nranks =\n", NULL, {".ini:2: ", "no value"}},
    {"a value that is only a comment", "[pipeline]\nranks = ; 4\n", NULL, {".ini:2: ", "no value"}},
    {"a line without a key", "[pipeline]\n= 4\n", NULL, {".ini:2: ", "no key"}},
    {"quotes", "[data]\ncorpus = \"a\"\n", NULL, {".ini:2: ", "quotes"}},
    {"a key before any section", "ranks = 4\n", NULL, {".ini:1: ", "before the first section"}},
    {"a section that does not end", "[pipeline\nranks = 4\n", NULL, {".ini:1: "}},
    {"a section with more behind it", "[pipeline] ranks = 4\n", NULL, {".ini:1: "}},
    {"text that is not UTF-8",
     "[data]\ncorpus = \xff\xfe\n",
     NULL,
     {".ini:2: ", "byte 10", "UTF-8"}},
    {"a control character", "[data]\ncorpus = a\x01z\n", NULL, {".ini:2: ", "0x01"}},
    {"width over heads, both named",
     "[model]\nwidth = 100\nheads = 3\n",
     NULL,
     {".ini:2: model.width: ", "100", "3 heads"}},
    {"an odd head for rotary positions",
     "[model]\nwidth = 12\nheads = 4\n",
     NULL,
     {"a head of 3", "multiple of 8"}},
    {"heads over key and value heads",
     "[model]\nkey_value_heads = 3\n",
     NULL,
     {".ini:2: model.key_value_heads: ", "4 heads"}},
    {"more experts a token than there are",
     "[model]\nexperts = 4\nexperts_per_token = 5\n",
     NULL,
     {".ini:3: model.experts_per_token: ", "5 of 4"}},
    {"a split that is not the layers",
     "[model]\nlayers = 9\nsplit = 4,4\n",
     NULL,
     {"model.split: ", "add up to 8", "9 layers"}},
    {"a split that is not the stages",
     "[pipeline]\nstages_per_rank = 2\n[model]\nsplit = 4,4\n",
     NULL,
     {"model.split: ", "2 numbers", "8 stages"}},
    {"too many stages",
     "[pipeline]\nranks = 4096\nstages_per_rank = 5\n",
     NULL,
     {"20480", "16384"}},
    {"a decay without a step",
     "[train]\nsteps = 5\ndecay = cosine\n",
     NULL,
     {"train.warmup_steps: ", "10 of 5"}},
    {"too many tokens",
     "[data]\nmicrobatch_size = 65536\n[model]\nsequence = 65536\n",
     NULL,
     {"data.microbatch_size: ", "4294967296"}},
    {"an override without a section", "", "ranks=4", {"command line: ranks: ", "pipeline.ranks"}},
    {"an override without a value", "", "pipeline.ranks=", {"command line: pipeline.ranks: "}},
    {"an override of an unknown key",
     "",
     "pipeline.rank=4",
     {"command line: pipeline.rank: ", "pipeline.ranks"}},
    {"an override that an ini cannot hold", "", "data.corpus=a ;b", {"command line: ", "comment"}},
    {"an override that is bad, over a good file",
     "[pipeline]\nranks = 2\n",
     "pipeline.ranks=0",
     {"command line: pipeline.ranks: "}},
};

/* Keys of later issues: any value but those served is refused with a sentence. */
static const char *const later_rows[][2] = {
    {"kernels.recompute=full", "full is not built yet"},
    {"kernels.recompute=experts", "experts is not built yet"},
    {"kernels.precision=mxfp8", "mxfp8 is not built yet"},
    {"kernels.scale_rule=floor", "floor is not built yet"},
    {"model.half_batches=2", "2 is not built yet"},
    {"transport.inner=shm", "shm is not built yet"},
    {"transport.progress_thread=on", "on is not built yet"},
    {"cost.from=runs/latest", "runs/latest is not built yet"},
    {"output.checkpoint_every=0", "0 is not built yet"},
    {"output.checkpoint_every=10", "10 is not built yet"},
    {"train.skip_max=3", "3 is not built yet"},
    {"debug.fault=kill", "kill is not built yet"},
    {"grid.data=2", "2 is not built yet"},
    {"grid.expert=2", "2 is not built yet"},
    {"bench.sizes=8:1M:x2", "8:1M:x2 is not built yet"},
    {"bench.window=4", "4 is not built yet"},
    {"bench.direction=both", "both is not built yet"},
    {"bench.against=null", "null is not built yet"},
};

static void check_bad_rows(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(bad_rows); i++) {
        const struct bad_row *row = &bad_rows[i];
        struct hd_config config;
        char line[LINE_BYTES];

        if (load(&config, row->text, row->override, line) == HD_OK) {
            printf("\n%s: accepted\n", row->name);
            CU_FAIL("a bad configuration was accepted");
            hd_config_finish(&config);
            continue;
        }
        for (unsigned j = 0; j < 4 && row->fragments[j] != NULL; j++) {
            if (strstr(line, row->fragments[j]) == NULL) {
                printf("\n%s: `%s` lacks `%s`\n", row->name, line, row->fragments[j]);
                CU_FAIL("an error line lacks what it must say");
            }
        }
    }
}

static void check_later_rows(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(later_rows); i++) {
        struct hd_config config;
        char line[LINE_BYTES];
        CU_ASSERT_NOT_EQUAL_FATAL(load(&config, "", later_rows[i][0], line), HD_OK);
        CU_ASSERT_PTR_NOT_NULL(strstr(line, later_rows[i][1]));
        CU_ASSERT_PTR_NOT_NULL(strstr(line, "this version serves"));
    }
}

static void check_whole_files(void)
{
    struct hd_config config;
    struct hd_problem problem = {.exit_code = 0};
    char *text = malloc(3u << 20);
    char line[LINE_BYTES];

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, "/", 0, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "directory"));
    memset(&problem, 0, sizeof problem);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, "/nowhere/x.ini", 0, NULL, &problem), HD_OK);
    CU_ASSERT_STRING_EQUAL(problem.place, "/nowhere/x.ini");
    memset(text, ';', 3u << 20);
    text[(3u << 20) - 1] = '\0';
    CU_ASSERT_NOT_EQUAL(load(&config, text, NULL, line), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "1 MiB"));
    free(text);
    memset(&problem, 0, sizeof problem);
    write_file("[pipeline]\nranks = 2\0 3\n", 24);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, test_file(), 0, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "0x00"));
}

static void check_line_length(void)
{
    static char text[2 * HD_LINE_BYTES_MAX];
    struct hd_config config;
    char line[LINE_BYTES];

    for (uint32_t extra = 0; extra < 2; extra++) {
        const int head = snprintf(text, sizeof text, "[cost]\nforward = 1");
        const size_t bytes = HD_LINE_BYTES_MAX + extra + strlen("[cost]\n");
        for (size_t at = (size_t)head; at < bytes; at++) {
            text[at] = (at - (size_t)head) % 2 == 0 ? ',' : '1';
        }
        text[bytes] = '\0';
        if (text[bytes - 1] == ',') {
            text[bytes - 1] = '1';
        }
        const hd_status status = load(&config, text, NULL, line);
        CU_ASSERT_EQUAL(status == HD_OK, extra == 0);
        if (status == HD_OK) {
            CU_ASSERT(config.cost.forward.count > 2000);
            hd_config_finish(&config);
        } else {
            CU_ASSERT_PTR_NOT_NULL(strstr(line, ":2: the line has 4096 bytes, more than 4095"));
        }
    }
}

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
    {"the default checkpoints never", "", "output", "checkpoint_every", "never"},
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
        char line[LINE_BYTES];
        if (load(&config, good_rows[i].text, NULL, line) != HD_OK) {
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
    CU_ASSERT_EQUAL(config.train.cosine, 1);
    CU_ASSERT_EQUAL(config.train.seed, 7); /* the last word wins */
    CU_ASSERT_EQUAL_FATAL(config.cost.transfer.count, 2);
    CU_ASSERT_EQUAL(config.cost.transfer.values[1], 0.25);
    CU_ASSERT_EQUAL_FATAL(config.cost.backward.count, 1);
    CU_ASSERT_EQUAL(config.cost.backward.values[0], 2);
    CU_ASSERT_EQUAL(config.cost.blocking, 1);
    CU_ASSERT_EQUAL(config.memory.budget_gb, 12.5);
    CU_ASSERT_TRUE(isnan(config.memory.copy_gb));
    CU_ASSERT_STRING_EQUAL(config.output.directory, "runs/a");
    CU_ASSERT_EQUAL(config.output.checkpoint_every, -1);
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
    char line[LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(load(&config, "[pipeline]\nranks = 2\n", "pipeline.ranks=3", line),
                          HD_OK);
    CU_ASSERT_EQUAL(config.pipeline.ranks, 3);
    CU_ASSERT_STRING_EQUAL(config.name, "test_config");
    hd_config_finish(&config);
}

static const struct hd_option options[] = {
    {"pull_ahead", "off", NULL, "a flag", HD_OPTION_FLAG, 0},
    {"depth", "4", "1..64", "a number", HD_OPTION_INTEGER, 0},
    {"ring", "64K", "4K..1G", "bytes", HD_OPTION_BYTES, 0},
    {"rate", "0.5", "0<..1", "a fraction", HD_OPTION_NUMBER, 0},
    {"mode", "fast", "fast | slow", "a word", HD_OPTION_TEXT, 0},
};
static const struct hd_plugin plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE), .name = "probe",
                                        .option_count = HD_CHECK_COUNT(options),
                                        .options = options};

static void check_options(void)
{
    struct hd_option_value values[HD_CHECK_COUNT(options)];
    struct hd_problem problem = {.exit_code = 0};
    struct hd_config config;
    char line[LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(load(&config,
                               "[schedule.probe]\npull_ahead = yes\nring = 1M\nmode=slow\n",
                               "schedule.probe.depth=64", line),
                          HD_OK);
    CU_ASSERT_EQUAL_FATAL(hd_config_options(&config, &plugin, values, &problem), HD_OK);
    CU_ASSERT_EQUAL(values[0].integer, 1);
    CU_ASSERT_EQUAL(values[1].integer, 64);
    CU_ASSERT_EQUAL(values[2].integer, 1 << 20);
    CU_ASSERT_EQUAL(values[3].number, 0.5);
    CU_ASSERT_STRING_EQUAL(values[4].text, "slow");
    hd_config_finish(&config);
}

static void check_bad_options(void)
{
    static const char *const rows[][2] = {
        {"depth=65", "65 is not in 1..64"},       {"ring=2K", "2K is not in 4K..1G"},
        {"ring=64KB", "is not a size in bytes"},  {"rate=0", "0 is not in 0<..1"},
        {"mode=quick", "not one of fast | slow"}, {"depht=3", "the nearest one is depth"},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_option_value values[HD_CHECK_COUNT(options)];
        struct hd_problem problem = {.exit_code = 0};
        struct hd_config config;
        char line[LINE_BYTES];
        char word[128];
        snprintf(word, sizeof word, "schedule.probe.%s", rows[i][0]);
        CU_ASSERT_EQUAL_FATAL(load(&config, "", word, line), HD_OK);
        CU_ASSERT_NOT_EQUAL(hd_config_options(&config, &plugin, values, &problem), HD_OK);
        hd_problem_line(&problem, line, sizeof line);
        CU_ASSERT_PTR_NOT_NULL(strstr(line, rows[i][1]));
        CU_ASSERT_PTR_NOT_NULL(strstr(line, "command line: schedule.probe."));
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
        hd_config_finish(&config);
    }
}

static int knows_probe(void *context, const char *kind, const char *name)
{
    (void)context;
    return strcmp(kind, "schedule") == 0 && strcmp(name, "probe") == 0;
}

static void check_sections(void)
{
    struct hd_problem problem = {.exit_code = 0};
    struct hd_config config;
    char line[LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(load(&config, "[schedule.probe]\nx=1\n", NULL, line), HD_OK);
    CU_ASSERT_EQUAL(hd_config_check_sections(&config, knows_probe, NULL, &problem), HD_OK);
    hd_config_finish(&config);
    CU_ASSERT_EQUAL_FATAL(load(&config, "\n[kernel.probe]\n", NULL, line), HD_OK);
    CU_ASSERT_NOT_EQUAL(hd_config_check_sections(&config, knows_probe, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.place, ".ini:2"));
    hd_config_finish(&config);
}

/* What is written, as text; the caller frees it. */
static char *written(const struct hd_config *config, uint32_t only_changed)
{
    const struct hd_plugin *const plugins[] = {&plugin};
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
    char line[LINE_BYTES];

    for (uint32_t count = 0; count <= HD_CHECK_COUNT(typed_words);
         count += HD_CHECK_COUNT(typed_words)) {
        for (uint32_t only_changed = 0; only_changed < 2; only_changed++) {
            struct hd_config first;
            struct hd_config second;
            CU_ASSERT_EQUAL_FATAL(hd_config_load(&first, NULL, count, typed_words, &problem),
                                  HD_OK);
            char *text = written(&first, only_changed);
            CU_ASSERT_EQUAL_FATAL(load(&second, text, NULL, line), HD_OK);
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
    char line[LINE_BYTES];

    strcpy(word, "cost.forward=1e10");
    while (strlen(word) + 5 < sizeof word) {
        strcat(word, ",1e10");
    }
    CU_ASSERT_EQUAL_FATAL(hd_config_load(&first, NULL, 1, words, &problem), HD_OK);
    char *text = written(&first, 1);
    CU_ASSERT_EQUAL_FATAL(load(&second, text, NULL, line), HD_OK);
    compare_all(&first, &second);
    free(text);
    hd_config_finish(&first);
    hd_config_finish(&second);
}

/* Every key: its default is in its own range and served, and both kinds of row agree on its name.
 */
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
        write_file(mutant, kept);
        memset(&problem, 0, sizeof problem);
        if (hd_config_load(&config, test_file(), 0, NULL, &problem) == HD_OK) {
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
        {"bad input is one line with place, key, reason and remedy", check_bad_rows},
        {"values of later issues are refused with a sentence", check_later_rows},
        {"a directory, no file, a huge file and a zero byte are refused", check_whole_files},
        {"a line may have 4095 bytes and no more", check_line_length},
        {"the grammar's liberties are taken", check_good_rows},
        {"every type lands in its member", check_typed},
        {"a word of the command line wins over the file", check_command_line_wins},
        {"a plugin's options are read by its own table", check_options},
        {"bad options name place, key and range", check_bad_options},
        {"a section of a plugin that is not there is refused", check_sections},
        {"what is written reads back to the same configuration", check_fixpoint},
        {"a list as long as a line reads back", check_long_list_reads_back},
        {"every key's default is in its range and served", check_every_key},
        {"no mutation of a file crashes the reader", check_mutations},
    };
    return hd_check_main("config", checks, HD_CHECK_COUNT(checks));
}
