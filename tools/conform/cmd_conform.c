/* conform/cmd_conform.c - heddle conform: checks one plugin against the contract of its kind. */
#include "base/log.h"
#include "output/config_write.h"
#include "base/option.h"
#include "base/text.h"
#include "cli/cli.h"
#include "drive/device.h"
#include "conform/conform_output.h"
#include "conform/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pass may take longer than a message: the device may be emulated, or busy. */
enum {
    INITIAL_BYTES_MAX = 64 << 20,
    MESSAGE_LIMIT_MS = 10000,
    PASS_LIMIT_MS = 60000,
    LIMIT_S_MOST = 86400,
};

/* The command line, the plugin, and the results. */
struct session {
    struct hd_conform_subject subject;
    struct hd_conform_summary summary;
    struct hd_config config;
    struct hd_option_value *options, *inner_options; /* owned */
    struct hd_drive_lender lender;
    uint32_t level;
    struct hd_conform_result *results; /* owned */
    char left_host[256];
};

/* --- the command line ------------------------------------------------------------------------ */

static int cmd_conform_read_numbers(struct hd_cli *cli, struct session *session)
{
    const char *seed = hd_cli_option(cli, "--seed", 0);
    const char *bytes = hd_cli_option(cli, "--bytes-max", 0);
    const char *level = hd_cli_option(cli, "--level", 0);
    const char *limit = hd_cli_option(cli, "--limit", 0);

    session->subject.seed = 1;
    session->subject.bytes_max = INITIAL_BYTES_MAX;
    session->level = HD_CONFORM_FAULT;
    if (seed != NULL && !hd_text_to_unsigned(seed, &session->subject.seed)) {
        return hd_cli_refuse(cli, "--seed must be a whole number, not %.100s", seed);
    }
    if (bytes != NULL && (!hd_text_to_bytes(bytes, &session->subject.bytes_max) ||
                          session->subject.bytes_max == 0)) {
        return hd_cli_refuse(cli, "--bytes-max must be a number of bytes, such as 4M, not %.100s",
                             bytes);
    }
    uint64_t limit_s = 0;
    if (limit != NULL &&
        (!hd_text_to_unsigned(limit, &limit_s) || limit_s == 0 || limit_s > LIMIT_S_MOST)) {
        return hd_cli_refuse(cli, "--limit must be a number of seconds from 1 to %d, not %.100s",
                             LIMIT_S_MOST, limit);
    }
    session->subject.limit_s = (uint32_t)limit_s;
    if (level != NULL && !hd_conform_level_of(level, &session->level)) {
        return hd_cli_refuse(
            cli, "--level must be load, api, semantics, fault or speed, not %.100s", level);
    }
    return 0;
}

/* --hosts LEFT:RIGHT: two network namespaces, which must exist. */
static int cmd_conform_read_hosts(struct hd_cli *cli, struct session *session)
{
    const char *hosts = hd_cli_option(cli, "--hosts", 0);
    const char *right = hosts != NULL ? strchr(hosts, ':') : NULL;

    if (hosts == NULL) {
        return 0;
    }
    if (right == NULL || (size_t)(right - hosts) >= sizeof session->left_host) {
        return hd_cli_refuse(cli, "--hosts must be LEFT:RIGHT, two network namespaces, not %.100s",
                             hosts);
    }
    snprintf(session->left_host, sizeof session->left_host, "%.*s", (int)(right - hosts), hosts);
    session->subject.hosts[0] = session->left_host;
    session->subject.hosts[1] = right + 1;
    for (unsigned i = 0; i < 2; i++) {
        if (!hd_conform_is_host(session->subject.hosts[i])) {
            return hd_cli_refuse(cli,
                                 "--hosts: cannot open the network namespace '%.100s': create it "
                                 "with ip netns add, and run as root",
                                 session->subject.hosts[i]);
        }
    }
    return 0;
}

/* Every --check must name a check of this kind. */
static int cmd_conform_know_checks(struct hd_cli *cli, uint32_t kind)
{
    uint32_t count;
    const struct hd_conform_check *suite = hd_conform_suite(kind, &count);
    const char *name = hd_cli_option(cli, "--check", 0);

    for (uint32_t i = 0; name != NULL; name = hd_cli_option(cli, "--check", ++i)) {
        if (hd_conform_find(kind, name) == NULL) {
            struct hd_nearest nearest = {.wanted = name};
            for (uint32_t k = 0; k < count; k++) {
                hd_nearest_offer(&nearest, suite[k].name);
            }
            hd_problem_remedy(&cli->problem, "the nearest one is %s", nearest.name);
            return hd_cli_refuse(cli, "a %s has no check %.100s", hd_kind_name(kind), name);
        }
    }
    return 0;
}

static bool cmd_conform_is_wanted(const struct hd_cli *cli, const struct session *session,
                                  const struct hd_conform_check *check)
{
    const char *name = hd_cli_option(cli, "--check", 0);

    if (name == NULL) {
        return check->level <= session->level;
    }
    for (uint32_t i = 0; name != NULL; name = hd_cli_option(cli, "--check", ++i)) {
        if (strcmp(name, check->name) == 0) {
            return true;
        }
    }
    return false;
}

/* --- the plugin ---------------------------------------------------------------------------- */

/* A hook wraps transport.inner, or shm if none is named. */
static int cmd_conform_find_inner(struct hd_cli *cli, struct session *session)
{
    const char *name = session->config.transport.inner;
    const struct hd_cli_wanted wanted = {HD_KIND_TRANSPORT, "transport", "inner",
                                         strcmp(name, "none") == 0 ? "shm" : name};
    const struct hd_candidate *found;

    if (hd_cli_take_plugin(cli, &session->config, &wanted, &found, &session->inner_options) !=
        HD_OK) {
        return cli->problem.exit_code;
    }
    session->subject.inner = &found->plugin;
    session->subject.inner_options = session->inner_options;
    hd_log(HD_LOG_DEBUG, "conform: the hook wraps transport %s", found->plugin.name);
    return 0;
}

/* The kernel on whose device a transport has its slots: --with, or synthetic if the transport
   cannot use host memory. */
static int cmd_conform_find_lender(struct hd_cli *cli, struct session *session,
                                   uint64_t capabilities)
{
    const char *name = hd_cli_option(cli, "--with", 0);
    const struct hd_cli_wanted wanted = {HD_KIND_KERNEL, NULL, "--with",
                                         name != NULL ? name : "synthetic"};
    struct hd_drive_lender *lender = &session->lender;

    if (name == NULL && (capabilities & HD_TRANSPORT_HOST) != 0) {
        return 0;
    }
    if (name == NULL && (capabilities & HD_TRANSPORT_CUDA) == 0) {
        return 0; /* the check of the promises says what is wrong */
    }
    if ((capabilities & HD_TRANSPORT_CUDA) == 0) {
        return hd_cli_refuse(
            cli, "--with names the kernel of a device, but this transport moves host memory");
    }
    if (hd_lender_find(cli, &session->config, &wanted, lender) != HD_OK) {
        return cli->problem.exit_code;
    }
    session->subject.lender = lender->kernel;
    session->subject.lender_options = lender->options;
    hd_log(HD_LOG_DEBUG, "conform: kernel %s opens the device for the slots",
           session->subject.lender->name);
    return 0;
}

/* --list: the checks of the kind that the word names, or of the plugin's kind. */
static int cmd_conform_list(struct hd_cli *cli)
{
    const struct hd_candidate *found = NULL;
    uint32_t kind = HD_KIND_SCHEDULE, count;

    while (kind <= HD_KIND_KERNEL && strcmp(cli->words[0], hd_kind_name(kind)) != 0) {
        kind++;
    }
    if (kind > HD_KIND_KERNEL) {
        if (hd_cli_find_plugin(cli, cli->words[0], &found) != HD_OK) {
            return cli->problem.exit_code;
        }
        kind = found->plugin.kind;
    }
    const struct hd_conform_check *suite = hd_conform_suite(kind, &count);
    hd_conform_print_list(cli, kind, suite, count);
    return 0;
}

/* --in-process is for a debugger or a sanitizer, which look at one check. */
static int cmd_conform_read_in_process(struct hd_cli *cli, struct session *session)
{
    session->subject.is_in_process = hd_cli_option(cli, "--in-process", 0) != NULL;
    if (session->subject.is_in_process &&
        (hd_cli_option(cli, "--check", 0) == NULL || hd_cli_option(cli, "--check", 1) != NULL)) {
        return hd_cli_refuse(cli, "--in-process needs one --check");
    }
    return 0;
}

static int cmd_conform_find_subject(struct hd_cli *cli, struct session *session)
{
    const struct hd_candidate *found;

    if (hd_cli_find_plugin(cli, cli->words[0], &found) != HD_OK) {
        return cli->problem.exit_code;
    }
    const struct hd_plugin *plugin = &found->plugin;
    session->subject.plugin = plugin;
    session->summary.plugin = plugin;
    session->summary.path = found->path;
    session->summary.level = session->level;
    session->summary.seed = session->subject.seed;
    session->subject.limit_ms = hd_config_is_changed(&session->config, "transport", "timeout_s")
                                    ? (uint64_t)(session->config.transport.timeout_s * 1000)
                                : plugin->kind == HD_KIND_KERNEL ? PASS_LIMIT_MS
                                                                 : MESSAGE_LIMIT_MS;
    int code = hd_cli_read_options(cli, &session->config, plugin, &session->options) == HD_OK
                   ? 0
                   : cli->problem.exit_code;
    session->subject.options = session->options;
    hd_log(HD_LOG_DEBUG, "conform: a wait that should succeed may last %llu ms",
           (unsigned long long)session->subject.limit_ms);
    if (code == 0 && plugin->kind == HD_KIND_TRANSPORT &&
        (plugin->capabilities & HD_TRANSPORT_HOOK) != 0) {
        code = cmd_conform_find_inner(cli, session);
    }
    if (code == 0 && plugin->kind == HD_KIND_TRANSPORT) {
        const struct hd_plugin *inner = session->subject.inner;
        code =
            cmd_conform_find_lender(cli, session, (inner != NULL ? inner : plugin)->capabilities);
    } else if (code == 0 && hd_cli_option(cli, "--with", 0) != NULL) {
        code = hd_cli_refuse(cli, "--with is for transports only");
    } else if (code == 0 && session->subject.hosts[0] != NULL) {
        code = hd_cli_refuse(cli, "--hosts is for transports only");
    }
    return code;
}

/* --- the run ------------------------------------------------------------------------------- */

static int cmd_conform_run_checks(struct hd_cli *cli, struct session *session)
{
    struct hd_conform_summary *summary = &session->summary;
    const bool only_failed = hd_cli_option(cli, "--only-failed", 0) != NULL;
    uint32_t count;
    const struct hd_conform_check *suite = hd_conform_suite(summary->plugin->kind, &count);

    session->results = calloc(count, sizeof *session->results);
    if (session->results == NULL) {
        hd_problem_set(&cli->problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                       "cannot allocate memory for the results");
        return cli->problem.exit_code;
    }
    summary->results = session->results;
    for (uint32_t i = 0; i < count; i++) {
        if (!cmd_conform_is_wanted(cli, session, &suite[i])) {
            continue;
        }
        struct hd_conform_result *result = &session->results[summary->count];
        if (hd_conform_run(&session->subject, &suite[i], result, &cli->problem) != HD_OK) {
            return cli->problem.exit_code;
        }
        summary->count++;
        summary->verdicts[result->verdict]++;
        if (!cli->is_json && (!only_failed || result->verdict == HD_CONFORM_FAILED)) {
            hd_conform_print_row(cli, result);
        }
    }
    return 0;
}

static void cmd_conform_name_failures(struct hd_cli *cli, const struct hd_conform_summary *summary)
{
    char names[512] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < summary->count; i++) {
        if (summary->results[i].verdict == HD_CONFORM_FAILED && used + 1 < sizeof names) {
            const int length = snprintf(names + used, sizeof names - used, "%s%s",
                                        used > 0 ? ", " : "", summary->results[i].check->name);
            used += (size_t)length;
        }
    }
    hd_problem_place(&cli->problem, "%s.%s", hd_kind_name(summary->plugin->kind),
                     summary->plugin->name);
    hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_FAILED, "%u of %u checks failed: %s",
                   summary->verdicts[HD_CONFORM_FAILED], summary->count, names);
}

/* A plugin that is mostly skipped is not conformant, because little is known of it. */
static void cmd_conform_count_skips(struct hd_cli *cli, const struct hd_conform_summary *summary)
{
    const struct hd_conform_result *first = summary->results;

    if (summary->verdicts[HD_CONFORM_SKIPPED] <= summary->verdicts[HD_CONFORM_PASSED] ||
        hd_cli_option(cli, "--check", 0) != NULL) {
        return;
    }
    while (first->verdict != HD_CONFORM_SKIPPED) {
        first++;
    }
    hd_problem_place(&cli->problem, "%s.%s", hd_kind_name(summary->plugin->kind),
                     summary->plugin->name);
    hd_problem_remedy(&cli->problem, "remove what prevents the checks: %s: %.300s",
                      first->check->name, first->text);
    hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_FAILED,
                   "%u of %u checks were skipped, which is too many to judge the plugin",
                   summary->verdicts[HD_CONFORM_SKIPPED], summary->count);
}

static int cmd_conform_judge(struct hd_cli *cli, struct session *session)
{
    int code = cmd_conform_find_subject(cli, session);

    if (code == 0) {
        code = cmd_conform_know_checks(cli, session->subject.plugin->kind);
    }
    if (code == 0) {
        if (!cli->is_json && hd_cli_option(cli, "--only-failed", 0) == NULL) {
            hd_conform_print_head(cli, &session->summary);
        }
        code = cmd_conform_run_checks(cli, session);
    }
    if (code == 0) {
        code = hd_conform_finish_output(cli, &session->summary);
    }
    if (code == 0 && session->summary.verdicts[HD_CONFORM_FAILED] > 0) {
        cmd_conform_name_failures(cli, &session->summary);
        code = cli->problem.exit_code;
    } else if (code == 0) {
        cmd_conform_count_skips(cli, &session->summary);
        code = cli->problem.exit_code;
    }
    free(session->results);
    free(session->options);
    free(session->inner_options);
    hd_lender_finish(&session->lender);
    return code;
}

static int cmd_conform(struct hd_cli *cli)
{
    struct session session = {.level = 0};

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cli->word_count == 0) {
        hd_problem_remedy(&cli->problem, "`heddle list` shows the installed plugins");
        return hd_cli_refuse(cli, "conform needs the name of a plugin, or its file");
    }
    if (hd_cli_option(cli, "--list", 0) != NULL) {
        return cmd_conform_list(cli);
    }
    if (cmd_conform_read_numbers(cli, &session) != 0 ||
        cmd_conform_read_in_process(cli, &session) != 0 ||
        cmd_conform_read_hosts(cli, &session) != 0 ||
        hd_cli_config(cli, &session.config) != HD_OK) {
        return cli->problem.exit_code;
    }
    const int code = cmd_conform_judge(cli, &session);
    hd_config_finish(&session.config);
    return code;
}

static const struct hd_cli_option cmd_conform_options[] = {
    {"--level", "LEVEL",
     "load, api, semantics, fault (default) or speed; each includes those before it"},
    {"--check", "NAME", "only this check; may be repeated"},
    {"--list", NULL, "prints the checks of a plugin's kind, or of schedule, transport or kernel"},
    {"--only-failed", NULL, "prints failed checks and the summary only"},
    {"--in-process", NULL,
     "runs the one check that --check names without a child process and a deadline"},
    {"--seed", "NUMBER", "seed of all random numbers; default 1"},
    {"--bytes-max", "BYTES", "largest message of a transport; default 64M"},
    {"--with", "KERNEL",
     "kernel on whose device a transport has its slots; default synthetic, for device-only "
     "transports"},
    {"--hosts", "LEFT:RIGHT",
     "two network namespaces: one for the even ranks of a transport, one for the odd ranks"},
    {"--limit", "SECONDS", "deadline of every check; default 10 to 120, by check"},
    {"--junit", "OUT", "writes the results as JUnit XML"},
    {NULL, NULL, NULL},
};

const struct hd_command hd_command_conform = {
    "conform",
    "NAME|KIND.NAME|FILE",
    "checks one plugin against the contract of its kind",
    cmd_conform_options,
    cmd_conform,
};
