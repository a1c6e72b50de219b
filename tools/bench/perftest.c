/* bench/perftest.c - one server, one client, and the last line that the client prints. */
#include "bench/p2p.h"
#include "base/try.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/option.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_MISSING = 127, TEXT_BYTES = 4096, WORD_MAX = 20, RETRY_MS = 20 };

#define PROGRAM      "ucx_perftest"
#define MIB_A_SECOND 1048576e-9 /* of ucx_perftest's MB/s, in 1e9 bytes a second */

/* What the ranks exchange before and after a test. */
struct news {
    bool is_here;  /* the program is installed */
    uint16_t port; /* of rank 0, free a moment ago; 0: none */
    bool is_over;
    double value;
};

static bool perftest_is_installed(void)
{
    const char *path = getenv("PATH");
    char file[512];

    while (path != NULL && *path != '\0') {
        const size_t length = strcspn(path, ":");
        const int written = snprintf(file, sizeof file, "%.*s/" PROGRAM, (int)length, path);
        if (written > 0 && (size_t)written < sizeof file && access(file, X_OK) == 0) {
            return true;
        }
        path += length + (path[length] == ':');
    }
    return false;
}

static uint16_t perftest_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    uint16_t port = 0;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener >= 0 && bind(listener, (const struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(listener, (struct sockaddr *)&address, &bytes) == 0) {
        port = ntohs(address.sin_port);
    }
    if (listener >= 0) {
        close(listener);
    }
    return port;
}

/* --- a child --------------------------------------------------------------------------------- */

/* The value of an option of the plugin; NULL: the plugin has no such option. */
static const struct hd_option_value *perftest_option(const struct hd_perftest_request *request,
                                                     const char *name)
{
    for (uint32_t i = 0; i < request->plugin->option_count; i++) {
        if (strcmp(request->plugin->options[i].name, name) == 0) {
            return &request->options[i];
        }
    }
    return NULL;
}

/* Sets UCX up as ucx_tag and ucx_put do. */
static void perftest_set_environment(const struct hd_perftest_request *request)
{
    const struct hd_option_value *tls = perftest_option(request, "tls");
    static const struct {
        const char *option, *variable;
    } rows[] = {{"rendezvous_bytes", "UCX_RNDV_THRESH"},
                {"element_bytes", "UCX_MM_FIFO_ELEM_SIZE"}};
    char text[32];

    setenv("UCX_MM_ERROR_HANDLING", "y", 1);
    if (tls != NULL && tls->text != NULL && strcmp(tls->text, "auto") != 0) {
        setenv("UCX_TLS", tls->text, 1);
    }
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hd_option_value *value = perftest_option(request, rows[i].option);
        if (value != NULL) {
            snprintf(text, sizeof text, "%lld", (long long)value->integer);
            setenv(rows[i].variable, text, 1);
        }
    }
}

struct command {
    const struct hd_perftest_request *request;
    char **words;
};

static void perftest_become(void *context, void *answer)
{
    const struct command *const command = context;
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);

    (void)answer;
    perftest_set_environment(command->request);
    dup2(nothing, STDERR_FILENO);
    execvp(PROGRAM, command->words);
    _exit(EXIT_MISSING);
}

static hd_status perftest_start(struct hd_child *child, const struct hd_perftest_request *request,
                                char **words)
{
    struct command command = {request, words};

    return hd_child_start(child, &(struct hd_child_request){.work = perftest_become,
                                                            .context = &command,
                                                            .has_output = true});
}

/* Reads the child's output to its end, or to the deadline, and stops the child: the exit code, or
   -1. */
static int perftest_collect(struct hd_child *child, uint64_t end_ns, char text[TEXT_BYTES])
{
    size_t length = 0;
    ssize_t got = 1;

    while (got > 0) {
        struct pollfd awaited = {.fd = child->output, .events = POLLIN};
        const uint64_t now_ns = hd_now_ns();
        if (now_ns >= end_ns || poll(&awaited, 1, (int)((end_ns - now_ns) / HD_MS_NS) + 1) == 0) {
            break;
        }
        char drain[256];
        char *into = length < TEXT_BYTES - 1 ? text + length : drain;
        const size_t room = length < TEXT_BYTES - 1 ? TEXT_BYTES - 1 - length : sizeof drain;
        got = read(child->output, into, room);
        length += got > 0 && into != drain ? (size_t)got : 0;
        got = got < 0 && errno == EINTR ? 1 : got;
    }
    text[length] = '\0';
    hd_child_wait(child, end_ns);
    const int state = hd_child_stop(child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

/* --- a test ---------------------------------------------------------------------------------- */

/* The last line of numbers: iterations, median latency, its mean, its total, MB/s, .. */
static double perftest_read_value(const char *text, bool is_latency)
{
    double value = NAN;

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        double numbers[5];
        unsigned long long count;
        line += *line == '\n';
        if (sscanf(line, "%llu,%lf,%lf,%lf,%lf,%lf", &count, &numbers[0], &numbers[1], &numbers[2],
                   &numbers[3], &numbers[4]) == 6) {
            value = is_latency ? numbers[0] : numbers[4] * MIB_A_SECOND;
        }
    }
    return value;
}

struct one_test {
    const struct hd_perftest_request *request;
    const char *name; /* "tag_lat" */
    bool is_latency;
    uint32_t count;
    uint64_t deadline_ns; /* of the child; its rank's is later */
};

/* The client retries until the server listens. */
static double perftest_run_client(const struct one_test *test, uint16_t port)
{
    const struct timespec pause = {0, RETRY_MS * (long)HD_MS_NS};
    char port_text[16], bytes[24], count[16], warmup[16], window[16], text[TEXT_BYTES];
    char *words[WORD_MAX] = {PROGRAM, (char *)test->request->address,
                             "-p",    port_text,
                             "-t",    (char *)test->name,
                             "-s",    bytes,
                             "-n",    count,
                             "-w",    warmup,
                             "-O",    window,
                             "-e",    "-f",
                             "-v",    NULL};
    struct hd_child child;
    int code = 1;

    snprintf(port_text, sizeof port_text, "%u", port);
    snprintf(bytes, sizeof bytes, "%llu",
             (unsigned long long)(test->request->bytes + test->request->beside_bytes));
    snprintf(count, sizeof count, "%u", test->count);
    snprintf(warmup, sizeof warmup, "%u", test->count / 10 + 1);
    snprintf(window, sizeof window, "%u", test->is_latency ? 1 : test->request->window);
    while (code != 0 && code != EXIT_MISSING && hd_now_ns() < test->deadline_ns) {
        code = perftest_start(&child, test->request, words) == HD_OK
                   ? perftest_collect(&child, test->deadline_ns, text)
                   : EXIT_MISSING;
        if (code != 0) {
            nanosleep(&pause, NULL);
        }
    }
    const double share =
        (double)test->request->bytes / (double)(test->request->bytes + test->request->beside_bytes);
    return code == 0 ? perftest_read_value(text, test->is_latency) * (test->is_latency ? 1 : share)
                     : NAN;
}

/* One test: rank 0 runs the server and rank 1 the client. */
static hd_status perftest_run_test(const struct hd_drive_rank *rank, const struct one_test *test,
                                   double *value)
{
    const struct news mine = {.port = rank->rank == 0 ? perftest_free_port() : 0};
    struct news theirs = {0}, end = {.is_over = true, .value = NAN};
    char port_text[16];
    char *words[] = {PROGRAM, "-p", port_text, NULL};
    char text[TEXT_BYTES];
    struct hd_child server = {.pid = -1};

    *value = NAN;
    HD_TRY(hd_drive_swap(rank, &mine, &theirs, sizeof mine));
    if (rank->rank == 0) {
        snprintf(port_text, sizeof port_text, "%u", mine.port);
        perftest_start(&server, test->request, words);
    } else {
        end.value = perftest_run_client(test, theirs.port);
    }
    const hd_status status = hd_drive_swap(rank, &end, &theirs, sizeof end);
    if (server.pid > 0) {
        perftest_collect(&server, isnan(theirs.value) ? 0 : test->deadline_ns, text);
    }
    *value = rank->rank == 0 ? theirs.value : end.value;
    return status;
}

static hd_status perftest_run_both(const struct hd_drive_rank *rank,
                                   const struct hd_perftest_request *request,
                                   struct hd_perftest *all)
{
    char latency[24], stream[24];
    struct one_test tests[] = {{request, latency, true, request->latency_count, 0},
                               {request, stream, false, request->stream_count, 0}};
    struct hd_bench_spread spread;
    double values[2] = {NAN, NAN};

    snprintf(latency, sizeof latency, "%s_lat", all->test);
    snprintf(stream, sizeof stream, "%s_bw", all->test);
    for (unsigned i = 0; i < 2; i++) {
        tests[i].deadline_ns = hd_now_ns() + rank->timeout_ns / 2;
        HD_TRY(perftest_run_test(rank, &tests[i], &values[i]));
    }
    if (!isnan(values[0]) && !isnan(values[1])) {
        assert(all->call_count < HD_PERFTEST_CALL_MAX);
        all->latencies_us[all->call_count] = values[0];
        all->all_gbytes[all->call_count++] = values[1];
        hd_bench_spread(all->latencies_us, all->call_count, &spread);
        all->latency_us = spread.median;
        hd_bench_spread(all->all_gbytes, all->call_count, &spread);
        all->gbytes = spread.median;
        all->missing[0] = '\0';
    } else if (all->call_count == 0) {
        snprintf(
            all->missing, sizeof all->missing,
            PROGRAM
            " printed no number: its ranks cannot connect, or it does not support test %s here",
            all->test);
    }
    return HD_OK;
}

hd_status hd_perftest_run(const struct hd_drive_rank *rank,
                          const struct hd_perftest_request *request, struct hd_perftest *all)
{
    const struct news mine = {.is_here = perftest_is_installed()};
    struct news theirs = {0};

    /* One-sided puts are compared with puts, everything else with two-sided messages. */
    snprintf(all->test, sizeof all->test, "%s",
             strcmp(request->plugin->name, "ucx_put") == 0 ? "ucp_put" : "tag");
    HD_TRY(hd_drive_swap(rank, &mine, &theirs, sizeof mine));
    if (!mine.is_here || !theirs.is_here) {
        snprintf(all->missing, sizeof all->missing,
                 PROGRAM " is not installed (Debian: ucx-utils)");
        return HD_OK;
    }
    return perftest_run_both(rank, request, all);
}
