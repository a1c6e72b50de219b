#include "train/checkpoint_state.h"
#include "base/json.h"
#include "base/text.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1 };

const char *const hd_checkpoint_files[HD_CHECKPOINT_FILE_COUNT] = {"model.safetensors",
                                                                   "optimizer.safetensors"};

static const char checkpoint_state_head[] = "{\"state\": ";
static const char checkpoint_state_middle[] = ", \"sha256\": \"";
static const char checkpoint_state_tail[] = "\"}\n";

/* The members of struct hd_checkpoint_model, in the words of the ini file. */
static const struct {
    const char *name;
    size_t offset;
    bool is_number; /* a double; otherwise a uint32_t */
} checkpoint_state_model_rows[] = {
    {"layers", offsetof(struct hd_checkpoint_model, layers), 0},
    {"width", offsetof(struct hd_checkpoint_model, width), 0},
    {"heads", offsetof(struct hd_checkpoint_model, heads), 0},
    {"key_value_heads", offsetof(struct hd_checkpoint_model, key_value_heads), 0},
    {"experts", offsetof(struct hd_checkpoint_model, experts), 0},
    {"experts_per_token", offsetof(struct hd_checkpoint_model, experts_per_token), 0},
    {"expert_width", offsetof(struct hd_checkpoint_model, expert_width), 0},
    {"vocabulary", offsetof(struct hd_checkpoint_model, vocabulary), 0},
    {"sequence", offsetof(struct hd_checkpoint_model, sequence), 0},
    {"normalize_gates", offsetof(struct hd_checkpoint_model, normalize_gates), 0},
    {"rope_theta", offsetof(struct hd_checkpoint_model, rope_theta), 1},
    {"norm_epsilon", offsetof(struct hd_checkpoint_model, norm_epsilon), 1},
};
enum {
    MODEL_ROW_COUNT = sizeof checkpoint_state_model_rows / sizeof checkpoint_state_model_rows[0]
};

static double checkpoint_state_model_value(const struct hd_checkpoint_model *model, unsigned row)
{
    const unsigned char *const member =
        (const unsigned char *)model + checkpoint_state_model_rows[row].offset;
    uint32_t count;
    double number;

    if (checkpoint_state_model_rows[row].is_number) {
        memcpy(&number, member, sizeof number);
        return number;
    }
    memcpy(&count, member, sizeof count);
    return count;
}

const char *hd_checkpoint_differs(const struct hd_checkpoint_model *ours,
                                  const struct hd_checkpoint_model *theirs, char text[2][32])
{
    for (unsigned row = 0; row < MODEL_ROW_COUNT; row++) {
        const double mine = checkpoint_state_model_value(ours, row),
                     other = checkpoint_state_model_value(theirs, row);
        if (mine != other) {
            hd_text_from_number(mine, text[0]);
            hd_text_from_number(other, text[1]);
            return checkpoint_state_model_rows[row].name;
        }
    }
    return NULL;
}

static struct cJSON *checkpoint_state_tree_of(const struct hd_checkpoint_state *state)
{
    struct cJSON *const root = hd_json_new();
    char seed[24];

    hd_json_u64(root, "version", VERSION);
    hd_json_u64(root, "step", state->step);
    hd_json_u64(root, "samples", state->samples);
    hd_json_u64(root, "skipped", state->skipped);
    hd_json_u64(root, "skipped_in_row", state->skipped_in_row);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)state->seed);
    hd_json_text(root, "seed", seed); /* as text: many readers of JSON keep 53 bits of a number */
    hd_json_number(root, "learning_rate", state->learning_rate);
    struct cJSON *const model = hd_json_object(root, "model");
    for (unsigned row = 0; row < MODEL_ROW_COUNT; row++) {
        hd_json_number(model, checkpoint_state_model_rows[row].name,
                       checkpoint_state_model_value(&state->model, row));
    }
    struct cJSON *const corpus = hd_json_object(root, "corpus");
    hd_json_text(corpus, "path", state->corpus);
    hd_json_text(corpus, "sha256", state->corpus_sha256);
    struct cJSON *const files = hd_json_object(root, "files");
    for (uint32_t i = 0; i < HD_CHECKPOINT_FILE_COUNT; i++) {
        struct cJSON *const file = hd_json_object(files, hd_checkpoint_files[i]);
        hd_json_u64(file, "bytes", state->file_bytes[i]);
        hd_json_text(file, "header_sha256", state->header_sha256[i]);
    }
    return root;
}

static void checkpoint_state_digest_text(const char *text, uint64_t bytes,
                                         char out[HD_HASH_TEXT_BYTES])
{
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, text, bytes);
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, out);
}

char *hd_checkpoint_state_text(const struct hd_checkpoint_state *state)
{
    struct cJSON *const root = checkpoint_state_tree_of(state);
    char digest[HD_HASH_TEXT_BYTES], *inner = NULL, *whole = NULL;
    size_t bytes = 0;
    FILE *const stream = open_memstream(&inner, &bytes);

    assert(stream != NULL);
    hd_json_print(root, stream);
    const int failed = fclose(stream);
    assert(failed == 0 && bytes > 1 && bytes < HD_CHECKPOINT_STATE_BYTES_MAX / 2);
    hd_json_free(root);
    inner[bytes - 1] = '\0'; /* without its newline */
    checkpoint_state_digest_text(inner, bytes - 1, digest);
    const int length = asprintf(&whole, "%s%s%s%s%s", checkpoint_state_head, inner,
                                checkpoint_state_middle, digest, checkpoint_state_tail);
    assert(length > 0);
    free(inner);
    return whole;
}

/* --- reading ---------------------------------------------------------------------------------- */

static hd_status checkpoint_state_damaged(struct hd_problem *problem, const char *what)
{
    hd_problem_remedy(problem, "use another checkpoint, and do not edit this file");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "was damaged: %s", what);
}

/* Checks the digest and parses the inner object; owned. */
static hd_status checkpoint_state_unwrap(char *text, uint64_t bytes, cJSON **root,
                                         struct hd_problem *problem)
{
    const uint64_t around = sizeof checkpoint_state_head - 1 + sizeof checkpoint_state_middle - 1 +
                            HD_HASH_TEXT_BYTES - 1 + sizeof checkpoint_state_tail - 1;
    char digest[HD_HASH_TEXT_BYTES];

    if (bytes <= around || strlen(text) != bytes ||
        memcmp(text, checkpoint_state_head, sizeof checkpoint_state_head - 1) != 0) {
        return checkpoint_state_damaged(problem,
                                        "its beginning or its end is not what heddle writes");
    }
    char *const inner = text + sizeof checkpoint_state_head - 1;
    const uint64_t inner_bytes = bytes - around;
    char *const end = inner + inner_bytes;
    const char *const hex = end + sizeof checkpoint_state_middle - 1;
    checkpoint_state_digest_text(inner, inner_bytes, digest);
    if (memcmp(end, checkpoint_state_middle, sizeof checkpoint_state_middle - 1) != 0 ||
        memcmp(hex, digest, HD_HASH_TEXT_BYTES - 1) != 0 ||
        strcmp(hex + HD_HASH_TEXT_BYTES - 1, checkpoint_state_tail) != 0) {
        return checkpoint_state_damaged(problem, "its SHA-256 is not that of its text");
    }
    *end = '\0';
    *root = cJSON_Parse(inner);
    return *root != NULL ? HD_OK : checkpoint_state_damaged(problem, "it is not JSON");
}

struct reader {
    const char *missing; /* the first member that is not there or not valid; NULL if all are */
};

/* A whole number from 0 to `max`. */
static uint64_t checkpoint_state_whole_of(struct reader *reader, const cJSON *object,
                                          const char *name, double max)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= max) ||
        item->valuedouble != floor(item->valuedouble)) {
        reader->missing = reader->missing != NULL ? reader->missing : name;
        return 0;
    }
    return (uint64_t)item->valuedouble;
}

static uint32_t checkpoint_state_count_of(struct reader *reader, const cJSON *object,
                                          const char *name)
{
    return (uint32_t)checkpoint_state_whole_of(reader, object, name, UINT32_MAX);
}

static double checkpoint_state_number_of(struct reader *reader, const cJSON *object,
                                         const char *name)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item)) {
        reader->missing = reader->missing != NULL ? reader->missing : name;
        return 0;
    }
    return item->valuedouble;
}

static void checkpoint_state_text_of(struct reader *reader, const cJSON *object, const char *name,
                                     char *text, size_t capacity)
{
    const cJSON *const item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsString(item) || strlen(item->valuestring) >= capacity) {
        reader->missing = reader->missing != NULL ? reader->missing : name;
        return;
    }
    snprintf(text, capacity, "%s", item->valuestring);
}

static void checkpoint_state_read_model(struct reader *reader, const cJSON *object,
                                        struct hd_checkpoint_model *model)
{
    for (unsigned row = 0; row < MODEL_ROW_COUNT; row++) {
        unsigned char *const member =
            (unsigned char *)model + checkpoint_state_model_rows[row].offset;
        if (checkpoint_state_model_rows[row].is_number) {
            const double number =
                checkpoint_state_number_of(reader, object, checkpoint_state_model_rows[row].name);
            memcpy(member, &number, sizeof number);
        } else {
            const uint32_t count =
                checkpoint_state_count_of(reader, object, checkpoint_state_model_rows[row].name);
            memcpy(member, &count, sizeof count);
        }
    }
}

static void checkpoint_state_read_tree(struct reader *reader, const cJSON *root,
                                       struct hd_checkpoint_state *state)
{
    const double exact_max = 9007199254740992.0; /* 2^53 */
    char seed[24] = "";

    state->step = checkpoint_state_count_of(reader, root, "step");
    state->samples = checkpoint_state_whole_of(reader, root, "samples", exact_max);
    state->skipped = checkpoint_state_count_of(reader, root, "skipped");
    state->skipped_in_row = checkpoint_state_count_of(reader, root, "skipped_in_row");
    state->learning_rate = checkpoint_state_number_of(reader, root, "learning_rate");
    checkpoint_state_text_of(reader, root, "seed", seed, sizeof seed);
    if (!hd_text_to_unsigned(seed, &state->seed)) {
        reader->missing = "seed";
    }
    checkpoint_state_read_model(reader, cJSON_GetObjectItemCaseSensitive(root, "model"),
                                &state->model);
    const cJSON *const corpus = cJSON_GetObjectItemCaseSensitive(root, "corpus");
    checkpoint_state_text_of(reader, corpus, "path", state->corpus, sizeof state->corpus);
    checkpoint_state_text_of(reader, corpus, "sha256", state->corpus_sha256,
                             sizeof state->corpus_sha256);
    const cJSON *const files = cJSON_GetObjectItemCaseSensitive(root, "files");
    for (uint32_t i = 0; i < HD_CHECKPOINT_FILE_COUNT; i++) {
        const cJSON *const file = cJSON_GetObjectItemCaseSensitive(files, hd_checkpoint_files[i]);
        state->file_bytes[i] = checkpoint_state_whole_of(reader, file, "bytes", exact_max);
        checkpoint_state_text_of(reader, file, "header_sha256", state->header_sha256[i],
                                 HD_HASH_TEXT_BYTES);
    }
}

hd_status hd_checkpoint_state_parse(char *text, uint64_t bytes, struct hd_checkpoint_state *state,
                                    struct hd_problem *problem)
{
    struct reader reader = {NULL};
    cJSON *root = NULL;
    hd_status status = checkpoint_state_unwrap(text, bytes, &root, problem);

    if (status != HD_OK) {
        return status;
    }
    const uint32_t version = checkpoint_state_count_of(&reader, root, "version");
    if (version == VERSION) {
        checkpoint_state_read_tree(&reader, root, state);
    }
    if (version != VERSION) {
        status =
            hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                           "has version %u, but this heddle reads version %d", version, VERSION);
    } else if (reader.missing != NULL) {
        hd_problem_key(problem, "%s", reader.missing);
        status = checkpoint_state_damaged(problem, "the member is missing or not valid");
    }
    cJSON_Delete(root);
    return status;
}
