/* The built-in text: endless, the same everywhere, and worth learning. */
#include "support/corpus.h"

#include "output/bigrams.h"

#include "train/grammar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void builtin_continues(void)
{
    static const uint32_t sequences[] = {1, 7, 128, 1000, 1024, 3000};

    for (unsigned i = 0; i < HD_CHECK_COUNT(sequences); i++) {
        const uint32_t length = sequences[i];
        struct hd_corpus_request request = hd_corpus_check_request("builtin");
        request.sequence = length;
        struct hd_corpus *const corpus = hd_corpus_check_open(&request);
        int32_t *const ids = calloc(4 * length, sizeof *ids);
        CU_ASSERT_FATAL(ids != NULL);
        for (uint64_t index = 0; index < 5; index++) {
            hd_corpus_sample(corpus, index, ids, ids + length);
            hd_corpus_sample(corpus, index + 1, ids + 2 * length, ids + 3 * length);
            CU_ASSERT(ids[2 * length - 1] == ids[2 * length]);
            CU_ASSERT(memcmp(ids + 1, ids + length, (length - 1) * sizeof *ids) == 0);
        }
        CU_ASSERT(hd_corpus_sample_count(corpus) == 1ull << 32);
        CU_ASSERT(hd_corpus_bytes(corpus) == 0);
        free(ids);
        hd_corpus_close(corpus);
    }
}

/* Sample 2^32 - 1 is text like any other, and the next one is sample 0. */
static void builtin_wraps(void)
{
    const struct hd_corpus_request request = hd_corpus_check_request("builtin");
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);
    int32_t first[4], again[4], last[4];

    hd_corpus_sample(corpus, 0, first, NULL);
    hd_corpus_sample(corpus, 1ull << 32, again, NULL);
    hd_corpus_sample(corpus, (1ull << 32) - 1, last, NULL);
    CU_ASSERT(memcmp(first, again, sizeof first) == 0);
    CU_ASSERT(last[0] >= '\n' && last[0] <= 'z');
    hd_corpus_close(corpus);
}

/* A text of bytes where they fit, letters of an alphabet where not; nothing past the vocabulary. */
static void builtin_vocabularies(void)
{
    static const uint32_t vocabularies[] = {1, 2, 5, 16, 31, 32, 64, 127, 128, 256, 50304};

    for (unsigned i = 0; i < HD_CHECK_COUNT(vocabularies); i++) {
        struct hd_corpus_request request = hd_corpus_check_request("builtin");
        request.vocabulary = vocabularies[i];
        request.sequence = 2000;
        struct hd_corpus *const corpus = hd_corpus_check_open(&request);
        static int32_t tokens[2000];
        uint32_t seen = 0;
        uint8_t is_seen[256] = {0};
        hd_corpus_sample(corpus, 3, tokens, NULL);
        for (unsigned k = 0; k < 2000; k++) {
            CU_ASSERT_FATAL(tokens[k] >= 0 && tokens[k] < (int32_t)vocabularies[i]);
            CU_ASSERT_FATAL(tokens[k] < 128);
            seen += !is_seen[tokens[k]];
            is_seen[tokens[k]] = 1;
        }
        CU_ASSERT(seen >= (vocabularies[i] < 20 ? (vocabularies[i] + 1) / 2 : 20));
        hd_corpus_close(corpus);
    }
}

/* The text is frozen: another one would make every recorded loss a different run's. */
static void builtin_is_fixed(void)
{
    char page[HD_GRAMMAR_PAGE_BYTES], text[HD_HASH_TEXT_BYTES];
    static const char begin[] =
        "frank gives emma the green stone. emma thanks frank for the stone.\n"
        "clara gives david the small apple.";
    const struct hd_corpus_request request = hd_corpus_check_request("builtin");
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);

    hd_grammar_page(0, 0, page);
    CU_ASSERT(memcmp(page, begin, sizeof begin - 1) == 0);
    hd_corpus_sha256(corpus, text);
    CU_ASSERT_STRING_EQUAL(text,
                           "256426d1b9a61a089dd06f573282b7c44ff622dcc083f4f20c54eb22a0fcd313");
    hd_corpus_close(corpus);
}

/* What is said early decides what is said late, and pages are not alike. */
static void builtin_is_learnable(void)
{
    char page[HD_GRAMMAR_PAGE_BYTES + 1], other[HD_GRAMMAR_PAGE_BYTES];
    unsigned checked = 0;

    for (uint64_t number = 0; number < 200; number++) {
        hd_grammar_page(0, number, page);
        page[HD_GRAMMAR_PAGE_BYTES] = '\0';
        hd_grammar_page(0, number + 1, other);
        CU_ASSERT(memcmp(page, other, sizeof other) != 0);
        for (char *line = strtok(page, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            char giver[17], taker[17], kind[17], thing[17], thanker[17], thanked[17], back[17];
            if (sscanf(line,
                       "%16s gives %16s the %16s %16[a-z]. %16s thanks %16s for the %16[a-z].",
                       giver, taker, kind, thing, thanker, thanked, back) == 7 &&
                line[strlen(line) - 1] == '.') {
                CU_ASSERT_STRING_EQUAL(thanker, taker);
                CU_ASSERT_STRING_EQUAL(thanked, giver);
                CU_ASSERT_STRING_EQUAL(back, thing);
                CU_ASSERT(strcmp(giver, taker) != 0);
                checked++;
            }
        }
    }
    CU_ASSERT(checked > 200);
}

static void builtin_seeds(void)
{
    char first[HD_GRAMMAR_PAGE_BYTES], second[HD_GRAMMAR_PAGE_BYTES];

    hd_grammar_page(0, 5, first);
    hd_grammar_page(1, 5, second);
    CU_ASSERT(memcmp(first, second, sizeof first) != 0);
    hd_grammar_page(1ull << 32, 5, second);
    CU_ASSERT(memcmp(first, second, sizeof first) != 0);
}

static void builtin_entropy(void)
{
    struct hd_corpus_request request = hd_corpus_check_request("builtin");
    struct hd_corpus *corpus = hd_corpus_check_open(&request);
    const double bytes = hd_bigram_entropy(corpus);

    hd_corpus_close(corpus);
    request.vocabulary = 32; /* one letter, one id: the same text by other names */
    corpus = hd_corpus_check_open(&request);
    CU_ASSERT(fabs(hd_bigram_entropy(corpus) - bytes) < 1e-12);
    hd_corpus_close(corpus);
    CU_ASSERT(bytes > 0.5 && bytes < 2.3);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"the builtin text goes on from sample to sample", builtin_continues},
        {"the builtin text has 2^32 samples", builtin_wraps},
        {"the builtin text fits every vocabulary", builtin_vocabularies},
        {"the builtin text is the same everywhere", builtin_is_fixed},
        {"in the builtin text the late follows from the early", builtin_is_learnable},
        {"a seed makes another builtin text", builtin_seeds},
        {"the bigram entropy of the builtin text", builtin_entropy},
    };
    return hd_corpus_check_main("corpus_builtin", checks, HD_CHECK_COUNT(checks));
}
