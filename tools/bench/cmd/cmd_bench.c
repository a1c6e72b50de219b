/* heddle bench - measurements with their spread, each beside its yardstick; it never judges. */
#include "bench/cmd/cmd_bench.h"
#include "cli/join.h"
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
    static const struct word {
        const char *word, *option; /* an option of this word only */
        int (*run)(struct hd_cli *cli);
        bool has_two_ranks; /* a launcher may have started them */
    } rows[] = {{"plan", NULL, hd_cli_bench_plan, false},
                {"step", "--part", hd_cli_bench_step, false},
                {"p2p", NULL, hd_cli_bench_p2p, true},
                {"skew", "--svg", hd_cli_bench_skew, true}};
    const struct word *asked = NULL, *other = NULL; /* other: the command line has its option */

    if (hd_cli_words_max(cli, 1) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cli->word_count == 0) {
        return hd_cli_refuse(cli, "bench needs one of: plan, step, p2p, skew");
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(cli->words[0], rows[i].word) == 0) {
            asked = &rows[i];
        } else if (rows[i].option != NULL && hd_cli_option(cli, rows[i].option, 0) != NULL) {
            other = &rows[i];
        }
    }
    if (asked == NULL) {
        return hd_cli_refuse(cli, "bench needs one of: plan, step, p2p, skew; not %.100s",
                             cli->words[0]);
    }
    cmd_bench_show_machine(cli, asked->word);
    if (asked->has_two_ranks) {
        hd_cli_be_member(cli);
    }
    return other == NULL
               ? asked->run(cli)
               : hd_cli_refuse(cli, "%s is an option of bench %s only", other->option, other->word);
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
