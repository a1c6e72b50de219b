/* heddle bench - measurements with their spread, each beside its yardstick; it never judges. */
#include "bench/bench.h"
#include "bench/cmd/cmd_bench_commands.h"
#include "launch/identity.h"

#include <stdio.h>
#include <string.h>

static void cmd_bench_show_machine(struct hd_cli *cli, const char *word)
{
    struct hd_bench_machine machine;

    if (hd_identity_is_member()) {
        return; /* rank 0 prints */
    }
    hd_bench_machine(&machine);
    if (!cli->is_json) {
        printf("heddle bench %s on %s, %u core%s, load %.1f before\n", word, machine.cpu,
               machine.core_count, machine.core_count == 1 ? "" : "s", machine.load);
        fflush(stdout);
        return;
    }
    hd_json_text(cli->json, "bench", word);
    struct cJSON *object = hd_json_object(cli->json, "machine");
    hd_json_text(object, "cpu", machine.cpu);
    hd_json_u64(object, "cores", machine.core_count);
    hd_json_number(object, "load_before", machine.load);
}

static int cmd_bench(struct hd_cli *cli)
{
    static const struct {
        const char *word;
        int (*run)(struct hd_cli *cli);
    } rows[] = {{"plan", hd_cli_bench_plan},
                {"step", hd_cli_bench_step},
                {"p2p", hd_cli_bench_p2p},
                {"skew", hd_cli_bench_skew}};

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cli->word_count == 0) {
        return hd_cli_refuse(cli, "bench needs one of: plan, step, p2p, skew");
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(cli->words[0], rows[i].word) == 0) {
            cmd_bench_show_machine(cli, rows[i].word);
            return rows[i].run(cli);
        }
    }
    return hd_cli_refuse(cli, "bench needs one of: plan, step, p2p, skew; not %.100s",
                         cli->words[0]);
}

static const struct hd_cli_option cmd_bench_options[] = {
    {"--part", "model|products|engine|schedule|quantiser|overlap|recording",
     "bench step: only this part; may be repeated"},
    {"--svg", "OUT", "bench skew: writes the results as a figure"},
    {NULL, NULL, NULL},
};

const struct hd_command hd_command_bench = {
    "bench",
    "plan|step|p2p|skew",
    "measures performance, each number beside a yardstick of the same run",
    cmd_bench_options,
    cmd_bench,
};
