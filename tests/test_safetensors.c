/*
 * tests/test_safetensors.c - the format's reader and writer: what is read is what was written, and
 * what somebody sends to break it is refused with its place.
 *
 * Sources: the description of the format in huggingface/safetensors ("Format"), whose reader
 * refuses the same; cases.md C70 (an exact name, never a prefix).
 */
#include "support/check.h"

#include "train/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIR "{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}"

static const char *work_path(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/heddle-safetensors-%ld", (long)getpid());
    return path;
}

/* A file of this length word, this header and so many bytes of data. */
static void put_file(uint64_t length, const char *header, uint64_t header_bytes,
                     uint64_t data_bytes)
{
    FILE *const stream = fopen(work_path(), "wb");

    CU_ASSERT_FATAL(stream != NULL);
    for (unsigned i = 0; i < 8; i++) {
        fputc((int)(length >> (8 * i) & 0xff), stream);
    }
    fwrite(header, 1, header_bytes, stream);
    for (uint64_t i = 0; i < data_bytes; i++) {
        fputc((int)(i & 0x3f), stream);
    }
    CU_ASSERT_FATAL(fclose(stream) == 0);
}

/* --- refusals --------------------------------------------------------------------------------- */

struct hostile_row {
    const char *name, *header;
    uint64_t data_bytes;
    const char *key; /* what the error names beside the file; "" none */
    const char *part;
};

static const struct hostile_row hostile_rows[] = {
    {"no object", "[]", 0, "", "must be a {"},
    {"nothing", "", 0, "", "the header ends, but needs a {"},
    {"text behind it", "{} x", 0, "", "must be the end, not x"},
    {"a list for a tensor", "{\"a\":[]}", 0, "a", "must be a {"},
    {"deep nesting in a tensor", "{\"a\":{\"dtype\":[[[[[[[[[[", 0, "a", "the name of a type"},
    {"deep nesting in a shape", "{\"a\":{\"shape\":[[[[[[[[[[", 0, "a", "a whole number"},
    {"deep nesting in metadata", "{\"__metadata__\":{\"a\":{\"b\":{\"c\":", 0, "__metadata__",
     "a text of the metadata"},
    {"an unknown type", "{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a",
     "dtype F31 is unknown"},
    {"an unknown member", "{\"a\":{\"dtype\":\"F32\",\"strides\":[2]}}", 8, "a",
     "no member strides"},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "a", "shape is missing"},
    {"a member twice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 8, "a",
     "dtype is given twice"},
    {"a negative offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8,
     "a", "a whole number without sign"},
    {"a shape with a point", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}",
     8, "a", "a whole number without sign, point"},
    {"a shape with an exponent", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2e0]}}", 8, "a", "not e"},
    {"a leading zero", "{\"a\":{\"dtype\":\"F32\",\"shape\":[02]}}", 8, "a", "leading zero"},
    {"a number above 64 bits", "{\"a\":{\"shape\":[18446744073709551616]}}", 8, "a",
     "the number does not fit in 64 bits"},
    {"a shape whose bytes wrap to 8",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905,2],\"data_offsets\":[0,8]}}", 8, "a",
     "more than 2^64 bytes"},
    {"nine dimensions", "{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}", 8, "a", "the end of the list"},
    {"bytes that are not the shape's",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "a",
     "need 12 bytes, but data_offsets give 8"},
    {"an end before its begin", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
     8, "a", "an end after it"},
    {"three offsets", "{\"a\":{\"data_offsets\":[0,4,8]}}", 8, "a", "the end of the list"},
    {"a tensor past the file", "{\"a\":" PAIR "}", 7, "a", "but the file has 7: it is cut off"},
    {"data that nobody owns", "{\"a\":" PAIR "}", 9, "", "but the tensors cover 8"},
    {"data without a tensor", "{}", 4, "", "has 4 bytes, but the tensors cover 0"},
    {"two tensors in one place", "{\"a\":" PAIR ",\"b\":" PAIR "}", 8, "b",
     "begins at byte 0 of the data, inside"},
    {"a gap", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}", 4, "a",
     "leaving a gap"},
    {"one name twice",
     "{\"a\":" PAIR ",\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, "a",
     "is given twice"},
    {"one name twice, once by an escape",
     "{\"a\":" PAIR ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, "a",
     "is given twice"},
    {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__",
     "is given twice"},
    {"one key of the metadata twice", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0,
     "__metadata__", "k is given twice"},
    {"a number in the metadata", "{\"__metadata__\":{\"k\":1}}", 0, "__metadata__",
     "a text of the metadata"},
    {"a name that is not UTF-8", "{\"\xff\":" PAIR "}", 8, "", "byte 2 of the header is not UTF-8"},
    {"a name with an overlong letter", "{\"\xc0\xaf\":" PAIR "}", 8, "", "is not UTF-8"},
    {"a newline in a name", "{\"a\nb\":" PAIR "}", 8, "", "a printable character"},
    {"a zero in a name", "{\"a\\u0000\":" PAIR "}", 8, "", "other than 0000"},
    {"half a surrogate pair", "{\"\\ud800x\":" PAIR "}", 8, "", "the other half"},
    {"an unknown escape", "{\"\\x\":" PAIR "}", 8, "", "one of"},
    {"a string without its end", "{\"a", 0, "", "the end of a string"},
    {"a comma too many", "{\"a\":" PAIR ",}", 8, "a", "the name of a tensor"},
};

static void refuses(const char *name, const char *key, const char *part)
{
    struct hd_problem problem = {0};
    struct hd_safetensors file;
    char line[HD_SAFETENSORS_DIMENSION_MAX * 1024];

    const hd_status status = hd_safetensors_open(&file, work_path(), &problem);
    hd_problem_line(&problem, line, sizeof line);
    const int is_right = status < 0 && problem.exit_code == HD_EXIT_USAGE &&
                         strcmp(problem.place, work_path()) == 0 && strcmp(problem.key, key) == 0 &&
                         strstr(problem.message, part) != NULL && file.descriptor == -1;
    if (!is_right) {
        printf("\n%s: status %d, '%s' lacks '%s' of '%s'\n", name, (int)status, line, part, key);
        hd_safetensors_close(&file);
    }
    CU_ASSERT(is_right);
}

static void check_hostile(void)
{
    for (unsigned i = 0; i < HD_CHECK_COUNT(hostile_rows); i++) {
        const struct hostile_row *const row = &hostile_rows[i];
        put_file(strlen(row->header), row->header, strlen(row->header), row->data_bytes);
        refuses(row->name, row->key, row->part);
    }
}

/* The first eight bytes alone. */
static void check_lengths(void)
{
    const struct {
        const char *name;
        uint64_t length, header_bytes;
    } rows[] = {
        {"a header longer than the file", 64, 2},
        {"a header of 2^64 - 1 bytes", UINT64_MAX, 2},
        {"a header of 2^63 bytes", 1ull << 63, 2},
        {"a header above the limit", HD_SAFETENSORS_HEADER_BYTES_MAX + 1ull, 2},
        {"a header that begins at the end", 1, 0},
    };

    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        put_file(rows[i].length, "{}", rows[i].header_bytes, 0);
        refuses(rows[i].name, "", "claims a header of");
    }
    FILE *const stream = fopen(work_path(), "wb");
    CU_ASSERT_FATAL(stream != NULL && fputs("heddle!", stream) >= 0 && fclose(stream) == 0);
    refuses("seven bytes", "", "has 7 bytes, but the length of its header alone takes 8");
}

/* --- what is sound ---------------------------------------------------------------------------- */

static void open_sound(struct hd_safetensors *file)
{
    struct hd_problem problem = {0};
    char line[4096];

    if (hd_safetensors_open(file, work_path(), &problem) != HD_OK) {
        hd_problem_line(&problem, line, sizeof line);
        printf("\n%s\n", line);
        CU_FAIL_FATAL("a sound file is refused");
    }
}

static void check_sound(void)
{
    static const char header[] =
        " {\"__metadata__\" : {\"format\":\"pt\", \"q\\\"\\u00e9\\ud83d\\ude00\":\"\\n\"},\n"
        "\"layer.10\":{\"shape\":[],\"dtype\":\"F32\",\"data_offsets\":[8,12]},"
        "\"layer.1\":{\"dtype\":\"F32\",\"shape\":[2, 1],\"data_offsets\":[0, 8]},"
        "\"none\":{\"dtype\":\"I64\",\"shape\":[7,0],\"data_offsets\":[8,8]}}    ";
    struct hd_safetensors file;

    put_file(sizeof header - 1, header, sizeof header - 1, 12);
    open_sound(&file);
    CU_ASSERT_EQUAL(file.tensor_count, 3);
    CU_ASSERT_STRING_EQUAL(hd_safetensors_note(&file, "format"), "pt");
    CU_ASSERT_STRING_EQUAL(hd_safetensors_note(&file, "q\"\xc3\xa9\xf0\x9f\x98\x80"), "\n");
    CU_ASSERT_PTR_NULL(hd_safetensors_note(&file, "forma"));
    const struct hd_safetensors_tensor *const one = hd_safetensors_find(&file, "layer.1");
    const struct hd_safetensors_tensor *const ten = hd_safetensors_find(&file, "layer.10");
    CU_ASSERT_FATAL(one != NULL && ten != NULL);
    CU_ASSERT_EQUAL(one->offset, 8 + sizeof header - 1);
    CU_ASSERT_EQUAL(hd_safetensors_count(one), 2);
    CU_ASSERT_EQUAL(ten->offset, 8 + sizeof header - 1 + 8);
    CU_ASSERT_EQUAL(hd_safetensors_count(ten), 1);
    CU_ASSERT_PTR_NULL(hd_safetensors_find(&file, "layer"));  /* C70 */
    CU_ASSERT_PTR_NULL(hd_safetensors_find(&file, "layer.")); /* C70 */
    CU_ASSERT_PTR_NULL(one->sha256);
    hd_safetensors_close(&file);
}

/* Values of each type, as bytes; the float of each. */
static void check_types(void)
{
    static const char header[] =
        "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[4,12]},"
        "\"h\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[12,22]},"
        "\"i\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[22,26]}}";
    static const uint16_t words[] = {0x3fc0, 0xff80, 0x3c00, 0xc100, 0x0001, 0x7c00, 0x83ff};
    static const float wanted[] = {1.5f,     -INFINITY,       1.0f, -2.5f, 0x1p-24f,
                                   INFINITY, -1023 * 0x1p-24f};
    const double third = 1.0 / 3.0;
    struct hd_safetensors file;
    struct hd_problem problem = {0};
    float singles[8];
    double number = 0;

    put_file(sizeof header - 1, header, sizeof header - 1, 26);
    FILE *const stream = fopen(work_path(), "r+b");
    CU_ASSERT_FATAL(stream != NULL);
    fseek(stream, 8 + (long)sizeof header - 1, SEEK_SET);
    fwrite(words, 2, 2, stream);
    fwrite(&third, 8, 1, stream);
    fwrite(words + 2, 2, 5, stream);
    CU_ASSERT_FATAL(fclose(stream) == 0);
    open_sound(&file);
    const struct hd_safetensors_target target = {HD_F32, singles}, wide = {HD_F64, &number};
    CU_ASSERT(hd_safetensors_read(&file, hd_safetensors_find(&file, "b"), target, &problem) == 0);
    CU_ASSERT(memcmp(singles, wanted, 2 * sizeof(float)) == 0);
    CU_ASSERT(hd_safetensors_read(&file, hd_safetensors_find(&file, "h"), target, &problem) == 0);
    CU_ASSERT(memcmp(singles, wanted + 2, 5 * sizeof(float)) == 0);
    CU_ASSERT(hd_safetensors_read(&file, hd_safetensors_find(&file, "d"), wide, &problem) == 0);
    CU_ASSERT(number == third);
    CU_ASSERT(hd_safetensors_read(&file, hd_safetensors_find(&file, "d"), target, &problem) == 0);
    CU_ASSERT(singles[0] == (float)third);
    CU_ASSERT(hd_safetensors_read(&file, hd_safetensors_find(&file, "i"), target, &problem) < 0);
    CU_ASSERT_STRING_EQUAL(problem.key, "i");
    CU_ASSERT(strstr(problem.message, "has type I32") != NULL);
    hd_safetensors_close(&file);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void digest_of(const void *bytes, uint64_t count, uint8_t digest[HD_HASH_BYTES])
{
    struct hd_hash hash;
    hd_hash_begin(&hash);
    hd_hash_add(&hash, bytes, count);
    hd_hash_end(&hash, digest);
}

static const float first_values[6] = {1, -2, 3.25f, 4, 5, -0.0f};
static const double second_values[2] = {1.0 / 3.0, -7};

static void write_two(void)
{
    struct hd_safetensors_tensor rows[] = {
        {.name = "w.\"1\"", .type = "F32", .dimension_count = 2, .shape = {2, 3}},
        {.name = "w.2", .type = "F64", .dimension_count = 1, .shape = {2}},
    };
    uint8_t digests[2][HD_HASH_BYTES];
    uint64_t header_bytes = 0;

    const uint64_t bytes = hd_safetensors_lay_out(rows, 2);
    digest_of(first_values, sizeof first_values, digests[0]);
    digest_of(second_values, sizeof second_values, digests[1]);
    char *const header =
        hd_safetensors_header(rows, 2, (const uint8_t(*)[HD_HASH_BYTES])digests, &header_bytes);
    CU_ASSERT_EQUAL(header_bytes % 64, 0);
    CU_ASSERT_EQUAL(rows[0].offset, header_bytes);
    CU_ASSERT_EQUAL(rows[1].offset, header_bytes + sizeof first_values);
    CU_ASSERT_EQUAL(bytes, header_bytes + sizeof first_values + sizeof second_values);
    FILE *const stream = fopen(work_path(), "wb");
    CU_ASSERT_FATAL(stream != NULL);
    fwrite(header, 1, header_bytes, stream);
    fwrite(first_values, 1, sizeof first_values, stream);
    fwrite(second_values, 1, sizeof second_values, stream);
    CU_ASSERT_FATAL(fclose(stream) == 0);
    free(header);
}

static void check_written(void)
{
    struct hd_safetensors file;
    struct hd_problem problem = {0};
    float singles[6];
    double doubles[2];

    write_two();
    open_sound(&file);
    const struct hd_safetensors_tensor *const first = hd_safetensors_find(&file, "w.\"1\"");
    const struct hd_safetensors_tensor *const second = hd_safetensors_find(&file, "w.2");
    CU_ASSERT_FATAL(first != NULL && second != NULL && first->sha256 != NULL);
    CU_ASSERT(first->shape[0] == 2 && first->shape[1] == 3 && first->dimension_count == 2);
    const struct hd_safetensors_target target = {HD_F32, singles}, wide = {HD_F64, doubles};
    CU_ASSERT(hd_safetensors_read(&file, first, target, &problem) == HD_OK);
    CU_ASSERT(memcmp(singles, first_values, sizeof singles) == 0);
    CU_ASSERT(hd_safetensors_read(&file, second, wide, &problem) == HD_OK);
    CU_ASSERT(memcmp(doubles, second_values, sizeof doubles) == 0);
    hd_safetensors_close(&file);
}

/* One bit of the data, anywhere in it: the tensor that holds it is named. */
static void check_flipped(void)
{
    struct hd_safetensors file;
    float singles[6];

    for (unsigned byte = 0; byte < sizeof first_values; byte++) {
        struct hd_problem problem = {0};
        const struct hd_safetensors_target target = {HD_F32, singles};
        write_two();
        open_sound(&file);
        const struct hd_safetensors_tensor *const first = hd_safetensors_find(&file, "w.\"1\"");
        FILE *const stream = fopen(work_path(), "r+b");
        CU_ASSERT_FATAL(stream != NULL && first != NULL);
        fseek(stream, (long)(first->offset + byte), SEEK_SET);
        fputc(((const unsigned char *)first_values)[byte] ^ (1 << byte % 8), stream);
        CU_ASSERT_FATAL(fclose(stream) == 0);
        CU_ASSERT(hd_safetensors_read(&file, first, target, &problem) < 0);
        CU_ASSERT_STRING_EQUAL(problem.key, "w.\"1\"");
        CU_ASSERT(strstr(problem.message, "the file was damaged") != NULL);
        hd_safetensors_close(&file);
    }
}

/* --- fuzzing ---------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* What a reader may rely on, whatever the bytes were. */
static void check_parsed(const struct hd_safetensors *file)
{
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct hd_safetensors_tensor *const tensor = &file->tensors[i];
        const int is_inside = tensor->offset <= file->file_bytes &&
                              tensor->bytes <= file->file_bytes - tensor->offset;
        if (!is_inside || hd_safetensors_find(file, tensor->name) != tensor) {
            CU_FAIL("a tensor outside its file, or not found by its name");
        }
    }
}

static const char *const seeds[] = {
    "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\"},\"a\":" PAIR
    ",\"b.1\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,16]}}",
    "{\"\\u00e9\\ud83d\\ude00\\n\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"z\":{\"dtype\":\"I8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
};

/* Bytes are replaced, doubled, dropped, and taken from the grammar itself. */
static uint64_t mutate(char *text, uint64_t length, uint64_t capacity, uint64_t *random)
{
    static const char letters[] = "{}[]\":,\\u0123456789eE.- aF\x01\x80\xff";
    const uint64_t times = 1 + next_random(random) % 4;

    for (uint64_t i = 0; i < times && length > 1; i++) {
        const uint64_t at = next_random(random) % length;
        switch (next_random(random) % 4) {
        case 0:
            text[at] = letters[next_random(random) % (sizeof letters - 1)];
            break;
        case 1:
            text[at] = (char)(text[at] ^ (1 << next_random(random) % 8));
            break;
        case 2:
            memmove(text + at, text + at + 1, length - at - 1);
            length--;
            break;
        default:
            if (length < capacity) {
                memmove(text + at + 1, text + at, length - at);
                length++;
            }
            break;
        }
    }
    return length;
}

static void check_fuzzed(void)
{
    uint64_t random = 0x9e3779b97f4a7c15ull;
    uint32_t sound_count = 0;

    for (uint32_t round = 0; round < 60000; round++) {
        const char *const seed = seeds[round % HD_CHECK_COUNT(seeds)];
        const uint64_t seed_bytes = strlen(seed);
        char *const text = malloc(seed_bytes + 8); /* of exact size: a read past it is seen */
        CU_ASSERT_FATAL(text != NULL);
        memcpy(text, seed, seed_bytes);
        const uint64_t length = mutate(text, seed_bytes, seed_bytes + 8, &random);
        char *const exact = malloc(length);
        CU_ASSERT_FATAL(exact != NULL);
        memcpy(exact, text, length);
        struct hd_problem problem = {0};
        struct hd_safetensors file = {.descriptor = -1, .file_bytes = 8 + length + 16};
        if (hd_safetensors_parse(&file, exact, length, &problem) == HD_OK) {
            check_parsed(&file);
            sound_count++;
        } else {
            CU_ASSERT(problem.exit_code == HD_EXIT_USAGE && problem.message[0] != '\0');
        }
        hd_safetensors_close(&file);
        free(exact);
        free(text);
    }
    CU_ASSERT(sound_count > 60 && sound_count < 60000 / 2);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"hostile headers are refused with file, tensor and reason", check_hostile},
        {"a length word that lies is refused", check_lengths},
        {"a sound header is read whole, names exactly (C70)", check_sound},
        {"every type of float is converted, others are refused", check_types},
        {"what is written is read back", check_written},
        {"any flipped bit of a tensor is found, and the tensor named", check_flipped},
        {"60000 broken headers do no harm", check_fuzzed},
    };
    const int code = hd_check_main("safetensors", checks, HD_CHECK_COUNT(checks));

    unlink(work_path());
    return code;
}
