#include "base/text.h"

#include "base/number.h"

#include <assert.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISTANCE_BYTES_MAX = 64, NAME_BYTES_MAX = 48 };

static locale_t text_plain; /* the "C" locale, whatever locale a library has set */
static pthread_once_t text_plain_once = PTHREAD_ONCE_INIT;

static void text_make_plain(void)
{
    text_plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    assert(text_plain != (locale_t)0);
}

bool hd_text_to_number(const char *text, double *value)
{
    char *end;

    pthread_once(&text_plain_once, text_make_plain);
    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') {
        return false;
    }
    const double read = strtod_l(text, &end, text_plain);
    if (end == text || *end != '\0' || !isfinite(read)) {
        return false;
    }
    *value = read;
    return true;
}

bool hd_text_to_unsigned(const char *text, uint64_t *value)
{
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    const unsigned long long read = strtoull(text, NULL, 10);
    if (errno != 0) {
        return false;
    }
    *value = read;
    return true;
}

bool hd_text_to_integer(const char *text, int64_t *value)
{
    const char *digits = text + (text[0] == '-' || text[0] == '+');

    if (digits[0] == '\0' || digits[strspn(digits, "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    const long long read = strtoll(text, NULL, 10);
    if (errno != 0) {
        return false;
    }
    *value = read;
    return true;
}

bool hd_text_to_flag(const char *text, uint32_t *value)
{
    static const char *const words[] = {"off", "on", "false", "true", "no", "yes", "0", "1"};

    for (uint32_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = i % 2;
            return true;
        }
    }
    return false;
}

bool hd_text_to_bytes(const char *text, uint64_t *value)
{
    static const char units[] = "KMG";
    char digits[HD_NUMBER_TEXT_BYTES];
    const size_t length = strlen(text);
    uint64_t count;

    if (length == 0 || length >= sizeof digits) {
        return false;
    }
    memcpy(digits, text, length + 1);
    const char *unit = strchr(units, digits[length - 1]);
    const unsigned shift = unit != NULL ? 10u * (unsigned)(unit - units + 1) : 0;
    if (unit != NULL) {
        digits[length - 1] = '\0';
    }
    if (!hd_text_to_unsigned(digits, &count) || count > UINT64_MAX >> shift) {
        return false;
    }
    *value = count << shift;
    return true;
}

/* "1e-08" becomes "1e-8" and "1e+20" becomes "1e20". */
static void text_tidy_exponent(char *text)
{
    char *exponent = strchr(text, 'e');

    if (exponent == NULL) {
        return;
    }
    char *out = exponent + 1;
    const char *in = out;
    if (*in == '-') {
        out++;
    }
    in++; /* printf always writes the sign */
    in += strspn(in, "0");
    memmove(out, in, strlen(in) + 1);
}

void hd_text_from_number(double value, char text[HD_NUMBER_TEXT_BYTES])
{
    pthread_once(&text_plain_once, text_make_plain);
    const locale_t before = uselocale(text_plain);
    const double size = fabs(value);

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, HD_NUMBER_TEXT_BYTES, "%.*e", digits - 1, value);
        if (!isfinite(value) || strtod(text, NULL) == value) {
            const char *exponent = strchr(text, 'e');
            const int power = exponent != NULL ? atoi(exponent + 1) : 0;
            if (isfinite(value) && (size == 0 || (size >= 1e-4 && size < 1e15))) {
                const int decimals = digits - 1 > power ? digits - 1 - power : 0;
                snprintf(text, HD_NUMBER_TEXT_BYTES, "%.*f", decimals, value);
            } else {
                text_tidy_exponent(text);
            }
            break;
        }
    }
    uselocale(before);
}

/* The bytes of the well-formed sequence at `text`; 0: there is none (Unicode, table 3-7). */
static uint64_t text_sequence_bytes(const unsigned char *text, uint64_t left)
{
    const unsigned char lead = text[0];
    const uint64_t length = lead < 0x80   ? 1
                            : lead < 0xc2 ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf5 ? 4
                                          : 0;
    if (length == 0 || length > left) {
        return 0;
    }
    for (uint64_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((lead == 0xe0 && text[1] < 0xa0) || (lead == 0xed && text[1] > 0x9f) ||
        (lead == 0xf0 && text[1] < 0x90) || (lead == 0xf4 && text[1] > 0x8f)) {
        return 0;
    }
    return length;
}

uint64_t hd_text_utf8_bytes(const char *text, uint64_t length_bytes)
{
    uint64_t at = 0;

    while (at < length_bytes) {
        const uint64_t step =
            text_sequence_bytes((const unsigned char *)text + at, length_bytes - at);
        if (step == 0) {
            break;
        }
        at += step;
    }
    return at;
}

uint32_t hd_text_distance(const char *left, const char *right)
{
    uint32_t rows[3][DISTANCE_BYTES_MAX + 1]; /* the algorithm needs three rows of its table */
    const uint32_t left_length = (uint32_t)strnlen(left, DISTANCE_BYTES_MAX);
    const uint32_t right_length = (uint32_t)strnlen(right, DISTANCE_BYTES_MAX);

    for (uint32_t j = 0; j <= right_length; j++) {
        rows[0][j] = j;
    }
    for (uint32_t i = 1; i <= left_length; i++) {
        uint32_t *const row = rows[i % 3];
        const uint32_t *const above = rows[(i + 2) % 3];
        const uint32_t *const before = rows[(i + 1) % 3];
        row[0] = i;
        for (uint32_t j = 1; j <= right_length; j++) {
            row[j] = hd_min_u32(above[j] + 1, row[j - 1] + 1);
            row[j] = hd_min_u32(row[j], above[j - 1] + (left[i - 1] != right[j - 1]));
            if (i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1]) {
                row[j] = hd_min_u32(row[j], before[j - 2] + 1);
            }
        }
    }
    return rows[left_length % 3][right_length];
}

void hd_nearest_offer(struct hd_nearest *nearest, const char *name)
{
    assert(nearest->wanted != NULL);
    const uint32_t distance = hd_text_distance(nearest->wanted, name);
    if (nearest->name == NULL || distance < nearest->distance) {
        nearest->name = name;
        nearest->distance = distance;
    }
}

bool hd_text_append(char *text, uint32_t capacity_bytes, const char *format, ...)
{
    const size_t length = strlen(text);
    va_list arguments;

    assert(length < capacity_bytes);
    va_start(arguments, format);
    const int more = vsnprintf(text + length, capacity_bytes - length, format, arguments);
    va_end(arguments);
    if (more < 0 || length + (size_t)more >= capacity_bytes) {
        text[length] = '\0';
        return false;
    }
    return true;
}

char *hd_text_trim(char *text)
{
    static const char white[] = " \t\r\n\v\f";

    text += strspn(text, white);
    size_t length = strlen(text);
    while (length > 0 && strchr(white, text[length - 1]) != NULL) {
        length--;
    }
    text[length] = '\0';
    return text;
}

bool hd_text_is_name(const char *text)
{
    const size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return length > 0 && length <= NAME_BYTES_MAX && text[length] == '\0';
}

const char *hd_text_ini_fault(const char *value)
{
    const size_t length = strlen(value);

    if (length == 0) {
        return "there is no value";
    }
    if (hd_text_utf8_bytes(value, length) < length) {
        return "the value is not UTF-8";
    }
    for (const char *at = value; *at != '\0'; at++) {
        const bool is_apart = at == value || at[-1] == ' ' || at[-1] == '\t';
        if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7f) {
            return "the value has a control character";
        }
        if ((*at == ';' || *at == '#') && is_apart) {
            return "the value has a ; or # that starts a comment";
        }
    }
    if (strchr(" \t", value[0]) != NULL || strchr(" \t", value[length - 1]) != NULL) {
        return "the value begins or ends with white space";
    }
    return value[0] == '"' || value[0] == '\'' ? "the value is in quotes" : NULL;
}
