/* config/config_check.c - what one key asks of another. */
#include "config/internal.h"

static hd_status config_check_refuse(const struct hd_config *config, const char *section,
                                     const char *key, struct hd_problem *problem)
{
    hd_problem_place(problem, "%s", hd_config_place(config, section, key));
    hd_problem_key(problem, "%s.%s", section, key);
    return HD_INVALID;
}

static hd_status check_heads(const struct hd_config *config, struct hd_problem *problem)
{
    const uint32_t width = config->model.width;
    const uint32_t heads = config->model.heads;
    const uint32_t shared = config->model.key_value_heads;

    if (width % heads != 0) {
        hd_problem_remedy(problem, "make width a multiple of %llu, or change heads", 2ull * heads);
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "width %u is not divisible by %u heads (%u left over)", width, heads,
                       width % heads);
        return config_check_refuse(config, "model", "width", problem);
    }
    if (width / heads % 2 != 0) {
        hd_problem_remedy(problem, "make width a multiple of %llu, or change heads", 2ull * heads);
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "width %u over %u heads gives a head of %u, and rotary positions need an "
                       "even one",
                       width, heads, width / heads);
        return config_check_refuse(config, "model", "width", problem);
    }
    if (shared != 0 && heads % shared != 0) {
        hd_problem_remedy(problem, "take a divisor of %u", heads);
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u heads are not divisible by %u heads of keys and values", heads, shared);
        return config_check_refuse(config, "model", "key_value_heads", problem);
    }
    return HD_OK;
}

static hd_status check_experts(const struct hd_config *config, struct hd_problem *problem)
{
    if (config->model.experts > 0 && config->model.experts_per_token > config->model.experts) {
        hd_problem_remedy(problem, "give at most %u", config->model.experts);
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "a token cannot visit %u of %u experts",
                       config->model.experts_per_token, config->model.experts);
        return config_check_refuse(config, "model", "experts_per_token", problem);
    }
    return HD_OK;
}

/* The feed-forward's matrices are quantised in blocks of 32 along both their dimensions.  Experts'
   rows are padded to 32; the tokens of a dense model are not. */
static hd_status config_check_check_mxfp8(const struct hd_config *config,
                                          struct hd_problem *problem)
{
    const uint32_t width = config->model.width, inner = config->model.expert_width;
    const uint32_t samples = config->data.microbatch_size / config->model.half_batches;

    if (config->kernels.precision != HD_CONFIG_MXFP8) {
        return HD_OK;
    }
    if (config->model.experts == 0 && (uint64_t)samples * config->model.sequence % 32 != 0) {
        hd_problem_remedy(problem, "make microbatch_size x sequence a multiple of 32");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "mxfp8 has blocks of 32 tokens where there are no experts, and %u x %u "
                       "leaves %u over",
                       samples, config->model.sequence,
                       (uint32_t)((uint64_t)samples * config->model.sequence % 32));
        return config_check_refuse(config, "model", "sequence", problem);
    }
    if (width % 32 != 0 || inner % 32 != 0) {
        hd_problem_remedy(problem, "make both multiples of 32");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "mxfp8 has blocks of 32: width %u leaves %u over, expert_width %u leaves %u",
                       width, width % 32, inner, inner % 32);
        return config_check_refuse(config, "model", width % 32 != 0 ? "width" : "expert_width",
                                   problem);
    }
    return HD_OK;
}

static hd_status config_check_check_halves(const struct hd_config *config,
                                           struct hd_problem *problem)
{
    if (config->data.microbatch_size % config->model.half_batches != 0) {
        hd_problem_remedy(problem, "make it even, or set model.half_batches = 1");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "a microbatch of %u samples has no %u halves", config->data.microbatch_size,
                       config->model.half_batches);
        return config_check_refuse(config, "data", "microbatch_size", problem);
    }
    return HD_OK;
}

static hd_status config_check_check_split(const struct hd_config *config,
                                          struct hd_problem *problem)
{
    const struct hd_config_counts *split = &config->model.split;
    const uint64_t stages = (uint64_t)config->pipeline.ranks * config->pipeline.stages_per_rank;
    uint64_t sum = 0;

    if (split->count == 0) {
        return HD_OK;
    }
    for (uint32_t i = 0; i < split->count; i++) {
        sum += split->values[i];
    }
    if (stages != 0 && split->count != stages) {
        hd_problem_remedy(problem, "give one number a stage");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u numbers for %u ranks x %u stages = %llu stages", split->count,
                       config->pipeline.ranks, config->pipeline.stages_per_rank,
                       (unsigned long long)stages);
        return config_check_refuse(config, "model", "split", problem);
    }
    if (config->model.layers != 0 && sum != config->model.layers) {
        hd_problem_remedy(problem, "make them add up to model.layers");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "the numbers add up to %llu, not to %u layers", (unsigned long long)sum,
                       config->model.layers);
        return config_check_refuse(config, "model", "split", problem);
    }
    return HD_OK;
}

static hd_status check_stages(const struct hd_config *config, struct hd_problem *problem)
{
    const uint64_t stages = (uint64_t)config->pipeline.ranks * config->pipeline.stages_per_rank;

    if (stages > 16384) {
        hd_problem_remedy(problem, "lower stages_per_rank or ranks");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u ranks x %u stages = %llu stages, more than 16384",
                       config->pipeline.ranks, config->pipeline.stages_per_rank,
                       (unsigned long long)stages);
        return config_check_refuse(config, "pipeline", "stages_per_rank", problem);
    }
    return HD_OK;
}

static hd_status check_train(const struct hd_config *config, struct hd_problem *problem)
{
    if (config->train.cosine && config->train.warmup_steps >= config->train.steps) {
        hd_problem_remedy(problem, "lower it below train.steps, or set train.decay = none");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "a warm-up of %u of %u steps leaves none for the decay",
                       config->train.warmup_steps, config->train.steps);
        return config_check_refuse(config, "train", "warmup_steps", problem);
    }
    return HD_OK;
}

static hd_status config_check_check_sizes(const struct hd_config *config,
                                          struct hd_problem *problem)
{
    const uint64_t tokens = (uint64_t)config->data.microbatch_size * config->model.sequence;

    if (tokens > INT32_MAX) {
        hd_problem_remedy(problem, "lower one of them");
        hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                       "%u samples x %u tokens = %llu tokens in a microbatch, more than %d",
                       config->data.microbatch_size, config->model.sequence,
                       (unsigned long long)tokens, INT32_MAX);
        return config_check_refuse(config, "data", "microbatch_size", problem);
    }
    return HD_OK;
}

hd_status hd_config_cross_check(const struct hd_config *config, struct hd_problem *problem)
{
    static hd_status (*const checks[])(const struct hd_config *, struct hd_problem *) = {
        check_stages,
        check_heads,
        check_experts,
        config_check_check_mxfp8,
        config_check_check_halves,
        config_check_check_split,
        check_train,
        config_check_check_sizes,
    };

    for (unsigned i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        const hd_status status = checks[i](config, problem);
        if (status != HD_OK) {
            return status;
        }
    }
    return HD_OK;
}
