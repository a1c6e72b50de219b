/*
 * tests/test_checkpoint_refused.c - what --resume does not take: damaged files, other models, other
 * texts; each with file, tensor and reason, exit 2, before a step.  And weights alone, which it
 * does take.
 *
 * Sources: the issue ("A file cut, bit-flipped, of another model ... is refused with its place");
 * cases.md C73 ("Deleted file: non-zero exit naming the layer id").
 */
#include "support/check.h"
#include "support/command.h"

#include "train/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS_BYTES = 2048 };

#define MODEL                                                                            \
    "kernels.precision=f32 model.layers=4 model.width=32 model.heads=2 model.experts=4 " \
    "model.expert_width=32 model.sequence=16 model.vocabulary=64 train.warmup_steps=0 "  \
    "output.trace=off --quiet pipeline.ranks=2 pipeline.microbatches=4 "                 \
    "data.microbatch_size=1 "
#define BAD_MODEL     "bad/checkpoint/model.safetensors"
#define BAD_OPTIMIZER "bad/checkpoint/optimizer.safetensors"
#define BAD_STATE     "bad/checkpoint/state.json"

static void shell(const char *line)
{
    CU_ASSERT_EQUAL_FATAL(system(line), 0);
}

static void expect(const char *name, const char *words, int code, const char *part)
{
    struct command command = {0};
    const int got = command_run(&command, words);
    char *const error = command_text(command.err);

    if (got != code || (part != NULL && strstr(error, part) == NULL)) {
        printf("\n%s: exit %d, not %d; '%s' lacks '%s'\n", name, got, code, error,
               part != NULL ? part : "");
        CU_FAIL("not as it must be");
    }
    free(error);
}

/* --- damage ----------------------------------------------------------------------------------- */

static void flip(const char *path, long offset)
{
    FILE *const stream = fopen(path, "r+b");

    CU_ASSERT_FATAL(stream != NULL);
    fseek(stream, offset, SEEK_SET);
    const int letter = getc(stream);
    fseek(stream, offset, SEEK_SET);
    putc(letter ^ 0x10, stream);
    CU_ASSERT_FATAL(fclose(stream) == 0);
}

static void flip_tensor(const char *path, const char *name)
{
    struct hd_safetensors file;
    struct hd_problem problem = {0};

    CU_ASSERT_FATAL(hd_safetensors_open(&file, path, &problem) == HD_OK);
    const struct hd_safetensors_tensor *const tensor = hd_safetensors_find(&file, name);
    CU_ASSERT_FATAL(tensor != NULL);
    const long offset = (long)(tensor->offset + tensor->bytes / 2);
    hd_safetensors_close(&file);
    flip(path, offset);
}

/* Replaces every `from` by `to`, of one length, in the first `bytes` of a file. */
static void replace(const char *path, const char *from, const char *to)
{
    struct stat facts;
    FILE *const stream = fopen(path, "r+b");

    CU_ASSERT_FATAL(stream != NULL && stat(path, &facts) == 0 && strlen(from) == strlen(to));
    char *const text = malloc((size_t)facts.st_size);
    CU_ASSERT_FATAL(text != NULL);
    CU_ASSERT_EQUAL(fread(text, 1, (size_t)facts.st_size, stream), (size_t)facts.st_size);
    char *at = text;
    const char *const end = text + facts.st_size;
    while ((at = memmem(at, (size_t)(end - at), from, strlen(from))) != NULL) {
        memcpy(at, to, strlen(to));
    }
    rewind(stream);
    fwrite(text, 1, (size_t)facts.st_size, stream);
    CU_ASSERT_FATAL(fclose(stream) == 0);
    free(text);
}

static void cut(const char *path, long bytes)
{
    struct stat facts;
    CU_ASSERT_FATAL(stat(path, &facts) == 0 && truncate(path, facts.st_size - bytes) == 0);
}

#define GATE "model.layers.1.mlp.gate.weight"

static void nothing(void)
{
}
static void cut_model(void)
{
    cut(BAD_MODEL, 1);
}
static void cut_model_to_header(void)
{
    CU_ASSERT_FATAL(truncate(BAD_MODEL, 64) == 0);
}
static void empty_model(void)
{
    CU_ASSERT_FATAL(truncate(BAD_MODEL, 0) == 0);
}
static void flip_gate(void)
{
    flip_tensor(BAD_MODEL, GATE);
}
static void flip_moment(void)
{
    flip_tensor(BAD_OPTIMIZER, GATE ".moment2");
}
static void rename_gate(void)
{
    replace(BAD_MODEL, "model.layers.1.", "model.layers.7.");
}
static void flip_length(void)
{
    flip(BAD_MODEL, 6);
}
static void edit_state(void)
{
    replace(BAD_STATE, "\"step\": 2", "\"step\": 1");
}
static void cut_state(void)
{
    cut(BAD_STATE, 3);
}
static void remove_state(void)
{
    unlink(BAD_STATE);
}
static void remove_optimizer(void)
{
    unlink(BAD_OPTIMIZER);
}
static void swap_files(void)
{
    shell("cp other/checkpoint/model.safetensors " BAD_MODEL);
}

static const struct {
    const char *name;
    void (*damage)(void);
    const char *words; /* after --resume bad */
    const char *part;
} rows[] = {
    {"a file cut by a byte", cut_model, "",
     BAD_MODEL ": lm_head.weight: ends at byte 282752 of the data, but the file has 282751"},
    {"a file cut in its header", cut_model_to_header, "", BAD_MODEL ": claims a header"},
    {"an empty file", empty_model, "", BAD_MODEL ": has 0 bytes"},
    {"a bit of a parameter", flip_gate, "", BAD_MODEL ": " GATE ": its bytes have SHA-256"},
    {"a bit of a moment", flip_moment, "",
     BAD_OPTIMIZER ": " GATE ".moment2: its bytes have SHA-256"},
    {"another name in the header", rename_gate, "", BAD_MODEL ": its header has SHA-256"},
    {"a bit of the length", flip_length, "", BAD_MODEL ": claims a header"},
    {"the model of another run", swap_files, "", BAD_MODEL ": its header has SHA-256"},
    {"a state that was edited", edit_state, "", BAD_STATE ": was damaged: its SHA-256"},
    {"a state that was cut", cut_state, "", BAD_STATE ": was damaged"},
    {"no state", remove_state, "", BAD_STATE ": there is no checkpoint to resume from"},
    {"no optimizer", remove_optimizer, "", BAD_OPTIMIZER ": cannot be opened"},
    {"another width", nothing, "model.width=64",
     "model.width: is 64, but 32 in the model of the checkpoint in bad"},
    {"fewer layers", nothing, "model.layers=2",
     "model.layers: is 2, but 4 in the model of the checkpoint"},
    {"another number of experts a token", nothing, "model.experts_per_token=1",
     "model.experts_per_token: is 1, but 2 in the model of the checkpoint in bad"},
    {"another angle", nothing, "model.rope_theta=500", "model.rope_theta: is 500"},
    {"another sequence", nothing, "model.sequence=8", "model.sequence: is 8"},
    {"a total below the step", nothing, "train.steps=1",
     "train.steps: is 1, but the checkpoint in bad is of step 2"},
    {"what would remove it", nothing, "--overwrite",
     "--overwrite would remove the checkpoint that --resume continues"},
};

static void check_refused(void)
{
    char words[WORDS_BYTES];

    expect("base", "run " MODEL "train.steps=2 output.directory=base", 0, NULL);
    expect("other", "run " MODEL "train.steps=2 train.seed=2 output.directory=other", 0, NULL);
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        shell("rm -rf bad && cp -r base bad");
        rows[i].damage();
        snprintf(words, sizeof words, "run --resume bad --quiet train.steps=3 %s", rows[i].words);
        expect(rows[i].name, words, 2, rows[i].part);
    }
    shell("rm -rf bad && cp -r base bad");
    expect("whole", "run --resume bad --quiet train.steps=3", 0, NULL);
    expect("no such directory", "run --resume nowhere", 2,
           "nowhere/checkpoint/state.json: there is no checkpoint");
}

/* A file that was damaged is whole enough to evaluate where only the moments are bad. */
static void check_unread(void)
{
    shell("rm -rf bad && cp -r base bad");
    remove_optimizer();
    expect("without moments", "run --resume bad --evaluate --quiet --steps 1", 0, NULL);
}

/* --- the text --------------------------------------------------------------------------------- */

static void put_text(char letter)
{
    FILE *const stream = fopen("text.txt", "w");

    CU_ASSERT_FATAL(stream != NULL);
    for (unsigned i = 0; i < 400; i++) {
        fprintf(stream, "%c%u ", letter, i);
    }
    CU_ASSERT_FATAL(fclose(stream) == 0);
}

#define TEXT "model.vocabulary=256 data.corpus=text.txt "

static void check_corpus(void)
{
    put_text('a');
    expect("a text", "run " MODEL TEXT "train.steps=1 output.directory=read", 0, NULL);
    expect("the same text", "run --resume read --quiet train.steps=2", 0, NULL);
    put_text('b');
    expect("another text", "run --resume read --quiet train.steps=3", 2, "text.txt (SHA-256 ");
    expect("told so", "run --resume read --quiet train.steps=3 data.corpus=text.txt", 0, NULL);
    expect("then it is its text", "run --resume read --quiet train.steps=4", 0, NULL);
}

/* --- weights alone ---------------------------------------------------------------------------- */

static double number_of(const char *path, const char *list)
{
    cJSON *const json = command_json(path);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, list);
    item = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item;
    const double number = cJSON_IsNumber(item) ? item->valuedouble : -1;

    cJSON_Delete(json);
    return number;
}

static void check_weights(void)
{
    struct command command = {0};

    shell("rm -rf hub && mkdir hub && cp base/checkpoint/model.safetensors hub");
    expect("a file",
           "run " MODEL "--resume hub/model.safetensors train.steps=1 "
           "output.directory=new",
           0, NULL);
    expect("its directory",
           "run " MODEL "--resume hub train.steps=1 pipeline.ranks=4 "
           "output.directory=new4",
           0, NULL);
    CU_ASSERT_EQUAL(command_run(&command, "run " MODEL "--resume base --evaluate --steps 1 --json"),
                    0);
    CU_ASSERT(number_of("new/run.json", "losses") > 0);
    CU_ASSERT_EQUAL(number_of("new/run.json", "losses"), number_of("new4/run.json", "losses"));
    CU_ASSERT_EQUAL(number_of("new/run.json", "losses"), number_of(command.out, "loss"));
    replace("hub/model.safetensors", "model.layers.1.mlp.gate.", "model.layers.1.mlp.gute.");
    expect("a missing tensor (C73)", "run " MODEL "--resume hub output.directory=none", 2,
           "hub/model.safetensors: ");
    expect("is named", "run " MODEL "--resume hub output.directory=none1 pipeline.ranks=1", 2,
           "model.layers.1.mlp.gate.weight: is not in the file");
    shell("cp base/checkpoint/model.safetensors hub");
    expect("another shape",
           "run " MODEL "--resume hub model.expert_width=64 output.directory=none2", 2,
           "mlp.experts.0.gate_proj.weight: has shape [32, 32], but this model needs [64, 32]");
    expect("more layers than the file",
           "run " MODEL "--resume hub model.layers=5 "
           "output.directory=none3",
           2, "model.layers.4.");
    expect("fewer layers than the file",
           "run " MODEL "--resume hub model.layers=3 "
           "output.directory=none4",
           2, "this model has no such tensor");
}

/* The last row of the embedding is of no letter of the builtin text: no loss shows what is in
   it. */
static void put_infinity(const char *path)
{
    const float infinity = INFINITY;
    struct hd_safetensors file;
    struct hd_problem problem = {0};

    replace(path, "sha256:model.embed", "sha-no:model.embed");
    CU_ASSERT_FATAL(hd_safetensors_open(&file, path, &problem) == HD_OK);
    const struct hd_safetensors_tensor *const tensor =
        hd_safetensors_find(&file, "model.embed_tokens.weight");
    CU_ASSERT_FATAL(tensor != NULL && tensor->sha256 == NULL);
    const long offset = (long)(tensor->offset + tensor->bytes - sizeof infinity);
    hd_safetensors_close(&file);
    FILE *const stream = fopen(path, "r+b");
    CU_ASSERT_FATAL(stream != NULL);
    fseek(stream, offset, SEEK_SET);
    fwrite(&infinity, sizeof infinity, 1, stream);
    CU_ASSERT_FATAL(fclose(stream) == 0);
}

static void check_infinite(void)
{
    shell("rm -rf hub && mkdir hub && cp base/checkpoint/model.safetensors hub");
    put_infinity("hub/model.safetensors");
    expect("a value that is not finite",
           "run " MODEL "--resume hub train.steps=2 output.directory=infinite", 6,
           "model.embed_tokens.weight: element 2047 is not finite after the update");
    CU_ASSERT(access("infinite/checkpoint", F_OK) != 0);
}

int main(void)
{
    static const struct hd_check checks[] = {
        {"damaged files and other models are refused with their place", check_refused},
        {"an evaluation reads no moments", check_unread},
        {"the text may change only if told so", check_corpus},
        {"weights alone begin a run; a wrong tensor is named (C73)", check_weights},
        {"a parameter that is not finite is not saved (C88)", check_infinite},
    };

    command_work("checkpoint_refused");
    return hd_check_main("checkpoint_refused", checks, HD_CHECK_COUNT(checks));
}
