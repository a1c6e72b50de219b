/*
 * bench/cmd/cmd_bench.h - what the commands of `heddle bench` share: a job made of the command line
 * and of what the bench itself wants.
 *
 * A usual value holds where neither file nor command line says the key; a forced one holds always,
 * because without it the measurement would be of something else.
 */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_H

#include "report/table.h"
#include "cli/cli.h"
#include "drive/lender.h"
#include "bench/bench.h"
#include "drive/pair.h"
#include "run/job.h"

#define HD_CLI_BENCH_WORD_MAX  32u
#define HD_CLI_LINE_NAME_BYTES 112u

/* Words section.key=value; each list ends with NULL. */
struct hd_cli_bench_words {
    const char *usual[HD_CLI_BENCH_WORD_MAX];
    const char *forced[HD_CLI_BENCH_WORD_MAX];
};

struct hd_cli_bench_job {
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_job job;
};

/* The configuration alone; on failure it is finished already. */
hd_status hd_cli_bench_config(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                              struct hd_config *config);
/* And its plugins and its job.  On failure all is finished already, and cli->problem filled. */
hd_status hd_cli_bench_open(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                            struct hd_cli_bench_job *bench);
void hd_cli_bench_close(struct hd_cli_bench_job *bench);

/* The file or the command line says "section.key". */
int hd_cli_bench_is_asked(const struct hd_config *asked, const char *key);

/* {"median", "min", "p90", "count"} under `key`. */
void hd_cli_bench_json(struct cJSON *parent, const char *key, const struct hd_bench_spread *spread);

/* One cell of a number; "-" where there is none. */
void hd_cli_bench_cell(struct hd_table *table, const char *format, double value);

/* One part of `heddle bench step`, being measured. */
struct hd_cli_bench_part {
    struct hd_cli *cli;
    struct hd_config asked;
    uint32_t iterations, warmup;
    struct hd_table *table; /* of text; NULL with --json */
    struct cJSON *list;     /* of --json; else NULL */
};

/* The job of the part `model`, for those that measure it otherwise: 1024 rows an expert and 12288
   tokens a step.  With few rows a product waits for the expert's weights and float32 gradients to
   come from memory, with few tokens the optimizer counts as much as the products. */
#define HD_CLI_BENCH_MODEL                                                              \
    "model.layers=4", "model.width=768", "model.heads=12", "model.experts=4",           \
        "model.experts_per_token=2", "model.expert_width=1024", "model.vocabulary=256", \
        "model.sequence=512", "data.microbatch_size=4", "pipeline.microbatches=6"

/* A file's warm-up may be longer than the few steps of a measurement. */
#define HD_CLI_BENCH_FEW_STEPS "train.warmup_steps=0"

/* The part `quantiser`: its rate beside a copy's, and the step in MXFP8 beside the one in BF16. */
hd_status hd_cli_bench_quantiser(struct hd_cli_bench_part *part);

/* The part `overlap`: every schedule over a line that takes its time, beside its costed plan.  The
   part `recording`: steps with the trace, beside steps without it. */
hd_status hd_cli_bench_overlap(struct hd_cli_bench_part *part);
hd_status hd_cli_bench_recording(struct hd_cli_bench_part *part);

/* Of the kernel cuda: its products beside cuBLASLt's alone, and the part `model`. */
hd_status hd_cli_bench_products(struct hd_cli_bench_part *part);
hd_status hd_cli_bench_passes(struct hd_cli_bench_part *part);

/* A transport of the bench, with its options; the hook around it, if `config` asks for one. */
struct hd_cli_bench_line {
    const struct hd_candidate *transport, *inner;    /* inner: NULL, or what the transport wraps */
    struct hd_option_value *options, *inner_options; /* owned */
};

/*
 * What the two ranks of `bench p2p` and `bench skew` measure: transport.name and bench.against;
 * where neither file nor command line says transport.name, those of `usual` (ends with NULL) that
 * are there.  At most `count_max`; *count is also right on failure.  Of transports between devices
 * kernels.name lends the device, or synthetic where nobody names a kernel.
 */
struct hd_cli_bench_lines {
    const char *const *usual;
    uint32_t count_max, count;
    struct hd_cli_bench_line *lines; /* [count_max] */
    struct hd_lender lender;         /* kernel NULL: all slots are the host's */
};
hd_status hd_cli_bench_lines(struct hd_cli *cli, struct hd_config *config,
                             struct hd_cli_bench_lines *lines);
void hd_cli_bench_lines_finish(struct hd_cli_bench_lines *lines);

/* Where a launcher has started both ranks, they meet; they must agree on the transports and on
   `numbers` [count].  *link stays NULL where this command forks both. */
struct hd_cli_bench_world {
    const struct hd_cli_bench_lines *lines;
    const uint64_t *numbers;
    uint32_t count;
    double patience_s;
    char *address; /* of rank 0, 64 bytes; NULL: not wanted */
};
hd_status hd_cli_bench_join(struct hd_cli *cli, const struct hd_cli_bench_world *world,
                            struct hd_link **link);
/* 1: this process is the one that speaks. */
int hd_cli_bench_speaks(const struct hd_link *link);
/* With what is in cli->problem; takes NULL. */
void hd_cli_bench_leave(struct hd_cli *cli, struct hd_link *link);

/* Place and key of what is wrong with bench.KEY; HD_INVALID. */
hd_status hd_cli_bench_blame(struct hd_cli *cli, const struct hd_config *config, const char *key);

/* As the measurement takes them, borrowed. */
struct hd_pair_plugin hd_cli_bench_plugin(const struct hd_cli_bench_line *line);

/* Likewise, who lends the device; kernel NULL: nobody. */
struct hd_drive_lender hd_cli_bench_lender(const struct hd_cli_bench_lines *lines);

/* "shm", or "hook_fault(shm)". */
void hd_cli_bench_line_name(const struct hd_cli_bench_line *line,
                            char name[HD_CLI_LINE_NAME_BYTES]);

/* {"min", "p50", "p99", "max", "count"} under `key`. */
void hd_cli_bench_tail(struct cJSON *parent, const char *key, const struct hd_bench_tail *tail);

/* Refuses --svg, which is of bench skew alone. */
hd_status hd_cli_bench_no_figure(struct hd_cli *cli);

/* `heddle bench WORD`, after the word; the exit code. */
int hd_cli_bench_plan(struct hd_cli *cli);
int hd_cli_bench_step(struct hd_cli *cli);
int hd_cli_bench_p2p(struct hd_cli *cli);
int hd_cli_bench_skew(struct hd_cli *cli);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_H */
