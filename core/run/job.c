#include "run/job.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/try.h"
#include "run/job_plan.h"

#include <heddle/transport.h>

#include <string.h>

static hd_status job_size_stages(struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = job->pipeline;
    const struct hd_plugin *kernel = &job->plugins.kernel->plugin;
    const struct hd_host host = {
        /* without a device and without peers */
        .size = sizeof host,
        .rank_count = 1,
        .option_count = kernel->option_count,
        .options = job->plugins.kernel_options,
    };
    const double budget_bytes = job->config->memory.budget_gb * 1e9;
    struct hd_stage_bytes *bytes = hd_memory_take(pipeline->stage_count * sizeof *bytes, 64, "job");

    job->needs = hd_memory_take(pipeline->stage_count * sizeof job->needs[0], 64, "job");
    job->footprints = hd_memory_take(pipeline->rank_count * sizeof job->footprints[0], 64, "job");
    if (bytes == NULL || job->needs == NULL || job->footprints == NULL) {
        hd_memory_give(bytes);
        return hd_problem_no_memory(problem, 0, "the plan");
    }
    const hd_status status = hd_model_needs(&job->model, kernel, &host, job->needs, problem);
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        const struct hd_stage_needs *needs = &job->needs[stage];
        bytes[stage] = (struct hd_stage_bytes){
            .state = needs->parameter_bytes + needs->optimizer_bytes +
                     needs->gradient_bytes[HD_DENSE] + needs->gradient_bytes[HD_EXPERT],
            .payload = pipeline->is_forward_only ? 0 : needs->payload_bytes * needs->acquisitions,
            .scratch = needs->scratch_bytes,
            .boundary = needs->boundary_bytes,
        };
    }
    if (status == HD_OK) {
        hd_footprint_fill(pipeline, bytes, pipeline->payload_slots,
                          budget_bytes > 0 ? (uint64_t)budget_bytes : 0, job->footprints);
    }
    hd_memory_give(bytes);
    return status;
}

const char *hd_job_instruction_set(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") ? "x86-64 avx512_bf16"
           : __builtin_cpu_supports("avx512f")  ? "x86-64 avx512"
           : __builtin_cpu_supports("avx2")     ? "x86-64 avx2"
                                                : "x86-64";
#else
    return "generic";
#endif
}

static void job_add_plugin(struct hd_hash *hash, const struct hd_candidate *candidate,
                           const struct hd_option_value *options)
{
    if (candidate == NULL) {
        hd_hash_add_text(hash, "none");
        return;
    }
    hd_hash_add_text(hash, candidate->plugin.name);
    hd_hash_add_text(hash, candidate->plugin.version != NULL ? candidate->plugin.version : "");
    for (uint32_t i = 0; i < candidate->plugin.option_count; i++) {
        hd_hash_add_u64(hash, (uint64_t)options[i].integer);
        hd_hash_add(hash, &options[i].number, sizeof options[i].number);
        hd_hash_add_text(hash, options[i].text != NULL ? options[i].text : "");
    }
}

static void job_digest(struct hd_job *job)
{
    uint8_t bytes[HD_HASH_BYTES];
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_pipeline_hash(job->pipeline, &hash);
    if (job->plugins.kernel == NULL) { /* only planned: there are no sizes to agree on */
        hd_hash_end(&hash, bytes);
        hd_hash_text(bytes, job->hash);
        return;
    }
    job_add_plugin(&hash, job->plugins.schedule, job->plugins.schedule_options);
    job_add_plugin(&hash, job->plugins.transport, job->plugins.transport_options);
    job_add_plugin(&hash, job->plugins.inner, job->plugins.inner_options);
    job_add_plugin(&hash, job->plugins.kernel, job->plugins.kernel_options);
    for (uint32_t stage = 0; job->needs != NULL && stage < job->pipeline->stage_count; stage++) {
        const struct hd_stage_needs *needs = &job->needs[stage];
        hd_hash_add_u64(&hash, job->model.specs[stage].block_count);
        hd_hash_add_u64(&hash, needs->boundary_bytes);
        hd_hash_add_u64(&hash, needs->boundary_dtype);
        hd_hash_add_u64(&hash, needs->parameter_bytes);
        hd_hash_add_u64(&hash, needs->payload_bytes);
    }
    hd_hash_add_text(&hash, hd_job_instruction_set());
    hd_hash_end(&hash, bytes);
    hd_hash_text(bytes, job->hash);
}

bool hd_job_lacks_halves(const struct hd_job *job)
{
    const struct hd_kernel_ops *ops = job->plugins.kernel->plugin.ops;
    return job->pipeline->is_split && (ops->backward_input == NULL || ops->backward_weight == NULL);
}

/* A hook wraps one transport that is not a hook; no other transport wraps one. */
static hd_status job_check_inner(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_candidate *transport = job->plugins.transport;
    const struct hd_candidate *inner = job->plugins.inner;
    const bool is_hook =
        transport != NULL && (transport->plugin.capabilities & HD_TRANSPORT_HOOK) != 0;
    const bool wraps_hook = inner != NULL && (inner->plugin.capabilities & HD_TRANSPORT_HOOK) != 0;

    if (transport == NULL || (is_hook == (inner != NULL) && !wraps_hook)) {
        return HD_OK;
    }
    hd_config_blame(job->config, "transport", "inner", problem);
    hd_problem_remedy(problem, is_hook ? "name the transport to wrap: shm, for example"
                                       : "leave it out: only a hook (hook_fault) wraps another");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s is %s", transport->name,
                          is_hook ? "a hook, and has no transport to wrap" : "not a hook");
}

/* An error of the schedule, or of a law, belongs to the key that names the plan. */
static void job_blame_schedule(const struct hd_config *config, struct hd_problem *problem)
{
    if (problem->exit_code == HD_EXIT_PLAN && problem->place[0] == '\0') {
        hd_problem_place(problem, "%s", hd_config_place(config, "pipeline", "schedule"));
        if (problem->key[0] == '\0') {
            hd_problem_key(problem, "pipeline.schedule");
        }
    }
}

static hd_status job_make(struct hd_job *job, struct hd_problem *problem)
{
    HD_TRY(job_check_inner(job, problem));
    HD_TRY(hd_job_plan(job->config, &job->plugins, &job->pipeline, problem));
    hd_pipeline_log(job->pipeline);
    if (job->plugins.kernel == NULL) {
        return HD_OK;
    }
    HD_TRY(hd_model_create(job->config, job->pipeline, &job->model, problem));
    /* A kernel cannot be asked about stages that it cannot run; they can still be planned. */
    return job->model.is_short || hd_job_lacks_halves(job) ? HD_OK : job_size_stages(job, problem);
}

hd_status hd_job_create(struct hd_job *job, struct hd_config *config,
                        const struct hd_plugins *plugins, struct hd_problem *problem)
{
    const uint64_t begin_ns = hd_now_ns();

    *job = (struct hd_job){.config = config, .plugins = *plugins};
    const hd_status status = job_make(job, problem);
    if (status != HD_OK) {
        job_blame_schedule(config, problem);
        hd_job_finish(job);
        return status;
    }
    job_digest(job);
    job->seconds = (double)(hd_now_ns() - begin_ns) * 1e-9;
    return HD_OK;
}

void hd_job_finish(struct hd_job *job)
{
    hd_pipeline_destroy(job->pipeline);
    hd_model_finish(&job->model);
    hd_memory_give(job->needs);
    hd_memory_give(job->footprints);
    *job = (struct hd_job){0};
}
