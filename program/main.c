/*
 * main.c - the table of commands, the sorting of words, and the one place that prints errors.
 *
 * To add a command: its row here and cli/cmd_<verb>.c.  To add a key of the ini file: its row in
 * core/config/config_keys.c and its member in core/config/config.h.
 */
#include "base/log.h"
#include "base/option.h"
#include "report/table.h"
#include "base/text.h"
#include "cli/cli.h"
#include <heddle_build.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* One row a command. */
/* clang-format off */
static const struct hd_command *const main_commands[] = {
    &hd_command_plan,
    &hd_command_run,
    &hd_command_report,
    &hd_command_config,
    &hd_command_list,
    &hd_command_inspect,
    &hd_command_conform,
    &hd_command_bench,
};
/* clang-format on */

static const struct hd_cli_option main_common_options[] = {
    {"--help", NULL, "shows what the command does, and its options"},
    {"--version", NULL, "shows the version"},
    {"--json", NULL, "prints exactly one JSON object on stdout, after an error too"},
    {"--quiet", NULL, "prints results and errors only, no progress"},
    {"--color", "auto|always|never", "when to colour stdout"},
    {"--plugin-dir", "DIR", "searches plugins in DIR first; may be repeated"},
    {NULL, NULL, NULL},
};

enum { COMMAND_COUNT = sizeof main_commands / sizeof main_commands[0] };

/* The options that main handles itself. */
struct request {
    bool is_help, is_version;
    const char *color;
    const char *verb; /* as given, known or not */
};

static void main_print_options(const struct hd_cli_option *options)
{
    struct hd_table *table = hd_table_create(2, NULL);

    for (; options != NULL && options->name != NULL; options++) {
        hd_table_cell(table, "%s%s%s", options->name, options->value != NULL ? " " : "",
                      options->value != NULL ? options->value : "");
        hd_table_cell(table, "%s", options->help);
    }
    hd_table_print(table, 2, stdout);
    hd_table_destroy(table);
}

static void main_print_command_help(const struct hd_command *command)
{
    printf("heddle %s [FILE.ini] [section.key=value ...]%s%s [options]\n\n%s.\n", command->verb,
           command->words != NULL ? " " : "", command->words != NULL ? command->words : "",
           command->summary);
    if (command->options != NULL) {
        printf("\nOptions:\n");
        main_print_options(command->options);
    }
    printf("\nOptions of every command:\n");
    main_print_options(main_common_options);
}

static void main_print_help(void)
{
    struct hd_table *table = hd_table_create(2, NULL);

    printf("heddle COMMAND [FILE.ini] [section.key=value ...] [options]\n\n"
           "Pipeline-parallel training with schedules, transports and kernels as plugins.\n\n"
           "Commands:\n");
    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        hd_table_cell(table, "%s", main_commands[i]->verb);
        hd_table_cell(table, "%s", main_commands[i]->summary);
    }
    hd_table_print(table, 2, stdout);
    hd_table_destroy(table);
    printf("\nOptions of every command:\n");
    main_print_options(main_common_options);
    printf("\n`heddle COMMAND --help` says more; `heddle config` prints every key of the file.\n"
           "Environment: HEDDLE_PLUGIN_PATH, HEDDLE_LOG=error|warn|info|debug, NO_COLOR, "
           "COLUMNS.\n");
}

static const struct hd_cli_option *main_find_option(const struct hd_cli_option *options,
                                                    const char *word, size_t length)
{
    for (; options != NULL && options->name != NULL; options++) {
        if (strlen(options->name) == length && strncmp(options->name, word, length) == 0) {
            return options;
        }
    }
    return NULL;
}

static int main_refuse_option(struct hd_cli *cli, const char *word)
{
    const char *name = cli->command != NULL ? cli->command->verb : "heddle";
    struct hd_nearest nearest = {.wanted = word};

    for (const struct hd_cli_option *option = main_common_options; option->name != NULL; option++) {
        hd_nearest_offer(&nearest, option->name);
    }
    const struct hd_cli_option *own = cli->command != NULL ? cli->command->options : NULL;
    for (; own != NULL && own->name != NULL; own++) {
        hd_nearest_offer(&nearest, own->name);
    }
    hd_problem_remedy(&cli->problem, "the nearest one is %s; `heddle%s%s --help` shows all",
                      nearest.name, cli->command != NULL ? " " : "",
                      cli->command != NULL ? name : "");
    return hd_cli_refuse(cli, "%s has no option %.200s", name, word);
}

static int main_take_common(struct hd_cli *cli, struct request *request, const char *name,
                            const char *value)
{
    if (strcmp(name, "--help") == 0) {
        request->is_help = true;
    } else if (strcmp(name, "--version") == 0) {
        request->is_version = true;
    } else if (strcmp(name, "--json") == 0) {
        cli->is_json = true;
    } else if (strcmp(name, "--quiet") == 0) {
        cli->is_quiet = true;
    } else if (strcmp(name, "--plugin-dir") == 0) {
        cli->directories[cli->directory_count++] = value;
    } else if (hd_range_has_word("auto | always | never", value)) {
        request->color = value;
    } else {
        return hd_cli_refuse(cli, "--color is auto, always or never, not %.100s", value);
    }
    return 0;
}

/* One word that begins with a dash, and its value if it takes one; *index moves past both. */
static int main_take_option(struct hd_cli *cli, struct request *request, int *index)
{
    const char *word = cli->arguments[*index];
    const char *equals = strchr(word, '=');
    const size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const struct hd_cli_option *common = main_find_option(main_common_options, word, length);
    const struct hd_cli_option *own =
        cli->command != NULL ? main_find_option(cli->command->options, word, length) : NULL;
    const struct hd_cli_option *option = common != NULL ? common : own;

    if (option == NULL) {
        return main_refuse_option(cli, word);
    }
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (option->value == NULL && value != NULL) {
        return hd_cli_refuse(cli, "%s takes no value", option->name);
    }
    if (option->value != NULL && value == NULL) {
        if (*index + 1 >= cli->argument_count) {
            return hd_cli_refuse(cli, "%s needs a value: %s", option->name, option->value);
        }
        value = cli->arguments[++*index];
    }
    if (common != NULL) {
        return main_take_common(cli, request, option->name, value);
    }
    cli->choices[cli->choice_count++] = (struct hd_cli_choice){option->name, value};
    return 0;
}

static int main_take_file(struct hd_cli *cli, const char *word)
{
    if (cli->file != NULL) {
        return hd_cli_refuse(cli, "%.300s and %.300s: only one configuration file can be given",
                             cli->file, word);
    }
    cli->file = word;
    return 0;
}

static int main_take_verb(struct hd_cli *cli, const char *word)
{
    struct hd_nearest nearest = {.wanted = word};

    for (unsigned i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(main_commands[i]->verb, word) == 0) {
            cli->command = main_commands[i];
            return 0;
        }
        hd_nearest_offer(&nearest, main_commands[i]->verb);
    }
    hd_problem_remedy(&cli->problem, "the nearest one is %s; `heddle --help` shows all",
                      nearest.name);
    return hd_cli_refuse(cli, "unknown command %.200s", word);
}

static int main_take_words(struct hd_cli *cli, struct request *request)
{
    int code = 0;

    for (int i = 1; i < cli->argument_count && code == 0; i++) {
        const char *word = cli->arguments[i];
        const size_t length = strlen(word);
        if (word[0] == '-') {
            code = main_take_option(cli, request, &i);
        } else if (cli->command == NULL) {
            request->verb = word;
            code = main_take_verb(cli, word);
        } else if (strchr(word, '=') != NULL) {
            cli->overrides[cli->override_count++] = word;
        } else if (length > 4 && strcmp(word + length - 4, ".ini") == 0) {
            code = main_take_file(cli, word);
        } else {
            cli->words[cli->word_count++] = word;
        }
    }
    return code;
}

static void main_warn_environment(void)
{
    for (char **entry = environ; *entry != NULL; entry++) {
        const size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "HEDDLE_", 7) == 0 &&
            !(length == 18 && strncmp(*entry, "HEDDLE_PLUGIN_PATH", length) == 0) &&
            !(length == 10 && strncmp(*entry, "HEDDLE_LOG", length) == 0)) {
            hd_log(HD_LOG_WARN,
                   "%.*s in the environment has no effect; only HEDDLE_PLUGIN_PATH and HEDDLE_LOG "
                   "have",
                   (int)length, *entry);
        }
    }
}

static bool main_choose_color(const char *choice)
{
    const char *no_color = getenv("NO_COLOR");

    if (choice != NULL && strcmp(choice, "auto") != 0) {
        return strcmp(choice, "always") == 0;
    }
    return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0');
}

static bool main_allocate(struct hd_cli *cli)
{
    const size_t count = (size_t)cli->argument_count + 1;

    cli->overrides = calloc(count, sizeof *cli->overrides);
    cli->words = calloc(count, sizeof *cli->words);
    cli->choices = calloc(count, sizeof *cli->choices);
    cli->directories = calloc(count, sizeof *cli->directories);
    return cli->overrides != NULL && cli->words != NULL && cli->choices != NULL &&
           cli->directories != NULL;
}

static void main_finish(struct hd_cli *cli)
{
    hd_registry_destroy(cli->registry);
    hd_json_free(cli->json);
    free(cli->report);
    free(cli->overrides);
    free(cli->words);
    free(cli->choices);
    free(cli->directories);
}

static void main_print_version(struct hd_cli *cli)
{
    if (cli->is_json) {
        hd_json_u64(cli->json, "abi", HD_ABI_MAJOR);
        hd_json_text(cli->json, "compiler", HD_COMPILER);
        hd_json_text(cli->json, "build", HD_BUILD);
    } else {
        printf("heddle %s (plugin ABI %u.%u, %s, %s)\n", HD_VERSION, HD_ABI_MAJOR, HD_ABI_MINOR,
               HD_COMPILER, HD_BUILD);
    }
}

static int main_run_command(struct hd_cli *cli)
{
    if (cli->command == NULL) {
        hd_problem_remedy(&cli->problem, "`heddle --help` shows the commands");
        return hd_cli_refuse(cli, "no command given");
    }
    if (hd_registry_create(cli->directory_count, cli->directories, &cli->registry, &cli->problem) !=
        HD_OK) {
        return cli->problem.exit_code;
    }
    return cli->command->run(cli);
}

static int main_perform(struct hd_cli *cli, const struct request *request)
{
    if (request->is_version) {
        main_print_version(cli);
        return 0;
    }
    if (request->is_help) {
        if (cli->is_json) {
            return hd_cli_refuse(cli, "--help cannot be combined with --json");
        }
        if (cli->command != NULL) {
            main_print_command_help(cli->command);
        } else {
            main_print_help();
        }
        return 0;
    }
    return main_run_command(cli);
}

/* Whether the reader of stdout has closed it, as `| head` does.  Asks the pipe, because the errno
   of an earlier write is lost. */
static bool main_has_no_reader(void)
{
    struct pollfd end = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLERR) != 0;
}

/* Prints the JSON object or the error line.  A failed write to stdout is an error, too; a closed
   pipe gives the exit code that a shell shows for SIGPIPE. */
static int main_conclude(struct hd_cli *cli, int code)
{
    char line[6144];

    if (cli->is_silent) {
        return code;
    }
    if (cli->is_json) {
        if (cli->problem.exit_code != 0) {
            hd_json_problem(cli->json, &cli->problem);
        }
        hd_json_print(cli->json, stdout);
    } else if (cli->problem.exit_code != 0) {
        hd_problem_line(&cli->problem, line, sizeof line);
        fflush(stdout); /* results before the error that ends them */
        fprintf(stderr, "%s\n%s", line, cli->report != NULL ? cli->report : "");
    }
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        if (main_has_no_reader()) {
            return 128 + SIGPIPE;
        }
        fprintf(stderr, "standard output: %s\n", errno != 0 ? strerror(errno) : "cannot write");
        return HD_EXIT_OUTPUT;
    }
    return code;
}

/* --json holds for errors in the words before it, too. */
static bool main_is_json_wanted(int argument_count, char **arguments)
{
    bool is_wanted = false;

    for (int i = 1; i < argument_count; i++) {
        is_wanted |= strcmp(arguments[i], "--json") == 0;
    }
    return is_wanted;
}

int main(int argument_count, char **arguments)
{
    struct hd_cli cli = {.argument_count = argument_count, .arguments = arguments};
    struct request request = {.is_help = false};

    /* Makes a file over its size limit, and a closed pipe, errors of write. */
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    hd_log_init();
    main_warn_environment();
    if (!main_allocate(&cli)) {
        return HD_EXIT_FAILED;
    }
    cli.is_json = main_is_json_wanted(argument_count, arguments);
    int code = main_take_words(&cli, &request);
    cli.has_color = !cli.is_json && main_choose_color(request.color);
    cli.json = hd_json_begin(cli.command != NULL ? cli.command->verb : request.verb);
    if (code == 0) {
        code = main_perform(&cli, &request);
    }
    code = main_conclude(&cli, code);
    main_finish(&cli);
    return code;
}
