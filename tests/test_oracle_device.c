/*
 * tests/test_oracle_device.c - the oracle on a device (docs/architecture.md): losses,
 * norms and parameters of stages in device memory, over a stream, are those of the host to the last
 * bit; and a device that hangs or fails ends the run, with the place where it was.
 *
 * The device is the stand-in of tests/standin/cuda, the stages are synthetic ones with model = on,
 * the transport is cuda_ipc.  Every row is a run of the heddle binary.
 */
#include "support/check.h"
#include "support/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096, TEXT_BYTES = 2048, LIMIT_S = 60 };

#define SMALL                                                                        \
    "kernels.name=synthetic kernel.synthetic.model=on model.width=32 model.heads=2 " \
    "model.layers=8 model.sequence=8 model.vocabulary=64 data.microbatch_size=2 "    \
    "pipeline.microbatches=5 train.warmup_steps=1 cost.tick_us=50 output.trace=off " \
    "--overwrite --quiet "
#define STEPS "train.steps=3 output.directory=run output.checkpoint_every=never "

#define ONE_RANK "pipeline.schedule=gpipe pipeline.ranks=1 "
#define HASTY    "transport.timeout_s=1 transport.first_step_timeout_s=1 "

static const char *standin(void)
{
    return hd_check_build("tests/standin/libheddle_standin_cuda.so");
}

/* CUDA's headers were there, and so is all of this. */
static int is_built(void)
{
    const int is_there = access(standin(), R_OK) == 0 &&
                         access(hd_check_plugin("heddle_transport_cuda_ipc.so"), R_OK) == 0;
    if (!is_there) {
        printf("(CUDA's headers are not installed) ");
    }
    return is_there;
}

/* The words of a run on the device. */
static const char *on_device(void)
{
    static char words[WORDS_BYTES];

    snprintf(words, sizeof words,
             "kernel.synthetic.memory=cuda kernel.synthetic.cuda_runtime=%s "
             "transport.name=cuda_ipc transport.cuda_ipc.cuda_runtime=%s ",
             standin(), standin());
    return words;
}

static int run(struct command *command, const char *where, const char *words)
{
    char line[3 * WORDS_BYTES];

    snprintf(line, sizeof line, "run " SMALL "%s%s", where, words);
    return command_run(command, line);
}

/* What run.json says of the numbers, as text: equal text is equal bits. */
static void read_numbers(char text[TEXT_BYTES])
{
    static const char *const keys[] = {"losses", "grad_norms", "parameters_hash"};
    cJSON *json = command_json("run/run.json");
    size_t used = 0;

    for (size_t i = 0; i < HD_CHECK_COUNT(keys) && used < TEXT_BYTES; i++) {
        char *part = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, keys[i]));
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s ", part != NULL ? part : "?");
        free(part);
    }
    cJSON_Delete(json);
}

static void numbers_of(const char *where, const char *words, char text[TEXT_BYTES])
{
    struct command command = {0};
    const int code = run(&command, where, words);

    CU_ASSERT_EQUAL(code, 0);
    if (code == 0) {
        read_numbers(text);
    } else {
        char *error = command_text(command.err);
        snprintf(text, TEXT_BYTES, "exit code %d: %s", code, error);
        free(error);
    }
}

/* The same stream, and memory of the host's: what crosses is shm's. */
static const char *on_pinned(void)
{
    static char words[WORDS_BYTES];

    snprintf(words, sizeof words,
             "kernel.synthetic.memory=pinned kernel.synthetic.cuda_runtime=%s transport.name=shm ",
             standin());
    return words;
}

static void hold(const char *base, const char *where, const char *words)
{
    char text[TEXT_BYTES];

    numbers_of(where, words, text);
    CU_ASSERT_STRING_EQUAL(text, base);
    if (strcmp(text, base) != 0) {
        printf("%s\n  %s\n  %s\n", words, text, base);
    }
}

/* --- the oracle ------------------------------------------------------------------------------- */

static void test_schedules(void)
{
    static const char *const rows[] = {
        STEPS "pipeline.schedule=gpipe pipeline.ranks=1 ",
        STEPS "pipeline.schedule=gpipe pipeline.ranks=2 debug.poison=on ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=4 debug.poison=on ",
        STEPS "pipeline.schedule=interleaved_1f1b pipeline.ranks=2 debug.poison=on ",
        STEPS "pipeline.schedule=interleaved_lean pipeline.ranks=4 ",
        STEPS "pipeline.schedule=1f1b_v pipeline.ranks=2 debug.poison=on ",
        STEPS "pipeline.schedule=1f1b_v pipeline.ranks=4 schedule.1f1b_v.pull_ahead=1 ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=4 pipeline.overlap=off debug.poison=on ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=4 pipeline.transfer_slots=4,3,2,2,2,2 ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=4 transport.progress_thread=on ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=2 model.half_batches=2 ",
    };
    char base[TEXT_BYTES];

    if (!is_built()) {
        return;
    }
    numbers_of("", STEPS ONE_RANK, base);
    CU_ASSERT_PTR_NULL(strchr(base, '?'));
    for (size_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        hold(base, on_device(), rows[i]);
    }
}

/* A stream in the host's memory: the host waits for every pass before it sends. */
static void test_bridge(void)
{
    static const char *const rows[] = {
        STEPS "pipeline.schedule=gpipe pipeline.ranks=1 ",
        STEPS "pipeline.schedule=1f1b pipeline.ranks=4 debug.poison=on debug.checksum=on ",
        STEPS "pipeline.schedule=interleaved_1f1b pipeline.ranks=2 debug.poison=on ",
        STEPS "pipeline.schedule=1f1b_v pipeline.ranks=2 pipeline.overlap=off ",
    };
    char base[TEXT_BYTES];

    if (!is_built()) {
        return;
    }
    numbers_of("", STEPS ONE_RANK, base);
    for (size_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        hold(base, on_pinned(), rows[i]);
    }
}

/* I and W in place of B: no schedule of ours plans them, a file does. */
static void test_halves(void)
{
    char base[TEXT_BYTES];
    FILE *file = fopen("halves.csv", "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file, "0F0,0F1,0F2,0F3,0F4,0I0,0I1,0W0,0I2,0W1,0I3,0W2,0I4,0W3,0W4\n");
    fprintf(file, "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1F4,1I4,1W3,1W4\n");
    fclose(file);
    if (!is_built()) {
        return;
    }
    numbers_of("", STEPS ONE_RANK, base);
    hold(base, on_device(), STEPS "pipeline.schedule=halves.csv debug.poison=on ");
    hold(base, on_pinned(), STEPS "pipeline.schedule=halves.csv debug.poison=on ");
}

/* A checkpoint of the host's goes on on the device, and the other way. */
static void test_restart(void)
{
    char base[TEXT_BYTES], words[WORDS_BYTES];

    if (!is_built()) {
        return;
    }
    for (uint32_t device_first = 0; device_first < 2; device_first++) {
        const char *const first = device_first ? on_device() : "";
        struct command command = {0};
        numbers_of("", "train.steps=4 output.directory=run pipeline.ranks=2 ", base);
        snprintf(words, sizeof words, "train.steps=2 output.directory=half%u pipeline.ranks=2 ",
                 device_first);
        CU_ASSERT_EQUAL(run(&command, first, words), 0);
        snprintf(words, sizeof words,
                 "--resume half%u train.steps=4 output.directory=run pipeline.ranks=2 ",
                 device_first);
        if (device_first) {
            char text[TEXT_BYTES];
            numbers_of("transport.name=shm kernel.synthetic.memory=host ", words, text);
            CU_ASSERT_STRING_EQUAL(text, base);
        } else {
            hold(base, on_device(), words);
        }
    }
}

/* --- what the marks say ----------------------------------------------------------------------- */

static void test_times(void)
{
    static const char *const words = "train.steps=4 output.directory=run pipeline.ranks=2 "
                                     "pipeline.schedule=1f1b cost.tick_us=400 output.trace=on ";
    const double passes_s = 5 * 3 * 400e-6; /* 5 microbatches, F lasts 1 tick and B 2 */
    struct command command = {0};

    if (!is_built()) {
        return;
    }
    CU_ASSERT_EQUAL(run(&command, on_device(), words), 0);
    cJSON *json = command_json("run/run.json");
    const cJSON *rank;
    uint32_t count = 0;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(json, "ranks"))
    {
        const double compute = cJSON_GetObjectItem(rank, "compute_seconds")->valuedouble;
        const double wait = cJSON_GetObjectItem(rank, "exposed_wait_seconds")->valuedouble;
        const double launch = cJSON_GetObjectItem(rank, "launch_seconds")->valuedouble;
        CU_ASSERT(compute >= passes_s); /* each lasts at least so long */
        CU_ASSERT(wait >= 0 && launch >= 0);
        count++;
    }
    CU_ASSERT_EQUAL(count, 2);
    const double bubble =
        cJSON_GetObjectItem(cJSON_GetObjectItem(json, "bubble"), "measured")->valuedouble;
    CU_ASSERT(bubble >= 0 && bubble < 1);
    cJSON_Delete(json);
    CU_ASSERT(access("run/trace.json", R_OK) == 0);
}

/* --- failures --------------------------------------------------------------------------------- */

struct failure {
    const char *name, *fault, *words;
    int code;
    const char *says[2];
};

static void expect_failure(const struct failure *row, const char *where)
{
    struct command command = {0};

    if (row->fault != NULL) {
        setenv("STANDIN_CUDA_FAULT", row->fault, 1);
    }
    const int code = run(&command, where, row->words);
    unsetenv("STANDIN_CUDA_FAULT");
    int is_right = code == row->code;
    for (uint32_t i = 0; i < 2 && row->says[i] != NULL; i++) {
        is_right = is_right && command_says(command.err, row->says[i]);
    }
    CU_ASSERT(is_right);
    if (!is_right) {
        char *error = command_text(command.err);
        printf("%s: exit code %d: %s\n", row->name, code, error);
        free(error);
    }
}

#define LOST STEPS HASTY "pipeline.ranks=4 pipeline.schedule=1f1b "

static void test_failures(void)
{
    static const struct failure rows[] = {
        {"a pass that does not end",
         "cudaLaunchHostFunc:12:hang",
         LOST,
         5,
         {"on its device for", "no rank moved for 1.0 s"}},
        {"a copy that does not end",
         "cudaMemcpyAsync:40:hang",
         LOST,
         5,
         {"no rank moved for 1.0 s", NULL}},
        {"a signal that does not go",
         "cuStreamWriteValue64:9:hang",
         LOST,
         5,
         {"no rank moved for 1.0 s", NULL}},
        {"a pass that fails on the device, later",
         "cudaMemcpyAsync:60:async:700",
         LOST,
         3,
         {"illegal memory access", "rank "}}, /* whichever call of CUDA meets it first */
        {"a call that fails at once",
         "cudaMemcpyAsync:60:700",
         LOST,
         3,
         {"illegal memory access", NULL}},
        {"no memory on the device", "cudaMalloc:2:2", LOST, 1, {"cannot allocate", NULL}},
        {"a slot given back too early",
         NULL,
         LOST "debug.fault=early_release debug.poison=on pipeline.payload_slots=auto ",
         1,
         {"belongs to another lease", "of step 1"}},
    };

    for (size_t i = 0; is_built() && i < HD_CHECK_COUNT(rows); i++) {
        expect_failure(&rows[i], on_device());
    }
    if (is_built()) {
        expect_failure(&rows[0], on_pinned());
    }
}

static void test_killed(void)
{
    char line[3 * WORDS_BYTES];
    struct command command = {0};
    pid_t ranks[COMMAND_RANK_MAX];

    if (!is_built()) {
        return;
    }
    snprintf(line, sizeof line,
             "run " SMALL "%s train.steps=100000 output.directory=run "
             "output.checkpoint_every=never pipeline.ranks=4 transport.timeout_s=5 ",
             on_device());
    command_begin(&command, line);
    CU_ASSERT_EQUAL_FATAL(command_ranks(command.pid, 4, ranks), 4);
    CU_ASSERT(command_await(command.pid, "run/metrics.jsonl", "\"step\": 2"));
    kill(ranks[2], SIGKILL);
    CU_ASSERT_EQUAL(command_end(&command, LIMIT_S), 5);
    CU_ASSERT(command_says(command.err, "rank 2"));
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT(command_is_gone(ranks[i], LIMIT_S));
    }
}

/* Before a rank starts, but for what only a device can say. */
static void test_refused(void)
{
    static const struct failure on_host[] = {
        {"a transport of devices, and a kernel of the host's",
         NULL,
         STEPS "transport.name=cuda_ipc pipeline.ranks=2 ",
         2,
         {"transport.name", "computes in host memory"}},
    };
    static const struct failure on_cuda[] = {
        {"a transport of the host's",
         NULL,
         STEPS "transport.name=shm pipeline.ranks=2 ",
         2,
         {"transport.name", "computes in device memory"}},
        {"a checksum of what no host can read",
         NULL,
         STEPS "debug.checksum=on pipeline.ranks=2 ",
         2,
         {"debug.checksum", NULL}},
        {"no such runtime",
         NULL,
         STEPS "kernel.synthetic.cuda_runtime=/no/such/file.so pipeline.ranks=1 ",
         3,
         {"cuda_runtime", NULL}},
    };

    for (size_t i = 0; is_built() && i < HD_CHECK_COUNT(on_host); i++) {
        expect_failure(&on_host[i], "");
    }
    for (size_t i = 0; is_built() && i < HD_CHECK_COUNT(on_cuda); i++) {
        expect_failure(&on_cuda[i], on_device());
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"every schedule, as one rank of the host", test_schedules},
        {"a stream in the host's memory, over shm", test_bridge},
        {"I and W", test_halves},
        {"a checkpoint goes from the host to the device, and back", test_restart},
        {"marks say how long passes lasted", test_times},
        {"a device that hangs or fails: by the deadline, and where it was", test_failures},
        {"a rank killed: exit 5, nobody left", test_killed},
        {"what cannot be is refused, with its key", test_refused},
    };
    command_work("oracle_device");
    return hd_check_main("test_oracle_device", checks, HD_CHECK_COUNT(checks));
}
