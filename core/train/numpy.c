#include "train/numpy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 6, WORD_BYTES = 64 };

static const uint8_t numpy_magic[MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* The dict that is read; the first function that fails sets `reason`. */
struct reader {
    const char *at, *end;
    char *reason;
    struct hd_numpy *header;
    uint32_t seen; /* bit by key */
};

enum { KEY_DESCR = 1, KEY_ORDER = 2, KEY_SHAPE = 4, KEY_ALL = 7 };

__attribute__((format(printf, 2, 3))) static bool numpy_give_up(struct reader *reader,
                                                                const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reader->reason, HD_NUMPY_REASON_BYTES, format, arguments);
    va_end(arguments);
    return false;
}

static void numpy_skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n')) {
        reader->at++;
    }
}

static bool numpy_is_next(struct reader *reader, char wanted)
{
    numpy_skip_blanks(reader);
    return reader->at < reader->end && *reader->at == wanted;
}

static bool numpy_take(struct reader *reader, char wanted)
{
    const bool is_there = numpy_is_next(reader, wanted);

    reader->at += is_there;
    return is_there;
}

static bool numpy_expect(struct reader *reader, char wanted)
{
    return numpy_take(reader, wanted) ||
           numpy_give_up(reader, "its numpy header lacks a %c", wanted);
}

/* A string in single or double quotes, without escapes. */
static bool numpy_read_text(struct reader *reader, char word[WORD_BYTES])
{
    const char quote = numpy_take(reader, '\'') ? '\'' : '"';
    uint32_t length = 0;

    if (quote == '"' && !numpy_take(reader, '"')) {
        return numpy_give_up(reader, "its numpy header lacks a quoted word");
    }
    while (reader->at < reader->end && *reader->at != quote) {
        if (length + 1 >= WORD_BYTES || *reader->at < ' ' || *reader->at > '~' ||
            *reader->at == '\\') {
            return numpy_give_up(reader,
                                 "its numpy header has a word that is too long or not plain");
        }
        word[length++] = *reader->at++;
    }
    word[length] = '\0';
    return numpy_expect(reader, quote);
}

static bool numpy_read_descr(struct reader *reader)
{
    static const struct {
        const char *name;
        uint32_t item_bytes;
        bool is_signed;
    } rows[] = {{"|u1", 1, 0}, {"<u1", 1, 0}, {"<u2", 2, 0}, {"<u4", 4, 0}, {"<u8", 8, 0},
                {"|i1", 1, 1}, {"<i1", 1, 1}, {"<i2", 2, 1}, {"<i4", 4, 1}, {"<i8", 8, 1}};
    char word[WORD_BYTES];

    numpy_skip_blanks(reader);
    if (reader->at < reader->end && *reader->at == '[') {
        return numpy_give_up(reader,
                             "its numpy array has fields, but must have one column of integers");
    }
    if (!numpy_read_text(reader, word)) {
        return false;
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(word, rows[i].name) == 0) {
            reader->header->item_bytes = rows[i].item_bytes;
            reader->header->is_signed = rows[i].is_signed;
            return true;
        }
    }
    return numpy_give_up(
        reader, "its numpy type is %s, but must be little-endian integers, as <u2 or <u4", word);
}

static bool numpy_read_order(struct reader *reader)
{
    const uint64_t left = (uint64_t)(reader->end - reader->at);

    if (left >= 5 && memcmp(reader->at, "False", 5) == 0) {
        reader->at += 5;
        return true;
    }
    if (left >= 4 && memcmp(reader->at, "True", 4) == 0) {
        return numpy_give_up(reader, "its numpy array is in Fortran order, but must be in C order");
    }
    return numpy_give_up(reader, "its numpy header's fortran_order is neither True nor False");
}

static bool numpy_read_count(struct reader *reader, uint64_t *count)
{
    const char *const begin = reader->at;

    *count = 0;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
        const uint64_t digit = (uint64_t)(*reader->at - '0');
        if (*count > (UINT64_MAX / 16 - digit) / 10) {
            return numpy_give_up(reader, "its numpy shape is larger than any file");
        }
        *count = *count * 10 + digit;
        reader->at++;
    }
    return reader->at > begin || numpy_give_up(reader, "its numpy shape is not one whole number");
}

static bool numpy_read_shape(struct reader *reader)
{
    if (!numpy_expect(reader, '(')) {
        return false;
    }
    numpy_skip_blanks(reader);
    if (numpy_take(reader, ')')) {
        return numpy_give_up(reader, "its numpy array has no dimension, but must have one");
    }
    if (!numpy_read_count(reader, &reader->header->count) || !numpy_expect(reader, ',')) {
        return false;
    }
    if (!numpy_take(reader, ')')) {
        return numpy_give_up(reader, "its numpy array has more than one dimension; flatten it");
    }
    return true;
}

static bool numpy_read_value(struct reader *reader, const char *key)
{
    static const struct {
        const char *name;
        uint32_t bit;
        bool (*read)(struct reader *reader);
    } rows[] = {{"descr", KEY_DESCR, numpy_read_descr},
                {"fortran_order", KEY_ORDER, numpy_read_order},
                {"shape", KEY_SHAPE, numpy_read_shape}};

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(key, rows[i].name) != 0) {
            continue;
        }
        if (reader->seen & rows[i].bit) {
            return numpy_give_up(reader, "its numpy header has %s twice", key);
        }
        reader->seen |= rows[i].bit;
        return rows[i].read(reader);
    }
    return numpy_give_up(reader, "its numpy header has the unknown key %s", key);
}

static bool numpy_read_dict(struct reader *reader)
{
    char key[WORD_BYTES];

    if (!numpy_expect(reader, '{')) {
        return false;
    }
    while (!numpy_take(reader, '}')) {
        if (!numpy_read_text(reader, key) || !numpy_expect(reader, ':')) {
            return false;
        }
        numpy_skip_blanks(reader);
        if (!numpy_read_value(reader, key)) {
            return false;
        }
        if (!numpy_take(reader, ',') && !numpy_is_next(reader, '}')) {
            return numpy_give_up(reader, "its numpy header has no comma after %s", key);
        }
    }
    numpy_skip_blanks(reader);
    if (reader->at != reader->end) {
        return numpy_give_up(reader, "its numpy header has more text after its dict");
    }
    return reader->seen == KEY_ALL ||
           numpy_give_up(reader, "its numpy header lacks descr, fortran_order or shape");
}

bool hd_numpy_is(const uint8_t *bytes, uint64_t byte_count)
{
    return byte_count >= MAGIC_BYTES && memcmp(bytes, numpy_magic, MAGIC_BYTES) == 0;
}

bool hd_numpy_read(const uint8_t *bytes, uint64_t byte_count, struct hd_numpy *header,
                   char reason[HD_NUMPY_REASON_BYTES])
{
    struct hd_numpy read = {0};
    struct reader reader = {.reason = reason, .header = &read};
    uint64_t length = 0;

    if (!hd_numpy_is(bytes, byte_count) || byte_count < MAGIC_BYTES + 2) {
        return numpy_give_up(&reader, "its numpy header is cut off");
    }
    const uint32_t major = bytes[MAGIC_BYTES];
    const uint32_t width = major == 1 ? 2 : 4;
    if (major < 1 || major > 3) {
        return numpy_give_up(&reader, "its numpy format is version %u, but heddle reads 1 to 3",
                             major);
    }
    const uint64_t begin = MAGIC_BYTES + 2 + width;
    for (uint32_t i = 0; i < width && begin <= byte_count; i++) {
        length |= (uint64_t)bytes[MAGIC_BYTES + 2 + i] << (8 * i);
    }
    if (begin > byte_count || length > byte_count - begin) {
        return numpy_give_up(&reader, "its numpy header is cut off");
    }
    reader.at = (const char *)bytes + begin;
    reader.end = reader.at + length;
    read.data_offset = begin + length;
    if (!numpy_read_dict(&reader)) {
        return false;
    }
    *header = read;
    return true;
}
