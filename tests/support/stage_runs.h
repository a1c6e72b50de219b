/*
 * tests/support/stage_runs.h - whole stages of one plugin beside another's, and beside itself.
 *
 * A run is two blocks of a small model: forward, backward and an update of learning rate 1e-3, over
 * payloads and scratch full of NaN.  Its terms, gradients, moments and masters are held against
 * those of another.
 */
#ifndef HD_TESTS_SUPPORT_STAGE_RUNS_H
#define HD_TESTS_SUPPORT_STAGE_RUNS_H

#include "support/kernel_harness.h"

struct hd_stage_shape {
    const char *name;
    uint32_t width, heads, key_value_heads, experts, experts_per_token, expert_width, vocabulary;
    uint32_t sequence, batch, normalize;
};

struct hd_stage_spec hd_stage_model(const struct hd_stage_shape *shape, uint32_t precision);

/* "cuda:..." with the stand-ins' files, and perhaps one more option; static, until the next. */
const char *hd_stage_standin(const char *option);

/* Opens plugin "NAME:key=value,key=value" and a chain of `model` in one stage, with drawn
   masters. */
void hd_stage_open(struct hd_harness *harness, struct hd_chain *chain,
                   const struct hd_stage_spec *model, const char *plugin);
void hd_stage_close(struct hd_harness *harness, struct hd_chain *chain);
void hd_stage_step(struct hd_chain *chain);

enum {
    HD_STAGE_GRADIENT,
    HD_STAGE_MOMENT1,
    HD_STAGE_MOMENT2,
    HD_STAGE_MASTER,
    HD_STAGE_COPY_COUNT
};

#define HD_STAGE_TENSOR_MAX 128u

/* Residuals of one model against another: the largest term's, and of every tensor. */
struct hd_stage_residuals {
    double term;
    double tensor[HD_STAGE_TENSOR_MAX][HD_STAGE_COPY_COUNT];
};

struct hd_stage_floor {
    double term, gradient, master;
};

/* Runs `plugin` beside `right`, which has made its step. */
struct hd_stage_residuals hd_stage_run_beside(struct hd_chain *right,
                                              const struct hd_stage_spec *model,
                                              const char *plugin);

/* What is allowed of a gradient: `floor`, and where `spec` is given 1.5 times what it errs.  A
   second moment is a square, which doubles a small error. */
void hd_stage_judge(const char *name, struct hd_chain *right, const struct hd_stage_residuals *made,
                    const struct hd_stage_residuals *spec, const struct hd_stage_floor *floor);

/* The whole comparison for one shape in bf16 or mxfp8: beside float64, as far as the reference in
   the same precision. */
void hd_stage_judge_plugin(const struct hd_stage_shape *shape, uint32_t precision,
                           const char *plugin);

/* What a step of a plugin left, cut into stages of blocks[0], blocks[1], .. blocks. */
struct hd_stage_bits {
    double loss;
    uint64_t gradient, master;
};

struct hd_stage_bits hd_stage_bits_of(const struct hd_stage_spec *model, const uint32_t *blocks,
                                      uint32_t stages, const char *plugin);
void hd_stage_expect_equal(struct hd_stage_bits one, struct hd_stage_bits other);

#endif /* HD_TESTS_SUPPORT_STAGE_RUNS_H */
