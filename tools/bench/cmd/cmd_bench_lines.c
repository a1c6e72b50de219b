/* What `heddle bench p2p` and `heddle bench skew` have in common: transports, found by name. */
#include "bench/cmd/cmd_bench.h"
#include "cli/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hd_status bench_lines_refuse(struct hd_cli *cli, const struct hd_config *config,
                                    const char *section, const char *key)
{
    hd_problem_place(&cli->problem, "%s", hd_config_place(config, section, key));
    hd_problem_key(&cli->problem, "%s.%s", section, key);
    return HD_INVALID;
}

hd_status hd_cli_bench_blame(struct hd_cli *cli, const struct hd_config *config, const char *key)
{
    return bench_lines_refuse(cli, config, "bench", key);
}

static const struct hd_plugin *bench_lines_carrier_of(const struct hd_cli_bench_line *line)
{
    return line->inner != NULL ? &line->inner->plugin : &line->transport->plugin;
}

/* What moves both is measured on the host. */
static int bench_lines_is_of_device(const struct hd_cli_bench_line *line)
{
    return (bench_lines_carrier_of(line)->capabilities & HD_TRANSPORT_HOST) == 0;
}

/* It moves something, and a hook has something to wrap. */
static hd_status bench_lines_check(struct hd_cli *cli, const struct hd_cli_bench_line *line)
{
    const struct hd_plugin *plugin = &line->transport->plugin;
    const struct hd_plugin *carrier = bench_lines_carrier_of(line);
    const int is_hook = (plugin->capabilities & HD_TRANSPORT_HOOK) != 0;

    if (is_hook != (line->inner != NULL)) {
        hd_problem_remedy(&cli->problem, is_hook ? "say what it wraps: transport.inner = NAME"
                                                 : "take transport.inner = none");
        return hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE, "%s wraps %s", plugin->name,
                              is_hook ? "another transport" : "no other transport");
    }
    if ((carrier->capabilities & (HD_TRANSPORT_HOST | HD_TRANSPORT_CUDA)) == 0) {
        return hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                              "%s moves neither host memory nor a device's", carrier->name);
    }
    if (strcmp(carrier->name, "null") == 0) {
        hd_problem_remedy(&cli->problem, "`heddle list transport` shows those that do");
        return hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_PLUGIN,
                              "null moves nothing between two ranks");
    }
    return HD_OK;
}

/* As `heddle run` refuses it. */
static hd_status bench_lines_check_thread(struct hd_cli *cli, const struct hd_config *config,
                                          const struct hd_cli_bench_line *line)
{
    const struct hd_plugin *plugin = &line->transport->plugin;
    const struct hd_transport_ops *ops = plugin->ops;

    if (!config->transport.progress_thread || ops->progress != NULL) {
        return HD_OK;
    }
    hd_problem_place(&cli->problem, "%s", hd_config_place(config, "transport", "progress_thread"));
    hd_problem_key(&cli->problem, "transport.progress_thread");
    return hd_problem_set(&cli->problem, HD_INVALID, HD_EXIT_USAGE, "transport %s moves by itself",
                          plugin->name);
}

static hd_status bench_lines_add(struct hd_cli *cli, struct hd_config *config,
                                 const struct hd_cli_wanted *wanted,
                                 struct hd_cli_bench_lines *lines)
{
    struct hd_cli_bench_line *line = &lines->lines[lines->count++];

    *line = (struct hd_cli_bench_line){0};
    return hd_cli_take_plugin(cli, config, wanted, &line->transport, &line->options);
}

static hd_status bench_lines_add_asked(struct hd_cli *cli, struct hd_config *config,
                                       struct hd_cli_bench_lines *lines)
{
    const struct hd_cli_wanted inner = {HD_KIND_TRANSPORT, "transport", "inner",
                                        config->transport.inner};
    const struct hd_cli_wanted transport = {HD_KIND_TRANSPORT, "transport", "name",
                                            config->transport.name};
    hd_status status = bench_lines_add(cli, config, &transport, lines);
    struct hd_cli_bench_line *line = &lines->lines[0];

    if (status == HD_OK && strcmp(config->transport.inner, "none") != 0) {
        status = hd_cli_take_plugin(cli, config, &inner, &line->inner, &line->inner_options);
    }
    if (status != HD_OK) {
        return status;
    }
    if (bench_lines_check(cli, line) != HD_OK) {
        return bench_lines_refuse(cli, config, "transport", "name");
    }
    return bench_lines_check_thread(cli, config, line);
}

static hd_status bench_lines_add_usual(struct hd_cli *cli, struct hd_config *config,
                                       struct hd_cli_bench_lines *lines)
{
    hd_status status = HD_OK;

    for (uint32_t i = 0; status == HD_OK && lines->usual[i] != NULL; i++) {
        if (hd_registry_knows(cli->registry, "transport", lines->usual[i])) {
            status = bench_lines_add(
                cli, config,
                &(struct hd_cli_wanted){HD_KIND_TRANSPORT, "transport", "name", lines->usual[i]},
                lines);
        }
    }
    return status;
}

static hd_status bench_lines_add_against(struct hd_cli *cli, struct hd_config *config,
                                         struct hd_cli_bench_lines *lines)
{
    const struct hd_cli_wanted wanted = {HD_KIND_TRANSPORT, "bench", "against",
                                         config->bench.against};
    hd_status status = bench_lines_add(cli, config, &wanted, lines);

    if (status != HD_OK) {
        return status;
    }
    status = bench_lines_check(cli, &lines->lines[lines->count - 1]);
    if (status == HD_OK && bench_lines_is_of_device(&lines->lines[0]) !=
                               bench_lines_is_of_device(&lines->lines[lines->count - 1])) {
        hd_problem_remedy(&cli->problem, "measure them one after the other");
        status = hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                "of %s and %s one moves host memory and the other a device's",
                                lines->lines[0].transport->plugin.name,
                                lines->lines[lines->count - 1].transport->plugin.name);
    }
    return status == HD_OK ? HD_OK : bench_lines_refuse(cli, config, "bench", "against");
}

/* The kernel has a device, as far as can be said without opening it. */
static hd_status bench_lines_check_lender(struct hd_cli *cli, const struct hd_config *config,
                                          const struct hd_cli_bench_lines *lines)
{
    const struct hd_plugin *kernel = &lines->lender.kernel->plugin;
    const char *transport = lines->lines[0].transport->plugin.name;
    char section[64];

    snprintf(section, sizeof section, "kernel.%.50s", kernel->name);
    for (uint32_t i = 0; i < kernel->option_count; i++) {
        if (strcmp(kernel->options[i].name, "memory") == 0 &&
            strcmp(lines->lender.options[i].text, "cuda") != 0) {
            hd_problem_remedy(&cli->problem, "set %s.memory=cuda", section);
            hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                           "kernel %s computes in host memory, and transport %s cannot move that",
                           kernel->name, transport);
            return bench_lines_refuse(cli, config, section, "memory");
        }
    }
    if ((kernel->capabilities & HD_KERNEL_STREAM) != 0) {
        return HD_OK;
    }
    hd_problem_remedy(&cli->problem, "set kernels.name=synthetic or kernels.name=cuda");
    hd_problem_set(&cli->problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                   "kernel %s computes in host memory, and transport %s cannot move that",
                   kernel->name, transport);
    return bench_lines_refuse(cli, config, "kernels", "name");
}

static hd_status bench_lines_find_lender(struct hd_cli *cli, struct hd_config *config,
                                         struct hd_cli_bench_lines *lines)
{
    const int is_asked = hd_cli_bench_is_asked(config, "kernels.name");

    if (lines->count == 0 || !bench_lines_is_of_device(&lines->lines[0])) {
        return HD_OK;
    }
    const struct hd_cli_wanted wanted = {HD_KIND_KERNEL, "kernels", "name",
                                         is_asked ? config->kernels.name : "synthetic"};
    const hd_status status = hd_lender_find(cli, config, &wanted, &lines->lender);
    return status == HD_OK ? bench_lines_check_lender(cli, config, lines) : status;
}

hd_status hd_cli_bench_lines(struct hd_cli *cli, struct hd_config *config,
                             struct hd_cli_bench_lines *lines)
{
    const int is_asked = hd_cli_bench_is_asked(config, "transport.name");
    hd_status status = HD_OK;

    lines->count = 0;
    status = is_asked ? bench_lines_add_asked(cli, config, lines)
                      : bench_lines_add_usual(cli, config, lines);
    if (status == HD_OK && strcmp(config->bench.against, "none") != 0) {
        status = bench_lines_add_against(cli, config, lines);
    }
    if (status == HD_OK) {
        status = bench_lines_find_lender(cli, config, lines);
    }
    if (status == HD_OK) {
        status = hd_cli_check_sections(cli, config);
    }
    return status;
}

void hd_cli_bench_lines_finish(struct hd_cli_bench_lines *lines)
{
    for (uint32_t i = 0; i < lines->count; i++) {
        free(lines->lines[i].options);
        free(lines->lines[i].inner_options);
    }
    lines->count = 0;
    hd_lender_finish(&lines->lender);
}

struct hd_drive_lender hd_cli_bench_lender(const struct hd_cli_bench_lines *lines)
{
    return (struct hd_drive_lender){
        .kernel = lines->lender.kernel != NULL ? &lines->lender.kernel->plugin : NULL,
        .options = lines->lender.options,
    };
}

struct hd_pair_plugin hd_cli_bench_plugin(const struct hd_cli_bench_line *line)
{
    return (struct hd_pair_plugin){
        .plugin = &line->transport->plugin,
        .inner = line->inner != NULL ? &line->inner->plugin : NULL,
        .options = line->options,
        .inner_options = line->inner_options,
    };
}

void hd_cli_bench_line_name(const struct hd_cli_bench_line *line, char name[HD_CLI_LINE_NAME_BYTES])
{
    if (line->inner != NULL) {
        snprintf(name, HD_CLI_LINE_NAME_BYTES, "%.50s(%.50s)", line->transport->plugin.name,
                 line->inner->plugin.name);
    } else {
        snprintf(name, HD_CLI_LINE_NAME_BYTES, "%.100s", line->transport->plugin.name);
    }
}

void hd_cli_bench_tail(struct cJSON *parent, const char *key, const struct hd_bench_tail *tail)
{
    struct cJSON *object = hd_json_object(parent, key);

    hd_json_number(object, "min", tail->min);
    hd_json_number(object, "p50", tail->p50);
    hd_json_number(object, "p99", tail->p99);
    hd_json_number(object, "max", tail->max);
    hd_json_u64(object, "count", tail->count);
}

/* --- two ranks of a launcher ------------------------------------------------------------------ */

static void bench_lines_hash_world(const struct hd_cli_bench_world *world,
                                   char text[HD_HASH_TEXT_BYTES])
{
    char name[HD_CLI_LINE_NAME_BYTES];
    uint8_t digest[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    for (uint32_t i = 0; i < world->lines->count; i++) {
        hd_cli_bench_line_name(&world->lines->lines[i], name);
        hd_hash_add_text(&hash, name);
    }
    if (world->lines->lender.kernel != NULL) {
        hd_hash_add_text(&hash, world->lines->lender.kernel->plugin.name);
    }
    for (uint32_t i = 0; i < world->count; i++) {
        hd_hash_add_u64(&hash, world->numbers[i]);
    }
    hd_hash_end(&hash, digest);
    hd_hash_text(digest, text);
}

hd_status hd_cli_bench_join(struct hd_cli *cli, const struct hd_cli_bench_world *world,
                            struct hd_link **link)
{
    char hash[HD_HASH_TEXT_BYTES];
    const struct hd_cli_world wanted = {.rank_count = HD_DRIVE_RANK_COUNT,
                                        .replica_count = 1,
                                        .is_fixed = 1,
                                        .hash = hash,
                                        .patience_s = world->patience_s};

    bench_lines_hash_world(world, hash);
    return hd_cli_join(cli, &wanted, link, world->address);
}

int hd_cli_bench_speaks(const struct hd_link *link)
{
    return link == NULL || hd_link_rank(link) == 0;
}

void hd_cli_bench_leave(struct hd_cli *cli, struct hd_link *link)
{
    cli->is_silent = link != NULL && hd_link_verdict(link) != NULL;
    hd_link_close(link, &cli->problem);
}
