/*
 * config/internal.h - what the files of core/config share: the table of keys, and the words of one
 * file and command line.  Not for anybody else. [setup]
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

/* How a key's text becomes the member at `offset`.  A word of the range ("auto", "none") that is no
   number means 0, an empty list, NaN for HD_KEY_NUMBER and -1 for HD_KEY_STEPS. */
enum hd_key_type {
    HD_KEY_COUNT,   /* uint32_t */
    HD_KEY_SEED,    /* uint64_t */
    HD_KEY_STEPS,   /* int64_t */
    HD_KEY_NUMBER,  /* double */
    HD_KEY_FLAG,    /* uint32_t, 0 or 1 */
    HD_KEY_CHOICE,  /* uint32_t, the place of the word in the range */
    HD_KEY_TEXT,    /* char[HD_CONFIG_TEXT_MAX]; the range is only shown */
    HD_KEY_PATH,    /* the same; the word auto means empty */
    HD_KEY_COUNTS,  /* struct hd_config_counts */
    HD_KEY_NUMBERS, /* struct hd_config_numbers */
};

struct hd_key {
    const char *section, *name;
    const char *initial; /* the default, as it would stand in the file */
    const char *range;   /* base/option.h; shown, and checked */
    const char *help;
    uint32_t type;
    size_t offset;      /* into struct hd_config */
    const char *served; /* the part of the range that is built; NULL: all of it */
};

extern const struct hd_key hd_keys[];
extern const uint32_t hd_key_count;

const struct hd_key *hd_key_find(const char *section, const char *name); /* NULL: there is none */

/* Is this a section of the table, or [kind.name]?  Else fills the problem, but for its place. */
hd_status hd_section_check(const char *section, struct hd_problem *problem);
/* Fills the problem for a key that the section lacks, but for its place. */
hd_status hd_key_unknown(const char *section, const char *name, struct hd_problem *problem);

/* Reads `text` into the key's member of `config` (which frees a list that was there). */
hd_status hd_key_read(const struct hd_key *key, const char *text, struct hd_config *config,
                      struct hd_problem *problem);
/* Do both hold the same value of this key? */
int hd_key_equal(const struct hd_key *key, const struct hd_config *left,
                 const struct hd_config *right);
/* Frees what hd_key_read has taken. */
void hd_key_free(const struct hd_key *key, struct hd_config *config);

/* Adds the words of the file, or one override, to config->entries. */
hd_status hd_entries_read(struct hd_config *config, const char *file, struct hd_problem *problem);
hd_status hd_entries_override(struct hd_config *config, const char *word,
                              struct hd_problem *problem);
struct hd_config_entry *hd_entry_find(const struct hd_config *config, const char *section,
                                      const char *key);

/* What one key asks of another. */
hd_status hd_config_cross_check(const struct hd_config *config, struct hd_problem *problem);

#endif /* HEDDLE_CONFIG_INTERNAL_H */
