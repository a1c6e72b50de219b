/* What `heddle bench p2p` and `heddle bench skew` share: transports, found by name, and two
   ranks. */
#include "bench/cmd/cmd_bench_transports.h"
#include "base/log.h"
#include "base/try.h"
#include "cli/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A transport that moves both kinds of memory is measured with host memory. */
static bool bench_transports_is_of_device(const struct hd_pair_plugin *line)
{
    return (hd_pair_carrier(line)->capabilities & HD_TRANSPORT_HOST) == 0;
}

/* The transport moves something, and a hook has a transport to wrap. */
static hd_status bench_transports_check(struct hd_cli *cli, const struct hd_pair_plugin *line)
{
    const struct hd_plugin *plugin = line->plugin;
    const struct hd_plugin *carrier = hd_pair_carrier(line);
    const bool is_hook = (plugin->capabilities & HD_TRANSPORT_HOOK) != 0;

    if (is_hook != (line->inner != NULL)) {
        hd_problem_remedy(&cli->problem,
                          is_hook ? "set transport.inner=NAME" : "set transport.inner=none");
        return hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE, "%s %s", plugin->name,
                              is_hook ? "is a hook and needs a transport to wrap"
                                      : "is not a hook and cannot wrap a transport");
    }
    if ((carrier->capabilities & (HD_TRANSPORT_HOST | HD_TRANSPORT_CUDA)) == 0) {
        return hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                              "%s moves neither host memory nor device memory", carrier->name);
    }
    if (strcmp(carrier->name, "null") == 0) {
        hd_problem_remedy(&cli->problem, "`heddle list transport` shows the other transports");
        return hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                              "null moves no bytes between ranks");
    }
    return HD_OK;
}

/* The rule of `heddle run`. */
static hd_status bench_transports_check_thread(struct hd_cli *cli, const struct hd_config *config,
                                               const struct hd_pair_plugin *line)
{
    const struct hd_plugin *plugin = line->plugin;
    const struct hd_transport_ops *ops = plugin->ops;

    if (!config->transport.progress_thread || ops->progress != NULL) {
        return HD_OK;
    }
    hd_problem_remedy(&cli->problem, "set progress_thread = off");
    hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE,
                   "transport %s needs no progress thread", plugin->name);
    return hd_cli_bench_blame(cli, config, "transport", "progress_thread");
}

static hd_status bench_transports_add(struct hd_bench_two *two, const struct hd_cli_wanted *wanted)
{
    struct hd_pair_plugin *added = &two->transports[two->count++];
    const struct hd_candidate *found;

    *added = (struct hd_pair_plugin){0};
    HD_TRY(hd_cli_take_plugin(two->cli, &two->config, wanted, &found, &added->options));
    added->plugin = &found->plugin;
    return HD_OK;
}

static hd_status bench_transports_add_asked(struct hd_bench_two *two)
{
    struct hd_config *config = &two->config;
    const struct hd_cli_wanted inner = {HD_KIND_TRANSPORT, "transport", "inner",
                                        config->transport.inner};
    const struct hd_cli_wanted transport = {HD_KIND_TRANSPORT, "transport", "name",
                                            config->transport.name};
    struct hd_pair_plugin *added = &two->transports[0];
    const struct hd_candidate *found;

    HD_TRY(bench_transports_add(two, &transport));
    if (strcmp(config->transport.inner, "none") != 0) {
        HD_TRY(hd_cli_take_plugin(two->cli, config, &inner, &found, &added->inner_options));
        added->inner = &found->plugin;
    }
    if (bench_transports_check(two->cli, added) != HD_OK) {
        return hd_cli_bench_blame(two->cli, config, "transport", "name");
    }
    return bench_transports_check_thread(two->cli, config, added);
}

static hd_status bench_transports_add_usual(struct hd_bench_two *two)
{
    static const char *const usual[] = {"shm", "ucx_tag", "ucx_put"};

    for (unsigned i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        const struct hd_cli_wanted wanted = {HD_KIND_TRANSPORT, "transport", "name", usual[i]};
        if (hd_registry_knows(two->cli->registry, "transport", usual[i])) {
            HD_TRY(bench_transports_add(two, &wanted));
        }
    }
    return HD_OK;
}

static hd_status bench_transports_add_against(struct hd_bench_two *two)
{
    const struct hd_cli_wanted wanted = {HD_KIND_TRANSPORT, "bench", "against",
                                         two->config.bench.against};
    struct hd_problem *problem = &two->cli->problem;

    HD_TRY(bench_transports_add(two, &wanted));
    const struct hd_pair_plugin *first = &two->transports[0];
    const struct hd_pair_plugin *added = &two->transports[two->count - 1];
    hd_status status = bench_transports_check(two->cli, added);
    if (status == HD_OK &&
        bench_transports_is_of_device(first) != bench_transports_is_of_device(added)) {
        hd_problem_remedy(problem, "measure them in two runs");
        status = hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                "one of %s and %s moves host memory, the other device memory",
                                first->plugin->name, added->plugin->name);
    }
    return status == HD_OK ? HD_OK : hd_cli_bench_blame(two->cli, &two->config, "bench", "against");
}

/* The kernel has a device, as far as its descriptor and its options tell. */
static hd_status bench_transports_check_lender(struct hd_bench_two *two)
{
    const struct hd_plugin *kernel = two->lender.kernel;
    struct hd_problem *problem = &two->cli->problem;
    const bool has_stream = (kernel->capabilities & HD_KERNEL_STREAM) != 0;
    char section[64];
    bool has_option = false;

    snprintf(section, sizeof section, "kernel.%.50s", kernel->name);
    for (uint32_t i = 0; i < kernel->option_count; i++) {
        has_option |= strcmp(kernel->options[i].name, "memory") == 0 &&
                      strcmp(two->lender.options[i].text, "cuda") != 0;
    }
    if (has_stream && !has_option) {
        return HD_OK;
    }
    if (has_option) {
        hd_problem_remedy(problem, "set %s.memory=cuda", section);
    } else {
        hd_problem_remedy(problem, "set kernels.name=synthetic or kernels.name=cuda");
    }
    hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                   "kernel %s computes in host memory, and transport %s cannot move that",
                   kernel->name, two->transports[0].plugin->name);
    return has_option ? hd_cli_bench_blame(two->cli, &two->config, section, "memory")
                      : hd_cli_bench_blame(two->cli, &two->config, "kernels", "name");
}

static hd_status bench_transports_find_lender(struct hd_bench_two *two)
{
    const bool is_asked = hd_cli_bench_is_asked(&two->config, "kernels.name");

    if (two->count == 0 || !bench_transports_is_of_device(&two->transports[0])) {
        return HD_OK;
    }
    const struct hd_cli_wanted wanted = {HD_KIND_KERNEL, "kernels", "name",
                                         is_asked ? two->config.kernels.name : "synthetic"};
    HD_TRY(hd_lender_find(two->cli, &two->config, &wanted, &two->lender));
    return bench_transports_check_lender(two);
}

static hd_status bench_transports_find(struct hd_bench_two *two)
{
    char name[HD_BENCH_TRANSPORT_NAME_BYTES];

    HD_TRY(hd_cli_bench_is_asked(&two->config, "transport.name") ? bench_transports_add_asked(two)
                                                                 : bench_transports_add_usual(two));
    if (strcmp(two->config.bench.against, "none") != 0) {
        HD_TRY(bench_transports_add_against(two));
    }
    HD_TRY(bench_transports_find_lender(two));
    for (uint32_t i = 0; i < two->count; i++) {
        hd_bench_two_name(two, i, name);
        hd_log(HD_LOG_DEBUG, "bench: transport %u of %u is %s, with slots in %s memory", i + 1,
               two->count, name, hd_bench_two_has_device(two) ? "device" : "host");
    }
    return hd_cli_check_sections(two->cli, &two->config);
}

int hd_bench_two_run(struct hd_bench_two *two, struct hd_cli *cli,
                     const struct hd_cli_bench_words *words,
                     void (*measure)(struct hd_bench_two *two))
{
    two->cli = cli;
    two->count = 0;
    if (hd_cli_bench_config(cli, words, &two->config) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (bench_transports_find(two) == HD_OK) {
        measure(two);
    }
    for (uint32_t i = 0; i < two->count; i++) {
        free(two->transports[i].options);
        free(two->transports[i].inner_options);
    }
    hd_lender_finish(&two->lender);
    hd_config_finish(&two->config);
    return cli->problem.exit_code;
}

void hd_bench_two_name(const struct hd_bench_two *two, uint32_t index,
                       char name[HD_BENCH_TRANSPORT_NAME_BYTES])
{
    const struct hd_pair_plugin *one = &two->transports[index];

    if (one->inner != NULL) {
        snprintf(name, HD_BENCH_TRANSPORT_NAME_BYTES, "%.50s(%.50s)", one->plugin->name,
                 one->inner->name);
    } else {
        snprintf(name, HD_BENCH_TRANSPORT_NAME_BYTES, "%.100s", one->plugin->name);
    }
}

/* --- two ranks of a launcher ------------------------------------------------------------------ */

hd_status hd_bench_two_join(struct hd_bench_two *two, const struct hd_bench_agreement *agreement,
                            struct hd_link **link)
{
    char name[HD_BENCH_TRANSPORT_NAME_BYTES], text[HD_HASH_TEXT_BYTES];
    const struct hd_cli_world wanted = {
        .rank_count = HD_DRIVE_RANK_COUNT,
        .replica_count = 1,
        .is_fixed = 1,
        .hash = text,
        .patience_s = two->config.transport.first_step_timeout_s,
    };
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (uint32_t i = 0; i < two->count; i++) {
        hd_bench_two_name(two, i, name);
        hd_hash_add_text(&hash, name);
    }
    if (two->lender.kernel != NULL) {
        hd_hash_add_text(&hash, two->lender.kernel->name);
    }
    for (uint32_t i = 0; i < agreement->count; i++) {
        hd_hash_add_u64(&hash, agreement->numbers[i]);
    }
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, text);
    return hd_cli_join(two->cli, &wanted, link, agreement->address);
}

bool hd_bench_two_has_device(const struct hd_bench_two *two)
{
    return two->lender.kernel != NULL;
}

bool hd_bench_two_speaks(const struct hd_link *link)
{
    return link == NULL || hd_link_rank(link) == 0;
}

void hd_bench_two_leave(struct hd_bench_two *two, struct hd_link *link)
{
    two->cli->is_silent = link != NULL && hd_link_verdict(link) != NULL;
    hd_link_close(link, &two->cli->problem);
}
