/* One plan or run as a line of JSON: trees with base/json, long rows printed directly. */
#include "report/page.h"

#include "base/json.h"
#include "plan/flow.h"
#include "report/plan_json.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { METRIC_ROW_MAX = 1024 };

/* --- grid ------------------------------------------------------------------------------------- */

/* Few bytes for whole ticks, which nearly all are; nine digits for others. */
static void page_item_put_number(double value, FILE *stream)
{
    if (fabs(value) < 1e15 && value == floor(value)) {
        fprintf(stream, "%.0f", value);
    } else {
        fprintf(stream, "%.9g", value);
    }
}

static bool page_item_has_own_ticks(const struct hd_plan_facts *facts)
{
    return facts->timeline->kind == HD_TIMELINE_COSTED;
}

static void page_item_put_list(const struct hd_plan_facts *facts, uint32_t rank, const char *key,
                               FILE *stream)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    const struct hd_timeline *timeline = facts->timeline;
    double before = 0;

    fprintf(stream, ", \"%s\": [", key);
    for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
        const struct hd_action *action = &pipeline->actions[i];
        fputs(i > pipeline->rank_begin[rank] ? "," : "", stream);
        if (key[0] == 's') {
            fprintf(stream, "%u", action->stage);
        } else if (key[0] == 'm') {
            fprintf(stream, "%u", action->microbatch);
        } else if (key[0] == 't') {
            page_item_put_number(timeline->end[i] - timeline->start[i], stream);
        } else {
            page_item_put_number(timeline->start[i] - before, stream);
            before = timeline->end[i];
        }
    }
    fputc(']', stream);
}

static void page_item_put_rank(const struct hd_plan_facts *facts, uint32_t rank, FILE *stream)
{
    const struct hd_pipeline *pipeline = facts->pipeline;

    fputs("{\"kind\": \"", stream);
    for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
        fputc(pipeline->actions[i].kind, stream);
    }
    fputc('"', stream);
    page_item_put_list(facts, rank, "stage", stream);
    page_item_put_list(facts, rank, "microbatch", stream);
    page_item_put_list(facts, rank, "gap", stream);
    if (page_item_has_own_ticks(facts)) {
        page_item_put_list(facts, rank, "ticks", stream);
    }
    fputc('}', stream);
}

static void page_item_put_grid(const struct hd_plan_facts *facts, FILE *stream)
{
    const struct hd_pipeline *pipeline = facts->pipeline;

    fprintf(stream, "{\"replicas\": %u, \"forward_only\": %u, \"replica_of\": [",
            pipeline->replica_count, pipeline->is_forward_only);
    for (uint32_t i = 0; pipeline->replica_count > 1 && i < pipeline->microbatch_count; i++) {
        fprintf(stream, "%s%u", i > 0 ? "," : "", pipeline->replica_of[i]);
    }
    fputs("], \"placement\": [", stream);
    for (uint32_t i = 0; i < pipeline->replica_count * pipeline->stage_count; i++) {
        fprintf(stream, "%s%u", i > 0 ? "," : "", pipeline->stage_rank[i]);
    }
    fputs("], \"ranks\": [", stream);
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        fputs(rank > 0 ? ", " : "", stream);
        page_item_put_rank(facts, rank, stream);
    }
    fputs("]}", stream);
}

/* --- facts ------------------------------------------------------------------------------------ */

static void page_item_put_tree(struct cJSON *tree, FILE *stream)
{
    hd_json_print(tree, stream);
    hd_json_free(tree);
}

static void page_item_put_facts(const struct hd_plan_facts *facts, FILE *stream)
{
    struct cJSON *tree = hd_json_new();

    hd_plan_json(facts, 0, tree);
    if (facts->budget_bytes > 0) {
        hd_json_u64(tree, "budget_bytes", facts->budget_bytes);
    } else {
        hd_json_null(tree, "budget_bytes");
    }
    hd_json_text(tree, "layers", facts->layers);
    struct cJSON *notes = hd_json_array(tree, "notes");
    for (uint32_t i = 0; i < facts->note_count; i++) {
        hd_json_text(notes, NULL, facts->notes[i]);
    }
    page_item_put_tree(tree, stream);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static const char *const page_item_metric_keys[] = {
    "step", "loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second"};
enum { METRIC_COUNT = sizeof page_item_metric_keys / sizeof page_item_metric_keys[0] };

static uint32_t page_item_count_lines(const char *text)
{
    uint32_t count = 0;
    for (; (text = strchr(text, '\n')) != NULL; text++) {
        count++;
    }
    return count;
}

/* Leaves out a line that a kill has cut. */
static void page_item_add_metrics(struct cJSON *const *columns, const char *line, size_t length)
{
    cJSON *row = cJSON_ParseWithLength(line, length);

    for (uint32_t i = 0; cJSON_IsObject(row) && i < METRIC_COUNT; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(row, page_item_metric_keys[i]);
        hd_json_number(columns[i], NULL, cJSON_IsNumber(value) ? value->valuedouble : NAN);
    }
    cJSON_Delete(row);
}

/* Every row, or one in `every`, so that METRIC_ROW_MAX remain; always the last one. */
static void page_item_put_metrics(const char *text, FILE *stream)
{
    const uint32_t line_count = page_item_count_lines(text);
    const uint32_t every = line_count / METRIC_ROW_MAX + 1;
    struct cJSON *tree = hd_json_new();
    struct cJSON *columns[METRIC_COUNT];

    hd_json_u64(tree, "every", every);
    for (uint32_t i = 0; i < METRIC_COUNT; i++) {
        columns[i] = hd_json_array(tree, page_item_metric_keys[i]);
    }
    for (uint32_t line = 0; line < line_count; line++) {
        const char *end = strchr(text, '\n');
        if (line % every == 0 || line + 1 == line_count) {
            page_item_add_metrics(columns, text, (size_t)(end - text));
        }
        text = end + 1;
    }
    page_item_put_tree(tree, stream);
}

/* --- trace ------------------------------------------------------------------------------------ */

/* When the rank was free for its next action; sent_ns may be 0 if it sends nothing. */
static uint64_t page_item_free_ns(const struct hd_record *row)
{
    return row->sent_ns > row->end_ns ? row->sent_ns : row->end_ns;
}

static void page_item_put_spans(const struct hd_record *row, uint64_t before_ns, FILE *stream)
{
    const uint64_t times[] = {before_ns,   row->begin_ns, row->ready_ns,         row->claim_ns,
                              row->run_ns, row->end_ns,   page_item_free_ns(row)};

    for (uint32_t i = 1; i < sizeof times / sizeof times[0]; i++) {
        fprintf(stream, "%s%lld", i > 1 ? "," : "", (long long)(times[i] - times[i - 1]));
    }
}

static uint64_t page_item_origin_of(const struct hd_page_trace *trace,
                                    const struct hd_pipeline *pipeline, uint32_t step)
{
    uint64_t origin_ns = UINT64_MAX;

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const struct hd_record *rows = trace->rows(trace->context, rank, step);
        origin_ns = rows[0].begin_ns < origin_ns ? rows[0].begin_ns : origin_ns;
    }
    return origin_ns;
}

static void page_item_put_step(const struct hd_page_trace *trace,
                               const struct hd_pipeline *pipeline, uint32_t step, FILE *stream)
{
    const uint64_t origin_ns = page_item_origin_of(trace, pipeline, step);

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const struct hd_record *rows = trace->rows(trace->context, rank, step);
        const uint64_t count = pipeline->rank_begin[rank + 1] - pipeline->rank_begin[rank];
        fputs(rank > 0 ? ",[" : "[[", stream);
        for (uint64_t i = 0; i < count; i++) {
            fputs(i > 0 ? "," : "", stream);
            page_item_put_spans(&rows[i], i > 0 ? page_item_free_ns(&rows[i - 1]) : origin_ns,
                                stream);
        }
        fputc(']', stream);
    }
    fputc(']', stream);
}

/* Finds the records of what `consumer` reads; false if no other rank sent it. */
static bool page_item_find_transfer(const struct hd_page_trace *trace,
                                    const struct hd_pipeline *pipeline, uint32_t consumer,
                                    struct hd_record out[2], uint32_t step)
{
    const struct hd_action *action = &pipeline->actions[consumer];
    const uint32_t producer = hd_flow_producer(pipeline, action);

    if (producer == HD_NO_ACTION) {
        return false;
    }
    const struct hd_pipeline_channel *channel =
        &pipeline->channels[hd_flow_in_channel(pipeline, action)];
    if (!hd_pipeline_is_remote(channel)) {
        return false;
    }
    out[0] = trace->rows(trace->context, channel->source,
                         step)[producer - pipeline->rank_begin[channel->source]];
    out[1] = trace->rows(trace->context, channel->target,
                         step)[consumer - pipeline->rank_begin[channel->target]];
    return true;
}

static void page_item_put_transfer(const struct hd_record ends[2], uint32_t step,
                                   uint64_t origin_ns, FILE *stream)
{
    const struct hd_passage way = hd_record_transfer(&ends[0], &ends[1], step);
    const uint64_t end_ns = way.end_ns > way.begin_ns ? way.end_ns : way.begin_ns;
    const int is_known = way.begin_ns > 0 && way.end_ns > 0;

    fprintf(stream, "%lld,%lld,%llu,%llu", is_known ? (long long)(way.begin_ns - origin_ns) : -1,
            is_known ? (long long)(end_ns - way.begin_ns) : -1,
            (unsigned long long)(ends[0].out.step == step ? ends[0].out.resident_ns : 0),
            (unsigned long long)(ends[1].in.step == step ? ends[1].in.resident_ns : 0));
}

static void page_item_put_transfers(const struct hd_page_trace *trace,
                                    const struct hd_pipeline *pipeline, uint32_t step, FILE *stream)
{
    const uint64_t origin_ns = page_item_origin_of(trace, pipeline, step);
    struct hd_record ends[2];

    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        const char *comma = "";
        fputs(rank > 0 ? ",[" : "[[", stream);
        for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
            if (page_item_find_transfer(trace, pipeline, (uint32_t)i, ends, step)) {
                fputs(comma, stream);
                page_item_put_transfer(ends, step, origin_ns, stream);
                comma = ",";
            }
        }
        fputc(']', stream);
    }
    fputc(']', stream);
}

static void page_item_put_trace(const struct hd_page_source *source, FILE *stream)
{
    const struct hd_page_trace *trace = source->trace;

    fprintf(stream, "{\"first\": %u, \"steps\": [", trace->first_step);
    for (uint32_t i = 0; i < trace->step_count; i++) {
        fputs(i > 0 ? "," : "", stream);
        page_item_put_step(trace, source->facts->pipeline, trace->first_step + i, stream);
    }
    fputs("], \"transfers\": [", stream);
    for (uint32_t i = 0; i < trace->step_count; i++) {
        fputs(i > 0 ? "," : "", stream);
        page_item_put_transfers(trace, source->facts->pipeline, trace->first_step + i, stream);
    }
    fputs("]}", stream);
}

/* --- the item --------------------------------------------------------------------------------- */

static void page_item_put_string(const char *text, FILE *stream)
{
    struct cJSON *tree = hd_json_new();

    /* Prints the value of a tree with one member, because base/json escapes text. */
    hd_json_text(tree, "text", text);
    hd_json_print(cJSON_GetObjectItemCaseSensitive(tree, "text"), stream);
    hd_json_free(tree);
}

static void page_item_put_item(const struct hd_page_source *source, FILE *stream)
{
    fputs("{\"name\": ", stream);
    page_item_put_string(source->name, stream);
    fputs(", \"facts\": ", stream);
    page_item_put_facts(source->facts, stream);
    fputs(", \"grid\": ", stream);
    page_item_put_grid(source->facts, stream);
    fputs(", \"config\": ", stream);
    page_item_put_string(source->config, stream);
    fprintf(stream, ", \"run\": %s, \"metrics\": ", source->run != NULL ? source->run : "null");
    if (source->metrics != NULL) {
        page_item_put_metrics(source->metrics, stream);
    } else {
        fputs("null", stream);
    }
    fputs(", \"trace\": ", stream);
    if (source->trace != NULL && source->trace->step_count > 0) {
        page_item_put_trace(source, stream);
    } else {
        fputs("null", stream);
    }
    fputc('}', stream);
}

static bool page_item_is_json(const char *text)
{
    cJSON *tree = text != NULL ? cJSON_Parse(text) : NULL;
    const bool is_tree = text == NULL || tree != NULL;
    cJSON_Delete(tree);
    return is_tree;
}

/* Line ends occur only between the parts: within texts they are escaped. */
static void page_item_join_lines(char *item)
{
    for (char *end = item; (end = strchr(end, '\n')) != NULL; end++) {
        *end = ' ';
    }
}

hd_status hd_page_item(const struct hd_page_source *source, char **item, struct hd_problem *problem)
{
    char *text = NULL;
    size_t bytes = 0;

    assert(source->name != NULL && source->facts != NULL);
    if (!page_item_is_json(source->run)) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_FAILED, "%s: run.json is not JSON",
                              source->name);
    }
    FILE *stream = open_memstream(&text, &bytes);
    if (stream != NULL) {
        page_item_put_item(source, stream);
    }
    if (stream == NULL || fclose(stream) != 0) {
        free(text);
        return hd_problem_no_memory(problem, 0, "the page");
    }
    page_item_join_lines(text);
    *item = text;
    return HD_OK;
}
