#include "base/json.h"
#include "base/text.h"
#include <heddle_build.h>

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static cJSON *json_attach(cJSON *parent, const char *key, cJSON *item)
{
    assert(parent != NULL && item != NULL);
    const cJSON_bool is_added =
        key != NULL ? cJSON_AddItemToObject(parent, key, item) : cJSON_AddItemToArray(parent, item);
    assert(is_added);
    return item;
}

struct cJSON *hd_json_new(void)
{
    cJSON *root = cJSON_CreateObject();
    assert(root != NULL);
    return root;
}

struct cJSON *hd_json_begin(const char *command)
{
    cJSON *root = hd_json_new();
    hd_json_text(root, "heddle", HD_VERSION);
    hd_json_text(root, "command", command);
    return root;
}

void hd_json_free(struct cJSON *root)
{
    cJSON_Delete(root);
}

struct cJSON *hd_json_object(struct cJSON *parent, const char *key)
{
    return json_attach(parent, key, cJSON_CreateObject());
}

struct cJSON *hd_json_array(struct cJSON *parent, const char *key)
{
    return json_attach(parent, key, cJSON_CreateArray());
}

void hd_json_null(struct cJSON *parent, const char *key)
{
    json_attach(parent, key, cJSON_CreateNull());
}

void hd_json_flag(struct cJSON *parent, const char *key, bool value)
{
    json_attach(parent, key, cJSON_CreateBool(value));
}

/* Copies text; each byte that is not UTF-8 becomes U+FFFD. */
static char *json_clean_copy(const char *value)
{
    static const char replacement[] = "\xef\xbf\xbd";
    uint64_t left = strlen(value);
    char *copy = malloc(3 * left + 1);
    char *out = copy;

    assert(copy != NULL);
    while (left > 0) {
        const uint64_t good = hd_text_utf8_bytes(value, left);
        memcpy(out, value, good);
        out += good;
        value += good;
        left -= good;
        if (left > 0) {
            memcpy(out, replacement, 3);
            out += 3;
            value++;
            left--;
        }
    }
    *out = '\0';
    return copy;
}

void hd_json_text(struct cJSON *parent, const char *key, const char *value)
{
    if (value == NULL) {
        hd_json_null(parent, key);
        return;
    }
    char *copy = json_clean_copy(value);
    json_attach(parent, key, cJSON_CreateString(copy));
    free(copy);
}

void hd_json_number(struct cJSON *parent, const char *key, double value)
{
    char text[HD_NUMBER_TEXT_BYTES];

    if (!isfinite(value)) {
        hd_json_null(parent, key);
        return;
    }
    hd_text_from_number(value, text);
    json_attach(parent, key, cJSON_CreateRaw(text));
}

void hd_json_u64(struct cJSON *parent, const char *key, uint64_t value)
{
    char text[HD_NUMBER_TEXT_BYTES];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    json_attach(parent, key, cJSON_CreateRaw(text));
}

void hd_json_i64(struct cJSON *parent, const char *key, int64_t value)
{
    char text[HD_NUMBER_TEXT_BYTES];
    snprintf(text, sizeof text, "%lld", (long long)value);
    json_attach(parent, key, cJSON_CreateRaw(text));
}

void hd_json_hash(struct cJSON *parent, const char *key, const uint8_t digest[HD_HASH_BYTES])
{
    char text[HD_HASH_TEXT_BYTES];
    hd_hash_text(digest, text);
    hd_json_text(parent, key, text);
}

static void json_text_or_null(cJSON *parent, const char *key, const char *value)
{
    hd_json_text(parent, key, value[0] != '\0' ? value : NULL);
}

void hd_json_problem(struct cJSON *parent, const struct hd_problem *problem)
{
    cJSON *error = hd_json_object(parent, "error");

    hd_json_i64(error, "code", problem->exit_code);
    json_text_or_null(error, "place", problem->place);
    json_text_or_null(error, "key", problem->key);
    json_text_or_null(error, "message", problem->message);
    json_text_or_null(error, "remedy", problem->remedy);
    if (problem->law != 0) {
        hd_json_u64(error, "law", problem->law);
    } else {
        hd_json_null(error, "law");
    }
    json_text_or_null(error, "cycle", problem->cycle);
}

static void json_print_text(const char *text, FILE *stream)
{
    static const char plain[] = "\"\\\n\r\t";
    static const char letters[] = "\"\\nrt";

    fputc('"', stream);
    for (; *text != '\0'; text++) {
        const char *special = strchr(plain, *text);
        if (special != NULL) {
            fprintf(stream, "\\%c", letters[special - plain]);
        } else if ((unsigned char)*text < ' ' || *text == 0x7f) {
            fprintf(stream, "\\u%04x", (unsigned)*text);
        } else {
            fputc(*text, stream);
        }
    }
    fputc('"', stream);
}

/* Recursive; the trees that heddle builds have a few levels. */
static void json_print_item(const cJSON *item, FILE *stream)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        const bool is_object = cJSON_IsObject(item);
        fputc(is_object ? '{' : '[', stream);
        for (const cJSON *child = item->child; child != NULL; child = child->next) {
            if (is_object) {
                json_print_text(child->string, stream);
                fputs(": ", stream);
            }
            json_print_item(child, stream);
            fputs(child->next != NULL ? ", " : "", stream);
        }
        fputc(is_object ? '}' : ']', stream);
    } else if (cJSON_IsString(item)) {
        json_print_text(item->valuestring, stream);
    } else if (cJSON_IsRaw(item)) {
        fputs(item->valuestring, stream);
    } else {
        fputs(cJSON_IsTrue(item) ? "true" : cJSON_IsFalse(item) ? "false" : "null", stream);
    }
}

hd_status hd_json_print(const struct cJSON *root, FILE *stream)
{
    json_print_item(root, stream);
    fputc('\n', stream);
    return ferror(stream) ? HD_SYSTEM : HD_OK;
}
