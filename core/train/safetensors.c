#include "train/safetensors.h"
#include "base/bf16.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

#include <heddle/plugin.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLANKS_TO_BYTES = 64 };

static hd_status safetensors_refuse_file(const char *path, const char *verb, int error,
                                         struct hd_problem *problem)
{
    hd_problem_place(problem, "%.500s", path);
    return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_USAGE, "cannot be %s: %s", verb,
                          error != 0 ? strerror(error) : "it ends too early");
}

/* 0, an errno, or -1 if the file ends. */
static int safetensors_read_all(int descriptor, void *values, uint64_t bytes, uint64_t offset)
{
    unsigned char *out = values;

    while (bytes > 0) {
        const size_t part = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        const ssize_t got = pread(descriptor, out, part, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? errno : -1;
        }
        out += got;
        bytes -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

static uint64_t safetensors_little_endian(const uint8_t bytes[HD_SAFETENSORS_LENGTH_BYTES])
{
    uint64_t value = 0;

    for (unsigned i = HD_SAFETENSORS_LENGTH_BYTES; i > 0; i--) {
        value = value << 8 | bytes[i - 1];
    }
    return value;
}

static hd_status safetensors_read_header(struct hd_safetensors *file, struct hd_problem *problem)
{
    uint8_t length[HD_SAFETENSORS_LENGTH_BYTES];
    struct hd_hash hash;
    char *header = NULL;

    if (file->file_bytes < sizeof length) {
        hd_problem_place(problem, "%.500s", file->path);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "has %llu bytes, but the length of its header alone takes 8",
                              (unsigned long long)file->file_bytes);
    }
    int error = safetensors_read_all(file->descriptor, length, sizeof length, 0);
    const uint64_t bytes = safetensors_little_endian(length);
    if (error == 0 && bytes <= HD_SAFETENSORS_HEADER_BYTES_MAX &&
        bytes <= file->file_bytes - sizeof length) {
        header = malloc(bytes + 1);
        error = header == NULL
                    ? ENOMEM
                    : safetensors_read_all(file->descriptor, header, bytes, sizeof length);
    }
    if (error != 0) {
        free(header);
        return safetensors_refuse_file(file->path, "read", error > 0 ? error : 0, problem);
    }
    if (header != NULL) {
        hd_hash_begin(&hash);
        hd_hash_add(&hash, length, sizeof length);
        hd_hash_add(&hash, header, bytes);
        hd_hash_end(&hash, file->header_digest);
    }
    const hd_status status = hd_safetensors_parse(file, header, bytes, problem);
    free(header);
    return status;
}

hd_status hd_safetensors_open(struct hd_safetensors *file, const char *path,
                              struct hd_problem *problem)
{
    struct stat facts;

    *file = (struct hd_safetensors){.descriptor = -1};
    if (strlen(path) >= sizeof file->path) {
        return safetensors_refuse_file(path, "opened", ENAMETOOLONG, problem);
    }
    snprintf(file->path, sizeof file->path, "%s", path);
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (file->descriptor < 0 || fstat(file->descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        const int error = file->descriptor < 0 ? errno : EINVAL;
        hd_safetensors_close(file);
        return safetensors_refuse_file(path, "opened", error, problem);
    }
    file->file_bytes = (uint64_t)facts.st_size;
    const hd_status status = safetensors_read_header(file, problem);
    if (status != HD_OK) {
        hd_safetensors_close(file);
    }
    return status;
}

void hd_safetensors_close(struct hd_safetensors *file)
{
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    free(file->tensors);
    free(file->notes);
    free(file->text);
    *file = (struct hd_safetensors){.descriptor = -1};
}

/* --- values ----------------------------------------------------------------------------------- */

/* IEEE half precision: 5 bits of exponent, 10 of fraction; exact in a float. */
static float safetensors_from_half(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu, word;
    float value;

    if (exponent == 31) {
        word = sign | 0x7f800000u | fraction << 13;
    } else if (exponent > 0) {
        word = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    memcpy(&value, &word, sizeof value);
    return value;
}

static double safetensors_value_at(const char *type, const unsigned char *raw, uint64_t index)
{
    uint16_t bits;
    float single;
    double number;

    if (strcmp(type, "F32") == 0) {
        memcpy(&single, raw + index * sizeof single, sizeof single);
        return single;
    }
    if (strcmp(type, "F64") == 0) {
        memcpy(&number, raw + index * sizeof number, sizeof number);
        return number;
    }
    memcpy(&bits, raw + index * sizeof bits, sizeof bits);
    return strcmp(type, "BF16") == 0 ? hd_bf16_to_float(bits) : safetensors_from_half(bits);
}

static void safetensors_convert(const struct hd_safetensors_tensor *tensor,
                                const unsigned char *raw, struct hd_safetensors_target target)
{
    const uint64_t count = hd_safetensors_count(tensor);

    for (uint64_t i = 0; i < count; i++) {
        const double value = safetensors_value_at(tensor->type, raw, i);
        if (target.dtype == HD_F64) {
            ((double *)target.values)[i] = value;
        } else {
            ((float *)target.values)[i] = (float)value;
        }
    }
}

static hd_status safetensors_check_digest(const struct hd_safetensors_tensor *tensor,
                                          const void *raw, struct hd_problem *problem)
{
    uint8_t digest[HD_HASH_BYTES];
    char text[HD_HASH_TEXT_BYTES];
    struct hd_hash hash;

    if (tensor->sha256 == NULL) {
        return HD_OK;
    }
    hd_hash_begin(&hash);
    hd_hash_add(&hash, raw, tensor->bytes);
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, text);
    if (strcmp(text, tensor->sha256) == 0) {
        return HD_OK;
    }
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "its bytes have SHA-256 %.12s.., but were written with %.12s..: the file "
                          "was damaged",
                          text, tensor->sha256);
}

hd_status hd_safetensors_read(const struct hd_safetensors *file,
                              const struct hd_safetensors_tensor *tensor,
                              struct hd_safetensors_target target, struct hd_problem *problem)
{
    static const char *const floats[] = {"F32", "F64", "BF16", "F16"};
    const char *same = target.dtype == HD_F64 ? "F64" : "F32";
    const bool is_same = strcmp(tensor->type, same) == 0;
    bool is_float = false;

    assert(target.dtype == HD_F32 || target.dtype == HD_F64);
    for (unsigned i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        is_float |= strcmp(tensor->type, floats[i]) == 0;
    }
    hd_problem_place(problem, "%.500s", file->path);
    hd_problem_key(problem, "%.120s", tensor->name);
    if (!is_float) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "has type %s, but parameters must be F32, F64, BF16 or F16",
                              tensor->type);
    }
    void *const raw = is_same ? target.values : hd_memory_take(tensor->bytes, 64, "checkpoint");
    if (raw == NULL) {
        return hd_problem_no_memory(problem, tensor->bytes, "the tensor");
    }
    const int error = safetensors_read_all(file->descriptor, raw, tensor->bytes, tensor->offset);
    hd_status status = HD_OK;
    if (error != 0) {
        status = hd_problem_set(problem, HD_SYSTEM, HD_EXIT_USAGE, "cannot be read: %s",
                                error > 0 ? strerror(error) : "the file ends too early");
    } else {
        status = safetensors_check_digest(tensor, raw, problem);
    }
    if (!is_same) {
        if (status == HD_OK) {
            safetensors_convert(tensor, raw, target);
        }
        hd_memory_give(raw);
    }
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

static char *safetensors_json_of(const struct hd_safetensors_tensor *tensors, uint32_t tensor_count,
                                 uint64_t data_offset, const uint8_t (*digests)[HD_HASH_BYTES])
{
    static const uint8_t zeroes[HD_HASH_BYTES];
    struct cJSON *const root = hd_json_new();
    struct cJSON *const notes = hd_json_object(root, "__metadata__");
    char key[512], *text = NULL;
    size_t bytes = 0;
    FILE *const stream = open_memstream(&text, &bytes);

    assert(stream != NULL);
    hd_json_text(notes, "format", "pt"); /* transformers requires it */
    for (uint32_t i = 0; i < tensor_count; i++) {
        snprintf(key, sizeof key, "sha256:%s", tensors[i].name);
        hd_json_hash(notes, key, digests != NULL ? digests[i] : zeroes);
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        const struct hd_safetensors_tensor *const tensor = &tensors[i];
        struct cJSON *const item = hd_json_object(root, tensor->name);
        hd_json_text(item, "dtype", tensor->type);
        struct cJSON *const shape = hd_json_array(item, "shape");
        for (uint32_t axis = 0; axis < tensor->dimension_count; axis++) {
            hd_json_u64(shape, NULL, tensor->shape[axis]);
        }
        struct cJSON *const ends = hd_json_array(item, "data_offsets");
        hd_json_u64(ends, NULL, tensor->offset - data_offset);
        hd_json_u64(ends, NULL, tensor->offset - data_offset + tensor->bytes);
    }
    const hd_status status = hd_json_print(root, stream);
    const int failed = fclose(stream);
    assert(status == HD_OK && failed == 0);
    hd_json_free(root);
    return text;
}

/* Bytes of length and header, such that the data is aligned. */
static uint64_t safetensors_padded_bytes(uint64_t text_bytes)
{
    return hd_round_up(HD_SAFETENSORS_LENGTH_BYTES + text_bytes, BLANKS_TO_BYTES);
}

uint64_t hd_safetensors_lay_out(struct hd_safetensors_tensor *tensors, uint32_t tensor_count)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < tensor_count; i++) {
        const bool is_double = strcmp(tensors[i].type, "F64") == 0;
        assert(is_double || strcmp(tensors[i].type, "F32") == 0);
        tensors[i].bytes =
            hd_safetensors_count(&tensors[i]) * (is_double ? sizeof(double) : sizeof(float));
        tensors[i].offset = end;
        end += tensors[i].bytes;
    }
    char *const text = safetensors_json_of(tensors, tensor_count, 0, NULL);
    const uint64_t data_offset = safetensors_padded_bytes(strlen(text));
    free(text);
    for (uint32_t i = 0; i < tensor_count; i++) {
        tensors[i].offset += data_offset;
    }
    return data_offset + end;
}

char *hd_safetensors_header(const struct hd_safetensors_tensor *tensors, uint32_t tensor_count,
                            const uint8_t (*digests)[HD_HASH_BYTES], uint64_t *bytes)
{
    uint64_t data_offset = tensor_count > 0 ? tensors[0].offset : 0;

    for (uint32_t i = 1; i < tensor_count; i++) {
        data_offset = hd_min_u64(data_offset, tensors[i].offset);
    }
    char *const json = safetensors_json_of(tensors, tensor_count, data_offset, digests);
    const uint64_t json_bytes = strlen(json) - 1; /* without its newline */
    const uint64_t whole = safetensors_padded_bytes(json_bytes + 1);
    char *const text = malloc(whole);
    assert(text != NULL && (tensor_count == 0 || whole == data_offset));
    memset(text, ' ', whole);
    for (unsigned i = 0; i < HD_SAFETENSORS_LENGTH_BYTES; i++) {
        text[i] = (char)((whole - HD_SAFETENSORS_LENGTH_BYTES) >> (8 * i));
    }
    memcpy(text + HD_SAFETENSORS_LENGTH_BYTES, json, json_bytes);
    free(json);
    *bytes = whole;
    return text;
}
