/* config/config_check.c - the rules between keys: a function for each, and a row in the list. */
#include "config/internal.h"

#include <stdio.h>
#include <string.h>

enum { KEYS_MAX = 8 };

static uint64_t config_check_stage_count(const struct hd_config *config)
{
    return (uint64_t)config->pipeline.ranks * config->pipeline.stages_per_rank;
}

static hd_status check_stages(const struct hd_config *config, struct hd_problem *problem)
{
    const uint64_t stages = config_check_stage_count(config);

    if (stages > 16384) {
        hd_problem_remedy(problem, "lower stages_per_rank or ranks");
        hd_config_blame(config, "pipeline", "stages_per_rank", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u ranks x %u stages = %llu stages, more than 16384",
                              config->pipeline.ranks, config->pipeline.stages_per_rank,
                              (unsigned long long)stages);
    }
    return HD_OK;
}

static hd_status check_heads(const struct hd_config *config, struct hd_problem *problem)
{
    const uint32_t width = config->model.width;
    const uint32_t heads = config->model.heads;
    const uint32_t shared = config->model.key_value_heads;

    if (width % heads != 0) {
        hd_problem_remedy(problem, "make width a multiple of %llu, or change heads", 2ull * heads);
        hd_config_blame(config, "model", "width", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "width %u is not divisible by %u heads (remainder %u)", width, heads,
                              width % heads);
    }
    if (width / heads % 2 != 0) {
        hd_problem_remedy(problem, "make width a multiple of %llu, or change heads", 2ull * heads);
        hd_config_blame(config, "model", "width", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "width %u with %u heads gives a head of %u, but rotary "
                              "positions need an even head",
                              width, heads, width / heads);
    }
    if (shared != 0 && heads % shared != 0) {
        hd_problem_remedy(problem, "use a divisor of %u", heads);
        hd_config_blame(config, "model", "key_value_heads", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u heads are not divisible by %u heads of keys and values", heads,
                              shared);
    }
    return HD_OK;
}

static hd_status check_experts(const struct hd_config *config, struct hd_problem *problem)
{
    if (config->model.experts > 0 && config->model.experts_per_token > config->model.experts) {
        hd_problem_remedy(problem, "give at most %u", config->model.experts);
        hd_config_blame(config, "model", "experts_per_token", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "a token cannot be sent to %u of %u experts",
                              config->model.experts_per_token, config->model.experts);
    }
    return HD_OK;
}

/* The feed-forward's matrices are quantised in blocks of 32 along both dimensions.  Rows of experts
   are padded to 32; the tokens of a dense model are not. */
static hd_status check_mxfp8(const struct hd_config *config, struct hd_problem *problem)
{
    const uint32_t width = config->model.width, inner = config->model.expert_width;
    const uint32_t samples = config->data.microbatch_size / config->model.half_batches;
    const uint32_t rest = (uint32_t)((uint64_t)samples * config->model.sequence % 32);

    if (config->kernels.precision != HD_CONFIG_MXFP8) {
        return HD_OK;
    }
    if (config->model.experts == 0 && rest != 0) {
        hd_problem_remedy(problem, "make microbatch_size x sequence a multiple of 32");
        hd_config_blame(config, "model", "sequence", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "without experts, mxfp8 needs blocks of 32 tokens, and %u x %u "
                              "leaves %u over",
                              samples, config->model.sequence, rest);
    }
    if (width % 32 != 0 || inner % 32 != 0) {
        hd_problem_remedy(problem, "make both multiples of 32");
        hd_config_blame(config, "model", width % 32 != 0 ? "width" : "expert_width", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "mxfp8 needs blocks of 32: width %u leaves %u over, "
                              "expert_width %u leaves %u over",
                              width, width % 32, inner, inner % 32);
    }
    return HD_OK;
}

static hd_status check_halves(const struct hd_config *config, struct hd_problem *problem)
{
    if (config->data.microbatch_size % config->model.half_batches != 0) {
        hd_problem_remedy(problem, "make it even, or set model.half_batches = 1");
        hd_config_blame(config, "data", "microbatch_size", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "a microbatch of %u samples cannot be divided into %u halves",
                              config->data.microbatch_size, config->model.half_batches);
    }
    return HD_OK;
}

static hd_status check_split(const struct hd_config *config, struct hd_problem *problem)
{
    const struct hd_config_counts *split = &config->model.split;
    const uint64_t stages = config_check_stage_count(config);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < split->count; i++) {
        sum += split->values[i];
    }
    if (split->count != 0 && stages != 0 && split->count != stages) {
        hd_problem_remedy(problem, "give one number for each stage");
        hd_config_blame(config, "model", "split", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u numbers for %u ranks x %u stages = %llu stages", split->count,
                              config->pipeline.ranks, config->pipeline.stages_per_rank,
                              (unsigned long long)stages);
    }
    if (split->count != 0 && config->model.layers != 0 && sum != config->model.layers) {
        hd_problem_remedy(problem, "make their sum equal to model.layers");
        hd_config_blame(config, "model", "split", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "the numbers add up to %llu, not to %u layers",
                              (unsigned long long)sum, config->model.layers);
    }
    return HD_OK;
}

static hd_status check_train(const struct hd_config *config, struct hd_problem *problem)
{
    if (config->train.decay && config->train.warmup_steps >= config->train.steps) {
        hd_problem_remedy(problem, "lower it below train.steps, or set train.decay = none");
        hd_config_blame(config, "train", "warmup_steps", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "a warm-up of %u of %u steps leaves no step for the decay",
                              config->train.warmup_steps, config->train.steps);
    }
    return HD_OK;
}

static hd_status check_sizes(const struct hd_config *config, struct hd_problem *problem)
{
    const uint64_t tokens = (uint64_t)config->data.microbatch_size * config->model.sequence;

    if (tokens > INT32_MAX) {
        hd_problem_remedy(problem, "lower one of them");
        hd_config_blame(config, "data", "microbatch_size", problem);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "%u samples x %u tokens = %llu tokens in a microbatch, more "
                              "than %d",
                              config->data.microbatch_size, config->model.sequence,
                              (unsigned long long)tokens, INT32_MAX);
    }
    return HD_OK;
}

static void config_check_place(const struct hd_config *config, const char *const keys[KEYS_MAX],
                               struct hd_problem *problem)
{
    for (unsigned i = 0; i < KEYS_MAX && keys[i] != NULL && strcmp(problem->place, "default") == 0;
         i++) {
        const char *const dot = strchr(keys[i], '.');
        char section[HD_SECTION_BYTES];
        snprintf(section, sizeof section, "%.*s", (int)(dot - keys[i]), keys[i]);
        hd_problem_place(problem, "%s", hd_config_place(config, section, dot + 1));
    }
}

hd_status hd_config_cross_check(const struct hd_config *config, struct hd_problem *problem)
{
    static const struct {
        hd_status (*check)(const struct hd_config *, struct hd_problem *);
        const char *keys[KEYS_MAX]; /* that it reads: if the key that is named has its default, the
                                       place is that of the first which was set */
    } rows[] = {
        {check_stages, {"pipeline.ranks", "pipeline.stages_per_rank"}},
        {check_heads, {"model.heads", "model.width", "model.key_value_heads"}},
        {check_experts, {"model.experts", "model.experts_per_token"}},
        {check_mxfp8,
         {"kernels.precision", "model.sequence", "data.microbatch_size", "model.half_batches",
          "model.width", "model.expert_width", "model.experts"}},
        {check_halves, {"model.half_batches", "data.microbatch_size"}},
        {check_split,
         {"model.split", "model.layers", "pipeline.ranks", "pipeline.stages_per_rank"}},
        {check_train, {"train.decay", "train.steps", "train.warmup_steps"}},
        {check_sizes, {"data.microbatch_size", "model.sequence"}},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const hd_status status = rows[i].check(config, problem);
        if (status != HD_OK) {
            config_check_place(config, rows[i].keys, problem);
            return status;
        }
    }
    return HD_OK;
}
