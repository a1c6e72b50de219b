#include "run/job.h"
#include "base/memory.h"
#include "plan/csv.h"

#include <heddle/transport.h>

#include <assert.h>
#include <string.h>

uint64_t hd_job_needs(const struct hd_job_plugins *plugins)
{
    const struct hd_candidate *carrier =
        plugins->inner != NULL ? plugins->inner : plugins->transport;
    return carrier != NULL ? carrier->plugin.capabilities : 0;
}

static hd_status job_contradicts(const struct hd_config *config, const char *key, uint32_t asked,
                                 uint32_t found, struct hd_problem *problem)
{
    const char *place = hd_config_place(config, "pipeline", key);

    if (strcmp(place, "default") == 0 || asked == found) {
        return HD_OK;
    }
    hd_problem_place(problem, "%s", place);
    hd_problem_key(problem, "pipeline.%s", key);
    hd_problem_remedy(problem, "leave the key out: the file says it");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u, but %s has %u", asked,
                          config->pipeline.schedule, found);
}

/* P, S and m come from the file; keys that contradict it are refused. */
static hd_status job_plan_from_csv(struct hd_config *config, struct hd_pipeline **pipeline,
                                   struct hd_problem *problem)
{
    struct hd_pipeline_source source = {0};

    hd_status status = hd_csv_read(config->pipeline.schedule, &source, problem);
    if (status != HD_OK) {
        return status;
    }
    const uint32_t ranks = source.rank_count;
    const uint32_t stages_per_rank = source.stage_count / ranks;
    const uint32_t microbatches = source.microbatch_count;
    status = hd_pipeline_from_actions(&source, pipeline, problem);
    if (status == HD_OK) {
        status = job_contradicts(config, "ranks", config->pipeline.ranks, ranks, problem);
    }
    if (status == HD_OK) {
        status = job_contradicts(config, "microbatches", config->pipeline.microbatches,
                                 microbatches, problem);
    }
    if (status == HD_OK && config->pipeline.stages_per_rank > 0) {
        status = job_contradicts(config, "stages_per_rank", config->pipeline.stages_per_rank,
                                 stages_per_rank, problem);
    }
    config->pipeline.ranks = ranks;
    config->pipeline.stages_per_rank = stages_per_rank;
    config->pipeline.microbatches = microbatches;
    return status;
}

static hd_status job_plan_from_schedule(const struct hd_config *config,
                                        const struct hd_job_plugins *plugins,
                                        struct hd_pipeline **pipeline, struct hd_problem *problem)
{
    const struct hd_schedule_ops *ops = plugins->schedule->plugin.ops;
    const uint32_t usual = ops->stages_per_rank > 0 ? ops->stages_per_rank : 1;
    const uint32_t stages_per_rank =
        config->pipeline.stages_per_rank > 0 ? config->pipeline.stages_per_rank : usual;
    const uint64_t stage_count = (uint64_t)config->pipeline.ranks * stages_per_rank;

    if (stage_count > HD_STAGE_MAX) {
        hd_problem_key(problem, "pipeline.stages_per_rank");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN,
                              "%u ranks with %u stages each are more than %u stages",
                              config->pipeline.ranks, stages_per_rank, HD_STAGE_MAX);
    }
    const struct hd_shape shape = {
        .size = sizeof shape,
        .rank_count = config->pipeline.ranks,
        .stage_count = (uint32_t)stage_count,
        .microbatch_count = config->pipeline.microbatches,
        .flags = plugins->is_forward_only ? HD_FORWARD_ONLY : 0,
        .option_count = plugins->schedule->plugin.option_count,
        .options = plugins->schedule_options,
    };
    return hd_pipeline_from_schedule(plugins->schedule->name, ops, &shape, pipeline, problem);
}

/* What the transport asks of the plan: a hook's needs are its inner's. */
static hd_status job_order_transfers(const struct hd_config *config,
                                     const struct hd_job_plugins *plugins,
                                     struct hd_pipeline *pipeline, struct hd_problem *problem)
{
    pipeline->issue_order = config->transport.issue_order;
    pipeline->is_serial = (hd_job_needs(plugins) & HD_TRANSPORT_SERIAL) != 0;
    if (!pipeline->is_serial || config->debug.fault == HD_CONFIG_UNPROVEN_ORDER) {
        return HD_OK;
    }
    return hd_pipeline_verify_serial(pipeline, problem);
}

hd_status hd_job_plan(struct hd_config *config, const struct hd_job_plugins *plugins,
                      struct hd_pipeline **pipeline, struct hd_problem *problem)
{
    const struct hd_slot_request request = {
        .transfer_count = config->pipeline.transfer_slots.count,
        .transfer = config->pipeline.transfer_slots.values,
        .payload_count = config->pipeline.payload_slots.count,
        .payload = config->pipeline.payload_slots.values,
    };

    *pipeline = NULL;
    hd_status status = hd_config_is_csv(config)
                           ? job_plan_from_csv(config, pipeline, problem)
                           : job_plan_from_schedule(config, plugins, pipeline, problem);
    if (status == HD_OK) {
        status = hd_pipeline_give_slots(*pipeline, &request, problem);
    }
    if (status == HD_OK) {
        status = job_order_transfers(config, plugins, *pipeline, problem);
    }
    if (status != HD_OK) {
        hd_pipeline_destroy(*pipeline);
        *pipeline = NULL;
    }
    return status;
}

/* For a kernel that is only asked what it needs: no device, no peers. */
static struct hd_host job_pure_host(const struct hd_job_plugins *plugins)
{
    return (struct hd_host){
        .size = sizeof(struct hd_host),
        .rank_count = 1,
        .option_count = plugins->kernel->plugin.option_count,
        .options = plugins->kernel_options,
    };
}

static hd_status job_size_stages(struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_pipeline *pipeline = job->pipeline;
    const struct hd_host host = job_pure_host(&job->plugins);
    const double budget_bytes = job->config->memory.budget_gb * 1e9;
    struct hd_stage_bytes *bytes = hd_memory_take(pipeline->stage_count * sizeof *bytes, 64, "job");

    job->needs = hd_memory_take(pipeline->stage_count * sizeof job->needs[0], 64, "job");
    job->footprints = hd_memory_take(pipeline->rank_count * sizeof job->footprints[0], 64, "job");
    if (bytes == NULL || job->needs == NULL || job->footprints == NULL) {
        hd_memory_give(bytes);
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for the plan");
    }
    const hd_status status =
        hd_model_needs(&job->model, &job->plugins.kernel->plugin, &host, job->needs, problem);
    for (uint32_t stage = 0; status == HD_OK && stage < pipeline->stage_count; stage++) {
        const struct hd_stage_needs *needs = &job->needs[stage];
        bytes[stage] = (struct hd_stage_bytes){
            .state = needs->parameter_bytes + needs->optimizer_bytes +
                     needs->gradient_bytes[HD_DENSE] + needs->gradient_bytes[HD_EXPERT],
            .payload = needs->payload_bytes * needs->acquisitions,
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

/* What a kernel computes may depend on the instruction set, so ranks of different ones must
   differ. */
static const char *job_instruction_set(void)
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
    hd_hash_add_text(&hash, job_instruction_set());
    hd_hash_end(&hash, bytes);
    hd_hash_text(bytes, job->hash);
}

/* The plan splits backwards, and the kernel has only whole ones. */
static uint32_t job_lacks_halves(const struct hd_job *job)
{
    const struct hd_kernel_ops *ops = job->plugins.kernel->plugin.ops;
    return job->pipeline->is_split && (ops->backward_input == NULL || ops->backward_weight == NULL);
}

static uint32_t job_has_remote(const struct hd_pipeline *pipeline)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        found |= pipeline->channels[i].source != pipeline->channels[i].target;
    }
    return found;
}

/* A thread for what moves by itself would be a switch that does nothing. */
static hd_status job_check_progress(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_candidate *transport = job->plugins.transport;
    const struct hd_transport_ops *ops = transport->plugin.ops;

    if (!job->config->transport.progress_thread || ops->progress != NULL) {
        return HD_OK;
    }
    hd_problem_place(problem, "%s", hd_config_place(job->config, "transport", "progress_thread"));
    hd_problem_key(problem, "transport.progress_thread");
    hd_problem_remedy(problem, "leave it off, or take a transport that needs progress");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "transport %s moves by itself, and has nothing for a thread to do",
                          transport->name);
}

/* Nor is there an order to choose where every transfer moves by itself. */
static hd_status job_check_issue_order(const struct hd_job *job, struct hd_problem *problem)
{
    if (job->config->transport.issue_order == HD_ISSUE_CANONICAL || job->pipeline->is_serial) {
        return HD_OK;
    }
    hd_problem_place(problem, "%s", hd_config_place(job->config, "transport", "issue_order"));
    hd_problem_key(problem, "transport.issue_order");
    hd_problem_remedy(problem, "leave it out, or take a transport that is serial");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "transport %s moves transfers side by side, in no order",
                          job->plugins.transport->name);
}

/* Slots lie where the kernel can reach them, or nothing crosses. */
static hd_status job_check_memory(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_job_plugins *plugins = &job->plugins;
    const uint32_t is_device = job->needs != NULL && job->needs[0].memory == HD_MEMORY_CUDA;
    const uint64_t wanted = is_device ? HD_TRANSPORT_CUDA : HD_TRANSPORT_HOST;

    if (is_device && job->config->debug.checksum) {
        hd_problem_place(problem, "%s", hd_config_place(job->config, "debug", "checksum"));
        hd_problem_key(problem, "debug.checksum");
        hd_problem_remedy(problem, "leave it off");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "the checksum stands in the seal of a host slot, and the slots of "
                              "kernel %s lie on a device",
                              plugins->kernel->name);
    }
    if ((hd_job_needs(plugins) & wanted) != 0 || !job_has_remote(job->pipeline)) {
        return HD_OK;
    }
    hd_problem_place(problem, "%s", hd_config_place(job->config, "transport", "name"));
    hd_problem_key(problem, "transport.name");
    hd_problem_remedy(problem, "take another transport (%s, for example), or another kernel",
                      is_device ? "cuda_ipc" : "shm");
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                          "kernel %s computes in %s memory, and transport %s cannot move that",
                          plugins->kernel->name, is_device ? "device" : "host",
                          plugins->transport->name);
}

hd_status hd_job_check(const struct hd_job *job, struct hd_problem *problem)
{
    if (job_lacks_halves(job)) {
        hd_problem_remedy(problem,
                          "use a schedule with whole backwards, or kernels.name=synthetic");
        return hd_problem_set(
            problem, HD_UNSUPPORTED, HD_EXIT_PLAN,
            "the plan splits backwards into I and W, and kernel %s has only whole "
            "ones",
            job->plugins.kernel->name);
    }
    if (job->pipeline->replica_count > 1) {
        hd_problem_remedy(problem, "use a schedule with one chain of stages");
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLAN,
                              "the plan holds two replicas of every stage; their gradients are not "
                              "yet added together, so it plans but does not run");
    }
    hd_status status = job_check_progress(job, problem);
    if (status == HD_OK) {
        status = job_check_issue_order(job, problem);
    }
    if (status == HD_OK) {
        status = job_check_memory(job, problem);
    }
    return status != HD_OK ? status : hd_model_check(&job->model, job->config, problem);
}

/* A hook wraps one transport that is none itself; no other transport wraps one. */
static hd_status job_check_inner(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_candidate *transport = job->plugins.transport;
    const struct hd_candidate *inner = job->plugins.inner;
    const int is_hook =
        transport != NULL && (transport->plugin.capabilities & HD_TRANSPORT_HOOK) != 0;
    const int wraps_hook = inner != NULL && (inner->plugin.capabilities & HD_TRANSPORT_HOOK) != 0;

    if (transport == NULL || (is_hook == (inner != NULL) && !wraps_hook)) {
        return HD_OK;
    }
    hd_problem_place(problem, "%s", hd_config_place(job->config, "transport", "inner"));
    hd_problem_key(problem, "transport.inner");
    hd_problem_remedy(problem, is_hook ? "name what it is to wrap: shm, for example"
                                       : "leave it out: only a hook (hook_fault) wraps another");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%s is %s", transport->name,
                          is_hook ? "a hook, and has no transport to wrap" : "no hook");
}

hd_status hd_job_create(struct hd_job *job, struct hd_config *config,
                        const struct hd_job_plugins *plugins, struct hd_problem *problem)
{
    *job = (struct hd_job){.config = config, .plugins = *plugins};
    hd_status status = job_check_inner(job, problem);
    if (status == HD_OK) {
        status = hd_job_plan(config, plugins, &job->pipeline, problem);
    }
    if (status == HD_OK) {
        status = hd_model_create(config, job->pipeline, &job->model, problem);
    }
    /* A stage that no kernel could run cannot be asked what it needs; its plan is still a plan. */
    if (status == HD_OK && !job->model.is_short && !job_lacks_halves(job)) {
        status = job_size_stages(job, problem);
    }
    if (status == HD_OK) {
        job_digest(job);
    } else {
        hd_job_finish(job);
    }
    return status;
}

void hd_job_finish(struct hd_job *job)
{
    hd_pipeline_destroy(job->pipeline);
    hd_model_finish(&job->model);
    hd_memory_give(job->needs);
    hd_memory_give(job->footprints);
    *job = (struct hd_job){0};
}

/* One key of [cost]: a list of one number holds for all. */
struct cost_row {
    const char *key;
    const struct hd_config_numbers *numbers;
    uint32_t count;
    double *values; /* [count] */
};

static hd_status job_spread(const struct hd_config *config, const struct cost_row *row,
                            struct hd_problem *problem)
{
    if (row->numbers->count != 1 && row->numbers->count != row->count) {
        hd_problem_place(problem, "%s", hd_config_place(config, "cost", row->key));
        hd_problem_key(problem, "cost.%s", row->key);
        hd_problem_remedy(problem, "give one number, or %u", row->count);
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "%u numbers where %u are needed",
                              row->numbers->count, row->count);
    }
    for (uint32_t i = 0; i < row->count; i++) {
        row->values[i] = row->numbers->values[row->numbers->count == 1 ? 0 : i];
    }
    return HD_OK;
}

hd_status hd_job_costed(const struct hd_config *config, const struct hd_pipeline *pipeline,
                        struct hd_timeline **timeline, struct hd_problem *problem)
{
    const uint32_t stages = pipeline->stage_count;
    double *values = hd_memory_take(5ull * stages * sizeof *values, 64, "job");
    const struct cost_row rows[] = {
        {"forward", &config->cost.forward, stages, values},
        {"backward", &config->cost.backward, stages, values + stages},
        {"input_gradient", &config->cost.input_gradient, stages, values + 2ull * stages},
        {"weight_gradient", &config->cost.weight_gradient, stages, values + 3ull * stages},
        {"transfer", &config->cost.transfer, stages - 1, values + 4ull * stages},
    };
    const uint32_t is_plain = config->cost.mode == HD_TRANSFER_OVERLAPPED;
    const uint32_t mode =
        is_plain && pipeline->is_serial ? (uint32_t)HD_TRANSFER_SERIAL : config->cost.mode;
    hd_status status = HD_OK;

    if (values == NULL) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED, "no memory for the costs");
    }
    for (unsigned i = 0; status == HD_OK && i < sizeof rows / sizeof rows[0]; i++) {
        status = job_spread(config, &rows[i], problem);
    }
    if (status == HD_OK) {
        const struct hd_timeline_costs costs = {
            .forward = rows[0].values,
            .backward = rows[1].values,
            .input_gradient = rows[2].values,
            .weight_gradient = rows[3].values,
            .transfer = rows[4].values,
            .mode = mode,
        };
        status = hd_timeline_create(pipeline, HD_TIMELINE_COSTED, &costs, timeline, problem);
    }
    hd_memory_give(values);
    return status;
}
