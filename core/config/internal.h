/*
 * config/internal.h - what the files of core/config share: the table of keys, and the entries of
 * one file and command line.  Of other folders only output/config_write.c, which prints the table,
 * and tests include it. [setup]
 */
#ifndef HEDDLE_CONFIG_INTERNAL_H
#define HEDDLE_CONFIG_INTERNAL_H

#include "base/option.h"
#include "config/config.h"

#include <stddef.h>

#define HD_LINE_BYTES_MAX  4095u      /* of an ini line, without its end */
#define HD_FILE_BYTES_MAX  (1u << 20) /* of an ini file */
#define HD_SECTION_BYTES   64u        /* "transport." and a name of 48, and more */
#define HD_ENTRY_COUNT_MAX 4096u      /* keys and plugin sections of one configuration */

/* The type of the member at `offset`.  A word of the range beside numbers ("auto", "none") is
   stored as 0, an empty list, NaN for HD_KEY_NUMBER and -1 for HD_KEY_STEPS. */
enum hd_key_type {
    HD_KEY_COUNT,   /* uint32_t */
    HD_KEY_SEED,    /* uint64_t */
    HD_KEY_STEPS,   /* int64_t */
    HD_KEY_NUMBER,  /* double */
    HD_KEY_FLAG,    /* uint32_t, 0 or 1 */
    HD_KEY_CHOICE,  /* uint32_t, the index of the word in the range */
    HD_KEY_TEXT,    /* char[HD_CONFIG_TEXT_MAX]; the range is shown, not checked */
    HD_KEY_PATH,    /* the same; the word auto is stored as an empty text */
    HD_KEY_COUNTS,  /* struct hd_config_counts */
    HD_KEY_NUMBERS, /* struct hd_config_numbers */
};

struct hd_key {
    const char *section, *name;
    const char *initial; /* the default, as it would be written in the file */
    const char *range;   /* base/option.h; shown, and checked */
    const char *help;
    uint32_t type;
    size_t offset;      /* of the member in struct hd_config */
    const char *served; /* the part of the range that is implemented; NULL: all of it */
};

extern const struct hd_key hd_keys[];
extern const uint32_t hd_key_count;

const struct hd_key *hd_key_find(const char *section, const char *name); /* NULL: none */

/* HD_OK for a section of the table or [kind.name]; else fills the problem, except its place. */
hd_status hd_section_check(const char *section, struct hd_problem *problem);
/* Fills the problem for a key that the section does not have, except its place. */
hd_status hd_key_unknown(const char *section, const char *name, struct hd_problem *problem);

/* Reads `text` into the key's member of `config`; frees a list that was there before. */
hd_status hd_key_read(const struct hd_key *key, const char *text, struct hd_config *config,
                      struct hd_problem *problem);
/* Whether both hold the same value of this key. */
bool hd_key_equal(const struct hd_key *key, const struct hd_config *left,
                  const struct hd_config *right);
/* Frees a list that hd_key_read has allocated. */
void hd_key_free(const struct hd_key *key, struct hd_config *config);

/* Adds the entries of the file, or one override, to config->entries. */
hd_status hd_entries_read(struct hd_config *config, const char *file, struct hd_problem *problem);
hd_status hd_entries_override(struct hd_config *config, const char *word,
                              struct hd_problem *problem);
struct hd_config_entry *hd_entry_find(const struct hd_config *config, const char *section,
                                      const char *key);

/* Checks the rules between keys. */
hd_status hd_config_cross_check(const struct hd_config *config, struct hd_problem *problem);

#endif /* HEDDLE_CONFIG_INTERNAL_H */
