/* Reads and writes tables in PyTorch's compute-only form. */
#include "plan/csv.h"

#include "base/memory.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <inttypes.h>
#include <string.h>

#define FILE_BYTES_MAX (1ull << 30)
#define CELL_BYTES_MAX 64u

/* A file being read: the position, and the actions of its rows so far. */
struct reader {
    const char *path;
    char *text;      /* [length], owned */
    uint64_t length; /* bytes */
    uint64_t offset; /* of the next byte */
    uint32_t row;    /* from 1 */
    uint32_t column; /* from 1 */
    uint32_t last_microbatch, last_stage;
    bool has_backward;
    uint64_t action_count;
    struct hd_action *actions;  /* owned; one a cell at most, two for a pair */
    uint64_t *rank_begin;       /* [HD_RANK_MAX + 1], owned */
    struct hd_problem *problem; /* borrowed */
};

static hd_status csv_no_memory(const struct reader *reader)
{
    hd_problem_place(reader->problem, "%s", reader->path);
    return hd_problem_no_memory(reader->problem, 0, "the table");
}

static hd_status csv_refuse_file(struct reader *reader, const char *reason, const char *remedy)
{
    hd_problem_place(reader->problem, "%s", reader->path);
    hd_problem_remedy(reader->problem, "%s", remedy);
    return hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE, "%s", reason);
}

static hd_status csv_refuse_cell(struct reader *reader, const char *cell, const char *reason,
                                 const char *remedy)
{
    char printable[CELL_BYTES_MAX];
    snprintf(printable, sizeof printable, "%.40s", cell);
    for (char *byte = printable; *byte != '\0'; byte++) {
        *byte = *byte < ' ' || *byte > '~' ? '?' : *byte;
    }
    hd_problem_place(reader->problem, "%s: row %u, column %u", reader->path, reader->row,
                     reader->column);
    hd_problem_remedy(reader->problem, "%s", remedy);
    return hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE, "\"%s\" %s", printable,
                          reason);
}

/* Reads the whole file; the table of the largest plan has some hundred megabytes. */
static hd_status csv_load(struct reader *reader)
{
    FILE *stream = fopen(reader->path, "rb");
    if (stream == NULL) {
        return csv_refuse_file(reader, strerror(errno),
                               "name a readable table in pipeline.schedule");
    }
    hd_status status = HD_OK;
    long bytes = fseek(stream, 0, SEEK_END) == 0 ? ftell(stream) : -1;
    if (bytes < 0 || (uint64_t)bytes > FILE_BYTES_MAX || fseek(stream, 0, SEEK_SET) != 0) {
        status = csv_refuse_file(reader, "is not a regular file of at most 1 GiB",
                                 "write the table to a regular file");
        goto close_stream;
    }
    reader->text = hd_memory_take((uint64_t)bytes, 64, "csv");
    if (reader->text == NULL) {
        status = csv_no_memory(reader);
        goto close_stream;
    }
    reader->length = fread(reader->text, 1, (uint64_t)bytes, stream);
    if (ferror(stream)) {
        status =
            csv_refuse_file(reader, strerror(errno), "name a readable table in pipeline.schedule");
    }
close_stream:
    fclose(stream);
    return status;
}

/* Allocates an action for every cell, and for both halves of a pair. */
static hd_status csv_make_room(struct reader *reader)
{
    uint64_t cells = 1;
    for (uint64_t i = 0; i < reader->length; i++) {
        const char byte = reader->text[i];
        cells += byte == ',' || byte == ';' || byte == '\n';
    }
    reader->actions = hd_memory_take(cells * sizeof *reader->actions, 64, "csv");
    reader->rank_begin = hd_memory_take((HD_RANK_MAX + 1) * sizeof *reader->rank_begin, 64, "csv");
    if (reader->actions == NULL || reader->rank_begin == NULL) {
        return csv_no_memory(reader);
    }
    return HD_OK;
}

/* Copies the next cell, trimmed, without the quotes that csv.writer puts around a lone blank. */
static hd_status csv_next_cell(struct reader *reader, char cell[CELL_BYTES_MAX])
{
    uint64_t begin = reader->offset;
    uint64_t end = begin;
    while (end < reader->length && reader->text[end] != ',' && reader->text[end] != '\n') {
        end++;
    }
    reader->offset = end;
    while (begin < end && (reader->text[begin] == ' ' || reader->text[begin] == '\t')) {
        begin++;
    }
    while (end > begin && (reader->text[end - 1] == ' ' || reader->text[end - 1] == '\t' ||
                           reader->text[end - 1] == '\r')) {
        end--;
    }
    if (end - begin >= 2 && reader->text[begin] == '"' && reader->text[end - 1] == '"') {
        begin++;
        end--;
    }
    const uint64_t bytes = end - begin < CELL_BYTES_MAX - 1 ? end - begin : CELL_BYTES_MAX - 1;
    memcpy(cell, reader->text + begin, bytes);
    cell[bytes] = '\0';
    if (bytes < end - begin || memchr(cell, '\0', bytes) != NULL) {
        return csv_refuse_cell(reader, cell, "is not an action",
                               "write cells as 4F2, 4B2, 4I2 or 4W2");
    }
    return HD_OK;
}

/* Reads the digits at *text; numbers above `limit` read as `limit`.  False if there is no digit. */
static bool csv_read_number(const char **text, uint32_t limit, uint32_t *number)
{
    const char *const begin = *text;
    uint64_t value = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++) {
        value = value * 10 + (uint64_t)(**text - '0');
        value = value < limit ? value : limit;
    }
    *number = (uint32_t)value;
    return *text != begin;
}

static hd_status csv_refuse_word(struct reader *reader, const char *cell, const char *word)
{
    static const char *const foreign[] = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                          "UNSHARD", "RESHARD", "REDUCE_GRAD"};
    for (uint32_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (strncmp(word, foreign[i], strlen(foreign[i])) == 0) {
            return csv_refuse_cell(reader, cell, "is communication, which heddle derives itself",
                                   "export the compute-only table (PyTorch: _dump_csv(file, "
                                   "\"compute_only\"))");
        }
    }
    if (strncmp(word, "BW", 2) == 0) {
        return csv_refuse_cell(reader, cell,
                               "comes from PyTorch before 2.6, where B meant half a backward",
                               "rewrite B as I, then BW as B");
    }
    return csv_refuse_cell(reader, cell, "is not an action", "write cells as 4F2, 4B2, 4I2 or 4W2");
}

/* Reads one "4B2", which must end at the character `end`, and appends it. */
static hd_status csv_read_simple(struct reader *reader, const char *cell, const char *text,
                                 char end)
{
    struct hd_action action = {0};
    const bool has_stage = csv_read_number(&text, HD_STAGE_MAX, &action.stage);
    const char *const word = text;

    if (!has_stage || *text == '\0' || strchr("FBIW", *text) == NULL) {
        return csv_refuse_word(reader, cell, word);
    }
    action.kind = (uint8_t)*text;
    text++;
    if (!csv_read_number(&text, HD_MICROBATCH_MAX, &action.microbatch) || *text != end) {
        return csv_refuse_word(reader, cell, word);
    }
    if (action.stage == HD_STAGE_MAX || action.microbatch == HD_MICROBATCH_MAX) {
        return csv_refuse_cell(reader, cell, "is beyond stage 16383 or microbatch 65535",
                               "count stages and microbatches from 0");
    }
    reader->last_stage = action.stage > reader->last_stage ? action.stage : reader->last_stage;
    if (action.microbatch > reader->last_microbatch) {
        reader->last_microbatch = action.microbatch;
    }
    reader->has_backward |= action.kind != HD_FORWARD;
    reader->actions[reader->action_count] = action;
    reader->action_count++;
    return HD_OK;
}

/* "(7F4;0B0)OVERLAP_F_B": two actions, the first of which may overlap with the second. */
static hd_status csv_read_pair(struct reader *reader, const char *cell)
{
    const char *const second = strchr(cell, ';');
    const char *const close = strchr(cell, ')');

    if (second == NULL || close == NULL || second > close || strcmp(close, ")OVERLAP_F_B") != 0) {
        return csv_refuse_cell(reader, cell, "is not a pair of actions",
                               "write pairs as (7F4;0B0)OVERLAP_F_B");
    }
    hd_status status = csv_read_simple(reader, cell, cell + 1, ';');
    if (status != HD_OK) {
        return status;
    }
    reader->actions[reader->action_count - 1].flags = HD_PAIRED;
    return csv_read_simple(reader, cell, second + 1, ')');
}

static void csv_append_idle(struct reader *reader)
{
    struct hd_action *last = reader->actions + reader->action_count;
    const uint64_t begin = reader->rank_begin[reader->row - 1];

    if (reader->action_count > begin && last[-1].kind == HD_IDLE) {
        last[-1].ticks++;
        return;
    }
    *last = (struct hd_action){.kind = HD_IDLE, .ticks = 1};
    reader->action_count++;
}

static hd_status csv_read_row(struct reader *reader)
{
    char cell[CELL_BYTES_MAX];
    bool has_action = false;

    reader->rank_begin[reader->row - 1] = reader->action_count;
    for (reader->column = 1;; reader->column++) {
        hd_status status = csv_next_cell(reader, cell);
        if (status == HD_OK && cell[0] == '\0') {
            csv_append_idle(reader);
        } else if (status == HD_OK) {
            status = cell[0] == '(' ? csv_read_pair(reader, cell)
                                    : csv_read_simple(reader, cell, cell, '\0');
            has_action = true;
        }
        if (status != HD_OK) {
            return status;
        }
        const bool is_row_over =
            reader->offset == reader->length || reader->text[reader->offset] == '\n';
        reader->offset += reader->offset < reader->length ? 1 : 0;
        if (is_row_over) {
            break;
        }
    }
    if (!has_action) {
        hd_problem_place(reader->problem, "%s: row %u", reader->path, reader->row);
        hd_problem_remedy(reader->problem, "give every rank at least one stage");
        return hd_problem_set(reader->problem, HD_INVALID, HD_EXIT_USAGE, "the row has no action");
    }
    reader->rank_begin[reader->row] = reader->action_count;
    return HD_OK;
}

/* Skips the byte order mark at the start and blank lines at the end, which editors leave. */
static void csv_trim(struct reader *reader)
{
    if (reader->length >= 3 && memcmp(reader->text, "\xef\xbb\xbf", 3) == 0) {
        reader->offset = 3;
    }
    while (reader->length > reader->offset &&
           (reader->text[reader->length - 1] == '\n' || reader->text[reader->length - 1] == '\r')) {
        reader->length--;
    }
}

static hd_status csv_read_rows(struct reader *reader)
{
    csv_trim(reader);
    if (reader->offset == reader->length) {
        return csv_refuse_file(reader, "the table is empty",
                               "write one row for each rank, as 0F0,0B0");
    }
    while (reader->offset < reader->length) {
        if (reader->row == HD_RANK_MAX) {
            return csv_refuse_file(reader, "the table has more than 4096 rows",
                                   "write one row for each rank");
        }
        reader->row++;
        const hd_status status = csv_read_row(reader);
        if (status != HD_OK) {
            return status;
        }
    }
    const uint64_t passes = (uint64_t)(reader->last_stage + 1) * (reader->last_microbatch + 1);
    if (reader->action_count > HD_PLAN_ACTION_MAX || passes > HD_PLAN_ACTION_MAX) {
        return csv_refuse_file(reader, "the table names more than 67108864 actions",
                               "use fewer stages or microbatches");
    }
    return HD_OK;
}

/* A stage's home is the row with most of its actions, the first of equals.  `counts` [stages] is
   zero before and after each row. */
static void csv_find_homes(const struct reader *reader, uint32_t *homes, uint64_t *best,
                           uint64_t *counts)
{
    for (uint32_t row = 0; row < reader->row; row++) {
        const uint64_t begin = reader->rank_begin[row];
        const uint64_t end = reader->rank_begin[row + 1];
        for (uint64_t i = begin; i < end; i++) {
            counts[reader->actions[i].stage] += reader->actions[i].kind != HD_IDLE;
        }
        for (uint64_t i = begin; i < end; i++) {
            const uint32_t stage = reader->actions[i].stage;
            if (counts[stage] > best[stage]) {
                best[stage] = counts[stage];
                homes[stage] = row;
            }
            counts[stage] = 0;
        }
    }
}

static hd_status csv_place_stages(struct reader *reader, uint32_t **stage_rank)
{
    const uint64_t stage_count = (uint64_t)reader->last_stage + 1;
    uint32_t *homes = hd_memory_take(stage_count * sizeof *homes, 64, "plan");
    uint64_t *counts = hd_memory_take(2 * stage_count * sizeof *counts, 64, "csv");
    hd_status status = HD_OK;

    if (homes == NULL || counts == NULL) {
        hd_memory_give(homes);
        status = csv_no_memory(reader);
    } else {
        csv_find_homes(reader, homes, counts, counts + stage_count);
        *stage_rank = homes;
    }
    hd_memory_give(counts);
    return status;
}

hd_status hd_csv_read(const char *path, struct hd_pipeline_source *source,
                      struct hd_problem *problem)
{
    struct reader reader = {.path = path, .problem = problem};
    uint32_t *stage_rank = NULL;

    assert(path != NULL && source != NULL);
    hd_status status = csv_load(&reader);
    if (status == HD_OK) {
        status = csv_make_room(&reader);
    }
    if (status == HD_OK) {
        status = csv_read_rows(&reader);
    }
    if (status == HD_OK) {
        status = csv_place_stages(&reader, &stage_rank);
    }
    hd_memory_give(reader.text);
    if (status != HD_OK) {
        hd_memory_give(reader.actions);
        hd_memory_give(reader.rank_begin);
        return status;
    }
    *source = (struct hd_pipeline_source){
        .rank_count = reader.row,
        .stage_count = reader.last_stage + 1,
        .microbatch_count = reader.last_microbatch + 1,
        .replica_count = 1,
        .is_forward_only = !reader.has_backward,
        .stage_rank = stage_rank,
        .rank_begin = reader.rank_begin,
        .actions = reader.actions,
    };
    snprintf(source->name, sizeof source->name, "%s", path);
    return HD_OK;
}
