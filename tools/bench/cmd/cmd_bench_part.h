/* bench/cmd/cmd_bench_part.h - the parts of `heddle bench step` that have a file of their own. */
#ifndef HEDDLE_BENCH_CMD_CMD_BENCH_PART_H
#define HEDDLE_BENCH_CMD_CMD_BENCH_PART_H

#include "bench/cmd/cmd_bench_job.h"
#include "bench/cmd/cmd_bench_output.h"

/* One part while it is measured. */
struct hd_bench_part {
    struct hd_cli *cli;
    struct hd_config asked;
    uint32_t iterations, warmup;
    char steps[32];         /* "train.steps=N": the warm-up and the iterations */
    double seconds;         /* of each measurement of a yardstick's program */
    struct hd_table *table; /* of text; NULL with --json */
    struct cJSON *list;     /* of --json; else NULL */
};

/* The next row of the part. */
struct hd_bench_row hd_bench_part_row(const struct hd_bench_part *part);

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
hd_status hd_bench_part_quantiser(struct hd_bench_part *part);

/* cmd_bench_overlap.c */
hd_status hd_bench_part_overlap(struct hd_bench_part *part);
hd_status hd_bench_part_recording(struct hd_bench_part *part);

/* cmd_bench_products.c: of the kernel cuda, its products, and the part `model` */
hd_status hd_bench_part_products(struct hd_bench_part *part);
hd_status hd_bench_part_passes(struct hd_bench_part *part);

#endif /* HEDDLE_BENCH_CMD_CMD_BENCH_PART_H */
