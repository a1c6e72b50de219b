#include "train/safetensors_header.h"
#include "base/text.h"
#include "train/safetensors_text.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 4096 };

struct reader {
    struct hd_walk walk;
    struct hd_safetensors *file;
    uint64_t tensor_room, note_room;      /* of the lists that grow in `file` */
    struct hd_safetensors_tensor *tensor; /* the one that is read */
    uint32_t seen;                        /* its members, a bit each */
    bool has_notes;
};

__attribute__((format(printf, 2, 3))) static hd_status safetensors_header_refuse(
    struct reader *reader, const char *format, ...)
{
    char message[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return hd_problem_set(reader->walk.problem, HD_INVALID, HD_EXIT_USAGE, "%s", message);
}

static const struct {
    const char *name;
    uint32_t bytes;
} safetensors_header_types[] = {
    {"F32", 4},     {"BF16", 2},    {"F16", 2}, {"F64", 8}, {"I64", 8},
    {"U64", 8},     {"I32", 4},     {"U32", 4}, {"I16", 2}, {"U16", 2},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1},
};

/* --- members ---------------------------------------------------------------------------------- */

static uint32_t safetensors_header_type_bytes(const char *type)
{
    for (unsigned i = 0; i < sizeof safetensors_header_types / sizeof safetensors_header_types[0];
         i++) {
        if (strcmp(safetensors_header_types[i].name, type) == 0) {
            return safetensors_header_types[i].bytes;
        }
    }
    return 0;
}

static hd_status safetensors_header_take_type(struct reader *reader,
                                              struct hd_safetensors_tensor *tensor)
{
    const hd_status status = hd_walk_string(&reader->walk, "the name of a type", &tensor->type);

    if (status == HD_OK && safetensors_header_type_bytes(tensor->type) == 0) {
        return safetensors_header_refuse(reader, "dtype %.40s is unknown", tensor->type);
    }
    return status;
}

/* One of the three members of a tensor, each once. */
static hd_status safetensors_header_take_field(struct hd_walk *walk, void *context)
{
    struct reader *const reader = context;
    struct hd_safetensors_tensor *const tensor = reader->tensor;
    const char *key = NULL;
    uint64_t ends[2] = {0, 0};
    uint32_t end_count = 0, bit;

    hd_status status = hd_walk_string(walk, "the name of a member", &key);
    if (status == HD_OK) {
        status = hd_walk_take(walk, ':', "a colon");
    }
    if (status != HD_OK) {
        return status;
    }
    if (strcmp(key, "dtype") == 0) {
        bit = 1;
        status = safetensors_header_take_type(reader, tensor);
    } else if (strcmp(key, "shape") == 0) {
        bit = 2;
        status = hd_walk_numbers(&reader->walk, HD_SAFETENSORS_DIMENSION_MAX, tensor->shape,
                                 &tensor->dimension_count);
    } else if (strcmp(key, "data_offsets") == 0) {
        bit = 4;
        status = hd_walk_numbers(&reader->walk, 2, ends, &end_count);
        if (status == HD_OK && (end_count != 2 || ends[1] < ends[0])) {
            return safetensors_header_refuse(reader,
                                             "data_offsets must be a begin and an end after it");
        }
        tensor->offset = ends[0];
        tensor->bytes = end_count == 2 ? ends[1] - ends[0] : 0;
    } else {
        return safetensors_header_refuse(reader, "a tensor has no member %.60s", key);
    }
    if (status == HD_OK && (reader->seen & bit) != 0) {
        return safetensors_header_refuse(reader, "%s is given twice", key);
    }
    reader->seen |= bit;
    return status;
}

/* The bytes must be those of shape and type. */
static hd_status safetensors_header_check_bytes(struct reader *reader,
                                                const struct hd_safetensors_tensor *tensor)
{
    uint64_t bytes = safetensors_header_type_bytes(tensor->type);

    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        if (tensor->shape[i] != 0 && bytes > UINT64_MAX / tensor->shape[i]) {
            return safetensors_header_refuse(reader, "the shape has more than 2^64 bytes");
        }
        bytes *= tensor->shape[i];
    }
    if (bytes != tensor->bytes) {
        return safetensors_header_refuse(
            reader, "dtype and shape need %llu bytes, but data_offsets give %llu",
            (unsigned long long)bytes, (unsigned long long)tensor->bytes);
    }
    return HD_OK;
}

static hd_status safetensors_header_take_tensor(struct reader *reader,
                                                struct hd_safetensors_tensor *tensor)
{
    reader->tensor = tensor;
    reader->seen = 0;
    const hd_status status = hd_walk_object(&reader->walk, safetensors_header_take_field, reader);
    if (status != HD_OK) {
        return status;
    }
    if (reader->seen != 7) {
        return safetensors_header_refuse(
            reader, "%s is missing",
            !(reader->seen & 1) ? "dtype" : (!(reader->seen & 2) ? "shape" : "data_offsets"));
    }
    return safetensors_header_check_bytes(reader, tensor);
}

/* Makes room for one more element of a list; NULL if it cannot allocate it. */
static void *safetensors_header_grow(void *list, uint64_t count, uint64_t *room,
                                     uint64_t item_bytes)
{
    if (count < *room) {
        return list;
    }
    const uint64_t wanted = *room > 0 ? 2 * *room : 64;
    void *const grown = realloc(list, wanted * item_bytes);
    *room = grown != NULL ? wanted : *room;
    return grown;
}

static hd_status safetensors_header_no_memory(struct reader *reader)
{
    return hd_problem_no_memory(reader->walk.problem, 0, "its header");
}

static hd_status safetensors_header_take_note(struct hd_walk *walk, void *context)
{
    struct reader *const reader = context;
    struct hd_safetensors *const file = reader->file;
    struct hd_safetensors_note *const notes =
        safetensors_header_grow(file->notes, file->note_count, &reader->note_room, sizeof *notes);

    if (notes == NULL) {
        return safetensors_header_no_memory(reader);
    }
    file->notes = notes;
    struct hd_safetensors_note *const note = &notes[file->note_count];
    hd_status status = hd_walk_string(walk, "a name of the metadata", &note->key);
    if (status == HD_OK) {
        status = hd_walk_take(walk, ':', "a colon");
    }
    if (status == HD_OK) {
        status = hd_walk_string(walk, "a text of the metadata", &note->value);
    }
    file->note_count += status == HD_OK;
    return status;
}

static hd_status safetensors_header_take_member(struct hd_walk *walk, void *context)
{
    struct reader *const reader = context;
    struct hd_safetensors *const file = reader->file;
    struct hd_safetensors_tensor tensor = {0};

    hd_status status = hd_walk_string(walk, "the name of a tensor", &tensor.name);
    if (status == HD_OK) {
        hd_problem_key(walk->problem, "%.120s", tensor.name);
        status = hd_walk_take(walk, ':', "a colon");
    }
    if (status != HD_OK) {
        return status;
    }
    if (strcmp(tensor.name, "__metadata__") == 0) {
        if (reader->has_notes) {
            return safetensors_header_refuse(reader, "is given twice");
        }
        reader->has_notes = true;
        return hd_walk_object(walk, safetensors_header_take_note, reader);
    }
    struct hd_safetensors_tensor *const tensors = safetensors_header_grow(
        file->tensors, file->tensor_count, &reader->tensor_room, sizeof *tensors);
    if (tensors == NULL) {
        return safetensors_header_no_memory(reader);
    }
    file->tensors = tensors;
    if (strlen(tensor.name) > NAME_BYTES_MAX) {
        return safetensors_header_refuse(reader, "the name has more than %d bytes", NAME_BYTES_MAX);
    }
    status = safetensors_header_take_tensor(reader, &tensor);
    if (status == HD_OK) {
        tensors[file->tensor_count++] = tensor;
    }
    return status;
}

/* --- checks of all members together ----------------------------------------------------------- */

static int safetensors_header_by_name(const void *left, const void *right)
{
    return strcmp(((const struct hd_safetensors_tensor *)left)->name,
                  ((const struct hd_safetensors_tensor *)right)->name);
}

static int safetensors_header_by_key(const void *left, const void *right)
{
    return strcmp(((const struct hd_safetensors_note *)left)->key,
                  ((const struct hd_safetensors_note *)right)->key);
}

static int safetensors_header_by_offset(const void *left, const void *right)
{
    const struct hd_safetensors_tensor *const a = left, *const b = right;

    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

/* qsort must not get NULL, even for no rows. */
static void safetensors_header_sort(void *rows, uint32_t count, size_t row_bytes,
                                    int (*compare)(const void *, const void *))
{
    if (count > 1) {
        qsort(rows, count, row_bytes, compare);
    }
}

static hd_status safetensors_header_check_notes(struct reader *reader)
{
    struct hd_safetensors *const file = reader->file;

    safetensors_header_sort(file->notes, file->note_count, sizeof file->notes[0],
                            safetensors_header_by_key);
    for (uint32_t i = 1; i < file->note_count; i++) {
        if (strcmp(file->notes[i].key, file->notes[i - 1].key) == 0) {
            hd_problem_key(reader->walk.problem, "__metadata__");
            return safetensors_header_refuse(reader, "%.60s is given twice", file->notes[i].key);
        }
    }
    return HD_OK;
}

/* The tensors must cover each byte of the data once: no gap, and no overlap. */
static hd_status safetensors_header_check_cover(struct reader *reader, uint64_t data_offset)
{
    struct hd_safetensors *const file = reader->file;
    const uint64_t data_bytes = file->file_bytes - data_offset;
    uint64_t end = 0;

    safetensors_header_sort(file->tensors, file->tensor_count, sizeof file->tensors[0],
                            safetensors_header_by_offset);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        struct hd_safetensors_tensor *const tensor = &file->tensors[i];
        hd_problem_key(reader->walk.problem, "%.120s", tensor->name);
        if (tensor->offset != end) {
            return safetensors_header_refuse(
                reader,
                "begins at byte %llu of the data, %s the tensor before it, which "
                "ends at %llu",
                (unsigned long long)tensor->offset,
                tensor->offset < end ? "inside" : "leaving a gap behind", (unsigned long long)end);
        }
        if (tensor->bytes > data_bytes - end) {
            return safetensors_header_refuse(
                reader, "ends at byte %llu of the data, but the file has %llu: it is cut off",
                (unsigned long long)(end + tensor->bytes), (unsigned long long)data_bytes);
        }
        end += tensor->bytes;
        tensor->offset += data_offset;
    }
    hd_problem_key(reader->walk.problem, "%s", "");
    if (end != data_bytes) {
        return safetensors_header_refuse(reader,
                                         "the data has %llu bytes, but the tensors cover %llu",
                                         (unsigned long long)data_bytes, (unsigned long long)end);
    }
    return HD_OK;
}

static hd_status safetensors_header_check_names(struct reader *reader)
{
    struct hd_safetensors *const file = reader->file;

    safetensors_header_sort(file->tensors, file->tensor_count, sizeof file->tensors[0],
                            safetensors_header_by_name);
    for (uint32_t i = 1; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i].name, file->tensors[i - 1].name) == 0) {
            hd_problem_key(reader->walk.problem, "%.120s", file->tensors[i].name);
            return safetensors_header_refuse(reader, "is given twice");
        }
    }
    return HD_OK;
}

const struct hd_safetensors_tensor *hd_safetensors_find(const struct hd_safetensors *file,
                                                        const char *name)
{
    const struct hd_safetensors_tensor key = {.name = name};

    return file->tensor_count == 0 ? NULL
                                   : bsearch(&key, file->tensors, file->tensor_count, sizeof key,
                                             safetensors_header_by_name);
}

const char *hd_safetensors_note(const struct hd_safetensors *file, const char *key)
{
    const struct hd_safetensors_note wanted = {.key = key};
    const struct hd_safetensors_note *const note =
        file->note_count == 0 ? NULL
                              : bsearch(&wanted, file->notes, file->note_count, sizeof wanted,
                                        safetensors_header_by_key);

    return note != NULL ? note->value : NULL;
}

uint64_t hd_safetensors_count(const struct hd_safetensors_tensor *tensor)
{
    uint64_t count = 1;

    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

static void safetensors_header_join_digests(struct hd_safetensors *file)
{
    static const char head[] = "sha256:";

    for (uint32_t i = 0; i < file->tensor_count; i++) {
        char key[sizeof head + NAME_BYTES_MAX];
        snprintf(key, sizeof key, "%s%s", head, file->tensors[i].name);
        file->tensors[i].sha256 = hd_safetensors_note(file, key);
    }
}

static hd_status safetensors_header_take_members(struct reader *reader)
{
    struct hd_walk *const walk = &reader->walk;
    const hd_status status = hd_walk_object(walk, safetensors_header_take_member, reader);

    if (status != HD_OK) {
        return status;
    }
    hd_problem_key(walk->problem, "%s", "");
    hd_walk_peek(walk);
    return walk->at < walk->length ? hd_walk_refuse(walk, "the end") : HD_OK;
}

hd_status hd_safetensors_parse(struct hd_safetensors *file, const char *header,
                               uint64_t header_bytes, struct hd_problem *problem)
{
    const uint64_t data_offset = HD_SAFETENSORS_LENGTH_BYTES + header_bytes;
    struct reader reader = {.file = file, .walk = {.length = header_bytes, .problem = problem}};

    assert(file->tensors == NULL && file->notes == NULL && file->text == NULL);
    hd_problem_place(problem, "%.500s", file->path);
    if (header_bytes > HD_SAFETENSORS_HEADER_BYTES_MAX || data_offset > file->file_bytes) {
        return hd_problem_set(
            problem, HD_INVALID, HD_EXIT_USAGE,
            "claims a header of %llu bytes, but the file has %llu, and a header may "
            "have at most %u",
            (unsigned long long)header_bytes, (unsigned long long)file->file_bytes,
            HD_SAFETENSORS_HEADER_BYTES_MAX);
    }
    const uint64_t good = hd_text_utf8_bytes(header, header_bytes);
    if (good < header_bytes) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "byte %llu of the header is not UTF-8", (unsigned long long)good);
    }
    file->text = malloc(header_bytes + 1);
    if (file->text == NULL) {
        return safetensors_header_no_memory(&reader);
    }
    memcpy(file->text, header, header_bytes);
    file->text[header_bytes] = '\0';
    reader.walk.text = file->text;
    hd_status status = safetensors_header_take_members(&reader);
    if (status == HD_OK) {
        status = safetensors_header_check_notes(&reader);
    }
    if (status == HD_OK) {
        status = safetensors_header_check_cover(&reader, data_offset);
    }
    if (status == HD_OK) {
        status = safetensors_header_check_names(&reader);
    }
    if (status == HD_OK) {
        safetensors_header_join_digests(file);
    }
    return status;
}
