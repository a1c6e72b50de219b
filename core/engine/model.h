/*
 * engine/model.h - the model of the ini file, cut into stages.
 *
 * Says which layers each stage holds and fills one hd_stage_spec per stage, the only description of
 * a model that a kernel plugin gets.  Arithmetic alone. [setup]
 */
#ifndef HEDDLE_ENGINE_MODEL_H
#define HEDDLE_ENGINE_MODEL_H

#include "base/problem.h"
#include "config/config.h"
#include "plan/pipeline.h"

#include <heddle/kernel.h>

struct hd_model {
    uint32_t stage_count, layers;
    uint32_t is_short;           /* fewer layers than stages: `plan` notes it, `run` refuses it */
    struct hd_stage_spec *specs; /* [stage_count], owned */
};

/*
 * Layers: `auto` is 8, or one a stage if there are more than 8 stages.  Without a split they are
 * dealt out evenly, the first stages one more (30 on 4: 8,8,7,7); with one, its entries are the
 * layers of each stage, and a sum or a count that does not fit is refused with the numbers.
 * microbatch passes are told apart by the pipeline: is_split sets split_backward.
 */
hd_status hd_model_create(struct hd_config *config, const struct hd_pipeline *pipeline,
                          struct hd_model *model, struct hd_problem *problem);
void hd_model_finish(struct hd_model *model);

/* One block of the model, alone: the first stage of many, with the embedding and without a head.  A
   pass lasts forward_us where a kernel only lasts. */
void hd_model_block(const struct hd_config *config, double forward_us, struct hd_stage_spec *spec);

/* Refuses a model with fewer layers than stages: HD_EXIT_USAGE. */
hd_status hd_model_check(const struct hd_model *model, const struct hd_config *config,
                         struct hd_problem *problem);

/*
 * Asks the kernel what every stage needs; needs [stage_count] come over zeros.  A model that the
 * plugin cannot serve is refused with the plugin's own sentence (HD_EXIT_USAGE).
 */
hd_status hd_model_needs(const struct hd_model *model, const struct hd_plugin *kernel,
                         const struct hd_host *host, struct hd_stage_needs *needs,
                         struct hd_problem *problem);

/* "8,8,7,7": the layers of each stage, for print. Returns text. */
const char *hd_model_split_text(const struct hd_model *model, char *text, uint32_t capacity);

#endif /* HEDDLE_ENGINE_MODEL_H */
