#include "run/job_check.h"
#include "base/try.h"

#include <heddle/transport.h>

static hd_status job_check_progress(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_candidate *transport = job->plugins.transport;
    const struct hd_transport_ops *ops = transport->plugin.ops;

    if (!job->config->transport.progress_thread || ops->progress != NULL) {
        return HD_OK;
    }
    hd_config_blame(job->config, "transport", "progress_thread", problem);
    hd_problem_remedy(problem, "set transport.progress_thread = off");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "transport %s needs no progress thread", transport->name);
}

static hd_status job_check_issue_order(const struct hd_job *job, struct hd_problem *problem)
{
    if (job->config->transport.issue_order == HD_ISSUE_CANONICAL || job->pipeline->is_serial) {
        return HD_OK;
    }
    hd_config_blame(job->config, "transport", "issue_order", problem);
    hd_problem_remedy(problem, "leave it out, or use a serial transport");
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                          "transport %s is not serial, so the order has no effect",
                          job->plugins.transport->name);
}

/* The transport must reach the memory that the kernel computes in, if any tensor crosses. */
static hd_status job_check_memory(const struct hd_job *job, struct hd_problem *problem)
{
    const struct hd_plugins *plugins = &job->plugins;
    const bool is_device = job->needs != NULL && job->needs[0].memory == HD_MEMORY_CUDA;
    const uint64_t wanted = is_device ? HD_TRANSPORT_CUDA : HD_TRANSPORT_HOST;

    if (is_device && job->config->debug.checksum) {
        hd_config_blame(job->config, "debug", "checksum", problem);
        hd_problem_remedy(problem, "set debug.checksum = off");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "only the seal of a host slot holds a checksum, and kernel %s uses "
                              "slots in device memory",
                              plugins->kernel->name);
    }
    if ((hd_plugins_carrier(plugins)->capabilities & wanted) != 0 ||
        job->pipeline->remote_count == 0) {
        return HD_OK;
    }
    hd_config_blame(job->config, "transport", "name", problem);
    hd_problem_remedy(problem, "use another transport (%s, for example), or another kernel",
                      is_device ? "cuda_ipc" : "shm");
    return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                          "kernel %s computes in %s memory, which transport %s cannot move",
                          plugins->kernel->name, is_device ? "device" : "host",
                          plugins->transport->name);
}

hd_status hd_job_check(const struct hd_job *job, struct hd_problem *problem)
{
    if (hd_job_lacks_halves(job)) {
        hd_problem_remedy(problem,
                          "use a schedule with whole backwards, or kernels.name=synthetic");
        return hd_problem_set(
            problem, HD_UNSUPPORTED, HD_EXIT_PLAN,
            "the plan splits backwards into I and W, and kernel %s has only whole backwards",
            job->plugins.kernel->name);
    }
    if (job->pipeline->replica_count > 1) {
        hd_problem_remedy(problem, "use a schedule with one chain of stages");
        return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_PLAN,
                              "the plan has two replicas of every stage, and run cannot add their "
                              "gradients together");
    }
    HD_TRY(job_check_progress(job, problem));
    HD_TRY(job_check_issue_order(job, problem));
    HD_TRY(job_check_memory(job, problem));
    return hd_model_check(&job->model, job->config, problem);
}
