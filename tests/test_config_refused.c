/*
 * tests/test_config_refused.c - what the ini file and the command line may not hold, as
 * docs/interface.md says.  Each row is refused with one line, which holds the fragments.
 */
#include "base/problem.h"
#include "config/internal.h"
#include "support/check.h"
#include "support/ini.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bad_row {
    const char *name; /* the behaviour */
    const char *text;
    const char *override;
    const char *fragments[4]; /* of the line; the first begins after the file's name */
};

static const struct bad_row bad_rows[] = {
    {"a rule between keys is placed where its cause was set, on the command line",
     "[train]\nsteps = 6\n",
     "train.decay=cosine",
     {"", "command line: train.warmup_steps: a warm-up of 10 of 6 steps"}},
    {"a rule between keys is placed where its cause was set, in the file",
     "[model]\nheads = 7\n",
     NULL,
     {".ini:2: model.width: width 128 is not divisible by 7 heads"}},
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
    {"a number of more than 64 bits",
     "[pipeline]\nmicrobatches = 99999999999999999999\n",
     NULL,
     {"99999999999999999999 is too large for a whole number"}},
    {"a number below 64 bits",
     "[pipeline]\nmicrobatches = -99999999999999999999\n",
     NULL,
     {"-99999999999999999999 is too small for a whole number"}},
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
    {"a fault that is none", "[debug]\nfault = kill\n", NULL, {"not one of none | lease_off"}},
    {"a choice that is none", "[train]\ndecay = linear\n", NULL, {"not one of none | cosine"}},
    {"a flag that is none", "[pipeline]\noverlap = maybe\n", NULL, {"maybe is not a flag"}},
    {"an empty entry of a list", "[cost]\nforward = 1,,2\n", NULL, {"empty entry"}},
    {"a wrong entry of a list", "[model]\nsplit = 4,4,x\n", NULL, {"x is not a whole number"}},
    {"a colon joins nothing", "[pipeline]\nranks: 4\n", NULL, {".ini:2: ", "instead of ="}},
    {"a line without =", "[pipeline]\nranks\n", NULL, {".ini:2: ", "no ="}},
    {"no continued lines", "[cost]\nforward = 1,\n  2\n", NULL, {".ini:3: ", "next line"}},
    {"a key without a value", "[pipeline]\nranks =\n", NULL, {".ini:2: ", "no value"}},
    {"a value that is only a comment", "[pipeline]\nranks = ; 4\n", NULL, {".ini:2: ", "no value"}},
    {"a line without a key", "[pipeline]\n= 4\n", NULL, {".ini:2: ", "no key"}},
    {"quotes", "[data]\ncorpus = \"a\"\n", NULL, {".ini:2: ", "quotes"}},
    {"a value that would read back as a comment",
     "[data]\ncorpus =#a\n",
     NULL,
     {".ini:2: ", "starts a comment"}},
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
    {"C85: a width that blocks of 32 do not fill",
     "[kernels]\nprecision = mxfp8\n[model]\nwidth = 200\n",
     NULL,
     {".ini:4: model.width: ", "width 200 leaves 8", "expert_width 192 leaves 0", "of 32"}},
    {"C85: an expert_width that blocks of 32 do not fill",
     "[kernels]\nprecision = mxfp8\n[model]\nexpert_width = 100\n",
     NULL,
     {".ini:4: model.expert_width: ", "expert_width 100 leaves 4"}},
    {"C85: without experts, tokens that blocks of 32 do not fill",
     "[kernels]\nprecision = mxfp8\n[model]\nexperts = 0\nsequence = 36\n",
     NULL,
     {".ini:5: model.sequence: ", "4 x 36 leaves 16 over", "multiple of 32"}},
    {"half batches of an odd microbatch",
     "[data]\nmicrobatch_size = 3\n",
     "model.half_batches=2",
     {".ini:2: data.microbatch_size: ", "3 samples cannot be divided into 2 halves"}},
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
    {"cost.from=runs/latest", "runs/latest is not built yet"},
    {"grid.data=2", "2 is not built yet"},
    {"grid.expert=2", "2 is not built yet"},
};

static void check_bad_rows(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(bad_rows); i++) {
        const struct bad_row *row = &bad_rows[i];
        struct hd_config config;
        char line[HD_INI_LINE_BYTES];

        if (hd_ini_load(&config, row->text, row->override, line) == HD_OK) {
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
        char line[HD_INI_LINE_BYTES];
        CU_ASSERT_NOT_EQUAL_FATAL(hd_ini_load(&config, "", later_rows[i][0], line), HD_OK);
        CU_ASSERT_PTR_NOT_NULL(strstr(line, later_rows[i][1]));
        CU_ASSERT_PTR_NOT_NULL(strstr(line, "this version supports"));
    }
}

static void check_whole_files(void)
{
    struct hd_config config;
    struct hd_problem problem = {.exit_code = 0};
    char *text = malloc(3u << 20);
    char line[HD_INI_LINE_BYTES];

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, "/", 0, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "directory"));
    memset(&problem, 0, sizeof problem);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, "/nowhere/x.ini", 0, NULL, &problem), HD_OK);
    CU_ASSERT_STRING_EQUAL(problem.place, "/nowhere/x.ini");
    memset(text, ';', 3u << 20);
    text[(3u << 20) - 1] = '\0';
    CU_ASSERT_NOT_EQUAL(hd_ini_load(&config, text, NULL, line), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(line, "1 MiB"));
    free(text);
    memset(&problem, 0, sizeof problem);
    hd_ini_write("[pipeline]\nranks = 2\0 3\n", 24);
    CU_ASSERT_NOT_EQUAL(hd_config_load(&config, hd_ini_path(), 0, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.message, "0x00"));
}

static void check_line_length(void)
{
    static char text[2 * HD_LINE_BYTES_MAX];
    struct hd_config config;
    char line[HD_INI_LINE_BYTES];

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
        const hd_status status = hd_ini_load(&config, text, NULL, line);
        CU_ASSERT_EQUAL(status == HD_OK, extra == 0);
        if (status == HD_OK) {
            CU_ASSERT(config.cost.forward.count > 2000);
            hd_config_finish(&config);
        } else {
            CU_ASSERT_PTR_NOT_NULL(strstr(line, ":2: the line has 4096 bytes, more than 4095"));
        }
    }
}

static void check_bad_options(void)
{
    static const char *const rows[][2] = {
        {"depth=65", "65 is not in 1..64"},       {"ring=2K", "2K is not in 4K..1G"},
        {"ring=64KB", "is not a size in bytes"},  {"rate=0", "0 is not in 0<..1"},
        {"mode=quick", "not one of fast | slow"}, {"depht=3", "the nearest one is depth"},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_option_value values[HD_INI_OPTION_COUNT];
        struct hd_problem problem = {.exit_code = 0};
        struct hd_config config;
        char line[HD_INI_LINE_BYTES];
        char word[128];
        snprintf(word, sizeof word, "schedule.probe.%s", rows[i][0]);
        CU_ASSERT_EQUAL_FATAL(hd_ini_load(&config, "", word, line), HD_OK);
        CU_ASSERT_NOT_EQUAL(hd_config_options(&config, &hd_ini_plugin, values, &problem), HD_OK);
        hd_problem_line(&problem, line, sizeof line);
        CU_ASSERT_PTR_NOT_NULL(strstr(line, rows[i][1]));
        CU_ASSERT_PTR_NOT_NULL(strstr(line, "command line: schedule.probe."));
        CU_ASSERT_EQUAL(problem.exit_code, HD_EXIT_USAGE);
        hd_config_finish(&config);
    }
}

static bool knows_probe(void *context, const char *kind, const char *name)
{
    (void)context;
    return strcmp(kind, "schedule") == 0 && strcmp(name, "probe") == 0;
}

static void check_sections(void)
{
    struct hd_problem problem = {.exit_code = 0};
    struct hd_config config;
    char line[HD_INI_LINE_BYTES];

    CU_ASSERT_EQUAL_FATAL(hd_ini_load(&config, "[schedule.probe]\nx=1\n", NULL, line), HD_OK);
    CU_ASSERT_EQUAL(hd_config_check_sections(&config, knows_probe, NULL, &problem), HD_OK);
    hd_config_finish(&config);
    CU_ASSERT_EQUAL_FATAL(hd_ini_load(&config, "\n[kernel.probe]\n", NULL, line), HD_OK);
    CU_ASSERT_NOT_EQUAL(hd_config_check_sections(&config, knows_probe, NULL, &problem), HD_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(problem.place, ".ini:2"));
    hd_config_finish(&config);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"bad input is one line with place, key, reason and remedy", check_bad_rows},
        {"values of later issues are refused with a sentence", check_later_rows},
        {"a directory, no file, a huge file and a zero byte are refused", check_whole_files},
        {"a line may have 4095 bytes and no more", check_line_length},
        {"bad options name place, key and range", check_bad_options},
        {"a section of a plugin that is not there is refused", check_sections},
    };
    return hd_check_main("config_refused", checks, HD_CHECK_COUNT(checks));
}
