/*
 * cli/cli.h - what a command is, and what main prepares for it.
 *
 * main sorts the words of the command line (docs/interface.md): a word with = is an override, a
 * word that ends in .ini is the file, options are main's own or in the command's table (the value
 * is the next word, or follows =), any other word is the command's.  On failure a command fills
 * cli->problem and returns cli->problem.exit_code; main then prints the error line, or completes
 * and prints the JSON object.  With --json a command adds its members to cli->json and prints
 * nothing on stdout.
 *
 * To add a command: cmd_<verb>.c with `const struct hd_command hd_command_<verb>`, its line here,
 * and its row in main.c.  To add a key of the ini file: core/config/config_keys.c; no command needs
 * to change.
 */
#ifndef HEDDLE_CLI_CLI_H
#define HEDDLE_CLI_CLI_H

#include "base/json.h"
#include "base/problem.h"
#include "config/config.h"
#include "run/plugins.h"

#include <stdint.h>

struct hd_cli;

/* One option of one command; the table ends with a NULL name. */
struct hd_cli_option {
    const char *name;  /* "--ticks" */
    const char *value; /* "asap|drawn|costed" or "OUT", for the help; NULL: takes none */
    const char *help;  /* one sentence */
};

struct hd_command {
    const char *verb;
    const char *words;   /* its own words, for the usage line: "[schedule|transport|kernel]" */
    const char *summary; /* one line, without a full stop */
    const struct hd_cli_option *options; /* NULL: none */
    int (*run)(struct hd_cli *cli);      /* the exit code */
};

/* An option as given. */
struct hd_cli_choice {
    const char *name, *value; /* value NULL: takes none; borrowed from argv */
};

struct hd_cli {
    const struct hd_command *command;
    int argument_count; /* of the whole command line, for run.json */
    char **arguments;

    const char *file; /* the ini, or NULL */
    uint32_t override_count;
    const char **overrides;
    uint32_t word_count; /* the command's own */
    const char **words;
    uint32_t choice_count;
    struct hd_cli_choice *choices;
    uint32_t directory_count; /* of --plugin-dir */
    const char **directories;

    bool is_json, is_quiet;
    bool is_silent;               /* prints no error: rank 0's process prints the same one */
    bool has_color;               /* stdout may be coloured */
    struct hd_registry *registry; /* listed, nothing loaded */
    struct cJSON *json;           /* begun with "heddle" and "command"; printed by main */
    struct hd_problem problem;
    char *report; /* printed below the error line, a line a rank; owned; NULL: nothing */
};

/* The value of the `index`th use of an option; "" if it takes none; NULL: not given that often. */
const char *hd_cli_option(const struct hd_cli *cli, const char *name, uint32_t index);

/* HD_INVALID, with a problem, if the command got more than `count_max` words of its own. */
hd_status hd_cli_words_max(struct hd_cli *cli, uint32_t count_max);

/* Fills cli->problem for an error of the command line; returns the exit code, 2. */
int hd_cli_refuse(struct hd_cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The name of a plugin, and the key that sets it. */
struct hd_cli_wanted {
    uint32_t kind;       /* HD_KIND_ */
    const char *section; /* NULL: the key is an option of the command, "--with" */
    const char *key, *name;
};

/* Loads the configuration of this command line into `config`. */
hd_status hd_cli_config(struct hd_cli *cli, struct hd_config *config);
/* *options: in the order of the plugin's table; owned by the caller, also on failure. */
hd_status hd_cli_read_options(struct hd_cli *cli, struct hd_config *config,
                              const struct hd_plugin *plugin, struct hd_option_value **options);
/* Loads one plugin and reads its options.  The problem has the place of the key, or of the option
   that is wrong. */
hd_status hd_cli_take_plugin(struct hd_cli *cli, struct hd_config *config,
                             const struct hd_cli_wanted *wanted, const struct hd_candidate **found,
                             struct hd_option_value **options);
/* Loads the schedule alone; `plugins` has no others. */
hd_status hd_cli_take_schedule(struct hd_cli *cli, struct hd_config *config,
                               struct hd_plugins *plugins);
/* An error if a section of the configuration belongs to a plugin that does not exist. */
hd_status hd_cli_check_sections(struct hd_cli *cli, struct hd_config *config);
/* Loads all plugins of the configuration, reads their options, and checks all sections. */
hd_status hd_cli_take_plugins(struct hd_cli *cli, struct hd_config *config,
                              struct hd_plugins *plugins);

/* The plugin that `word` names: NAME (if only one kind has it), KIND.NAME or FILE. */
hd_status hd_cli_find_plugin(struct hd_cli *cli, const char *word,
                             const struct hd_candidate **found);

/* The escape sequences around a name on stdout: bold if colour is on. */
const char *hd_cli_bold(const struct hd_cli *cli);  /* or "" */
const char *hd_cli_plain(const struct hd_cli *cli); /* or "" */

/* "1 step", "2 steps"; "1 microbatch", "2 microbatches". */
static inline const char *hd_cli_s(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static inline const char *hd_cli_es(uint64_t count)
{
    return count == 1 ? "" : "es";
}

extern const struct hd_command hd_command_config;
extern const struct hd_command hd_command_list;
extern const struct hd_command hd_command_inspect;
extern const struct hd_command hd_command_conform;
extern const struct hd_command hd_command_plan;
extern const struct hd_command hd_command_run;
extern const struct hd_command hd_command_report;
extern const struct hd_command hd_command_bench;

#endif /* HEDDLE_CLI_CLI_H */
