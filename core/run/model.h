/*
 * run/model.h - the model of the ini file, cut into stages.
 *
 * Decides which layers each stage holds and fills one hd_stage_spec a stage, the only description
 * of a model that a kernel plugin gets. [setup]
 */
#ifndef HEDDLE_RUN_MODEL_H
#define HEDDLE_RUN_MODEL_H

#include "base/problem.h"
#include "config/config.h"
#include "plan/pipeline.h"

#include <heddle/kernel.h>

#include <stdbool.h>

struct hd_model {
    uint32_t stage_count, layers;
    bool is_short;               /* fewer layers than stages: `plan` notes it, `run` rejects it */
    struct hd_stage_spec *specs; /* [stage_count], owned */
};

/*
 * Layers: `auto` is 8, or one a stage if there are more than 8 stages.  Without model.split each
 * stage gets an equal number, and the first stages one more (30 on 4: 8,8,7,7).  With it, its
 * entries are the layers of each stage; HD_EXIT_USAGE for a wrong count or sum.
 */
hd_status hd_model_create(struct hd_config *config, const struct hd_pipeline *pipeline,
                          struct hd_model *model, struct hd_problem *problem);
void hd_model_finish(struct hd_model *model);

/* One block of the model: the first stage of many, with the embedding and without a head.  In a
   kernel that only takes time (synthetic) a pass lasts forward_us. */
void hd_model_block(const struct hd_config *config, double forward_us, struct hd_stage_spec *spec);

/* HD_EXIT_USAGE for a model with fewer layers than stages. */
hd_status hd_model_check(const struct hd_model *model, const struct hd_config *config,
                         struct hd_problem *problem);

/*
 * Asks the kernel what every stage needs; fills needs [stage_count].  HD_EXIT_USAGE with the
 * plugin's own sentence for a model that the plugin cannot run.
 */
hd_status hd_model_needs(const struct hd_model *model, const struct hd_plugin *kernel,
                         const struct hd_host *host, struct hd_stage_needs *needs,
                         struct hd_problem *problem);

/* Whether a list of [cost] has one number, or one for each of `count`; else HD_EXIT_USAGE. */
hd_status hd_cost_list_check(const struct hd_config *config, const char *key,
                             const struct hd_config_numbers *numbers, uint32_t count,
                             struct hd_problem *problem);

/* "8,8,7,7": the layers of each stage.  Returns `text`. */
const char *hd_model_split_text(const struct hd_model *model, char *text, uint32_t capacity);

#endif /* HEDDLE_RUN_MODEL_H */
