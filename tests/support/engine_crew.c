#include "support/engine_crew.h"

#include "base/memory.h"
#include "config/config.h"
#include "engine/engine.h"
#include "run/model.h"
#include "support/check.h"
#include "support/random_plan.h"
#include "support/transport_harness.h"
#include "train/initial.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { STEP_MAX = 4, TENSOR_MAX = 256, TERM_MAX = 64, OPTION_MAX = 32, PATH_BYTES = 1024 };

/* What every rank leaves, of its own stages. */
struct stage_result {
    uint32_t tensor_count, term_count;
    uint64_t tensors[STEP_MAX + 1][TENSOR_MAX]; /* gradients of each step, parameters at the end */
    double terms[STEP_MAX][HD_RANDOM_MICROBATCH_MAX][TERM_MAX];
};

/* What the ranks share; the pointers into the parent's memory are only read. */
struct crew {
    const struct hd_crew_job *job;
    struct hd_config config;
    const struct hd_plugin *kernel, *transport, *inner;
    struct hd_option_value options[3][OPTION_MAX]; /* of kernel, transport, inner */
    struct hd_model model;
    struct hd_stage_needs *needs;
    struct hd_board *board;
    int32_t *tokens, *targets; /* [microbatch, batch * sequence] */
    const int32_t *token_list[HD_RANDOM_MICROBATCH_MAX];
    const int32_t *target_list[HD_RANDOM_MICROBATCH_MAX];
    struct stage_result *stages; /* [stage_count] */
};

void hd_crew_add(struct hd_crew_job *job, const char *word)
{
    assert(job->word_count < sizeof job->words / sizeof job->words[0]);
    job->words[job->word_count++] = word;
}

static uint64_t mix(uint64_t digest, const void *bytes, uint64_t count)
{
    const unsigned char *byte = bytes;

    for (uint64_t i = 0; i < count; i++) {
        digest = (digest ^ byte[i]) * 0x100000001b3ull; /* FNV-1a */
    }
    return digest;
}

/* --- a rank ------------------------------------------------------------------------------ */

struct member {
    struct hd_testbed_rank *rank;
    const struct crew *crew;
    struct hd_engine *engine;
    struct hd_problem problem;
    uint64_t random;
};

static void hesitate(struct member *member)
{
    const uint32_t most_us = member->crew->job->hesitation_us;

    if (most_us > 0) {
        const struct timespec nap = {0, (long)hd_random_draw(&member->random, most_us) * 1000};
        nanosleep(&nap, NULL);
    }
}

static hd_status member_put(struct hd_bootstrap *context, const char *key, const void *value,
                            uint64_t bytes)
{
    struct member *member = (void *)context;

    hesitate(member);
    return member->rank->host.put(member->rank, key, value, bytes);
}

static hd_status member_get(struct hd_bootstrap *context, const char *key, void *value,
                            uint64_t bytes, uint64_t deadline_ns)
{
    struct member *member = (void *)context;
    return member->rank->host.get(member->rank, key, value, bytes, deadline_ns);
}

static hd_status member_fence(struct hd_bootstrap *context, uint64_t deadline_ns)
{
    struct member *member = (void *)context;

    hesitate(member);
    return member->rank->host.fence(member->rank, deadline_ns);
}

static void member_abort(struct hd_bootstrap *context)
{
    const struct member *member = (void *)context;
    hd_testbed_abort(member->rank);
}

static hd_status create(struct member *member)
{
    const struct crew *crew = member->crew;
    const struct hd_engine_setup setup = {
        .pipeline = crew->job->pipeline,
        .specs = crew->model.specs,
        .needs = crew->needs,
        .rank = member->rank->rank,
        .kernel = crew->kernel,
        .transport = crew->transport,
        .inner = crew->inner,
        .kernel_options = crew->options[0],
        .transport_options = crew->options[1],
        .inner_options = crew->options[2],
        .progress_thread = crew->config.transport.progress_thread,
        .bootstrap = {(void *)member, member_put, member_get, member_fence, member_abort},
        .board = crew->board,
        .overlap = crew->config.pipeline.overlap,
        .poison = crew->config.debug.poison,
        .checksum = crew->config.debug.checksum,
    };

    hesitate(member);
    return hd_engine_create(&setup, &member->engine, &member->problem);
}

/* Runs `visit` with every tensor of this rank and room for its values. */
static hd_status each_tensor(struct member *member, uint32_t round,
                             hd_status (*visit)(struct member *member, struct hd_tensor_place place,
                                                const struct hd_tensor *tensor, void *values,
                                                uint32_t round))
{
    hd_status status = HD_OK;

    for (uint32_t local = 0; local < hd_engine_stage_count(member->engine); local++) {
        const uint32_t stage = hd_engine_stage(member->engine, local);
        const uint32_t count = member->crew->needs[stage].tensor_count;
        for (uint32_t i = 0; status == HD_OK && i < count; i++) {
            const struct hd_tensor_place place = {.local = local, .index = i};
            struct hd_tensor tensor = {0};
            status = hd_engine_tensor(member->engine, place, &tensor, &member->problem);
            void *values = calloc(hd_tensor_count(&tensor), sizeof(double));
            assert(values != NULL);
            if (status == HD_OK) {
                status = visit(member, place, &tensor, values, round);
            }
            free(values);
        }
    }
    return status;
}

static hd_status draw_tensor(struct member *member, struct hd_tensor_place place,
                             const struct hd_tensor *tensor, void *values, uint32_t round)
{
    (void)round;
    place.copy = HD_MASTER;
    hd_initial_fill(tensor, 1, 0.02, values);
    return hd_engine_write(member->engine, place, values, &member->problem);
}

/* Gradients, and in the round after the last step the parameters. */
static hd_status keep_tensor(struct member *member, struct hd_tensor_place place,
                             const struct hd_tensor *tensor, void *values, uint32_t round)
{
    const uint32_t stage = hd_engine_stage(member->engine, place.local);
    const uint64_t item_bytes = tensor->dtype == HD_F64 ? sizeof(double) : sizeof(float);

    place.copy = round == member->crew->job->step_count ? HD_MASTER : HD_GRADIENT;
    const hd_status status = hd_engine_read(member->engine, place, values, &member->problem);
    uint64_t digest = mix(0xcbf29ce484222325ull, tensor->name, strlen(tensor->name));
    digest = mix(digest, values, hd_tensor_count(tensor) * item_bytes);
    member->crew->stages[stage].tensors[round][place.index] = digest;
    return status;
}

static void keep_terms(struct member *member, uint32_t round)
{
    for (uint32_t local = 0; local < hd_engine_stage_count(member->engine); local++) {
        const uint32_t stage = hd_engine_stage(member->engine, local);
        struct stage_result *result = &member->crew->stages[stage];
        const double *terms = hd_engine_terms(member->engine, local);
        for (uint32_t i = 0; i < member->crew->job->pipeline->microbatch_count; i++) {
            memcpy(result->terms[round][i], terms + (uint64_t)i * result->term_count,
                   result->term_count * sizeof *terms);
        }
    }
}

static hd_status step(struct member *member, uint32_t round)
{
    const struct crew *crew = member->crew;
    const struct hd_stage_spec *spec = &crew->model.specs[0];
    const double microbatches = crew->job->pipeline->microbatch_count;
    const struct hd_step_input input = {.step = round + 1,
                                        .tokens = crew->token_list,
                                        .targets = crew->target_list,
                                        .label_scale =
                                            1.0 / (microbatches * spec->batch * spec->sequence),
                                        .auxiliary_scale = 1.0 / microbatches};
    const struct hd_update update = {.size = sizeof update,
                                     .step = round + 1,
                                     .learning_rate = 1e-2,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-8,
                                     .gradient_scale = 1};

    hd_status status = hd_engine_step(member->engine, &input, &member->problem);
    if (status == HD_OK) {
        keep_terms(member, round);
        status = each_tensor(member, round, keep_tensor);
    }
    return status == HD_OK ? hd_engine_update(member->engine, &update, &member->problem) : status;
}

static int work(struct hd_testbed_rank *rank)
{
    const struct crew *crew = rank->job->argument;
    struct member member = {
        .rank = rank, .crew = crew, .random = crew->job->seed * 64 + rank->rank + 1};

    hd_status status = create(&member);
    if (status == HD_OK) {
        status = each_tensor(&member, 0, draw_tensor);
    }
    for (uint32_t round = 0; status == HD_OK && round < crew->job->step_count; round++) {
        status = step(&member, round);
    }
    if (status == HD_OK) {
        status = each_tensor(&member, crew->job->step_count, keep_tensor);
    }
    if (status == HD_OK) {
        hd_engine_phase(member.engine, HD_PHASE_DONE);
        hd_engine_destroy(member.engine);
        return 0;
    }
    hd_engine_destroy(member.engine); /* of one that has failed, what a peer may write stays */
    fprintf(stderr, "rank %u: %s: %s\n", rank->rank, member.problem.place, member.problem.message);
    rank->leaks = 1;
    return 1;
}

/* --- the crew ---------------------------------------------------------------------------- */

static const struct hd_plugin *load(const char *path)
{
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const struct hd_plugin *plugin = object != NULL ? dlsym(object, "hd_plugin") : NULL;

    if (plugin == NULL) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
    }
    return plugin;
}

static const struct hd_plugin *load_kernel(const struct crew *crew)
{
    char file[PATH_BYTES];

    if (crew->job->kernel_file != NULL) {
        return load(hd_check_build(crew->job->kernel_file));
    }
    snprintf(file, sizeof file, "heddle_kernel_%.64s.so", crew->config.kernels.name);
    return load(hd_check_plugin(file));
}

static hd_status load_plugins(struct crew *crew, struct hd_problem *problem)
{
    const char *inner = crew->config.transport.inner;

    crew->kernel = load_kernel(crew);
    crew->transport = hd_testbed_load(crew->config.transport.name);
    crew->inner = strcmp(inner, "none") != 0 ? hd_testbed_load(inner) : NULL;
    const struct hd_plugin *const plugins[] = {crew->kernel, crew->transport, crew->inner};
    hd_status status = crew->kernel != NULL && crew->transport != NULL ? HD_OK : HD_UNSUPPORTED;
    for (uint32_t i = 0; status == HD_OK && i < 3; i++) {
        if (plugins[i] != NULL) {
            assert(plugins[i]->option_count <= OPTION_MAX);
            status = hd_config_options(&crew->config, plugins[i], crew->options[i], problem);
        }
    }
    return status;
}

static void draw_batch(struct crew *crew)
{
    const struct hd_stage_spec *spec = &crew->model.specs[0];
    const uint64_t count = (uint64_t)spec->batch * spec->sequence;
    const uint32_t microbatches = crew->job->pipeline->microbatch_count;
    uint64_t random = 0x5eed;

    assert(microbatches <= HD_RANDOM_MICROBATCH_MAX);
    crew->tokens = calloc(microbatches * count, sizeof *crew->tokens);
    crew->targets = calloc(microbatches * count, sizeof *crew->targets);
    assert(crew->tokens != NULL && crew->targets != NULL);
    for (uint64_t i = 0; i < microbatches * count; i++) {
        crew->tokens[i] = (int32_t)hd_random_draw(&random, spec->vocabulary);
        crew->targets[i] = (int32_t)hd_random_draw(&random, spec->vocabulary);
    }
    for (uint32_t i = 0; i < microbatches; i++) {
        crew->token_list[i] = crew->tokens + i * count;
        crew->target_list[i] = crew->targets + i * count;
    }
}

static void *take_shared(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

static hd_status size_stages(struct crew *crew, struct hd_problem *problem)
{
    const uint32_t stage_count = crew->job->pipeline->stage_count;
    const struct hd_host host = {.size = sizeof host,
                                 .rank_count = 1,
                                 .option_count = crew->kernel->option_count,
                                 .options = crew->options[0]};

    crew->needs = calloc(stage_count, sizeof *crew->needs);
    assert(crew->needs != NULL);
    const hd_status status =
        hd_model_needs(&crew->model, crew->kernel, &host, crew->needs, problem);
    for (uint32_t i = 0; status == HD_OK && i < stage_count; i++) {
        crew->stages[i].tensor_count = crew->needs[i].tensor_count;
        crew->stages[i].term_count = crew->needs[i].term_count;
        assert(crew->needs[i].tensor_count <= TENSOR_MAX && crew->needs[i].term_count <= TERM_MAX);
    }
    return status;
}

/* In global order, which no cut changes: by microbatch and term, by tensor. */
static uint64_t digest_of(const struct crew *crew)
{
    const struct hd_pipeline *pipeline = crew->job->pipeline;
    uint64_t digest = 0xcbf29ce484222325ull;

    for (uint32_t round = 0; round <= crew->job->step_count; round++) {
        for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
            const struct stage_result *result = &crew->stages[stage];
            digest = mix(digest, result->tensors[round], result->tensor_count * sizeof digest);
        }
        for (uint32_t i = 0; i < pipeline->microbatch_count && round < crew->job->step_count; i++) {
            for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
                const struct stage_result *result = &crew->stages[stage];
                digest = mix(digest, result->terms[round][i], result->term_count * sizeof(double));
            }
        }
    }
    return digest;
}

static int go(struct crew *crew)
{
    const struct hd_pipeline *pipeline = crew->job->pipeline;
    const uint64_t board_bytes = hd_board_bytes(pipeline->rank_count);
    const struct hd_testbed_job job = {.name = crew->transport->name,
                                       .inner = crew->inner != NULL ? crew->inner->name : NULL,
                                       .rank_count = pipeline->rank_count,
                                       .as_threads = !crew->job->as_processes,
                                       .unopened = 1,
                                       .limit_ms = 4 * crew->job->limit_ms,
                                       .body = work,
                                       .argument = crew};

    crew->board = take_shared(board_bytes);
    hd_board_init(crew->board, pipeline->rank_count);
    crew->board->timeout_ns = crew->job->limit_ms * 1000000u;
    crew->board->first_step_timeout_ns = crew->board->timeout_ns;
    draw_batch(crew);
    const uint32_t wrong_count = hd_testbed_run(&job);
    free(crew->tokens);
    free(crew->targets);
    munmap(crew->board, board_bytes);
    return wrong_count > 0;
}

int hd_crew_run(const struct hd_crew_job *job, uint64_t *digest)
{
    const uint64_t stages_bytes = job->pipeline->stage_count * sizeof(struct stage_result);
    struct crew crew = {.job = job, .stages = take_shared(stages_bytes)};
    struct hd_problem problem = {0};
    int code = 1;

    assert(job->step_count >= 1 && job->step_count <= STEP_MAX);
    hd_status status = hd_config_load(&crew.config, NULL, job->word_count, job->words, &problem);
    if (status == HD_OK) {
        status = load_plugins(&crew, &problem);
        if (status == HD_OK) {
            status = hd_model_create(&crew.config, job->pipeline, &crew.model, &problem);
        }
        if (status == HD_OK) {
            status = size_stages(&crew, &problem);
        }
        code = status == HD_OK ? go(&crew) : 1;
        *digest = digest_of(&crew);
        free(crew.needs);
        hd_model_finish(&crew.model);
        hd_config_finish(&crew.config);
    }
    if (status != HD_OK) {
        fprintf(stderr, "%s: %s\n", problem.key, problem.message);
    }
    munmap(crew.stages, stages_bytes);
    return code;
}
