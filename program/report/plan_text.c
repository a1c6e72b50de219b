/* The summary of a plan. */
#include "report/plan_text.h"

#include "report/table.h"

#include <inttypes.h>
#include <string.h>

enum { LABEL_COLUMNS = 12, WORD_BYTES = 64 };

/* The page that is written, and the column of its current line. */
struct page {
    FILE *stream;
    const struct hd_plan_style *style;
    uint32_t column;
};

static void plan_text_begin_line(struct page *page, const char *label)
{
    fprintf(page->stream, "%s%-*s%s", page->style->bold, LABEL_COLUMNS, label, page->style->plain);
    page->column = LABEL_COLUMNS;
}

static void plan_text_end_line(struct page *page)
{
    fputc('\n', page->stream);
}

/* One word of a list, on a new line if it does not fit. */
static void plan_text_put_word(struct page *page, const char *word)
{
    const uint32_t length = (uint32_t)strlen(word);
    if (page->column > LABEL_COLUMNS) {
        if (page->column + 1 + length > page->style->columns) {
            fprintf(page->stream, "\n%*s", LABEL_COLUMNS, "");
            page->column = LABEL_COLUMNS;
        } else {
            fputc(' ', page->stream);
            page->column++;
        }
    }
    fputs(word, page->stream);
    page->column += length;
}

static void plan_text_put_words(struct page *page, const char *words)
{
    char word[WORD_BYTES];
    while (*words != '\0') {
        const size_t length = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        plan_text_put_word(page, word);
        words += length + strspn(words + length, " ");
    }
}

static void plan_text_put_list(struct page *page, const uint32_t *values, uint32_t count)
{
    char word[WORD_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(word, sizeof word, "%u", values[i]);
        plan_text_put_word(page, word);
    }
}

/* "122 GB", "1.84 MB": decimal units as in [memory], three digits. */
static void plan_text_bytes_text(uint64_t bytes, char text[WORD_BYTES])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    uint32_t unit = 0;
    while (value >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        unit++;
    }
    const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, WORD_BYTES, "%.*f %s", digits, value, units[unit]);
}

static void plan_text_put_shape(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_pipeline *pipeline = facts->pipeline;

    plan_text_begin_line(page, "schedule");
    fprintf(page->stream, "%s, %s placement", pipeline->schedule, hd_plan_placement(pipeline));
    fprintf(page->stream, ", loss on rank %u%s%s\n", pipeline->loss_ranks[0],
            pipeline->is_forward_only ? ", forward only" : "",
            pipeline->is_split ? ", backward split in two" : "");
    plan_text_begin_line(page, "shape");
    fprintf(page->stream, "%u rank%s, %u stage%s, %u microbatch%s\n", pipeline->rank_count,
            pipeline->rank_count == 1 ? "" : "s", pipeline->stage_count,
            pipeline->stage_count == 1 ? "" : "s", pipeline->microbatch_count,
            pipeline->microbatch_count == 1 ? "" : "es");
    if (facts->layers != NULL) {
        plan_text_begin_line(page, "layers");
        plan_text_put_words(page, facts->layers);
        plan_text_put_words(page, "by stage");
        plan_text_end_line(page);
    }
}

/* Ten digits hide the rounding of sums of fractions. */
static void plan_text_put_times(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_timeline *timeline = facts->timeline;

    plan_text_begin_line(page, "timeline");
    fprintf(page->stream, "%s: %.10g tick%s; %.10g of all ranks, %.10g of them empty\n",
            hd_plan_timeline_name(timeline->kind), timeline->length,
            timeline->length == 1 ? "" : "s", timeline->total, timeline->empty);
    plan_text_begin_line(page, "bubble");
    fprintf(page->stream, "%.2f%% of the total, %.2f%% over ideal (%s, not measured)\n",
            100 * timeline->bubble, 100 * timeline->bubble_over_ideal,
            timeline->kind == HD_TIMELINE_COSTED ? "from costs" : "symbolic");
    if (timeline->kind == HD_TIMELINE_COSTED) {
        plan_text_begin_line(page, "costs");
        fprintf(page->stream, "transfers %.10g tick%s, %.10g of them exposed; ",
                timeline->transfer_ticks, timeline->transfer_ticks == 1 ? "" : "s",
                timeline->exposed_ticks);
        if (timeline->straggler == HD_NO_STRAGGLER) {
            fprintf(page->stream, "all ranks are equally busy\n");
        } else {
            fprintf(page->stream, "straggler rank %u\n", timeline->straggler);
        }
    }
}

/* What law 7 costs, if transfers have costs. */
static void plan_text_put_serial(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_timeline *timeline = facts->timeline;
    char words[WORD_BYTES];

    if (facts->issue_order == NULL) {
        return;
    }
    plan_text_begin_line(page, "serial");
    plan_text_put_words(page, "one transfer at a time for each rank, in");
    snprintf(words, sizeof words, "%s order (law 7)%s", facts->issue_order,
             facts->side_by_side_ticks > 0 ? ":" : "");
    plan_text_put_words(page, words);
    if (facts->side_by_side_ticks > 0) {
        snprintf(words, sizeof words, "%.10g ticks, %.10g if not serial", timeline->length,
                 facts->side_by_side_ticks);
        plan_text_put_words(page, words);
    }
    plan_text_end_line(page);
}

static void plan_text_put_copies(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    char words[WORD_BYTES];

    plan_text_begin_line(page, "copies");
    plan_text_put_list(page, pipeline->peak_copies, pipeline->rank_count);
    plan_text_put_words(page, "by rank");
    if (facts->steady_from == 0) {
        plan_text_put_words(page, "(they grow with m)");
    } else if (facts->steady_from != UINT32_MAX) {
        snprintf(words, sizeof words, "(more microbatches add none from m = %u on)",
                 facts->steady_from);
        plan_text_put_words(page, words);
    }
    plan_text_end_line(page);
    plan_text_begin_line(page, "retention");
    plan_text_put_list(page, pipeline->retention, pipeline->stage_count);
    plan_text_put_words(page, "by stage");
    plan_text_end_line(page);
}

/* Payload slots by stage, and the bytes of the largest. */
static void plan_text_put_pools(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    char bytes[WORD_BYTES], words[WORD_BYTES];
    uint64_t largest = 0;

    if (facts->needs == NULL || pipeline->is_forward_only) {
        return;
    }
    plan_text_begin_line(page, "pools");
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        const struct hd_stage_needs *needs = &facts->needs[stage];
        snprintf(words, sizeof words, "%u", pipeline->payload_slots[stage] * needs->acquisitions);
        plan_text_put_word(page, words);
        largest = needs->payload_bytes > largest ? needs->payload_bytes : largest;
    }
    plan_text_bytes_text(largest, bytes);
    plan_text_put_words(page, "payload slots by stage, of at most");
    plan_text_put_words(page, bytes);
    plan_text_end_line(page);
}

static void plan_text_put_handoffs(struct page *page, const struct hd_plan_facts *facts)
{
    const struct hd_pipeline_handoffs *handoffs = &facts->timeline->handoffs;
    char bytes[WORD_BYTES];

    plan_text_begin_line(page, "handoffs");
    if (facts->timeline->kind == HD_TIMELINE_COSTED) {
        fprintf(page->stream, "%" PRIu64 " local, %" PRIu64 " between ranks\n", handoffs->local,
                facts->transfer_count);
    } else {
        fprintf(page->stream, "%" PRIu64 " local, %" PRIu64 " hidden, %" PRIu64 " exposed\n",
                handoffs->local, handoffs->hidden, handoffs->exposed);
    }
    plan_text_bytes_text(facts->transfer_bytes, bytes);
    plan_text_begin_line(page, "transfers");
    fprintf(page->stream, "%" PRIu64 " a step, %s (%" PRIu64 " bytes)\n", facts->transfer_count,
            bytes, facts->transfer_bytes);
}

/* Depth and slots of the remote channels of one direction, by boundary. */
static void plan_text_put_channels(struct page *page, const struct hd_pipeline *pipeline,
                                   uint32_t direction)
{
    char word[WORD_BYTES];
    uint32_t count = 0;

    for (uint32_t i = 0; i < pipeline->channel_count; i++) {
        const struct hd_pipeline_channel *channel = &pipeline->channels[i];
        if (channel->direction != direction || !hd_pipeline_is_remote(channel)) {
            continue;
        }
        if (count == 0) {
            plan_text_begin_line(page, direction == HD_FORWARD ? "forward" : "backward");
        }
        snprintf(word, sizeof word, "%u/%u", channel->depth, channel->slots);
        plan_text_put_word(page, word);
        count++;
    }
    if (count > 0) {
        plan_text_put_words(page, "depth/slots by remote boundary");
        plan_text_end_line(page);
    }
}

static bool plan_text_is_same_print(const struct hd_footprint *left,
                                    const struct hd_footprint *right)
{
    return left->state_bytes == right->state_bytes && left->payload_bytes == right->payload_bytes &&
           left->transfer_bytes == right->transfer_bytes &&
           left->scratch_bytes == right->scratch_bytes && left->fits == right->fits;
}

static void plan_text_add_cell(struct hd_table *table, uint64_t bytes)
{
    char text[WORD_BYTES];
    plan_text_bytes_text(bytes, text);
    hd_table_cell(table, "%s", text);
}

/* Neighbours with equal bytes share a row: "4-7". */
static void plan_text_put_memory(struct page *page, const struct hd_plan_facts *facts)
{
    static const char *const titles[] = {"rank",    "state", "payload", "transfer",
                                         "scratch", "total", "budget"};
    const uint32_t rank_count = facts->pipeline->rank_count;
    char budget[WORD_BYTES];

    plan_text_begin_line(page, "memory");
    plan_text_put_words(page, facts->memory_source);
    plan_text_end_line(page);
    if (facts->footprints == NULL) {
        return;
    }
    plan_text_bytes_text(facts->budget_bytes, budget);
    struct hd_table *table = hd_table_create(facts->budget_bytes > 0 ? 7 : 6, titles);
    for (uint32_t first = 0, last; first < rank_count; first = last + 1) {
        const struct hd_footprint *print = &facts->footprints[first];
        for (last = first; last + 1 < rank_count; last++) {
            if (!plan_text_is_same_print(print, &facts->footprints[last + 1])) {
                break;
            }
        }
        if (last > first) {
            hd_table_cell(table, "%u-%u", first, last);
        } else {
            hd_table_cell(table, "%u", first);
        }
        plan_text_add_cell(table, print->state_bytes);
        plan_text_add_cell(table, print->payload_bytes);
        plan_text_add_cell(table, print->transfer_bytes);
        plan_text_add_cell(table, print->scratch_bytes);
        plan_text_add_cell(table, print->total_bytes);
        if (facts->budget_bytes > 0) {
            hd_table_cell(table, print->fits ? "fits %s" : "OVER %s", budget);
        }
    }
    hd_table_print(table, LABEL_COLUMNS, page->stream);
    hd_table_destroy(table);
}

void hd_plan_text(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                  FILE *stream)
{
    struct page page = {.stream = stream, .style = style};

    plan_text_put_shape(&page, facts);
    plan_text_put_times(&page, facts);
    plan_text_put_serial(&page, facts);
    plan_text_put_copies(&page, facts);
    plan_text_put_pools(&page, facts);
    plan_text_put_handoffs(&page, facts);
    plan_text_put_channels(&page, facts->pipeline, HD_FORWARD);
    plan_text_put_channels(&page, facts->pipeline, HD_BACKWARD);
    plan_text_put_memory(&page, facts);
    if (!facts->pipeline->is_ascending) {
        plan_text_begin_line(&page, "order");
        plan_text_put_words(
            &page, "law 8 is broken: microbatches do not ascend on every stage, so results "
                   "are outside the bitwise oracle");
        plan_text_end_line(&page);
    }
    for (uint32_t i = 0; i < facts->note_count; i++) {
        plan_text_begin_line(&page, "note");
        plan_text_put_words(&page, facts->notes[i]);
        plan_text_end_line(&page);
    }
    plan_text_begin_line(&page, "hash");
    fprintf(stream, "%s\n", facts->hash);
}
