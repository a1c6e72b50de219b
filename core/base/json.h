/*
 * base/json.h - the one object that --json prints, and the objects of files.
 *
 * A thin layer over cJSON's tree, because cJSON writes doubles with 15 digits when it finds that
 * close enough, integers as doubles, and text that is not UTF-8 as it stands.  Here a double reads
 * back to the same bits, what is not finite is null, an integer is exact, and bytes that are not
 * UTF-8 become U+FFFD.  Members stand in the order of the calls.  `key` NULL appends to an
 * array.  Out of memory asserts.  [any-thread] as far as nobody else holds the tree.
 *
 *   struct cJSON *root = hd_json_begin("plan");      {"heddle": "0.1.0", "command": "plan"
 *   struct cJSON *list = hd_json_array(root, "copies");
 *   hd_json_u64(list, NULL, 11);                     , "copies": [11]}
 *   hd_json_print(root, stdout);
 *   hd_json_free(root);
 */
#ifndef HEDDLE_BASE_JSON_H
#define HEDDLE_BASE_JSON_H

#include "base/hash.h"
#include "base/problem.h"

#include <stdint.h>
#include <stdio.h>

struct cJSON;

struct cJSON *hd_json_begin(const char *command); /* with version and command */
struct cJSON *hd_json_new(void);                  /* an empty object, for a file */
void hd_json_free(struct cJSON *root);            /* takes NULL */

struct cJSON *hd_json_object(struct cJSON *parent, const char *key);
struct cJSON *hd_json_array(struct cJSON *parent, const char *key);
void hd_json_text(struct cJSON *parent, const char *key, const char *value); /* NULL: null */
void hd_json_number(struct cJSON *parent, const char *key, double value);
void hd_json_u64(struct cJSON *parent, const char *key, uint64_t value);
void hd_json_i64(struct cJSON *parent, const char *key, int64_t value);
void hd_json_flag(struct cJSON *parent, const char *key, int value);
void hd_json_null(struct cJSON *parent, const char *key);
void hd_json_hash(struct cJSON *parent, const char *key, const uint8_t digest[HD_HASH_BYTES]);

/* "error": {code, place, key, message, remedy, law, cycle}; what is empty or 0 is null. */
void hd_json_problem(struct cJSON *parent, const struct hd_problem *problem);

/* One line and a newline, `{"heddle": "0.1.0", ...}`.  HD_SYSTEM when the stream fails. */
hd_status hd_json_print(const struct cJSON *root, FILE *stream);

#endif /* HEDDLE_BASE_JSON_H */
