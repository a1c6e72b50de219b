/*
 * config/config.h - one ini file and a few overrides, as one typed struct.
 *
 * docs/interface.md, "The ini file", describes the format.  The table in config_keys.c has one row
 * for each key (name, type, default, range, help), and everything is made from it: the parser,
 * `heddle config`, the nearest known name in an error message.  To add a key, add one row there and
 * one member of the same name to struct hd_config here.
 *
 * A key whose values are only partly implemented rejects the others with an error ("not built
 * yet"); no key is silently ignored.  Errors are one struct hd_problem with place ("conf/x.ini:12",
 * "command line"), key ("pipeline.microbatches"), reason and remedy; exit code HD_EXIT_USAGE.
 * [setup]
 */
#ifndef HEDDLE_CONFIG_CONFIG_H
#define HEDDLE_CONFIG_CONFIG_H

#include "base/problem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define HD_CONFIG_TEXT_MAX 1024u  /* bytes of a text value, with the final zero */
#define HD_CONFIG_LIST_MAX 32768u /* entries of a list */

/* A list of numbers: empty for `auto` or `none`, one number for all, or one number for each. */
struct hd_config_numbers {
    uint32_t count;
    double *values; /* owned by the config; NULL when count is 0 */
};
struct hd_config_counts {
    uint32_t count;
    uint32_t *values; /* owned by the config; NULL when count is 0 */
};

/* Choices are stored as the index of the word in the range of their key (config_keys.c). */
enum hd_config_precision { HD_CONFIG_BF16 = 0, HD_CONFIG_MXFP8 = 1, HD_CONFIG_F32 = 2 };
enum hd_config_recompute { HD_CONFIG_NONE = 0, HD_CONFIG_FULL = 1, HD_CONFIG_EXPERTS = 2 };
enum { HD_CONFIG_UNPROVEN_ORDER = 4 }; /* of debug.fault: law 7 is not checked */
enum hd_config_format { HD_CONFIG_AUTO = 0, HD_CONFIG_TEXT = 1, HD_CONFIG_TOKENS = 2 };

/* One key = value of the file or the command line: kept for the sections of plugins, whose tables
   are known only later, and for the origin that `heddle config` prints. */
struct hd_config_entry {
    char section[64]; /* "schedule.1f1b_v", "pipeline" */
    char key[64];
    char *value;     /* owned */
    char place[512]; /* "conf/x.ini:12", "command line" */
    bool is_used;    /* hd_config_options was called for its plugin */
};

struct hd_config {
    struct {
        char schedule[HD_CONFIG_TEXT_MAX]; /* a name, FILE.so or FILE.csv */
        uint32_t ranks;
        uint32_t stages_per_rank; /* 0: auto, the schedule decides */
        uint32_t microbatches;
        uint32_t overlap;
        struct hd_config_counts transfer_slots; /* by boundary, forward then backward */
        struct hd_config_counts payload_slots;  /* by stage */
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
        uint32_t layers; /* 0: auto, 8 or one for each stage */
        uint32_t width, heads, key_value_heads /* 0: equal to heads */, experts, experts_per_token;
        uint32_t expert_width, vocabulary, sequence;
        double rope_theta, norm_epsilon;
        uint32_t normalize_gates;
        double balance_loss, z_loss, initial_deviation;
        uint32_t half_batches;
        struct hd_config_counts split; /* empty: auto; else the layers of each stage */
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
        uint32_t decay; /* 0 none, 1 cosine */
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
        double budget_gb, copy_gb, state_gb; /* in 1e9 bytes; NaN: none, or from the kernels */
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
        uint32_t direction;                  /* 0 one, 1 both */
        char against[HD_CONFIG_TEXT_MAX];
    } bench;

    char file[HD_CONFIG_TEXT_MAX]; /* the ini, or empty */
    char name[128];                /* its stem, or "heddle": NAME in runs/NAME-... */
    uint32_t entry_count;
    struct hd_config_entry *entries; /* owned; of the file and the command line, which wins */
};

/*
 * Fills `config` with defaults, then `file` (NULL: none), then `overrides`, words of the form
 * section.key=value.  Checks types, ranges, and the rules between keys (width divisible by
 * heads, an even head width, experts_per_token <= experts, ...).  On failure `config` needs no
 * hd_config_finish.
 */
hd_status hd_config_load(struct hd_config *config, const char *file, uint32_t override_count,
                         const char *const *overrides, struct hd_problem *problem);
/* Checks one word section.key=value: its section, its key, and the value's type and range. */
hd_status hd_config_check_word(const char *word, struct hd_problem *problem);
void hd_config_finish(struct hd_config *config); /* frees what the config owns */

/*
 * The options of one plugin, section [kind.name], checked against its own table: fills
 * values[option_count] in the order of the table; text is borrowed from the config or the table.
 * A bad default in the table is the plugin's fault: HD_EXIT_PLUGIN.
 */
hd_status hd_config_options(struct hd_config *config, const struct hd_plugin *plugin,
                            struct hd_option_value *values, struct hd_problem *problem);

/* After hd_config_options for all plugins in use: a section [kind.name] of another plugin is
   accepted if `is_known(context, kind, name)` says that the plugin exists; else it is an error. */
hd_status hd_config_check_sections(struct hd_config *config,
                                   bool (*is_known)(void *context, const char *kind,
                                                    const char *name),
                                   void *context, struct hd_problem *problem);

/* Whether pipeline.schedule is the name of a CSV file, not of a plugin. */
bool hd_config_is_csv(const struct hd_config *config);

/* Makes the paths of plugins, corpus and costs absolute where hd_config_write writes them, so that
   the file can be read from another directory.  A path that would be too long stays as it is. */
void hd_config_make_absolute(struct hd_config *config);

/* Where a key was set, for errors found later ("conf/x.ini:12", "command line", "default"). */
const char *hd_config_place(const struct hd_config *config, const char *section, const char *key);
/* Gives `problem` the place and the name of a key. */
void hd_config_blame(const struct hd_config *config, const char *section, const char *key,
                     struct hd_problem *problem);

/* Calls `visit` for each key of the table with its effective value as text. */
void hd_config_each(const struct hd_config *config,
                    void (*visit)(void *context, const char *section, const char *key,
                                  const char *value, const char *origin),
                    void *context);

/* The effective text of option `index` of a plugin; borrowed from the config or the table. */
const char *hd_config_option_text(const struct hd_config *config, const struct hd_plugin *plugin,
                                  uint32_t index);

#endif /* HEDDLE_CONFIG_CONFIG_H */
