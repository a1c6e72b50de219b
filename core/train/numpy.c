#include "train/numpy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 6, WORD_BYTES = 64 };

static const uint8_t magic[MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* The dict being read; `reason` is set once, by whoever gives up. */
struct reader {
    const char *at, *end;
    char *reason;
    struct hd_numpy *header;
    uint32_t seen; /* bit by key */
};

enum { KEY_DESCR = 1, KEY_ORDER = 2, KEY_SHAPE = 4, KEY_ALL = 7 };

__attribute__((format(printf, 2, 3))) static int give_up(struct reader *reader, const char *format,
                                                         ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reader->reason, HD_NUMPY_REASON_BYTES, format, arguments);
    va_end(arguments);
    return 0;
}

static void skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n')) {
        reader->at++;
    }
}

static int is_next(struct reader *reader, char wanted)
{
    skip_blanks(reader);
    return reader->at < reader->end && *reader->at == wanted;
}

static int take(struct reader *reader, char wanted)
{
    const int is_there = is_next(reader, wanted);

    reader->at += is_there;
    return is_there;
}

static int expect(struct reader *reader, char wanted)
{
    return take(reader, wanted) ||
           give_up(reader, "its numpy header has no %c where one belongs", wanted);
}

/* A string in single or double quotes, without escapes. */
static int read_text(struct reader *reader, char word[WORD_BYTES])
{
    const char quote = take(reader, '\'') ? '\'' : '"';
    uint32_t length = 0;

    if (quote == '"' && !take(reader, '"')) {
        return give_up(reader, "its numpy header has no quoted word where one belongs");
    }
    while (reader->at < reader->end && *reader->at != quote) {
        if (length + 1 >= WORD_BYTES || *reader->at < ' ' || *reader->at > '~' ||
            *reader->at == '\\') {
            return give_up(reader, "its numpy header has a word that is too long or not plain");
        }
        word[length++] = *reader->at++;
    }
    word[length] = '\0';
    return expect(reader, quote);
}

static int read_descr(struct reader *reader)
{
    static const struct {
        const char *name;
        uint32_t item_bytes, is_signed;
    } rows[] = {{"|u1", 1, 0}, {"<u1", 1, 0}, {"<u2", 2, 0}, {"<u4", 4, 0}, {"<u8", 8, 0},
                {"|i1", 1, 1}, {"<i1", 1, 1}, {"<i2", 2, 1}, {"<i4", 4, 1}, {"<i8", 8, 1}};
    char word[WORD_BYTES];

    skip_blanks(reader);
    if (reader->at < reader->end && *reader->at == '[') {
        return give_up(reader, "its numpy array has fields; one column of integers is wanted");
    }
    if (!read_text(reader, word)) {
        return 0;
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(word, rows[i].name) == 0) {
            reader->header->item_bytes = rows[i].item_bytes;
            reader->header->is_signed = rows[i].is_signed;
            return 1;
        }
    }
    return give_up(reader, "its numpy type is %s; little-endian integers are wanted, <u2 or <u4",
                   word);
}

static int read_order(struct reader *reader)
{
    const uint64_t left = (uint64_t)(reader->end - reader->at);

    if (left >= 5 && memcmp(reader->at, "False", 5) == 0) {
        reader->at += 5;
        return 1;
    }
    if (left >= 4 && memcmp(reader->at, "True", 4) == 0) {
        return give_up(reader, "its numpy array is in Fortran order; C order is wanted");
    }
    return give_up(reader, "its numpy header's fortran_order is neither True nor False");
}

static int read_count(struct reader *reader, uint64_t *count)
{
    const char *const begin = reader->at;

    *count = 0;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
        const uint64_t digit = (uint64_t)(*reader->at - '0');
        if (*count > (UINT64_MAX / 16 - digit) / 10) {
            return give_up(reader, "its numpy shape is larger than any file");
        }
        *count = *count * 10 + digit;
        reader->at++;
    }
    return reader->at > begin || give_up(reader, "its numpy shape is not one whole number");
}

static int read_shape(struct reader *reader)
{
    if (!expect(reader, '(')) {
        return 0;
    }
    skip_blanks(reader);
    if (take(reader, ')')) {
        return give_up(reader, "its numpy array has no dimension; one is wanted");
    }
    if (!read_count(reader, &reader->header->count) || !expect(reader, ',')) {
        return 0;
    }
    if (!take(reader, ')')) {
        return give_up(reader, "its numpy array has more than one dimension; flatten it");
    }
    return 1;
}

static int read_value(struct reader *reader, const char *key)
{
    static const struct {
        const char *name;
        uint32_t bit;
        int (*read)(struct reader *reader);
    } rows[] = {{"descr", KEY_DESCR, read_descr},
                {"fortran_order", KEY_ORDER, read_order},
                {"shape", KEY_SHAPE, read_shape}};

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(key, rows[i].name) != 0) {
            continue;
        }
        if (reader->seen & rows[i].bit) {
            return give_up(reader, "its numpy header says %s twice", key);
        }
        reader->seen |= rows[i].bit;
        return rows[i].read(reader);
    }
    return give_up(reader, "its numpy header has the unknown key %s", key);
}

static int read_dict(struct reader *reader)
{
    char key[WORD_BYTES];

    if (!expect(reader, '{')) {
        return 0;
    }
    while (!take(reader, '}')) {
        if (!read_text(reader, key) || !expect(reader, ':')) {
            return 0;
        }
        skip_blanks(reader);
        if (!read_value(reader, key)) {
            return 0;
        }
        if (!take(reader, ',') && !is_next(reader, '}')) {
            return give_up(reader, "its numpy header has no comma after %s", key);
        }
    }
    skip_blanks(reader);
    if (reader->at != reader->end) {
        return give_up(reader, "its numpy header goes on after its dict");
    }
    return reader->seen == KEY_ALL ||
           give_up(reader, "its numpy header lacks descr, fortran_order or shape");
}

int hd_numpy_is(const uint8_t *bytes, uint64_t byte_count)
{
    return byte_count >= MAGIC_BYTES && memcmp(bytes, magic, MAGIC_BYTES) == 0;
}

int hd_numpy_read(const uint8_t *bytes, uint64_t byte_count, struct hd_numpy *header,
                  char reason[HD_NUMPY_REASON_BYTES])
{
    struct hd_numpy read = {0};
    struct reader reader = {.reason = reason, .header = &read};
    uint64_t length = 0;

    if (!hd_numpy_is(bytes, byte_count) || byte_count < MAGIC_BYTES + 2) {
        return give_up(&reader, "its numpy header is cut off");
    }
    const uint32_t major = bytes[MAGIC_BYTES];
    const uint32_t width = major == 1 ? 2 : 4;
    if (major < 1 || major > 3) {
        return give_up(&reader, "its numpy format is version %u; 1 to 3 are known", major);
    }
    const uint64_t begin = MAGIC_BYTES + 2 + width;
    for (uint32_t i = 0; i < width && begin <= byte_count; i++) {
        length |= (uint64_t)bytes[MAGIC_BYTES + 2 + i] << (8 * i);
    }
    if (begin > byte_count || length > byte_count - begin) {
        return give_up(&reader, "its numpy header is cut off");
    }
    reader.at = (const char *)bytes + begin;
    reader.end = reader.at + length;
    read.data_offset = begin + length;
    if (!read_dict(&reader)) {
        return 0;
    }
    *header = read;
    return 1;
}
