#include "train/safetensors_text.h"

#include <stdbool.h>
#include <string.h>

hd_status hd_walk_refuse(struct hd_walk *walk, const char *expected)
{
    const uint64_t at = walk->at;
    const unsigned char letter = at < walk->length ? (unsigned char)walk->text[at] : 0;

    if (at >= walk->length) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                              "the header ends, but needs %s", expected);
    }
    return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                          letter > ' ' && letter < 0x7f
                              ? "byte %llu of the header must be %s, not %c"
                              : "byte %llu of the header must be %s, not byte 0x%02x",
                          (unsigned long long)at, expected, letter);
}

static void safetensors_text_skip_blanks(struct hd_walk *walk)
{
    while (walk->at < walk->length && strchr(" \t\r\n", walk->text[walk->at]) != NULL &&
           walk->text[walk->at] != '\0') {
        walk->at++;
    }
}

char hd_walk_peek(struct hd_walk *walk)
{
    safetensors_text_skip_blanks(walk);
    return walk->at < walk->length ? walk->text[walk->at] : '\0';
}

hd_status hd_walk_take(struct hd_walk *walk, char letter, const char *name)
{
    if (hd_walk_peek(walk) != letter || walk->at >= walk->length) {
        return hd_walk_refuse(walk, name);
    }
    walk->at++;
    return HD_OK;
}

/* After a member: takes a comma (1: another follows) or the closing letter (0), or refuses. */
static int32_t safetensors_text_more(struct hd_walk *walk, char closing, const char *name)
{
    const char letter = hd_walk_peek(walk);

    if (letter == ',' || letter == closing) {
        walk->at++;
        return letter == ',';
    }
    return hd_walk_refuse(walk, name);
}

hd_status hd_walk_object(struct hd_walk *walk,
                         hd_status (*member)(struct hd_walk *walk, void *context), void *context)
{
    hd_status status = hd_walk_take(walk, '{', "a {");
    int32_t has_more = 1;

    if (status == HD_OK && hd_walk_peek(walk) == '}') {
        walk->at++;
        return HD_OK;
    }
    while (status == HD_OK && has_more == 1) {
        status = member(walk, context);
        has_more = status == HD_OK ? safetensors_text_more(walk, '}', "a comma or a }") : 0;
    }
    return has_more < 0 ? HD_INVALID : status;
}

/* --- strings ---------------------------------------------------------------------------------- */

/* The value of four hex digits at `at`; UINT32_MAX if there are none. */
static uint32_t safetensors_text_hex_at(const struct hd_walk *walk, uint64_t at)
{
    uint32_t value = 0;

    if (at + 4 > walk->length) {
        return UINT32_MAX;
    }
    for (uint64_t i = at; i < at + 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char letter = (char)(walk->text[i] | 0x20);
        const char *const digit = strchr(digits, letter);
        if (digit == NULL || letter == '\0' || (letter < 'a' && walk->text[i] != letter)) {
            return UINT32_MAX;
        }
        value = value * 16 + (uint32_t)(digit - digits);
    }
    return value;
}

static uint32_t safetensors_text_put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* \uXXXX, or two of them for a code above 16 bits; the walk is after the u. */
static hd_status safetensors_text_take_code(struct hd_walk *walk, char *out, uint32_t *length)
{
    uint32_t code = safetensors_text_hex_at(walk, walk->at);

    if (code == UINT32_MAX || code == 0) {
        return hd_walk_refuse(walk, "four hex digits other than 0000");
    }
    walk->at += 4;
    if (code >= 0xd800 && code < 0xe000) {
        const uint32_t low = walk->at + 6 <= walk->length && walk->text[walk->at] == '\\' &&
                                     walk->text[walk->at + 1] == 'u'
                                 ? safetensors_text_hex_at(walk, walk->at + 2)
                                 : UINT32_MAX;
        if (code >= 0xdc00 || low < 0xdc00 || low >= 0xe000) {
            return hd_walk_refuse(walk, "the other half of a surrogate pair");
        }
        walk->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *length = safetensors_text_put_utf8(out, code);
    return HD_OK;
}

static hd_status safetensors_text_take_escape(struct hd_walk *walk, char *out, uint32_t *length)
{
    static const char letters[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    const char letter = walk->at < walk->length ? walk->text[walk->at] : '\0';
    const char *const found = letter != '\0' ? strchr(letters, letter) : NULL;

    if (letter == 'u') {
        walk->at++;
        return safetensors_text_take_code(walk, out, length);
    }
    if (found == NULL) {
        return hd_walk_refuse(walk, "one of \"\\/bfnrtu");
    }
    walk->at++;
    out[0] = meanings[found - letters];
    *length = 1;
    return HD_OK;
}

/* Decodes in place, from the opening quote on, so that there is room for the final zero. */
hd_status hd_walk_string(struct hd_walk *walk, const char *name, const char **string)
{
    hd_status status = hd_walk_take(walk, '"', name);

    if (status != HD_OK) {
        return status;
    }
    char *const begin = walk->text + walk->at - 1;
    char *out = begin;
    while (walk->at < walk->length && walk->text[walk->at] != '"') {
        const char letter = walk->text[walk->at];
        uint32_t length = 1;
        if ((unsigned char)letter < ' ') {
            return hd_walk_refuse(walk, "a printable character of a string");
        }
        walk->at++;
        *out = letter;
        if (letter == '\\') {
            status = safetensors_text_take_escape(walk, out, &length);
            if (status != HD_OK) {
                return status;
            }
        }
        out += length;
    }
    if (walk->at >= walk->length) {
        return hd_walk_refuse(walk, "the end of a string");
    }
    walk->at++;
    *out = '\0';
    *string = begin;
    return HD_OK;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static hd_status safetensors_text_take_number(struct hd_walk *walk, uint64_t *number)
{
    static const char name[] = "a whole number without sign, point or leading zero";
    uint64_t value = 0;

    safetensors_text_skip_blanks(walk);
    const uint64_t begin = walk->at;
    while (walk->at < walk->length && walk->text[walk->at] >= '0' && walk->text[walk->at] <= '9') {
        const uint64_t digit = (uint64_t)(walk->text[walk->at] - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                                  "byte %llu of the header: the number does not fit in 64 bits",
                                  (unsigned long long)begin);
        }
        value = value * 10 + digit;
        walk->at++;
    }
    const bool is_padded = walk->at > begin + 1 && walk->text[begin] == '0';
    const char after = walk->at < walk->length ? walk->text[walk->at] : '\0';
    if (walk->at == begin || is_padded || after == '.' || after == 'e' || after == 'E') {
        return hd_walk_refuse(walk, name);
    }
    *number = value;
    return HD_OK;
}

hd_status hd_walk_numbers(struct hd_walk *walk, uint32_t capacity, uint64_t *numbers,
                          uint32_t *count)
{
    hd_status status = hd_walk_take(walk, '[', "a [");

    *count = 0;
    if (status == HD_OK && hd_walk_peek(walk) == ']') {
        walk->at++;
        return HD_OK;
    }
    int32_t has_more = 1;
    while (status == HD_OK && has_more == 1) {
        if (*count == capacity) {
            return hd_walk_refuse(walk, "the end of the list");
        }
        status = safetensors_text_take_number(walk, &numbers[(*count)++]);
        if (status == HD_OK) {
            has_more = safetensors_text_more(walk, ']', "a comma or a ]");
        }
    }
    return status != HD_OK ? status : (has_more < 0 ? HD_INVALID : HD_OK);
}
