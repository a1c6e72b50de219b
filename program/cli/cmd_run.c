/* cli/cmd_run.c - heddle run: plans, starts the ranks, trains, reports. */
#include "cli/cli.h"
#include "cli/join.h"
#include "cli/plan.h"
#include "cli/run_evaluate.h"
#include "output/bigrams.h"
#include "output/output.h"
#include "output/rundir_create.h"
#include "launch/link.h"
#include "report/run_json.h"
#include "report/timeline.h"
#include "cli/facts.h"
#include "run/supervise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is printed after the run; copied while session->shared is still mapped. */
struct summary {
    struct hd_results results;
    double first_loss, last_loss, median_seconds, exposed_seconds, launch_seconds;
};

/* The summary explains a measured bubble that is more points than this above the planned one. */
enum { GAP_POINTS = 10 };

static void cmd_run_keep_summary(struct summary *summary, const struct hd_session *session)
{
    summary->results = *session->shared.results;
    const uint32_t done = summary->results.steps_done;
    if (done == 0) {
        return;
    }
    summary->first_loss = session->shared.losses[0]; /* NaN: lost before the resume */
    summary->last_loss = session->shared.losses[done - 1];
    struct hd_run_speed speed; /* from the third step on */
    hd_run_speed(session->shared.step_seconds, done, 0, &speed);
    summary->median_seconds = speed.median;
    for (uint32_t rank = 0; rank < session->job->pipeline->rank_count; rank++) {
        const struct hd_rank_result *result = &session->shared.ranks[rank];
        if (result->counted_steps > 0) {
            summary->exposed_seconds += result->exposed_wait_seconds / result->counted_steps;
            summary->launch_seconds += result->launch_seconds / result->counted_steps;
        }
    }
}

static hd_status cmd_run_on_end(void *context, const struct hd_session *session, int32_t exit_code,
                                struct hd_problem *problem)
{
    cmd_run_keep_summary(context, session);
    return hd_output_end(session, exit_code, problem);
}

/* For MXFP8, whether the products are native.  Of a kernel that has both, the device decides, and
   run.json shows which. */
static const char *cmd_run_precision_text(const struct hd_job *job)
{
    static const char *const names[] = {"bf16", "mxfp8", "f32"};
    const uint32_t precision = job->config->kernels.precision;
    const uint64_t capabilities = job->plugins.kernel->plugin.capabilities;

    if (precision != HD_CONFIG_MXFP8) {
        return names[precision];
    }
    switch (capabilities & (HD_KERNEL_MXFP8_NATIVE | HD_KERNEL_MXFP8_EMULATED)) {
    case HD_KERNEL_MXFP8_NATIVE:
        return "mxfp8, native";
    case HD_KERNEL_MXFP8_EMULATED:
        return "mxfp8, emulated in BF16";
    case HD_KERNEL_MXFP8_NATIVE | HD_KERNEL_MXFP8_EMULATED:
        return "mxfp8, native where the device has it, else emulated in BF16";
    default:
        return names[precision];
    }
}

/* The run header: what will run, on stderr, so that stdout keeps the results. */
static void cmd_run_print_header(const struct hd_cli *cli, const struct hd_session *session)
{
    const struct hd_job *job = session->job;
    const struct hd_config *config = job->config;
    char split[1024];

    if (cli->is_quiet || cli->is_json) {
        return;
    }
    fprintf(stderr,
            "%s on %u rank%s, %u stage%s, %u microbatch%s; transport %s; kernel %s, precision %s\n",
            job->pipeline->schedule, job->pipeline->rank_count, hd_cli_s(job->pipeline->rank_count),
            job->pipeline->stage_count, hd_cli_s(job->pipeline->stage_count),
            job->pipeline->microbatch_count, hd_cli_es(job->pipeline->microbatch_count),
            job->plugins.transport->name, job->plugins.kernel->name, cmd_run_precision_text(job));
    fprintf(stderr, "layers per stage %s; plan %.12s\n",
            hd_model_split_text(&job->model, split, sizeof split), job->hash);
    if (session->corpus != NULL) {
        char format[HD_CORPUS_FORMAT_BYTES];
        fprintf(stderr, "corpus %s: %s; %llu samples of %u tokens\n",
                hd_corpus_path(session->corpus), hd_corpus_format(session->corpus, format),
                (unsigned long long)hd_corpus_sample_count(session->corpus),
                config->model.sequence);
    }
    if (session->steps_before > 0) {
        fprintf(stderr, "continues from %s/checkpoint: step %u, %llu samples read\n",
                session->request.resume->directory, session->steps_before,
                (unsigned long long)session->samples_before);
    }
    if (!job->pipeline->is_ascending) {
        fprintf(stderr, "note: the plan breaks law 8 (ascending): its results need not be bitwise "
                        "equal to those of other plans\n");
    }
}

static void cmd_run_print_loss(const struct hd_session *session, const struct summary *summary)
{
    const double entropy = session->corpus != NULL ? hd_bigram_entropy(session->corpus) : NAN;

    if (session->corpus == NULL) {
        return;
    }
    printf("loss %.4f -> %.4f nats a token", summary->first_loss, fabs(summary->last_loss));
    if (!isnan(entropy)) {
        printf("; the bigram entropy of the text is %.4f: %s", entropy,
               summary->last_loss < entropy ? "below it" : "not yet below it");
    }
    printf("\n");
}

static void cmd_run_print_bubble(const struct hd_session *session, const struct summary *summary)
{
    const double planned = hd_timeline_asap_bubble(session->job->pipeline);
    const double gap_points = (summary->results.measured_bubble - planned) * 100;

    printf("bubble planned %.1f %% (symbolic)", planned * 100);
    if (isnan(summary->results.measured_bubble)) {
        printf(", not measured: that needs three steps\n");
    } else {
        printf(", measured %.1f %%; exposed wait %.1f ms a step, all ranks\n",
               summary->results.measured_bubble * 100, summary->exposed_seconds * 1e3);
    }
    if (gap_points > GAP_POINTS) { /* not of a NaN */
        printf("measured bubble is %.0f points above the plan: %.1f ms of each step are engine "
               "overhead, the rest is transfers and slower stages (report.html)\n",
               gap_points, summary->launch_seconds * 1e3);
    }
}

/* Only the files that exist: a run that ended early, or on a full disk, leaves fewer. */
static void cmd_run_print_files(const struct hd_session *session)
{
    static const char *const files[] = {"report.html", "run.json",   "metrics.jsonl", "trace.json",
                                        "hang.json",   "config.ini", "checkpoint",    "log"};
    const char *parted = ": ";
    char path[sizeof session->rundir.path + 32];

    printf("see %s", session->rundir.path);
    for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct stat facts;
        snprintf(path, sizeof path, "%s/%s", session->rundir.path, files[i]);
        if (stat(path, &facts) == 0) {
            printf("%s%s%s%s", parted, files[i], S_ISDIR(facts.st_mode) ? "/" : "",
                   strcmp(files[i], "trace.json") == 0 ? " (open it in Perfetto)" : "");
            parted = ", ";
        }
    }
    printf("\n");
}

static void cmd_run_print_summary(const struct hd_session *session, const struct summary *summary)
{
    const struct hd_config *config = session->job->config;
    const double tokens = (double)session->samples_per_step * config->model.sequence;

    printf("%u step%s, %u skipped", summary->results.steps_done,
           hd_cli_s(summary->results.steps_done), summary->results.skipped);
    if (!isnan(summary->median_seconds)) {
        printf("; median step %.1f ms, %.0f tokens/s", summary->median_seconds * 1e3,
               tokens / summary->median_seconds);
    }
    printf("\n");
    cmd_run_print_loss(session, summary);
    cmd_run_print_bubble(session, summary);
    if (summary->results.has_hash && session->corpus != NULL) {
        printf("parameters %.16s\n", summary->results.parameters_hash);
    }
    cmd_run_print_files(session);
}

static void cmd_run_add_json(struct cJSON *json, const struct hd_session *session,
                             const struct summary *summary)
{
    hd_json_text(json, "directory", session->rundir.path);
    hd_json_u64(json, "steps", summary->results.steps_done);
    hd_json_u64(json, "skipped", summary->results.skipped);
    hd_json_number(json, "loss", summary->last_loss);
    hd_json_number(json, "step_seconds", summary->median_seconds);
    hd_json_number(json, "bubble_measured", summary->results.measured_bubble);
    hd_json_text(json, "parameters_hash",
                 summary->results.has_hash ? summary->results.parameters_hash : NULL);
}

static void run_session(struct hd_cli *cli, struct hd_job *job,
                        const struct hd_session_request *request)
{
    struct summary summary = {.last_loss = NAN, .median_seconds = NAN};
    struct hd_session session;

    if (hd_session_create(&session, job, request, &cli->problem) != HD_OK) {
        return;
    }
    session.listener = (struct hd_session_listener){&summary, hd_output_begin, cmd_run_on_end};
    cmd_run_print_header(cli, &session);
    const hd_status status = hd_cli_supervise(cli, &session);
    if (hd_launched_is_member(&session.launched)) {
        hd_session_finish(&session);
        return;
    }
    if (cli->is_json) {
        cmd_run_add_json(cli->json, &session, &summary);
    } else if (status == HD_OK || summary.results.steps_done > session.steps_before) {
        cmd_run_print_summary(&session, &summary);
    }
    hd_session_finish(&session);
}

/* Prints the plan as `heddle plan` does, and checks that the model fits it. */
static int cmd_run_dry_run(struct hd_cli *cli)
{
    struct hd_cli_plan plan;

    if (hd_cli_plan(cli, cli->override_count, cli->overrides, &plan) != HD_OK) {
        return cli->problem.exit_code;
    }
    const struct hd_job *job = &plan.job;
    if (job->needs == NULL || hd_model_check(&job->model, &plan.config, &cli->problem) == HD_OK) {
        hd_cli_plan_show(cli, &plan.planning.facts);
    }
    hd_cli_plan_finish(&plan);
    return cli->problem.exit_code;
}

/* What the ranks of a launched run compare. */
struct facts {
    struct hd_cli *cli;
    const struct hd_job *job;
    const struct hd_resume *resume; /* NULL: none */
};

static char *cmd_run_facts(const void *context)
{
    const struct facts *const facts = context;
    const char *const steps = hd_cli_option(facts->cli, "--steps", 0);
    char words[128];

    snprintf(words, sizeof words, "--evaluate = %s\n--steps = %.32s\n",
             facts->job->plugins.is_forward_only ? "on" : "off", steps != NULL ? steps : "none");
    return hd_facts_text(facts->job, facts->resume, words);
}

/* Whether run.json says that the run has ended well. */
static bool cmd_run_has_ended(const struct hd_resume *resume)
{
    char path[sizeof resume->directory + 16];
    char *line = NULL;
    size_t capacity = 0;
    bool has_ended = false;

    snprintf(path, sizeof path, "%s/run.json", resume->directory);
    FILE *const file = fopen(path, "re");
    while (file != NULL && !has_ended && getline(&line, &capacity, file) >= 0) {
        has_ended = strstr(line, "\"exit\": 0") != NULL;
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return has_ended;
}

/* Whether the run to resume has no step left.  Another key than train.steps makes it another run,
   which is checked and written as any other. */
static bool cmd_run_is_finished(const struct hd_cli *cli, const struct hd_config *config,
                                const struct hd_resume *resume)
{
    bool is_same = resume->kind == HD_RESUME_RUN && cli->file == NULL &&
                   hd_cli_option(cli, "--evaluate", 0) == NULL &&
                   hd_cli_option(cli, "--overwrite", 0) == NULL;

    for (uint32_t i = 0; i < cli->override_count; i++) {
        is_same &= strncmp(cli->overrides[i], "train.steps=", strlen("train.steps=")) == 0;
    }
    return is_same && resume->state.step == config->train.steps && cmd_run_has_ended(resume);
}

/* Rank 0 alone speaks; no file is touched, and the ranks need not connect. */
static void cmd_run_say_finished(struct hd_cli *cli, const struct hd_resume *resume)
{
    const uint32_t step = resume->state.step;

    if (cli->is_json) {
        hd_json_text(cli->json, "directory", resume->directory);
        hd_json_u64(cli->json, "steps", step);
    } else if (!cli->is_quiet) { /* as that of a member is */
        printf("%s: step %u of %u: nothing left to do; for more steps raise train.steps\n",
               resume->directory, step, step);
    }
}

static void run_job(struct hd_cli *cli, struct hd_config *config, struct hd_plugins *plugins,
                    struct hd_resume *resume)
{
    struct hd_job job;

    plugins->is_forward_only = hd_cli_option(cli, "--evaluate", 0) != NULL;
    if (hd_job_create(&job, config, plugins, &cli->problem) != HD_OK) {
        return;
    }
    const struct facts facts = {cli, &job, resume};
    const struct hd_cli_world world = {
        .rank_count = job.pipeline->rank_count,
        .replica_count = config->grid.data,
        .hash = job.hash,
        .patience_s = config->transport.first_step_timeout_s,
        .facts = cmd_run_facts,
        .context = &facts,
    };
    struct hd_link *link = NULL;
    if (hd_cli_join(cli, &world, &link, NULL) == HD_OK) {
        struct hd_session_request request = {
            .overwrite = hd_cli_option(cli, "--overwrite", 0) != NULL,
            .is_quiet = cli->is_quiet || cli->is_json,
            .is_terminal = isatty(STDERR_FILENO) != 0,
            .has_files = !plugins->is_forward_only,
            .make_directory = hd_output_make_directory,
            .is_evaluation = plugins->is_forward_only,
            .resume = resume,
            .link = link,
            .argument_count = cli->argument_count,
            .arguments = cli->arguments,
        };
        if (request.is_evaluation) {
            hd_cli_evaluate(cli, &job, &request);
        } else {
            run_session(cli, &job, &request);
        }
        cli->is_silent = link != NULL && hd_link_verdict(link) != NULL;
        hd_link_close(link, &cli->problem);
    }
    hd_job_finish(&job);
}

/* Opens what --resume names, if given. */
static hd_status cmd_run_open_resume(struct hd_cli *cli, struct hd_resume *resume)
{
    const char *const path = hd_cli_option(cli, "--resume", 0);
    const bool is_evaluation = hd_cli_option(cli, "--evaluate", 0) != NULL;

    *resume = (struct hd_resume){0};
    if (path == NULL) {
        return HD_OK;
    }
    return hd_resume_open(resume, path, !is_evaluation, &cli->problem);
}

/* A resumed run uses its config.ini and its directory, unless the command line sets others. */
static hd_status cmd_run_load_config(struct hd_cli *cli, const struct hd_resume *resume,
                                     struct hd_config *config)
{
    char file[4096];

    if (resume->kind != HD_RESUME_RUN) {
        return hd_cli_config(cli, config);
    }
    snprintf(file, sizeof file, "%.4000s/config.ini", resume->directory);
    const hd_status status = hd_config_load(config, cli->file != NULL ? cli->file : file,
                                            cli->override_count, cli->overrides, &cli->problem);
    if (status != HD_OK ||
        strcmp(hd_config_place(config, "output", "directory"), "command line") == 0) {
        return status;
    }
    const size_t length = strlen(resume->directory);
    if (length >= sizeof config->output.directory) {
        hd_config_finish(config);
        hd_cli_refuse(cli, "--resume: the path is too long");
        return HD_INVALID;
    }
    memcpy(config->output.directory, resume->directory, length + 1);
    return HD_OK;
}

static int cmd_run(struct hd_cli *cli)
{
    struct hd_resume resume;
    struct hd_config config;
    struct hd_plugins plugins;

    if (hd_cli_words_max(cli, 0) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (hd_cli_option(cli, "--steps", 0) != NULL && hd_cli_option(cli, "--evaluate", 0) == NULL) {
        return hd_cli_refuse(cli, "--steps needs --evaluate; for a run set train.steps=N");
    }
    if (hd_cli_option(cli, "--dry-run", 0) != NULL) {
        return cmd_run_dry_run(cli);
    }
    hd_cli_be_member(cli);
    if (cmd_run_open_resume(cli, &resume) != HD_OK) {
        return cli->problem.exit_code;
    }
    if (cmd_run_load_config(cli, &resume, &config) == HD_OK) {
        if (cmd_run_is_finished(cli, &config, &resume)) {
            cmd_run_say_finished(cli, &resume);
        } else if (hd_cli_take_plugins(cli, &config, &plugins) == HD_OK) {
            run_job(cli, &config, &plugins, resume.kind != 0 ? &resume : NULL);
            hd_plugins_finish(&plugins);
        }
        hd_config_finish(&config);
    }
    hd_resume_close(&resume);
    return cli->problem.exit_code;
}

static const struct hd_cli_option cmd_run_options[] = {
    {"--overwrite", NULL, "replaces the run that output.directory holds"},
    {"--dry-run", NULL, "shows plan and memory, and runs nothing"},
    {"--resume", "DIR|FILE.safetensors",
     "continues from the checkpoint in DIR, or starts from the weights of a model file"},
    {"--evaluate", NULL, "forward only: shows loss and bits per byte; trains and writes nothing"},
    {"--steps", "N", "with --evaluate: reads at most N steps of the corpus"},
    {NULL, NULL, NULL},
};

const struct hd_command hd_command_run = {
    "run", "", "plans, starts the ranks, trains, reports", cmd_run_options, cmd_run,
};
