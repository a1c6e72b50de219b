/*
 * tests/test_oracle_transport.c - the oracle over transports (docs/architecture.md): losses,
 * norms and parameters are equal to the last bit whatever carries the tensors, held back or not.
 *
 * Every row is a real run of the heddle binary, held against the run of one rank.  P = 2 with V = 2
 * is the shape where the previous and the next peer are the same rank.
 */
#include "support/check.h"
#include "support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096, TEXT_BYTES = 2048 };

#define SMALL                                                                             \
    "model.width=32 model.heads=2 model.layers=8 model.sequence=8 model.vocabulary=64 "   \
    "model.expert_width=16 data.microbatch_size=2 train.warmup_steps=1 output.trace=off " \
    "output.directory=run output.checkpoint_every=never --overwrite --quiet "             \
    "pipeline.microbatches=5 train.steps=2 transport.timeout_s=20 "

#define ONE_RANK      "pipeline.schedule=gpipe pipeline.ranks=1 "
#define SAME_PEER     "pipeline.schedule=interleaved_1f1b pipeline.ranks=2 "
#define PLAIN         "pipeline.schedule=1f1b pipeline.ranks=4 "
#define GPIPE         "pipeline.schedule=gpipe pipeline.ranks=2 "
#define LEAN          "pipeline.schedule=interleaved_lean pipeline.ranks=4 "
#define V_SHAPED      "pipeline.schedule=1f1b_v pipeline.ranks=2 "
#define PULLED_AHEAD  "pipeline.schedule=1f1b_v pipeline.ranks=4 schedule.1f1b_v.pull_ahead=1 "
#define TAG           "transport.name=ucx_tag "
#define RENDEZVOUS    TAG "transport.ucx_tag.rendezvous_bytes=0 "
#define PUT           "transport.name=ucx_put "
#define PUT_ON_TCP    PUT "transport.ucx_put.tls=tcp,self "
#define NO_OVERLAP    "pipeline.overlap=off "
#define RING          "pipeline.schedule=interleaved_1f1b pipeline.ranks=4 "
#define GROUPED       "transport.issue_order=grouped "
#define AS_PROGRAMMED "transport.issue_order=program "
/* The depths themselves, without the one slot more that auto gives. */
#define LEAST_PLAIN "pipeline.transfer_slots=4,3,2,2,2,2 "
/* Fewer on the way back: in order that still ends, with posts that wait for a slot. */
#define TIGHT_PLAIN "pipeline.transfer_slots=4,3,2,1,1,1 "
#define LEAST_V     "pipeline.transfer_slots=4,2,1,2 "
#define HELD(inner) "transport.name=hook_fault transport.inner=" inner " "
#define LATE        "transport.hook_fault.delay_us=300 transport.hook_fault.reorder_percent=20 "
#define STORMY      "transport.hook_fault.busy_percent=60 "
#define NARROW      "transport.hook_fault.bandwidth_mb=20 "

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

static void run(const char *words, char text[TEXT_BYTES])
{
    char line[WORDS_BYTES];
    struct command command = {0};

    snprintf(line, sizeof line, "run " SMALL "%s", words);
    const int code = command_run(&command, line);
    CU_ASSERT_EQUAL(code, 0);
    if (code == 0) {
        read_numbers(text);
    } else {
        char *error = command_text(command.err);
        snprintf(text, TEXT_BYTES, "exit code %d: %s", code, error);
        free(error);
    }
}

static void hold(const char *const *rows, size_t count)
{
    char base[TEXT_BYTES];
    char text[TEXT_BYTES];

    run(ONE_RANK, base);
    CU_ASSERT_PTR_NULL(strchr(base, '?'));
    for (size_t i = 0; i < count; i++) {
        run(rows[i], text);
        CU_ASSERT_STRING_EQUAL(text, base);
        if (strcmp(text, base) != 0) {
            printf("%s\n  %s\n  %s\n", rows[i], text, base);
        }
    }
}

static int is_built(const char *transport)
{
    char file[128];

    snprintf(file, sizeof file, "heddle_transport_%s.so", transport);
    return access(hd_check_plugin(file), R_OK) == 0;
}

static int has_ucx(void)
{
    const int is_there = is_built("ucx_tag") && is_built("ucx_put");

    if (!is_there) {
        printf("(UCX is not installed) ");
    }
    return is_there;
}

/* Every schedule of ours, with V where it matters. */
static const char *const shapes[] = {SAME_PEER, PLAIN, GPIPE, LEAN, V_SHAPED, PULLED_AHEAD};

/* What carries the tensors: `inner` of the hook, and the words that choose its lane. */
static const struct {
    const char *name;
    const char *lane;
    uint32_t is_held_only; /* test_oracle has the others */
} lanes[] = {
    {"shm", "", 1},
    {"ucx_tag", "", 0},
    {"ucx_tag", "transport.ucx_tag.tls=tcp,self ", 0},
    {"ucx_put", "", 0},
    {"ucx_put", "transport.ucx_put.tls=tcp,self ", 0},
};

/* The delays of every row are of another seed. */
static void hold_row(const char *base, uint32_t shape, uint32_t lane, uint32_t is_held)
{
    char words[WORDS_BYTES], text[TEXT_BYTES];

    if (is_held) {
        snprintf(words, sizeof words,
                 "%stransport.name=hook_fault transport.inner=%s %s" LATE STORMY
                 "transport.hook_fault.seed=%u ",
                 shapes[shape], lanes[lane].name, lanes[lane].lane, 100 * shape + lane);
    } else {
        snprintf(words, sizeof words, "%stransport.name=%s %s", shapes[shape], lanes[lane].name,
                 lanes[lane].lane);
    }
    run(words, text);
    CU_ASSERT_STRING_EQUAL(text, base);
    if (strcmp(text, base) != 0) {
        printf("%s\n  %s\n  %s\n", words, text, base);
    }
}

/* Under a sanitizer, which is slow and looks for other faults, every other row. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 2 };
#else
enum { STRIDE = 1 };
#endif

static void hold_matrix(uint32_t is_held)
{
    char base[TEXT_BYTES];
    uint32_t row = 0;

    run(ONE_RANK, base);
    CU_ASSERT_PTR_NULL(strchr(base, '?'));
    for (uint32_t lane = 0; lane < HD_CHECK_COUNT(lanes); lane++) {
        for (uint32_t shape = 0; shape < HD_CHECK_COUNT(shapes); shape++) {
            const uint32_t is_asked = is_held || !lanes[lane].is_held_only;
            if (is_asked && is_built(lanes[lane].name) && row++ % STRIDE == 0) {
                hold_row(base, shape, lane, is_held);
            }
        }
    }
    CU_ASSERT(row > 0 || !is_built("ucx_tag"));
}

static void hold_strict(const char *base, const char *shape, const char *way)
{
    char words[WORDS_BYTES], text[TEXT_BYTES];

    snprintf(words, sizeof words, "%s%s--plugin-dir %s transport.name=rendezvous ", shape, way,
             hd_check_build("tests/fault"));
    run(words, text);
    CU_ASSERT_STRING_EQUAL(text, base);
    if (strcmp(text, base) != 0) {
        printf("%s\n  %s\n  %s\n", words, text, base);
    }
}

static void test_matrix(void)
{
    hold_matrix(0);
}

static void test_held_matrix(void)
{
    hold_matrix(1);
}

static void test_ucx(void)
{
    static const char *const rows[] = {
        SAME_PEER RENDEZVOUS,        SAME_PEER RENDEZVOUS NO_OVERLAP,
        PLAIN TAG LEAST_PLAIN,       PLAIN PUT LEAST_PLAIN,
        GPIPE PUT NO_OVERLAP,        V_SHAPED RENDEZVOUS,
        V_SHAPED PUT_ON_TCP LEAST_V, PLAIN TAG "transport.progress_thread=on ",
    };

    if (has_ucx()) {
        hold(rows, HD_CHECK_COUNT(rows));
    }
}

/* Nothing moves before both ranks have come to it, one transfer at a time (law 7): every schedule,
   posting early and late, in groups, and with no slot to spare; GPipe also as its programs go. */
static void test_strict(void)
{
    static const char *const ways[] = {"", NO_OVERLAP, GROUPED, GROUPED NO_OVERLAP};
    static const char *const rows[] = {PLAIN LEAST_PLAIN,
                                       PLAIN LEAST_PLAIN NO_OVERLAP,
                                       PLAIN TIGHT_PLAIN,
                                       PLAIN TIGHT_PLAIN NO_OVERLAP,
                                       V_SHAPED LEAST_V,
                                       V_SHAPED LEAST_V NO_OVERLAP,
                                       RING "",
                                       RING NO_OVERLAP,
                                       GPIPE AS_PROGRAMMED,
                                       GPIPE AS_PROGRAMMED NO_OVERLAP};
    char base[TEXT_BYTES];

    run(ONE_RANK, base);
    for (uint32_t i = 0; i < HD_CHECK_COUNT(shapes) * HD_CHECK_COUNT(ways); i += STRIDE) {
        hold_strict(base, shapes[i % HD_CHECK_COUNT(shapes)], ways[i / HD_CHECK_COUNT(shapes)]);
    }
    for (uint32_t i = 0; i < HD_CHECK_COUNT(rows); i++) {
        hold_strict(base, rows[i], "");
    }
}

static void test_narrow(void)
{
    static const char *const rows[] = {
        V_SHAPED HELD("shm") NARROW,
        GPIPE HELD("shm") STORMY NO_OVERLAP,
    };
    static const char *const ucx_rows[] = {
        PLAIN HELD("ucx_put") LATE STORMY LEAST_PLAIN,
        LEAN HELD("ucx_tag") NARROW,
    };

    hold(rows, HD_CHECK_COUNT(rows));
    if (has_ucx()) {
        hold(ucx_rows, HD_CHECK_COUNT(ucx_rows));
    }
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"every schedule over ucx_tag and ucx_put, each by shared memory and by tcp", test_matrix},
        {"the same and shm, with delays, BUSY storms and reordering", test_held_matrix},
        {"rendezvous, no overlap, slots at the depth, a progress thread", test_ucx},
        {"a narrow link", test_narrow},
        {"every schedule over a strict rendezvous, one transfer at a time", test_strict},
    };
    command_work("oracle_transport");
    return hd_check_main("test_oracle_transport", checks, HD_CHECK_COUNT(checks));
}
