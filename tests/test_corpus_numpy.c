/* The header of a numpy file: what is read, and what is refused. */
#include "support/corpus.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FILE_BYTES = 4096 };

struct npy {
    uint8_t bytes[FILE_BYTES];
    size_t byte_count;
};

/* A file of `version` with this dict, padded as numpy does, and `data`. */
static struct npy npy_of(uint32_t version, const char *dict, const void *data, size_t data_bytes)
{
    struct npy npy = {.bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0}};
    const size_t width = version == 1 ? 2 : 4;
    const size_t begin = 8 + width;
    const size_t end = (begin + strlen(dict) + 1 + 63) / 64 * 64;

    memset(npy.bytes + begin, ' ', end - begin);
    memcpy(npy.bytes + begin, dict, strlen(dict));
    npy.bytes[end - 1] = '\n';
    npy.bytes[8] = (uint8_t)(end - begin);
    npy.bytes[9] = (uint8_t)((end - begin) >> 8);
    memcpy(npy.bytes + end, data, data_bytes);
    npy.byte_count = end + data_bytes;
    return npy;
}

static const uint8_t ten_bytes[80] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0};

static void numpy_read(void)
{
    static const struct {
        const char *name;
        uint32_t version;
        const char *dict;
        size_t data_bytes;
        int32_t tokens[4];
    } rows[] = {
        {"as numpy.save writes it",
         1,
         "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
         10,
         {1, 2, 3, 4}},
        {"version 2",
         2,
         "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
         10,
         {1, 2, 3, 4}},
        {"version 3",
         3,
         "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
         10,
         {1, 2, 3, 4}},
        {"other order, quotes and blanks, no last comma",
         1,
         "{\"shape\":( 5 , ),\"fortran_order\":False , \"descr\":\"<i2\"}",
         10,
         {1, 2, 3, 4}},
        {"bytes",
         1,
         "{'descr': '|u1', 'fortran_order': False, 'shape': (10,), }",
         10,
         {1, 0, 2, 0}},
        {"eight bytes an id",
         1,
         "{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }",
         80,
         {0, 0, 0, 0}},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        uint8_t zeros[80] = {0};
        const void *const data = rows[i].data_bytes == 80 ? zeros : ten_bytes;
        const struct npy npy = npy_of(rows[i].version, rows[i].dict, data, rows[i].data_bytes);
        const struct hd_corpus_request request =
            hd_corpus_check_request(hd_corpus_check_put("a.dat", npy.bytes, npy.byte_count));
        struct hd_corpus *const corpus = hd_corpus_check_open(&request);
        int32_t tokens[4];
        hd_corpus_sample(corpus, 0, tokens, NULL);
        CU_ASSERT(memcmp(tokens, rows[i].tokens, sizeof tokens) == 0);
        hd_corpus_close(corpus);
    }
}

#define DICT(descr, order, shape) \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

static void numpy_refused(void)
{
    static const struct {
        const char *name;
        uint32_t version, token_bytes;
        const char *dict, *part;
    } rows[] = {
        {"big-endian", 1, 0, DICT("'>u2'", "False", "(5,)"), "numpy type is >u2"},
        {"floats", 1, 0, DICT("'<f4'", "False", "(5,)"), "numpy type is <f4"},
        {"fields", 1, 0, DICT("[('a', '<u2')]", "False", "(5,)"), "has fields"},
        {"two dimensions", 1, 0, DICT("'<u2'", "False", "(5, 1)"), "more than one dimension"},
        {"no dimension", 1, 0, DICT("'<u2'", "False", "()"), "no dimension"},
        {"a number, no tuple", 1, 0, DICT("'<u2'", "False", "(5)"), "lacks a ,"},
        {"no number", 1, 0, DICT("'<u2'", "False", "(-5,)"), "not one whole number"},
        {"a number past 64 bits", 1, 0, DICT("'<u2'", "False", "(99999999999999999999,)"),
         "larger than any file"},
        {"Fortran order", 1, 0, DICT("'<u2'", "True", "(5,)"), "Fortran order"},
        {"neither True nor False", 1, 0, DICT("'<u2'", "0", "(5,)"), "neither True nor False"},
        {"a key twice", 1, 0, "{'descr': '<u2', 'descr': '<u2'}", "has descr twice"},
        {"a key too many", 1, 0, "{'descr': '<u2', 'colour': 'red'}", "unknown key colour"},
        {"a key too few", 1, 0, "{'descr': '<u2', 'shape': (5,)}", "lacks"},
        {"no dict", 1, 0, "['descr']", "lacks a {"},
        {"no end", 1, 0, "{'descr': '<u2', ", "lacks a quoted word"},
        {"no comma", 1, 0, "{'descr': '<u2' 'shape': (5,)}", "no comma after descr"},
        {"more behind it", 1, 0, DICT("'<u2'", "False", "(5,)") " x", "has more text after"},
        {"version 4", 4, 0, DICT("'<u2'", "False", "(5,)"), "is version 4"},
        {"one id too few", 1, 0, DICT("'<u2'", "False", "(6,)"),
         "10 bytes of data, but 6 ids of 2"},
        {"one id too many", 1, 0, DICT("'<u2'", "False", "(4,)"), "10 bytes of data, but 4 ids"},
        {"not whole", 1, 0, DICT("'<u4'", "False", "(2,)"), "10 bytes of data, but 2 ids of 4"},
        {"another width asked", 1, 4, DICT("'<u2'", "False", "(5,)"),
         "has ids of 2 bytes by its numpy header, but data.token_bytes is 4"},
    };
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        const struct npy npy = npy_of(rows[i].version, rows[i].dict, ten_bytes, 10);
        struct hd_corpus_request request =
            hd_corpus_check_request(hd_corpus_check_put("a.npy", npy.bytes, npy.byte_count));
        request.token_bytes = rows[i].token_bytes;
        hd_corpus_check_refused(&request, rows[i].part);
    }
}

/* Cut at every byte: refused each time. */
static void numpy_cut(void)
{
    const struct npy npy = npy_of(1, DICT("'<u2'", "False", "(5,)"), ten_bytes, 10);

    for (size_t length = 7; length < npy.byte_count; length++) {
        const struct hd_corpus_request request =
            hd_corpus_check_request(hd_corpus_check_put("a.npy", npy.bytes, length));
        hd_corpus_check_refused(&request, "");
    }
}

static void numpy_negative(void)
{
    const uint8_t data[] = {1, 0, 0xff, 0xff, 3, 0, 4, 0, 5, 0};
    const struct npy npy = npy_of(1, DICT("'<i2'", "False", "(5,)"), data, sizeof data);
    const struct hd_corpus_request request =
        hd_corpus_check_request(hd_corpus_check_put("a.npy", npy.bytes, npy.byte_count));
    char part[64];

    snprintf(part, sizeof part, "token 1 (at byte %zu) is -1", npy.byte_count - 8);
    hd_corpus_check_refused(&request, part);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"numpy headers of three versions are read", numpy_read},
        {"numpy headers are read strictly", numpy_refused},
        {"a numpy file cut at any byte is refused", numpy_cut},
        {"a negative id is past the vocabulary", numpy_negative},
    };
    return hd_corpus_check_main("corpus_numpy", checks, HD_CHECK_COUNT(checks));
}
