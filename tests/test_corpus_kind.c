/* Files that look like a corpus and are something else: another format, or wider ids. */
#include "support/corpus.h"

#include "train/corpus_kind.h"

#include <stdint.h>
#include <string.h>

enum { ID_COUNT = 64 };

/* Every row is refused by its name, read as text and as ids. */
static void foreign_files(void)
{
    static const struct {
        const char *name; /* of the file, and what it is a case of */
        const char *bytes;
        size_t count;
        const char *said;
    } rows[] = {
        {"corpus.txt.gz", "\x1f\x8b\x08\x00", 4, "is a gzip archive"},
        {"corpus.txt.zst", "\x28\xb5\x2f\xfd", 4, "is a zstd archive"},
        {"corpus.xz", "\xfd\x37\x7a\x58\x5a\x00", 6, "is an xz archive"},
        {"corpus.bz2", "BZh91AY&SY", 10, "is a bzip2 archive"},
        {"corpus.npz", "PK\x03\x04\x14", 5, "is a zip archive (numpy's .npz is one)"},
        {"corpus.parquet", "PAR1\x15\x04", 6, "is a Parquet table"},
        {"corpus.arrow", "ARROW1\x00\x00", 8, "is an Arrow table"},
        {"corpus.h5", "\x89HDF\r\n\x1a\n", 8, "is an HDF5 file"},
        {"data.idx", "MMIDIDX\x00\x00\x01", 10, "is the index of a Megatron data set"},
        {"gpt2.bin", "\x88\xd8\x34\x01\x01\x00\x00\x00", 8, "is a token file of llm.c"},
        {"llama3.bin", "\xa1\xd9\x34\x01\x07\x00\x00\x00", 8, "is a token file of llm.c"},
        {"lfs.txt", "version https://git-lfs.github.com/spec/v1\n", 43, "is a pointer of git-lfs"},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t bytes[256];
        memset(bytes, 'a', sizeof bytes);
        memcpy(bytes, rows[i].bytes, rows[i].count);
        const char *path = hd_corpus_check_put(rows[i].name, bytes, sizeof bytes);
        for (uint32_t format = 0; format <= 2; format++) {
            struct hd_corpus_request request = hd_corpus_check_request(path);
            request.format = format;
            hd_corpus_check_refused(&request, rows[i].said);
        }
    }
}

/* Ids of `id_bytes` each, 1 to 50, as a little-endian program writes them. */
static const char *put_ids(const char *name, uint32_t id_bytes)
{
    uint8_t bytes[ID_COUNT * 4] = {0};

    for (uint32_t i = 0; i < ID_COUNT; i++) {
        bytes[i * id_bytes] = (uint8_t)(1 + i % 50);
    }
    return hd_corpus_check_put(name, bytes, (size_t)ID_COUNT * id_bytes);
}

static void wider_ids(void)
{
    static const struct {
        const char *name;
        uint32_t id_bytes, vocabulary;
        const char *said; /* NULL: it is read */
    } rows[] = {
        {"nanoGPT's character set: uint16, 73 symbols", 2, 73, "seems to have 2-byte ids"},
        {"uint32, 73 symbols", 4, 73, "seems to have 4-byte ids"},
        {"uint32 of GPT-2's vocabulary", 4, 50257, "seems to have 4-byte ids"},
        {"uint8, 73 symbols", 1, 73, NULL},
        {"uint16 of GPT-2's vocabulary", 2, 50257, NULL},
        {"uint32, 100000 symbols", 4, 100000, NULL},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_corpus_request request =
            hd_corpus_check_request(put_ids("ids.bin", rows[i].id_bytes));
        request.vocabulary = rows[i].vocabulary;
        if (rows[i].said != NULL) {
            hd_corpus_check_refused(&request, rows[i].said);
            request.token_bytes = rows[i].id_bytes;
        }
        struct hd_corpus *corpus = hd_corpus_check_open(&request);
        CU_ASSERT_EQUAL(hd_corpus_sample_count(corpus), (ID_COUNT - 1) / request.sequence);
        hd_corpus_close(corpus);
    }
}

/* Whoever says the width is believed, and the run's header says what was read. */
static void told_width(void)
{
    char text[HD_CORPUS_FORMAT_BYTES];
    struct hd_corpus_request request = hd_corpus_check_request(put_ids("ids.bin", 2));

    request.token_bytes = 1;
    struct hd_corpus *corpus = hd_corpus_check_open(&request);
    CU_ASSERT_STRING_EQUAL(hd_corpus_format(corpus, text), "raw ids, 1 byte a token");
    hd_corpus_close(corpus);
    request.token_bytes = 2;
    corpus = hd_corpus_check_open(&request);
    CU_ASSERT_STRING_EQUAL(hd_corpus_format(corpus, text), "raw ids, 2 bytes a token");
    hd_corpus_close(corpus);
    request = hd_corpus_check_request(hd_corpus_check_put("a.txt", "words and words", 15));
    corpus = hd_corpus_check_open(&request);
    CU_ASSERT_STRING_EQUAL(hd_corpus_format(corpus, text), "text, one byte a token");
    hd_corpus_close(corpus);
}

static void likely_width(void)
{
    uint8_t zeros[256] = {0};
    uint8_t few[16] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0};

    CU_ASSERT_EQUAL(hd_corpus_likely_width(zeros, sizeof zeros, 1), 1);
    CU_ASSERT_EQUAL(hd_corpus_likely_width(few, sizeof few, 1), 1);
    zeros[0] = 1;
    CU_ASSERT_EQUAL(hd_corpus_likely_width(zeros, sizeof zeros, 1), 4);
    CU_ASSERT_EQUAL(hd_corpus_likely_width(zeros, sizeof zeros - 2, 1), 2);
    zeros[5] = 1;
    CU_ASSERT_EQUAL(hd_corpus_likely_width(zeros, sizeof zeros, 1), 1);
    CU_ASSERT_EQUAL(hd_corpus_likely_width(zeros, sizeof zeros, 2), 4);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"another file format is refused by its name", foreign_files},
        {"raw ids that seem wider are refused with their width", wider_ids},
        {"a width that is given is believed", told_width},
        {"which widths are likely", likely_width},
    };

    return hd_corpus_check_main("corpus_kind", checks, sizeof checks / sizeof checks[0]);
}
