#include "train/corpus.h"
#include "train/corpus_kind.h"
#include "train/grammar.h"
#include "train/numpy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRAMMAR_SAMPLE_COUNT (1ull << 32)

enum format { FORMAT_AUTO = 0, FORMAT_TEXT = 1, FORMAT_TOKENS = 2 };

struct hd_corpus {
    char *path;           /* owned */
    const uint8_t *bytes; /* the whole file, mapped; NULL if builtin */
    uint64_t byte_count;
    const uint8_t *ids; /* within bytes */
    uint64_t id_count;
    uint32_t id_bytes;
    bool is_signed, is_text;
    uint32_t vocabulary, sequence;
    uint64_t sample_count, seed;
};

__attribute__((format(printf, 4, 5))) static hd_status corpus_refuse(struct hd_problem *problem,
                                                                     const struct hd_corpus *corpus,
                                                                     const char *remedy,
                                                                     const char *format, ...)
{
    char reason[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    hd_problem_place(problem, "%s", corpus->path);
    hd_problem_key(problem, "data.corpus");
    hd_problem_remedy(problem, "%s", remedy);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

static hd_status corpus_refuse_system(struct hd_problem *problem, const struct hd_corpus *corpus,
                                      const char *verb)
{
    return corpus_refuse(problem, corpus, "name a file that can be read, or builtin",
                         "cannot be %s: %s", verb, strerror(errno));
}

static hd_status corpus_map_descriptor(struct hd_corpus *corpus, int descriptor,
                                       struct hd_problem *problem)
{
    struct stat status;

    if (fstat(descriptor, &status) != 0) {
        return corpus_refuse_system(problem, corpus, "examined");
    }
    if (!S_ISREG(status.st_mode)) {
        return corpus_refuse(problem, corpus, "name a file; save the output of a pipe first",
                             "is not a regular file");
    }
    if (status.st_size == 0) {
        return corpus_refuse(problem, corpus, "name a file with a text or token ids", "is empty");
    }
    const uint64_t byte_count = (uint64_t)status.st_size;
    void *const mapped = mmap(NULL, byte_count, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
        return corpus_refuse_system(problem, corpus, "mapped");
    }
    corpus->bytes = mapped;
    corpus->byte_count = byte_count;
    return HD_OK;
}

static hd_status corpus_map_file(struct hd_corpus *corpus, struct hd_problem *problem)
{
    /* NONBLOCK: otherwise opening a pipe without a writer would never return. */
    const int descriptor = open(corpus->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (descriptor < 0) {
        return corpus_refuse_system(problem, corpus, "opened");
    }
    const hd_status status = corpus_map_descriptor(corpus, descriptor, problem);
    close(descriptor);
    return status;
}

static bool corpus_ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static uint32_t corpus_format_of(const struct hd_corpus *corpus, uint32_t asked)
{
    if (asked != FORMAT_AUTO) {
        return asked;
    }
    const bool is_tokens = hd_numpy_is(corpus->bytes, corpus->byte_count) ||
                           corpus_ends_with(corpus->path, ".npy") ||
                           corpus_ends_with(corpus->path, ".bin");
    return is_tokens ? FORMAT_TOKENS : FORMAT_TEXT;
}

static hd_status corpus_read_text(struct hd_corpus *corpus, const struct hd_corpus_request *request,
                                  struct hd_problem *problem)
{
    if (request->token_bytes > 1) {
        return corpus_refuse(problem, corpus,
                             "set data.format = tokens, or remove data.token_bytes",
                             "is read as text with one byte per id, but data.token_bytes is %u",
                             request->token_bytes);
    }
    corpus->is_text = true;
    corpus->id_bytes = 1;
    corpus->ids = corpus->bytes;
    corpus->id_count = corpus->byte_count;
    return HD_OK;
}

static hd_status corpus_read_raw(struct hd_corpus *corpus, const struct hd_corpus_request *request,
                                 struct hd_problem *problem)
{
    const uint32_t by_vocabulary =
        request->vocabulary <= 256 ? 1 : (request->vocabulary <= 65536 ? 2 : 4);

    corpus->id_bytes = request->token_bytes != 0 ? request->token_bytes : by_vocabulary;
    corpus->ids = corpus->bytes;
    corpus->id_count = corpus->byte_count / corpus->id_bytes;
    if (corpus->byte_count % corpus->id_bytes != 0) {
        return corpus_refuse(problem, corpus,
                             "set data.token_bytes to the width of an id in the file",
                             "has %llu bytes, not a whole number of %u-byte ids (%llu left over)",
                             (unsigned long long)corpus->byte_count, corpus->id_bytes,
                             (unsigned long long)(corpus->byte_count % corpus->id_bytes));
    }
    const uint32_t likely =
        hd_corpus_likely_width(corpus->ids, corpus->byte_count, corpus->id_bytes);
    if (request->token_bytes == 0 && likely != corpus->id_bytes) {
        char remedy[96];
        snprintf(remedy, sizeof remedy, "set data.token_bytes = %u, or %u if that is right", likely,
                 corpus->id_bytes);
        return corpus_refuse(problem, corpus, remedy,
                             "seems to have %u-byte ids (the upper bytes are all zero), but "
                             "model.vocabulary = %u means %u-byte ids",
                             likely, corpus->vocabulary, corpus->id_bytes);
    }
    return HD_OK;
}

static hd_status corpus_read_numpy(struct hd_corpus *corpus,
                                   const struct hd_corpus_request *request,
                                   struct hd_problem *problem)
{
    struct hd_numpy header;
    char reason[HD_NUMPY_REASON_BYTES];

    if (!hd_numpy_read(corpus->bytes, corpus->byte_count, &header, reason)) {
        return corpus_refuse(problem, corpus, "save one flat array of ids with numpy.save", "%s",
                             reason);
    }
    if (request->token_bytes != 0 && request->token_bytes != header.item_bytes) {
        return corpus_refuse(problem, corpus, "remove data.token_bytes",
                             "has ids of %u bytes by its numpy header, but data.token_bytes is %u",
                             header.item_bytes, request->token_bytes);
    }
    const uint64_t data_bytes = corpus->byte_count - header.data_offset;
    if (data_bytes % header.item_bytes != 0 || data_bytes / header.item_bytes != header.count) {
        return corpus_refuse(problem, corpus, "the file is incomplete: save it again",
                             "has %llu bytes of data, but %llu ids of %u bytes by its numpy header",
                             (unsigned long long)data_bytes, (unsigned long long)header.count,
                             header.item_bytes);
    }
    corpus->ids = corpus->bytes + header.data_offset;
    corpus->id_count = header.count;
    corpus->id_bytes = header.item_bytes;
    corpus->is_signed = header.is_signed;
    return HD_OK;
}

/* The id at `position` in the file; one above INT64_MAX reads as INT64_MAX. */
static int64_t corpus_id_at(const struct hd_corpus *corpus, uint64_t position)
{
    const uint8_t *const at = corpus->ids + position * corpus->id_bytes;
    const uint32_t unused_bits = 64 - 8 * corpus->id_bytes;
    uint64_t bits = 0;

    for (uint32_t i = 0; i < corpus->id_bytes; i++) {
        bits |= (uint64_t)at[i] << (8 * i);
    }
    if (corpus->is_signed) {
        return (int64_t)(bits << unused_bits) >> unused_bits;
    }
    return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
}

/* True if the width of an id allows no value outside the vocabulary. */
static bool corpus_holds_every_id(const struct hd_corpus *corpus)
{
    return !corpus->is_signed && corpus->id_bytes < 4 &&
           corpus->vocabulary >= 1u << (8 * corpus->id_bytes);
}

static hd_status corpus_check_ids(const struct hd_corpus *corpus, struct hd_problem *problem)
{
    if (corpus_holds_every_id(corpus)) {
        return HD_OK;
    }
    for (uint64_t position = 0; position < corpus->id_count; position++) {
        const int64_t id = corpus_id_at(corpus, position);
        if (id >= 0 && id < corpus->vocabulary) {
            continue;
        }
        const uint64_t offset =
            (uint64_t)(corpus->ids - corpus->bytes) + position * corpus->id_bytes;
        return corpus_refuse(
            problem, corpus,
            corpus->is_text ? "a text needs model.vocabulary = 256"
                            : "set model.vocabulary to the tokenizer's, or "
                              "data.token_bytes to the width of an id in the file",
            "token %llu (at byte %llu) is %lld, but model.vocabulary is %u: ids are 0 "
            "to %u",
            (unsigned long long)position, (unsigned long long)offset, (long long)id,
            corpus->vocabulary, corpus->vocabulary - 1);
    }
    return HD_OK;
}

static hd_status corpus_count_samples(struct hd_corpus *corpus, uint64_t samples_per_step,
                                      struct hd_problem *problem)
{
    corpus->sample_count = (corpus->id_count - 1) / corpus->sequence;
    if (corpus->sample_count >= samples_per_step && corpus->sample_count > 0) {
        return HD_OK;
    }
    return corpus_refuse(
        problem, corpus,
        "use a longer corpus, or lower model.sequence, pipeline.microbatches or "
        "data.microbatch_size",
        "0 complete steps: a step needs %llu samples, and the %llu tokens are %llu "
        "samples of %u",
        (unsigned long long)samples_per_step, (unsigned long long)corpus->id_count,
        (unsigned long long)corpus->sample_count, corpus->sequence);
}

static hd_status corpus_open_file(struct hd_corpus *corpus, const struct hd_corpus_request *request,
                                  struct hd_problem *problem)
{
    hd_status status = corpus_map_file(corpus, problem);

    if (status != HD_OK) {
        return status;
    }
    const struct hd_foreign_file *foreign = hd_foreign_file(corpus->bytes, corpus->byte_count);
    if (foreign != NULL) {
        return corpus_refuse(problem, corpus, foreign->remedy, "is %s, not a text or token ids",
                             foreign->name);
    }
    if (corpus_format_of(corpus, request->format) == FORMAT_TEXT) {
        status = corpus_read_text(corpus, request, problem);
    } else if (hd_numpy_is(corpus->bytes, corpus->byte_count)) {
        status = corpus_read_numpy(corpus, request, problem);
    } else {
        status = corpus_read_raw(corpus, request, problem);
    }
    if (status == HD_OK && corpus->id_count == 0) {
        status =
            corpus_refuse(problem, corpus, "name a file with a text or token ids", "has no ids");
    }
    if (status == HD_OK) {
        status = corpus_check_ids(corpus, problem);
    }
    return status == HD_OK ? corpus_count_samples(corpus, request->samples_per_step, problem)
                           : status;
}

static hd_status corpus_open_grammar(struct hd_corpus *corpus,
                                     const struct hd_corpus_request *request,
                                     struct hd_problem *problem)
{
    if (request->format == FORMAT_TOKENS || request->token_bytes > 1) {
        return corpus_refuse(problem, corpus, "leave both out, or name a file of token ids",
                             "is a text, but data.format or data.token_bytes asks for token ids");
    }
    corpus->is_text = true;
    corpus->id_bytes = 1;
    corpus->sample_count = GRAMMAR_SAMPLE_COUNT;
    corpus->seed = request->seed;
    return HD_OK;
}

hd_status hd_corpus_open(const struct hd_corpus_request *request, struct hd_corpus **corpus,
                         struct hd_problem *problem)
{
    assert(request->vocabulary > 0 && request->vocabulary <= INT32_MAX && request->sequence > 0);
    assert(request->format <= FORMAT_TOKENS);
    assert(request->token_bytes <= 4 && request->token_bytes != 3);
    struct hd_corpus *const opened = calloc(1, sizeof *opened);
    char *const path = strdup(request->path);

    if (opened == NULL || path == NULL) {
        free(opened);
        free(path);
        return hd_problem_no_memory(problem, 0, "the corpus");
    }
    opened->path = path;
    opened->vocabulary = request->vocabulary;
    opened->sequence = request->sequence;
    const bool is_builtin = strcmp(path, "builtin") == 0;
    const hd_status status = is_builtin ? corpus_open_grammar(opened, request, problem)
                                        : corpus_open_file(opened, request, problem);
    if (status != HD_OK) {
        hd_corpus_close(opened);
        return status;
    }
    *corpus = opened;
    return HD_OK;
}

void hd_corpus_close(struct hd_corpus *corpus)
{
    if (corpus == NULL) {
        return;
    }
    if (corpus->bytes != NULL) {
        munmap((void *)(uintptr_t)corpus->bytes, corpus->byte_count);
    }
    free(corpus->path);
    free(corpus);
}

uint64_t hd_corpus_sample_count(const struct hd_corpus *corpus)
{
    return corpus->sample_count;
}

uint64_t hd_corpus_bytes(const struct hd_corpus *corpus)
{
    return corpus->byte_count;
}

const char *hd_corpus_path(const struct hd_corpus *corpus)
{
    return corpus->path;
}

void hd_corpus_sha256(const struct hd_corpus *corpus, char text[HD_HASH_TEXT_BYTES])
{
    struct hd_hash hash;
    uint8_t digest[HD_HASH_BYTES];
    char page[HD_GRAMMAR_PAGE_BYTES];

    hd_hash_begin(&hash);
    if (corpus->bytes != NULL) {
        hd_hash_add(&hash, corpus->bytes, corpus->byte_count);
    } else {
        for (uint64_t i = 0; i < HD_CORPUS_GRAMMAR_BYTES / sizeof page; i++) {
            hd_grammar_page(corpus->seed, i, page);
            hd_hash_add(&hash, page, sizeof page);
        }
    }
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, text);
}

/* Ids position .. position + count - 1 of the endless text. */
static void corpus_fill_grammar(const struct hd_corpus *corpus, uint64_t position, uint32_t count,
                                int32_t *out)
{
    char page[HD_GRAMMAR_PAGE_BYTES];

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = position + i;
        if (i == 0 || at % sizeof page == 0) {
            hd_grammar_page(corpus->seed, at / sizeof page, page);
        }
        out[i] = hd_grammar_id(page[at % sizeof page], corpus->vocabulary);
    }
}

void hd_corpus_ids(const struct hd_corpus *corpus, uint64_t position, uint32_t count, int32_t *out)
{
    if (out == NULL) {
        return;
    }
    if (corpus->bytes == NULL) {
        corpus_fill_grammar(corpus, position, count, out);
        return;
    }
    assert(position + count <= corpus->id_count);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = (int32_t)corpus_id_at(corpus, position + i);
    }
}

void hd_corpus_sample(const struct hd_corpus *corpus, uint64_t index, int32_t *tokens,
                      int32_t *targets)
{
    const uint64_t position = index % corpus->sample_count * corpus->sequence;

    hd_corpus_ids(corpus, position, corpus->sequence, tokens);
    hd_corpus_ids(corpus, position + 1, corpus->sequence, targets);
}

void hd_corpus_samples(const struct hd_corpus *corpus, struct hd_corpus_range range,
                       int32_t *tokens, int32_t *targets)
{
    for (uint32_t i = 0; i < range.sample_count; i++) {
        const uint64_t offset = (uint64_t)i * corpus->sequence;
        hd_corpus_sample(corpus, range.first + i, tokens != NULL ? tokens + offset : NULL,
                         targets != NULL ? targets + offset : NULL);
    }
}

bool hd_corpus_wraps(const struct hd_corpus *corpus, struct hd_corpus_range range)
{
    return range.sample_count > 0 && range.first + range.sample_count > corpus->sample_count;
}

const char *hd_corpus_format(const struct hd_corpus *corpus, char text[HD_CORPUS_FORMAT_BYTES])
{
    if (corpus->is_text) {
        snprintf(text, HD_CORPUS_FORMAT_BYTES, "text, one byte a token");
    } else {
        snprintf(text, HD_CORPUS_FORMAT_BYTES, "%s, %u byte%s a token",
                 corpus->ids == corpus->bytes ? "raw ids" : "numpy ids", corpus->id_bytes,
                 corpus->id_bytes == 1 ? "" : "s");
    }
    return text;
}

uint64_t hd_corpus_id_count(const struct hd_corpus *corpus)
{
    return corpus->bytes != NULL ? corpus->id_count : HD_CORPUS_GRAMMAR_BYTES;
}

bool hd_corpus_is_text(const struct hd_corpus *corpus)
{
    return corpus->is_text;
}

bool hd_corpus_is_endless(const struct hd_corpus *corpus)
{
    return corpus->bytes == NULL;
}
