/* The corpus: which bytes are which ids of which sample, and what is refused. */
#include "support/corpus.h"

#include "output/bigrams.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void text_samples(void)
{
    const char text[] = "abcdefghijklm"; /* 13: (13 - 1) / 4 = 3 samples */
    const struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.txt", text, 13));
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);
    int32_t tokens[4], targets[4];

    CU_ASSERT(hd_corpus_sample_count(corpus) == 3);
    CU_ASSERT(hd_corpus_bytes(corpus) == 13);
    CU_ASSERT_STRING_EQUAL(hd_corpus_path(corpus), request.path);
    for (uint64_t index = 0; index < 8; index++) {
        hd_corpus_sample(corpus, index, tokens, targets);
        for (unsigned i = 0; i < 4; i++) {
            CU_ASSERT(tokens[i] == text[index % 3 * 4 + i]);
            CU_ASSERT(targets[i] == text[index % 3 * 4 + i + 1]);
        }
    }
    hd_corpus_sample(corpus, 2, NULL, targets);
    CU_ASSERT(targets[3] == 'm');
    hd_corpus_sample(corpus, 2, tokens, NULL);
    CU_ASSERT(tokens[3] == 'l');
    hd_corpus_close(corpus);
    hd_corpus_close(NULL);
}

/* A label takes one more token: 12 of them are two samples of 4, not three. */
static void last_label(void)
{
    const struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.txt", "abcdefghijkl", 12));
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);

    CU_ASSERT(hd_corpus_sample_count(corpus) == 2);
    hd_corpus_close(corpus);
}

/* C23: x = 1, 2, 3, 4, one sample a microbatch: each reads its own, tokens and targets. */
static void microbatches_differ(void)
{
    const uint8_t bytes[] = {1, 2, 3, 4, 5};
    struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.bin", bytes, sizeof bytes));
    request.sequence = 1;
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);
    double loss = 0.0;

    for (uint32_t microbatch = 0; microbatch < 4; microbatch++) {
        int32_t x, label;
        hd_corpus_samples(corpus, (struct hd_corpus_range){microbatch, 1}, &x, &label);
        CU_ASSERT(x == (int32_t)microbatch + 1 && label == x + 1);
        loss += 0.5 * x * x / 4;
    }
    CU_ASSERT(loss == 3.75);
    hd_corpus_close(corpus);
}

/* C67: 10 samples, 4 a step, 6 steps: the 2 left over open the next round; 24 are drawn. */
static void wrapping(void)
{
    const uint8_t bytes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    static const uint32_t wraps[] = {0, 0, 1, 1, 1, 1};
    struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.bin", bytes, sizeof bytes));
    request.sequence = 1;
    request.samples_per_step = 4;
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);
    uint32_t drawn[10] = {0};

    CU_ASSERT(hd_corpus_sample_count(corpus) == 10);
    for (uint32_t step = 0; step < 6; step++) {
        const struct hd_corpus_range range = {4 * step, 4};
        int32_t tokens[4];
        CU_ASSERT(hd_corpus_wraps(corpus, range) == wraps[step]);
        hd_corpus_samples(corpus, range, tokens, NULL);
        for (uint32_t i = 0; i < 4; i++) {
            CU_ASSERT(tokens[i] == (int32_t)((4 * step + i) % 10));
            drawn[tokens[i]]++;
        }
    }
    for (uint32_t i = 0; i < 10; i++) {
        CU_ASSERT(drawn[i] == (i < 4 ? 3 : 2));
    }
    CU_ASSERT(hd_corpus_wraps(corpus, (struct hd_corpus_range){6, 4}) == 0);
    CU_ASSERT(hd_corpus_wraps(corpus, (struct hd_corpus_range){7, 4}) == 1);
    CU_ASSERT(hd_corpus_wraps(corpus, (struct hd_corpus_range){12, 0}) == 0);
    hd_corpus_close(corpus);
}

/* C71: after 24 samples the next one is 24, whether a step is 4 x 2, 8 x 1 or 4 x 4. */
static void position_in_samples(void)
{
    static const uint32_t splits[][2] = {{4, 2}, {8, 1}, {4, 4}};
    uint8_t bytes[64];
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.bin", bytes, sizeof bytes));
    request.sequence = 1;
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);

    for (unsigned i = 0; i < HD_CHECK_COUNT(splits); i++) {
        int32_t expected = 24;
        for (uint32_t microbatch = 0; microbatch < splits[i][0]; microbatch++) {
            int32_t tokens[4];
            const struct hd_corpus_range range = {24 + microbatch * splits[i][1], splits[i][1]};
            hd_corpus_samples(corpus, range, tokens, NULL);
            for (uint32_t row = 0; row < splits[i][1]; row++) {
                CU_ASSERT(tokens[row] == expected++);
            }
        }
        CU_ASSERT(expected == 24 + (int32_t)(splits[i][0] * splits[i][1]));
    }
    hd_corpus_close(corpus);
}

static void raw_widths(void)
{
    static const struct {
        const char *name;
        uint32_t vocabulary, token_bytes, format;
        const char *file;
        uint8_t bytes[20];
        size_t byte_count;
        int32_t first, second;
    } rows[] = {
        {"vocabulary 256: 1 byte", 256, 0, 0, "a.bin", {7, 255, 0, 0, 0}, 5, 7, 255},
        {"vocabulary 257: 2 bytes", 257, 0, 0, "a.npy", {0, 1, 5, 0, 0, 0, 0, 0, 0, 0}, 10, 256, 5},
        {"vocabulary 65536: 2 bytes", 65536, 0, 0, "a.bin", {255, 255, 1}, 10, 65535, 1},
        {"vocabulary 65537: 4 bytes", 65537, 0, 0, "a.bin", {0, 0, 1, 0, 9}, 20, 65536, 9},
        {"asked: 4 bytes for 256 ids", 256, 4, 0, "a.bin", {3, 0, 0, 0, 4}, 20, 3, 4},
        {"asked: tokens whatever the name", 50304, 2, 2, "a.txt", {1, 2, 3}, 10, 513, 3},
        {"asked: text whatever the name", 256, 0, 1, "a.bin", "hi you", 5, 'h', 'i'},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_corpus_request request = hd_corpus_check_request(
            hd_corpus_check_put(rows[i].file, rows[i].bytes, rows[i].byte_count));
        request.vocabulary = rows[i].vocabulary;
        request.token_bytes = rows[i].token_bytes;
        request.format = rows[i].format;
        struct hd_corpus *const corpus = hd_corpus_check_open(&request);
        int32_t tokens[4], targets[4];
        hd_corpus_sample(corpus, 0, tokens, targets);
        CU_ASSERT(tokens[0] == rows[i].first && tokens[1] == rows[i].second);
        CU_ASSERT(targets[0] == rows[i].second);
        CU_ASSERT(isnan(hd_bigram_entropy(corpus)) == (rows[i].format != 1));
        hd_corpus_close(corpus);
    }
}

static void refused_files(void)
{
    static const struct {
        const char *name, *file;
        uint32_t vocabulary, token_bytes, format;
        const char *bytes;
        size_t byte_count;
        const char *part;
    } rows[] = {
        {"empty", "a.txt", 256, 0, 0, "", 0, "is empty"},
        {"half an id", "a.bin", 50304, 0, 0, "\1\0\2\0\3", 5,
         "has 5 bytes, not a whole number of 2-byte ids (1 left over)"},
        {"text past the vocabulary", "a.txt", 128, 0, 0, "plain \xc3\xa4 text", 13,
         "token 6 (at byte 6) is 195, but model.vocabulary is 128: ids are 0 to 127"},
        {"id past the vocabulary", "a.bin", 300, 0, 0, "\1\0\2\0\x2c\1\0\0\0\0", 10,
         "token 2 (at byte 4) is 300, but model.vocabulary is 300: ids are 0 to 299"},
        {"4-byte id that int32 does not hold", "a.bin", 70000, 0, 0,
         "\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0", 20, "is 4294967295"},
        {"the width of ids is no text's", "a.txt", 256, 2, 0, "some text", 9,
         "is read as text with one byte per id, but data.token_bytes is 2"},
        {"fewer tokens than one sample", "a.txt", 256, 0, 0, "abcd", 4,
         "needs 1 samples, and the 4 tokens are 0 samples of 4"},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        struct hd_corpus_request request = hd_corpus_check_request(
            hd_corpus_check_put(rows[i].file, rows[i].bytes, rows[i].byte_count));
        request.vocabulary = rows[i].vocabulary;
        request.token_bytes = rows[i].token_bytes;
        request.format = rows[i].format;
        hd_corpus_check_refused(&request, rows[i].part);
    }
}

/* C68: 3 samples, 2 microbatches of 2. */
static void shorter_than_a_step(void)
{
    struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.txt", "abcdefghijklm", 13));
    request.samples_per_step = 4;
    hd_corpus_check_refused(&request,
                            "0 complete steps: a step needs 4 samples, and the 13 tokens are 3 "
                            "samples of 4");
    request.samples_per_step = 3;
    hd_corpus_close(hd_corpus_check_open(&request));
}

static void refused_places(void)
{
    char path[300];
    struct hd_corpus_request request = hd_corpus_check_request("/nowhere/there.txt");

    hd_corpus_check_refused(&request, "cannot be opened: No such file");
    request.path = hd_corpus_check_directory();
    hd_corpus_check_refused(&request, "is not a regular file");
    snprintf(path, sizeof path, "%s/pipe", hd_corpus_check_directory());
    CU_ASSERT_FATAL(mkfifo(path, 0600) == 0);
    request.path = path;
    hd_corpus_check_refused(&request, "is not a regular file");
    unlink(path);
    request.path = "builtin";
    request.format = 2;
    hd_corpus_check_refused(&request, "asks for token ids");
}

static void entropies(void)
{
    static const struct {
        const char *name, *text;
        double nats;
    } rows[] = {
        {"each byte follows from the one before", "abcabcabcabc", 0.0},
        {"one byte only", "aaaaaaaa", 0.0},
        {"after a: b or c alike; after b, c: a", "abacabacabacabaca", 0.5 * 0.69314718055994531},
        {"after a: b thrice, c once", "abababacabababaca", 0.5 * 0.56233514461880829},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct hd_corpus_request request = hd_corpus_check_request(
            hd_corpus_check_put("a.txt", rows[i].text, strlen(rows[i].text)));
        struct hd_corpus *const corpus = hd_corpus_check_open(&request);
        CU_ASSERT(fabs(hd_bigram_entropy(corpus) - rows[i].nats) < 1e-12);
        hd_corpus_close(corpus);
    }
}

static void hashes(void)
{
    /* FIPS 180-2, appendix B.2: a message of 56 bytes. */
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char hash[HD_HASH_TEXT_BYTES];
    const struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.txt", text, sizeof text - 1));
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);

    hd_corpus_sha256(corpus, hash);
    CU_ASSERT_STRING_EQUAL(hash,
                           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    hd_corpus_close(corpus);
}

/* The yardstick of the demo: 2.34 nats a byte (issue 2), on the text of Debian's bible-kjv. */
static void king_james(void)
{
    char command[512], path[256];
    struct stat status;

    snprintf(path, sizeof path, "%s/kjv.txt", hd_corpus_check_directory());
    snprintf(command, sizeof command,
             "command -v bible >%s/where 2>&1 && echo gen1:1-rev22:21 | bible | sed -e 1,2d -e "
             "'/^bible(/d' >%s",
             hd_corpus_check_directory(), path);
    if (system(command) != 0 || stat(path, &status) != 0) {
        printf("(not checked: no bible-kjv here) ");
        return;
    }
    struct hd_corpus_request request = hd_corpus_check_request(path);
    request.sequence = 128;
    struct hd_corpus *const corpus = hd_corpus_check_open(&request);
    CU_ASSERT(hd_corpus_bytes(corpus) > 4200000);
    CU_ASSERT(fabs(hd_bigram_entropy(corpus) - 2.34) < 0.005);
    hd_corpus_close(corpus);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"sample i is sequence tokens and the labels after them", text_samples},
        {"N tokens are (N - 1) / sequence samples", last_label},
        {"each microbatch reads its own samples (C23)", microbatches_differ},
        {"what is left at the end opens the next round (C67)", wrapping},
        {"the position is counted in samples (C71)", position_in_samples},
        {"raw ids have the width of the vocabulary or the one asked", raw_widths},
        {"what is not whole, empty or past the vocabulary is refused", refused_files},
        {"a corpus shorter than one step is refused with both numbers (C68)", shorter_than_a_step},
        {"a missing file, a directory and a pipe are refused", refused_places},
        {"the bigram entropy of small texts", entropies},
        {"the hash is the file's SHA-256", hashes},
        {"the bigram entropy of the King James text is 2.34 nats", king_james},
    };
    return hd_corpus_check_main("corpus", checks, HD_CHECK_COUNT(checks));
}
