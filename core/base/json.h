/*
 * base/json.h - the object that --json prints, and the objects in files.
 *
 * A layer over the tree of cJSON, which writes doubles with 15 digits if it takes that for close
 * enough, integers as doubles, and invalid UTF-8 unchanged.  Here a double reads back to the same
 * bits, a value that is not finite becomes null, integers are exact, and bytes that are not UTF-8
 * become U+FFFD.  Members are in the order of the calls.  `key` NULL appends to an array.  A failed
 * allocation asserts.  [any-thread] one thread for each tree.
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

#include <stdbool.h>
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
void hd_json_flag(struct cJSON *parent, const char *key, bool value);
void hd_json_null(struct cJSON *parent, const char *key);
void hd_json_hash(struct cJSON *parent, const char *key, const uint8_t digest[HD_HASH_BYTES]);

/* "error": {code, place, key, message, remedy, law, cycle}; empty texts and law 0 become null. */
void hd_json_problem(struct cJSON *parent, const struct hd_problem *problem);

/* Prints one line, `{"heddle": "0.1.0", ...}`.  HD_SYSTEM: writing to the stream failed. */
hd_status hd_json_print(const struct cJSON *root, FILE *stream);

#endif /* HEDDLE_BASE_JSON_H */
