/* cli/cmd_inspect.c - heddle inspect: one plugin in full. */
#include "base/option.h"
#include "report/table.h"
#include "cli/cli.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* One bit of hd_plugin.capabilities. */
struct words {
    uint32_t kind;
    uint64_t bit;
    const char *text;
};

static const struct words cmd_inspect_capabilities[] = {
    {HD_KIND_TRANSPORT, HD_TRANSPORT_HOST, "slots in host memory"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_CUDA, "slots in device memory; takes streams"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_SEALED, "moves the seal before a slot together with the slot"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_IN_PLACE, "the source writes the target's slot: no copy"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_NO_RESIDENT, "waits without a kernel on the device"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_PEER_DEATH, "detects a dead peer before the deadline"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_UNBLOCKS, "abort ends waits on the device too"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_SHARED_DEVICE, "ranks may share one device"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_MANY_HOSTS, "ranks may be on several hosts"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_SERIAL, "needs posts in plan order, in groups (law 7)"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_PROGRESS, "transfers move only while progress is called"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_TARGET_PROGRESS,
     "transfers move only while the peer calls progress, too"},
    {HD_KIND_TRANSPORT, HD_TRANSPORT_HOOK, "wraps another transport (transport.inner)"},
    {HD_KIND_KERNEL, HD_KERNEL_STREAM, "runs asynchronously on a stream"},
    {HD_KIND_KERNEL, HD_KERNEL_PEER_OUTPUT, "writes its output directly into a peer's memory"},
    {HD_KIND_KERNEL, HD_KERNEL_RECOMPUTE, "can recompute activations instead of retaining them"},
    {HD_KIND_KERNEL, HD_KERNEL_MXFP8_NATIVE, "MXFP8 products run on the device natively"},
    {HD_KIND_KERNEL, HD_KERNEL_MXFP8_EMULATED, "MXFP8 products are emulated: dequantised to BF16"},
};

/* What an optional member of the ops table means, present and missing. */
struct member {
    uint32_t kind;
    size_t offset;
    const char *present, *missing;
};

static const struct member cmd_inspect_members[] = {
    {HD_KIND_SCHEDULE, offsetof(struct hd_schedule_ops, refuse),
     "rejects the shapes that it cannot plan", "accepts every shape"},
    {HD_KIND_SCHEDULE, offsetof(struct hd_schedule_ops, replica_of), "plans several replicas",
     "plans one replica"},
    {HD_KIND_TRANSPORT, offsetof(struct hd_transport_ops, wait), "has a wait of its own",
     "has no wait: the core polls"},
    {HD_KIND_TRANSPORT, offsetof(struct hd_transport_ops, progress), "needs progress calls",
     "needs no progress calls"},
    {HD_KIND_TRANSPORT, offsetof(struct hd_transport_ops, quiesce), "quiesces with its peers",
     "needs no quiesce: no peer writes into its memory"},
    {HD_KIND_TRANSPORT, offsetof(struct hd_transport_ops, stats), "has statistics per channel",
     "has no statistics"},
    {HD_KIND_KERNEL, offsetof(struct hd_kernel_ops, backward_input),
     "split backward (I and W): yes", "split backward (I and W): no"},
    {HD_KIND_KERNEL, offsetof(struct hd_kernel_ops, allocate), "allocates memory of its own device",
     "computes in host memory"},
};

enum {
    CAPABILITY_COUNT = sizeof cmd_inspect_capabilities / sizeof cmd_inspect_capabilities[0],
    MEMBER_COUNT = sizeof cmd_inspect_members / sizeof cmd_inspect_members[0],
    CHECK_RANKS = 4,
    CHECK_MICROBATCHES = 8
};

static const char *cmd_inspect_member_text(const struct hd_plugin *plugin,
                                           const struct member *member)
{
    void (*function)(void);
    memcpy(&function, (const char *)plugin->ops + member->offset, sizeof function);
    return function != NULL ? member->present : member->missing;
}

/* Whether every stage is on a rank that exists. */
static bool cmd_inspect_is_placed(const struct hd_schedule_ops *ops, const struct hd_shape *shape)
{
    bool is_good = true;

    for (uint32_t stage = 0; stage < shape->stage_count; stage++) {
        is_good = is_good && ops->rank_of(shape, stage, 0) < shape->rank_count;
    }
    return is_good;
}

/* Asks a schedule for the length of one small plan, twice, and for its placement.  Only `heddle
   plan` checks the laws. */
static bool cmd_inspect_check_schedule(const struct hd_plugin *plugin,
                                       const struct hd_option_value *options, char text[512])
{
    const struct hd_schedule_ops *ops = plugin->ops;
    const uint32_t per_rank = ops->stages_per_rank > 0 ? ops->stages_per_rank : 1;
    const struct hd_shape shape = {.size = sizeof shape,
                                   .rank_count = CHECK_RANKS,
                                   .stage_count = CHECK_RANKS * per_rank,
                                   .microbatch_count = CHECK_MICROBATCHES,
                                   .option_count = plugin->option_count,
                                   .options = options};
    struct hd_plan storage[2][CHECK_RANKS];
    struct hd_plan *plans[2][CHECK_RANKS];
    char reason[256] = "";
    uint64_t total[2] = {0, 0};

    if (ops->refuse != NULL && ops->refuse(&shape, reason, sizeof reason) > 0) {
        snprintf(text, 512, "rejects %u ranks, %u stages, %u microbatches: %s", shape.rank_count,
                 shape.stage_count, shape.microbatch_count, reason);
        return true;
    }
    const uint64_t scratch_bytes = ops->scratch_bytes != NULL ? ops->scratch_bytes(&shape) : 0;
    void *scratch = aligned_alloc(64, (scratch_bytes + 127) / 64 * 64);
    for (int run = 0; run < 2 && scratch != NULL; run++) {
        for (uint32_t rank = 0; rank < CHECK_RANKS; rank++) {
            storage[run][rank] = (struct hd_plan){.size = sizeof storage[run][rank]};
            plans[run][rank] = &storage[run][rank];
        }
        ops->plan(&shape, scratch, plans[run]);
        for (uint32_t rank = 0; rank < CHECK_RANKS; rank++) {
            total[run] += storage[run][rank].count;
        }
    }
    free(scratch);
    const char *fault = total[0] == 0          ? ", which is not a plan"
                        : total[0] != total[1] ? ", and with a different number the second time"
                        : !cmd_inspect_is_placed(ops, &shape)
                            ? ", but places a stage on a rank that does not exist"
                            : "";
    const bool is_good = fault[0] == '\0';
    snprintf(text, 512, "plans %u ranks, %u stages, %u microbatches with %llu actions%s",
             shape.rank_count, shape.stage_count, shape.microbatch_count,
             (unsigned long long)total[0], fault);
    return is_good;
}

static bool cmd_inspect_self_check(struct hd_cli *cli, const struct hd_plugin *plugin,
                                   char text[512])
{
    struct hd_config config;
    bool is_good = false;
    struct hd_option_value *options = calloc(plugin->option_count + 1, sizeof *options);

    if (options != NULL && hd_cli_config(cli, &config) == HD_OK) {
        if (hd_config_options(&config, plugin, options, &cli->problem) == HD_OK) {
            is_good = true;
            snprintf(text, 512, "loads; its descriptor, options and ops table are valid");
            if (plugin->kind == HD_KIND_SCHEDULE) {
                is_good = cmd_inspect_check_schedule(plugin, options, text);
            }
        }
        hd_config_finish(&config);
    }
    free(options);
    return is_good;
}

static void cmd_inspect_show_options(const struct hd_plugin *plugin)
{
    static const char *const titles[] = {"OPTION", "DEFAULT", "RANGE", "HELP"};

    if (plugin->option_count == 0) {
        printf("\nno options\n");
        return;
    }
    printf("\noptions, in [%s.%s]:\n", hd_kind_name(plugin->kind), plugin->name);
    struct hd_table *table = hd_table_create(4, titles);
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const struct hd_option *option = &plugin->options[i];
        hd_table_cell(table, "%s", option->name);
        hd_table_cell(table, "%s", option->initial);
        hd_table_cell(table, "%s",
                      option->range != NULL ? option->range : hd_option_type_name(option->type));
        hd_table_cell(table, "%s", option->help);
    }
    hd_table_print(table, 2, stdout);
    hd_table_destroy(table);
}

/* What the plugin can do, a line each: printed, or added to `list`. */
static void cmd_inspect_show_abilities(const struct hd_plugin *plugin, struct cJSON *list)
{
    const char *texts[CAPABILITY_COUNT + MEMBER_COUNT];
    unsigned count = 0;

    for (unsigned i = 0; i < CAPABILITY_COUNT; i++) {
        if (cmd_inspect_capabilities[i].kind == plugin->kind &&
            (plugin->capabilities & cmd_inspect_capabilities[i].bit)) {
            texts[count++] = cmd_inspect_capabilities[i].text;
        }
    }
    for (unsigned i = 0; i < MEMBER_COUNT; i++) {
        if (cmd_inspect_members[i].kind == plugin->kind) {
            texts[count++] = cmd_inspect_member_text(plugin, &cmd_inspect_members[i]);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (list != NULL) {
            hd_json_text(list, NULL, texts[i]);
        } else {
            printf("  %s\n", texts[i]);
        }
    }
}

static void cmd_inspect_show_text(const struct hd_cli *cli, const struct hd_candidate *candidate,
                                  const char *check)
{
    const struct hd_plugin *plugin = &candidate->plugin;
    const struct {
        const char *name, *value;
    } rows[] = {
        {"kind", hd_kind_name(plugin->kind)},
        {"summary", plugin->summary},
        {"path", candidate->path},
        {"version", plugin->version},
        {"vendor", plugin->vendor},
        {"licence", plugin->licence},
        {"source", plugin->source},
    };

    printf("%s%s.%s%s\n", hd_cli_bold(cli), hd_kind_name(plugin->kind), plugin->name,
           hd_cli_plain(cli));
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        printf("  %-10s  %s\n", rows[i].name, rows[i].value[0] != '\0' ? rows[i].value : "-");
    }
    printf("  %-10s  %u.%u\n", "abi", plugin->abi_major, plugin->abi_minor);
    printf("\ncapabilities:\n");
    cmd_inspect_show_abilities(plugin, NULL);
    cmd_inspect_show_options(plugin);
    printf("\nself-check: %s\n", check);
}

static void cmd_inspect_show_json(struct hd_cli *cli, const struct hd_candidate *candidate,
                                  const char *check, bool is_good)
{
    const struct hd_plugin *plugin = &candidate->plugin;
    struct cJSON *root = cli->json;

    hd_json_text(root, "kind", hd_kind_name(plugin->kind));
    hd_json_text(root, "name", plugin->name);
    hd_json_text(root, "path", candidate->path);
    hd_json_text(root, "summary", plugin->summary);
    hd_json_text(root, "version", plugin->version);
    hd_json_text(root, "vendor", plugin->vendor);
    hd_json_text(root, "licence", plugin->licence);
    hd_json_text(root, "source", plugin->source);
    hd_json_u64(root, "abi_major", plugin->abi_major);
    hd_json_u64(root, "abi_minor", plugin->abi_minor);
    cmd_inspect_show_abilities(plugin, hd_json_array(root, "capabilities"));
    struct cJSON *list = hd_json_array(root, "options");
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        struct cJSON *item = hd_json_object(list, NULL);
        hd_json_text(item, "name", plugin->options[i].name);
        hd_json_text(item, "type", hd_option_type_name(plugin->options[i].type));
        hd_json_text(item, "default", plugin->options[i].initial);
        hd_json_text(item, "range", plugin->options[i].range);
        hd_json_text(item, "help", plugin->options[i].help);
    }
    struct cJSON *result = hd_json_object(root, "self_check");
    hd_json_flag(result, "passed", is_good);
    hd_json_text(result, "text", check);
}

static int cmd_inspect(struct hd_cli *cli)
{
    const struct hd_candidate *found;
    char check[512] = "";

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cli->word_count == 0) {
        hd_problem_remedy(&cli->problem, "`heddle list` shows all plugins");
        return hd_cli_refuse(cli, "inspect needs the name or the file of a plugin");
    }
    if (hd_cli_find_plugin(cli, cli->words[0], &found) != HD_OK) {
        return cli->problem.exit_code;
    }
    const bool is_good = cmd_inspect_self_check(cli, &found->plugin, check);
    if (cli->problem.exit_code != 0) {
        return cli->problem.exit_code;
    }
    if (cli->is_json) {
        cmd_inspect_show_json(cli, found, check, is_good);
    } else {
        cmd_inspect_show_text(cli, found, check);
    }
    return is_good ? HD_EXIT_OK : HD_EXIT_PLUGIN;
}

const struct hd_command hd_command_inspect = {
    "inspect", "NAME|KIND.NAME|FILE", "shows one plugin in full", NULL, cmd_inspect,
};
