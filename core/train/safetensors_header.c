/*
 * train/safetensors_header.c - the header of a safetensors file, from bytes of unknown intent.
 */
#include "base/text.h"
#include "train/safetensors_text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 4096 };

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

static hd_status safetensors_header_take_type(struct hd_walk *walk,
                                              struct hd_safetensors_tensor *tensor)
{
    const hd_status status = hd_walk_string(walk, "the name of a type", &tensor->type);

    if (status == HD_OK && safetensors_header_type_bytes(tensor->type) == 0) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "dtype %.40s is not known",
                              tensor->type);
    }
    return status;
}

/* One of the three members of a tensor, each once. */
static hd_status safetensors_header_take_field(struct hd_walk *walk,
                                               struct hd_safetensors_tensor *tensor, uint32_t *seen)
{
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
        status = safetensors_header_take_type(walk, tensor);
    } else if (strcmp(key, "shape") == 0) {
        bit = 2;
        status = hd_walk_numbers(walk, HD_SAFETENSORS_DIMENSION_MAX, tensor->shape,
                                 &tensor->dimension_count);
    } else if (strcmp(key, "data_offsets") == 0) {
        bit = 4;
        status = hd_walk_numbers(walk, 2, ends, &end_count);
        if (status == HD_OK && (end_count != 2 || ends[1] < ends[0])) {
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                                  "data_offsets are not a begin and an end behind it");
        }
        tensor->offset = ends[0];
        tensor->bytes = end_count == 2 ? ends[1] - ends[0] : 0;
    } else {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                              "a tensor has no member %.60s", key);
    }
    if (status == HD_OK && (*seen & bit) != 0) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "%s stands twice", key);
    }
    *seen |= bit;
    return status;
}

/* The bytes must be those of shape and type, so that no offset is a matter of trust. */
static hd_status safetensors_header_check_bytes(struct hd_walk *walk,
                                                const struct hd_safetensors_tensor *tensor)
{
    uint64_t bytes = safetensors_header_type_bytes(tensor->type);

    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        if (tensor->shape[i] != 0 && bytes > UINT64_MAX / tensor->shape[i]) {
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                                  "the shape has more than 2^64 bytes");
        }
        bytes *= tensor->shape[i];
    }
    if (bytes != tensor->bytes) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                              "dtype and shape take %llu bytes, data_offsets give %llu",
                              (unsigned long long)bytes, (unsigned long long)tensor->bytes);
    }
    return HD_OK;
}

static hd_status safetensors_header_take_tensor(struct hd_walk *walk,
                                                struct hd_safetensors_tensor *tensor)
{
    uint32_t seen = 0;
    int32_t has_more = 1;
    hd_status status = hd_walk_take(walk, '{', "a {");

    while (status == HD_OK && has_more == 1) {
        status = safetensors_header_take_field(walk, tensor, &seen);
        if (status == HD_OK) {
            has_more = hd_walk_more(walk, '}', "a comma or a }");
        }
    }
    if (status != HD_OK || has_more < 0) {
        return HD_INVALID;
    }
    if (seen != 7) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "%s is missing",
                              !(seen & 1) ? "dtype" : (!(seen & 2) ? "shape" : "data_offsets"));
    }
    return safetensors_header_check_bytes(walk, tensor);
}

/* Room for one element more of a growing list; NULL: no memory. */
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

static hd_status safetensors_header_no_memory(struct hd_walk *walk)
{
    return hd_problem_set(walk->problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for its header");
}

static hd_status safetensors_header_take_note(struct hd_walk *walk)
{
    struct hd_safetensors *const file = walk->file;
    struct hd_safetensors_note *const notes =
        safetensors_header_grow(file->notes, file->note_count, &walk->note_room, sizeof *notes);

    if (notes == NULL) {
        return safetensors_header_no_memory(walk);
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

static hd_status safetensors_header_take_notes(struct hd_walk *walk)
{
    int32_t has_more = 1;
    hd_status status = hd_walk_take(walk, '{', "a {");

    if (status == HD_OK && hd_walk_peek(walk) == '}') {
        walk->at++;
        return HD_OK;
    }
    while (status == HD_OK && has_more == 1) {
        status = safetensors_header_take_note(walk);
        if (status == HD_OK) {
            has_more = hd_walk_more(walk, '}', "a comma or a }");
        }
    }
    return status != HD_OK ? status : (has_more < 0 ? HD_INVALID : HD_OK);
}

static hd_status safetensors_header_take_member(struct hd_walk *walk, uint32_t *has_notes)
{
    struct hd_safetensors *const file = walk->file;
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
        if ((*has_notes)++ > 0) {
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "stands twice");
        }
        return safetensors_header_take_notes(walk);
    }
    struct hd_safetensors_tensor *const tensors = safetensors_header_grow(
        file->tensors, file->tensor_count, &walk->tensor_room, sizeof *tensors);
    if (tensors == NULL) {
        return safetensors_header_no_memory(walk);
    }
    file->tensors = tensors;
    if (strlen(tensor.name) > NAME_BYTES_MAX) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                              "a name of more than %d bytes", NAME_BYTES_MAX);
    }
    status = safetensors_header_take_tensor(walk, &tensor);
    if (status == HD_OK) {
        tensors[file->tensor_count++] = tensor;
    }
    return status;
}

/* --- what the members are to each other ------------------------------------------------------- */

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

/* qsort takes no NULL, not even for nothing. */
static void safetensors_header_sort(void *rows, uint32_t count, size_t row_bytes,
                                    int (*compare)(const void *, const void *))
{
    if (count > 1) {
        qsort(rows, count, row_bytes, compare);
    }
}

static hd_status safetensors_header_check_notes(struct hd_walk *walk)
{
    struct hd_safetensors *const file = walk->file;

    safetensors_header_sort(file->notes, file->note_count, sizeof file->notes[0],
                            safetensors_header_by_key);
    for (uint32_t i = 1; i < file->note_count; i++) {
        if (strcmp(file->notes[i].key, file->notes[i - 1].key) == 0) {
            hd_problem_key(walk->problem, "__metadata__");
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "%.60s stands twice",
                                  file->notes[i].key);
        }
    }
    return HD_OK;
}

/* The tensors must cover the data, each byte once: what is hidden in a gap, or read twice, is no
 * tensor. */
static hd_status safetensors_header_check_cover(struct hd_walk *walk, uint64_t data_offset)
{
    struct hd_safetensors *const file = walk->file;
    const uint64_t data_bytes = file->file_bytes - data_offset;
    uint64_t end = 0;

    safetensors_header_sort(file->tensors, file->tensor_count, sizeof file->tensors[0],
                            safetensors_header_by_offset);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        struct hd_safetensors_tensor *const tensor = &file->tensors[i];
        hd_problem_key(walk->problem, "%.120s", tensor->name);
        if (tensor->offset != end) {
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                                  "begins at byte %llu of the data, %s the tensor before it, which "
                                  "ends at %llu",
                                  (unsigned long long)tensor->offset,
                                  tensor->offset < end ? "inside" : "leaving a gap behind",
                                  (unsigned long long)end);
        }
        if (tensor->bytes > data_bytes - end) {
            return hd_problem_set(
                walk->problem, HD_INVALID, HD_EXIT_USAGE,
                "ends at byte %llu of the data, of which the file has %llu: it was cut",
                (unsigned long long)(end + tensor->bytes), (unsigned long long)data_bytes);
        }
        end += tensor->bytes;
        tensor->offset += data_offset;
    }
    hd_problem_key(walk->problem, "%s", "");
    if (end != data_bytes) {
        return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE,
                              "the data has %llu bytes, of which tensors cover %llu",
                              (unsigned long long)data_bytes, (unsigned long long)end);
    }
    return HD_OK;
}

static hd_status safetensors_header_check_names(struct hd_walk *walk)
{
    struct hd_safetensors *const file = walk->file;

    safetensors_header_sort(file->tensors, file->tensor_count, sizeof file->tensors[0],
                            safetensors_header_by_name);
    for (uint32_t i = 1; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i].name, file->tensors[i - 1].name) == 0) {
            hd_problem_key(walk->problem, "%.120s", file->tensors[i].name);
            return hd_problem_set(walk->problem, HD_INVALID, HD_EXIT_USAGE, "stands twice");
        }
    }
    return HD_OK;
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

static hd_status safetensors_header_take_members(struct hd_walk *walk)
{
    uint32_t has_notes = 0;
    int32_t has_more = 1;
    hd_status status = hd_walk_take(walk, '{', "a {");

    if (status == HD_OK && hd_walk_peek(walk) == '}') {
        walk->at++;
        has_more = 0;
    }
    while (status == HD_OK && has_more == 1) {
        status = safetensors_header_take_member(walk, &has_notes);
        if (status == HD_OK) {
            has_more = hd_walk_more(walk, '}', "a comma or a }");
        }
    }
    if (status != HD_OK || has_more < 0) {
        return HD_INVALID;
    }
    hd_problem_key(walk->problem, "%s", "");
    hd_walk_peek(walk);
    return walk->at < walk->length ? hd_walk_refuse(walk, "the end") : HD_OK;
}

hd_status hd_safetensors_parse(struct hd_safetensors *file, const char *header,
                               uint64_t header_bytes, struct hd_problem *problem)
{
    const uint64_t data_offset = HD_SAFETENSORS_LENGTH_BYTES + header_bytes;
    struct hd_walk walk = {.file = file, .length = header_bytes, .problem = problem};

    assert(file->tensors == NULL && file->notes == NULL && file->text == NULL);
    hd_problem_place(problem, "%.500s", file->path);
    if (header_bytes > HD_SAFETENSORS_HEADER_BYTES_MAX || data_offset > file->file_bytes) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "is said to have a header of %llu bytes; the file has %llu, and a "
                              "header may have %u",
                              (unsigned long long)header_bytes,
                              (unsigned long long)file->file_bytes,
                              HD_SAFETENSORS_HEADER_BYTES_MAX);
    }
    const uint64_t good = hd_text_utf8_bytes(header, header_bytes);
    if (good < header_bytes) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "byte %llu of the header is not UTF-8", (unsigned long long)good);
    }
    file->text = malloc(header_bytes + 1);
    if (file->text == NULL) {
        return safetensors_header_no_memory(&walk);
    }
    memcpy(file->text, header, header_bytes);
    file->text[header_bytes] = '\0';
    walk.text = file->text;
    hd_status status = safetensors_header_take_members(&walk);
    if (status == HD_OK) {
        status = safetensors_header_check_notes(&walk);
    }
    if (status == HD_OK) {
        status = safetensors_header_check_cover(&walk, data_offset);
    }
    if (status == HD_OK) {
        status = safetensors_header_check_names(&walk);
    }
    if (status == HD_OK) {
        safetensors_header_join_digests(file);
    }
    return status;
}
