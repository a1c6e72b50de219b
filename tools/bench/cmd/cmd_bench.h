/*
 * bench/cmd/cmd_bench.h - what the commands `heddle bench WORD` share: the job that is measured,
 * and how its results are shown.
 */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_H

#include "bench/bench.h"
#include "cli/cli.h"
#include "report/table.h"
#include "run/job.h"

#include <stddef.h>

/* `heddle bench WORD`, after the word; each returns the exit code and is in cmd_bench_WORD.c. */
int hd_cli_bench_plan(struct hd_cli *cli);
int hd_cli_bench_step(struct hd_cli *cli);
int hd_cli_bench_p2p(struct hd_cli *cli);
int hd_cli_bench_skew(struct hd_cli *cli);

/* --- cmd_bench_job.c: a job made of the configuration and of what a measurement needs --------- */

#define HD_CLI_BENCH_WORD_MAX 32u

/* Words section.key=value; each list ends with NULL.  A usual value holds if neither the file nor
   the command line sets the key.  A forced value always holds, because without it the measurement
   would be of something else. */
struct hd_cli_bench_words {
    const char *usual[HD_CLI_BENCH_WORD_MAX];
    const char *forced[HD_CLI_BENCH_WORD_MAX];
};

struct hd_cli_bench_job {
    struct hd_config config;
    struct hd_plugins plugins;
    struct hd_job job;
};

/* Reads the configuration.  On failure it is finished already. */
hd_status hd_cli_bench_config(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                              struct hd_config *config);
/* Also takes the plugins and makes the job.  On failure all is finished already, and cli->problem
   is set. */
hd_status hd_cli_bench_open(struct hd_cli *cli, const struct hd_cli_bench_words *words,
                            struct hd_cli_bench_job *bench);
void hd_cli_bench_close(struct hd_cli_bench_job *bench);

/* The file or the command line sets section.key; `word` may end with =value. */
bool hd_cli_bench_is_asked(const struct hd_config *asked, const char *word);

/* Puts place and key of section.key into cli->problem; HD_INVALID. */
hd_status hd_cli_bench_blame(struct hd_cli *cli, const struct hd_config *config,
                             const char *section, const char *key);

/* HD_INVALID, with a problem, if bench.iterations or bench.warmup is above `most`. */
hd_status hd_cli_bench_check_repeats(struct hd_cli *cli, const struct hd_config *config,
                                     uint32_t most);

/* --- cmd_bench_output.c: results, as rows of a table or as JSON objects ---------------------- */

/* The type of a member, and what is shown of it. */
enum hd_bench_type {
    HD_BENCH_TEXT,   /* const char *; the member of NULL is null */
    HD_BENCH_CHARS,  /* char[] */
    HD_BENCH_COUNT,  /* uint32_t */
    HD_BENCH_BIG,    /* uint64_t */
    HD_BENCH_NUMBER, /* double; the cell of a NaN is "-" */
    HD_BENCH_SPREAD, /* hd_bench_spread: three cells; {"median", "min", "p90", "count"} */
    HD_BENCH_MEDIAN, /* hd_bench_spread: the cell of its median; the same object */
    HD_BENCH_TAIL,   /* hd_bench_spread: no cell; {"min", "p50", "p99", "max", "count"} */
};

/* A value of a result. */
struct hd_bench_field {
    const char *key;   /* of JSON; NULL: only a column */
    const char *title; /* of the column; NULL: only JSON */
    const char *format;
    enum hd_bench_type type;
    size_t offset;
    double scale;  /* of the cell */
    uint32_t only; /* sheets of this kind alone have it; 0: all have it */
};

/* A field that is the member of HD_BENCH_ROW. */
#define HD_BENCH_FIELD_IF(only, scale, key, title, format, type, member)                 \
    {                                                                                    \
        key, title, format, HD_BENCH_##type, offsetof(HD_BENCH_ROW, member), scale, only \
    }
#define HD_BENCH_FIELD(key, title, format, type, member) \
    HD_BENCH_FIELD_IF(0, 1, key, title, format, type, member)

/* Rows with the same fields.  The caller sets `fields` (ends with {0}) and `kind`. */
struct hd_bench_sheet {
    const struct hd_bench_field *fields;
    uint32_t kind;
    struct hd_table *table; /* of text; NULL with --json */
    struct cJSON *list;     /* of --json; else NULL */
};

/* `key`: of the list in JSON. */
void hd_bench_sheet_begin(struct hd_bench_sheet *sheet, struct hd_cli *cli, const char *key);
/* The next row; its object, or NULL for text. */
struct cJSON *hd_bench_show(const struct hd_bench_sheet *sheet, const void *row);
/* Prints the table unless the measurement has failed. */
void hd_bench_sheet_end(struct hd_bench_sheet *sheet, hd_status status);

/* Adds the fields of a row to an object. */
void hd_bench_add(struct cJSON *object, const struct hd_bench_sheet *sheet, const void *row);

/* --- the parts of `heddle bench step` -------------------------------------------------------- */

/* One part while it is measured. */
struct hd_bench_part {
    struct hd_cli *cli;
    struct hd_config asked;
    uint32_t iterations, warmup;
    char steps[32]; /* "train.steps=N": the warm-up and the iterations */
    double seconds; /* of each measurement of a yardstick's program */
    struct hd_bench_sheet sheet;
};

/* Opens the job of `words`, measures it, shows the result, and closes it. */
hd_status hd_bench_part_measure(struct hd_bench_part *part, const struct hd_cli_bench_words *words,
                                hd_status (*measure)(struct hd_bench_part *part,
                                                     struct hd_cli_bench_job *bench));

/* The usual model: 1024 rows per expert and 12288 tokens per step.  With fewer rows a product waits
   for the expert's weights and float32 gradients to come from memory; with fewer tokens the
   optimizer takes as long as the products. */
#define HD_CLI_BENCH_MODEL                                                              \
    "model.layers=4", "model.width=768", "model.heads=12", "model.experts=4",           \
        "model.experts_per_token=2", "model.expert_width=1024", "model.vocabulary=256", \
        "model.sequence=512", "data.microbatch_size=4", "pipeline.microbatches=6"

/* The warm-up of a file may be longer than the few steps of a measurement. */
#define HD_CLI_BENCH_FEW_STEPS "train.warmup_steps=0"

/* Stages that take no time, so that a step is the work of the engine. */
#define HD_CLI_BENCH_NO_COMPUTE                                                                   \
    "kernels.name=synthetic", "kernel.synthetic.check=off", "kernel.synthetic.boundary_bytes=64", \
        "model.sequence=1", "data.microbatch_size=1", "cost.forward=0", "cost.backward=0",        \
        "cost.input_gradient=0", "cost.weight_gradient=0"

/* cmd_bench_quantiser.c */
extern const struct hd_bench_field hd_bench_quantiser_fields[];
hd_status hd_bench_part_quantiser(struct hd_bench_part *part);

/* cmd_bench_overlap.c */
extern const struct hd_bench_field hd_bench_overlap_fields[], hd_bench_recording_fields[];
hd_status hd_bench_part_overlap(struct hd_bench_part *part);
hd_status hd_bench_part_recording(struct hd_bench_part *part);

/* cmd_bench_products.c: of the kernel cuda, its products, and the part `model` */
extern const struct hd_bench_field hd_bench_products_fields[], hd_bench_passes_fields[];
hd_status hd_bench_part_products(struct hd_bench_part *part);
hd_status hd_bench_part_passes(struct hd_bench_part *part);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_H */
