/*
 * config/config.h - one ini file and a few overrides, as one typed struct.
 *
 * docs/interface.md, "The ini file", is the contract; the table in config_keys.c holds one row a
 * key (section, name, default, range, help, where it goes), and everything is made from it: the
 * parser, `heddle config`, the nearest known name of an error message.  A key that a later issue
 * builds has a row too, with the values that are served today; any other value of it is refused
 * with a sentence ("not built yet").  None is silently ignored.
 *
 * Errors are one struct hd_problem with place ("conf/x.ini:12", "command line"), key
 * ("pipeline.microbatches"), reason and remedy; exit code HD_EXIT_USAGE. [setup]
 */
#ifndef HEDDLE_CONFIG_CONFIG_H
#define HEDDLE_CONFIG_CONFIG_H

#include "base/problem.h"

#include <stdint.h>
#include <stdio.h>

#define HD_CONFIG_TEXT_MAX 1024u  /* bytes of a text value, with the final zero */
#define HD_CONFIG_LIST_MAX 32768u /* entries of a list */

/* A list of numbers: `auto` or none (count 0), one number for all (count 1), or one each. */
struct hd_config_numbers {
    uint32_t count;
    double *values; /* owned by the config; NULL when count is 0 */
};
struct hd_config_counts {
    uint32_t count;
    uint32_t *values; /* owned by the config; NULL when count is 0 */
};

enum hd_config_precision { HD_CONFIG_BF16 = 0, HD_CONFIG_MXFP8 = 1, HD_CONFIG_F32 = 2 };
enum hd_config_recompute { HD_CONFIG_NONE = 0, HD_CONFIG_FULL = 1, HD_CONFIG_EXPERTS = 2 };
enum { HD_CONFIG_UNPROVEN_ORDER = 4 }; /* debug.fault: law 7 is not asked */
enum hd_config_format { HD_CONFIG_AUTO = 0, HD_CONFIG_TEXT = 1, HD_CONFIG_TOKENS = 2 };

/* One word of the file: kept for the plugins' sections, whose tables are known only later, and for
   the origin column of `heddle config`. */
struct hd_config_entry {
    char section[64]; /* "schedule.1f1b_v", "pipeline" */
    char key[64];
    char *value;      /* owned */
    char place[512];  /* "conf/x.ini:12", "command line" */
    uint32_t is_used; /* a plugin asked for it */
};

struct hd_config {
    struct {
        char schedule[HD_CONFIG_TEXT_MAX]; /* a name, FILE.so or FILE.csv */
        uint32_t ranks;
        uint32_t stages_per_rank; /* 0: auto, as the schedule says */
        uint32_t microbatches;
        uint32_t overlap;
        struct hd_config_counts transfer_slots; /* auto; N; by boundary, forward, then backward */
        struct hd_config_counts payload_slots;  /* auto; N; by stage */
    } pipeline;
    struct {
        char name[HD_CONFIG_TEXT_MAX];
        char inner[HD_CONFIG_TEXT_MAX]; /* "none" */
        double timeout_s, first_step_timeout_s;
        uint32_t progress_thread;
        uint32_t issue_order; /* enum hd_issue_order, by value: canonical | grouped | program */
    } transport;
    struct {
        char name[HD_CONFIG_TEXT_MAX];
        uint32_t precision, recompute; /* enum hd_config_precision, hd_config_recompute */
        uint32_t scale_rule;           /* 0 up, 1 floor */
    } kernels;
    struct {
        uint32_t layers; /* 0: auto, 8 or one a stage */
        uint32_t width, heads, key_value_heads /* 0: as heads */, experts, experts_per_token;
        uint32_t expert_width, vocabulary, sequence;
        double rope_theta, norm_epsilon;
        uint32_t normalize_gates;
        double balance_loss, z_loss, initial_deviation;
        uint32_t half_batches;
        struct hd_config_counts split; /* auto, or the layers of each stage */
    } model;
    struct {
        char corpus[HD_CONFIG_TEXT_MAX]; /* "builtin" or a path */
        uint32_t format;                 /* enum hd_config_format */
        uint32_t token_bytes;            /* 0: auto; 1, 2, 4 */
        uint32_t microbatch_size;
    } data;
    struct {
        uint32_t steps;
        double learning_rate;
        uint32_t warmup_steps;
        uint32_t cosine; /* decay = none | cosine */
        double final_rate, weight_decay, beta1, beta2, epsilon, clip_norm;
        uint32_t skip_max;
        uint64_t seed;
    } train;
    struct {
        struct hd_config_numbers forward, backward, input_gradient, weight_gradient; /* [stages] */
        struct hd_config_numbers transfer; /* [boundaries] */
        uint32_t mode; /* enum hd_transfer_mode, by value: overlapped | blocking | serial */
        double tick_us;
        char from[HD_CONFIG_TEXT_MAX]; /* "none" or a run directory */
    } cost;
    struct {
        double budget_gb, copy_gb, state_gb; /* 1e9 bytes; NaN: none, or from the kernels */
    } memory;
    struct {
        char directory[HD_CONFIG_TEXT_MAX]; /* empty: runs/NAME-YYYYMMDD-HHMMSS */
        uint32_t trace, trace_steps;
        int64_t checkpoint_every; /* -1: never; 0: at the end and on a signal */
    } output;
    struct {
        uint32_t poison, checksum;
        uint32_t fault; /* enum hd_lease_fault, or HD_CONFIG_UNPROVEN_ORDER */
    } debug;
    struct {
        uint32_t data, expert;
    } grid;
    struct {
        char sizes[HD_CONFIG_TEXT_MAX];
        uint32_t iterations, warmup, window; /* 0: auto, auto, depth */
        uint32_t both;                       /* direction = one | both */
        char against[HD_CONFIG_TEXT_MAX];
    } bench;

    char file[HD_CONFIG_TEXT_MAX]; /* the ini, or empty */
    char name[128];                /* its stem, or "heddle": NAME of runs/NAME-... */
    uint32_t entry_count;
    struct hd_config_entry *entries; /* owned; every word of file and command line, the last wins */
};

/*
 * Fills `config` with defaults, then `file` (NULL: none), then `overrides`, words of the form
 * section.key=value.  Checks types, ranges, and what one key asks of another (width divisible by
 * heads, an even head width, experts_per_token <= experts, ...).  On failure `config` is
 * finished already.
 */
hd_status hd_config_load(struct hd_config *config, const char *file, uint32_t override_count,
                         const char *const *overrides, struct hd_problem *problem);
/* One word section.key=value by itself: its section, its key, and the value's type and range. */
hd_status hd_config_check_word(const char *word, struct hd_problem *problem);
void hd_config_finish(struct hd_config *config); /* frees what the config owns */

/*
 * The options of one plugin, section [kind.name], checked against its own table: fills
 * values[option_count] in the order of the table; text is borrowed from the config or the table.
 * A bad default in the table is the plugin's fault: HD_EXIT_PLUGIN.
 */
hd_status hd_config_options(struct hd_config *config, const struct hd_plugin *plugin,
                            struct hd_option_value *values, struct hd_problem *problem);

/* After all plugins have been asked: a section [kind.name] of a plugin that is not in use is fine
   if `is_known(context, kind, name)` says that such a plugin exists; else it is an error. */
hd_status hd_config_check_sections(struct hd_config *config,
                                   int (*is_known)(void *context, const char *kind,
                                                   const char *name),
                                   void *context, struct hd_problem *problem);

/* "schedule" for HD_KIND_SCHEDULE, and so on; static. */
const char *hd_config_kind_name(uint32_t kind);

/*
 * Writes the effective configuration as a valid ini: every key with value, help, range and origin
 * ("; default", "; conf/x.ini:12"); only_changed: only what is not the default.  `plugins` adds
 * their sections; those of plugins that nobody asked hd_config_options for stand as they were
 * given.  0, or a negative status when `stream` fails.
 */
hd_status hd_config_write(const struct hd_config *config, FILE *stream, uint32_t only_changed,
                          uint32_t plugin_count, const struct hd_plugin *const *plugins);

/* Is pipeline.schedule the name of a file, and not of a plugin? */
int hd_config_is_csv(const struct hd_config *config);

/* Where a key was set, for errors found later ("conf/x.ini:12", "command line", "default"). */
const char *hd_config_place(const struct hd_config *config, const char *section, const char *key);
/* Gives `problem` the place and the name of a key. */
void hd_config_blame(const struct hd_config *config, const char *section, const char *key,
                     struct hd_problem *problem);

/* Walks the table for --json: calls back once a key with its effective value as text. */
void hd_config_each(const struct hd_config *config,
                    void (*visit)(void *context, const char *section, const char *key,
                                  const char *value, const char *origin),
                    void *context);

/* 1: the key's value is not its default, however it is written. */
int hd_config_is_changed(const struct hd_config *config, const char *section, const char *key);
/* The effective text of a plugin's option `index`; borrowed from the config or the table. */
const char *hd_config_option_text(const struct hd_config *config, const struct hd_plugin *plugin,
                                  uint32_t index);

#endif /* HEDDLE_CONFIG_CONFIG_H */
