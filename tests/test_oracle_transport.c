/*
 * tests/test_oracle_transport.c - the oracle over transports (DESIGN, section 6; issue 4): losses,
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
    "model.width=64 model.heads=4 model.layers=8 model.sequence=16 model.vocabulary=64 "  \
    "model.expert_width=32 data.microbatch_size=2 train.warmup_steps=1 output.trace=off " \
    "output.directory=run output.checkpoint_every=never --overwrite --quiet "             \
    "pipeline.microbatches=5 train.steps=3 transport.timeout_s=20 "

#define ONE_RANK   "pipeline.schedule=gpipe pipeline.ranks=1 "
#define SAME_PEER  "pipeline.schedule=interleaved_1f1b pipeline.ranks=2 "
#define PLAIN      "pipeline.schedule=1f1b pipeline.ranks=4 "
#define GPIPE      "pipeline.schedule=gpipe pipeline.ranks=2 "
#define LEAN       "pipeline.schedule=interleaved_lean pipeline.ranks=4 "
#define V_SHAPED   "pipeline.schedule=1f1b_v pipeline.ranks=2 "
#define TAG        "transport.name=ucx_tag "
#define TAG_ON_TCP TAG "transport.ucx_tag.tls=tcp,self "
#define RENDEZVOUS TAG "transport.ucx_tag.rendezvous_bytes=0 "
#define PUT        "transport.name=ucx_put "
#define PUT_ON_TCP PUT "transport.ucx_put.tls=tcp,self "
#define NO_OVERLAP "pipeline.overlap=off "
/* The depths themselves, without the one slot more that auto gives. */
#define LEAST_PLAIN  "pipeline.transfer_slots=4,3,2,2,2,2 "
#define LEAST_V      "pipeline.transfer_slots=4,2,1,2 "
#define HELD(inner)  "transport.name=hook_fault transport.inner=" inner " "
#define LATE         "transport.hook_fault.delay_us=300 transport.hook_fault.reorder_percent=20 "
#define STORMY       "transport.hook_fault.busy_percent=60 "
#define NARROW       "transport.hook_fault.bandwidth_mb=20 "
#define SEED(number) "transport.hook_fault.seed=" number " "

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

static int has_ucx(void)
{
    const int is_there = access(hd_check_plugin("heddle_transport_ucx_tag.so"), R_OK) == 0;

    if (!is_there) {
        printf("(UCX is not installed) ");
    }
    return is_there;
}

static void test_ucx(void)
{
    static const char *const rows[] = {
        SAME_PEER TAG,
        SAME_PEER TAG_ON_TCP,
        SAME_PEER PUT,
        SAME_PEER PUT_ON_TCP,
        SAME_PEER RENDEZVOUS,
        SAME_PEER RENDEZVOUS NO_OVERLAP,
        PLAIN TAG LEAST_PLAIN,
        PLAIN PUT LEAST_PLAIN,
        GPIPE TAG_ON_TCP,
        GPIPE PUT NO_OVERLAP,
        LEAN TAG,
        LEAN PUT_ON_TCP,
        V_SHAPED RENDEZVOUS,
        V_SHAPED PUT_ON_TCP LEAST_V,
        PLAIN TAG "transport.progress_thread=on ",
    };

    if (has_ucx()) {
        hold(rows, HD_CHECK_COUNT(rows));
    }
}

static void test_held_back(void)
{
    static const char *const rows[] = {
        SAME_PEER HELD("shm") LATE STORMY,   LEAN HELD("shm") LATE SEED("2"),
        PLAIN HELD("shm") LATE SEED("3"),    V_SHAPED HELD("shm") NARROW,
        GPIPE HELD("shm") STORMY NO_OVERLAP,
    };
    static const char *const ucx_rows[] = {
        SAME_PEER HELD("ucx_tag") LATE STORMY,
        PLAIN HELD("ucx_put") LATE STORMY SEED("4"),
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
        {"ucx_tag and ucx_put, through shared memory and over tcp, change no bit", test_ucx},
        {"delays, BUSY storms, reordering and a narrow link change no bit", test_held_back},
    };
    command_work("oracle_transport");
    return hd_check_main("test_oracle_transport", checks, HD_CHECK_COUNT(checks));
}
