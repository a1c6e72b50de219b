/* The ticks of a plan as a grid of text. */
#include "report/plan_text.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_COLUMNS = 4, MARK_TICKS = 5, LABEL_BYTES = 32 };

#define NOTHING UINT32_MAX

/* The part [first, end) of the grid, which is drawn rank by rank. */
struct grid {
    const struct hd_plan_facts *facts;
    const struct hd_plan_style *style;
    uint32_t tick_count, cell_columns, label_columns, hidden_count;
    uint32_t first, end;
    uint64_t *next;  /* [rank_count]: the rank's first action that ends after `first` */
    uint32_t *row;   /* [part]: an action's index, or NOTHING */
    uint8_t *onward; /* [part]: it began in an earlier tick */
};

/* Sums of fractions may differ from a whole number in their last bits. */
static uint32_t plan_ticks_tick_of(double time)
{
    return (uint32_t)floor(time + 1e-9);
}

/* An action that begins in a tick is drawn over one that continues; of two that begin, the first
   is. */
static void plan_ticks_fill_action(struct grid *grid, uint64_t index)
{
    const uint32_t start = plan_ticks_tick_of(grid->facts->timeline->start[index]);

    if (start >= grid->first) {
        const uint32_t cell = start - grid->first;
        if (start >= grid->end || (grid->row[cell] != NOTHING && !grid->onward[cell])) {
            grid->hidden_count++;
            return;
        }
        grid->row[cell] = (uint32_t)index;
        grid->onward[cell] = 0;
    }
    uint32_t tick = start >= grid->first ? start + 1 : grid->first;
    for (; tick < grid->end && (double)tick + 1e-9 < grid->facts->timeline->end[index]; tick++) {
        grid->row[tick - grid->first] = (uint32_t)index;
        grid->onward[tick - grid->first] = 1;
    }
}

static void plan_ticks_fill_row(struct grid *grid, uint32_t rank)
{
    const struct hd_timeline *timeline = grid->facts->timeline;
    const uint64_t rank_end = grid->facts->pipeline->rank_begin[rank + 1];
    const uint32_t is_last = grid->end == grid->tick_count;

    for (uint32_t cell = 0; cell < grid->end - grid->first; cell++) {
        grid->row[cell] = NOTHING;
        grid->onward[cell] = 0;
    }
    uint64_t index = grid->next[rank];
    for (; index < rank_end; index++) {
        if (!is_last && plan_ticks_tick_of(timeline->start[index]) >= grid->end) {
            break;
        }
        plan_ticks_fill_action(grid, index);
    }
    /* The last may go on in the next part. */
    if (index > grid->next[rank] && timeline->end[index - 1] > (double)grid->end + 1e-9) {
        index--;
    }
    grid->next[rank] = index;
}

/* The width of the widest label and a blank. */
static uint32_t plan_ticks_cell_columns(const struct hd_pipeline *pipeline)
{
    char text[LABEL_BYTES];
    const struct hd_action widest = {.stage = pipeline->stage_count - 1,
                                     .microbatch = pipeline->microbatch_count - 1,
                                     .kind = HD_FORWARD,
                                     .replica = (uint8_t)(pipeline->replica_count - 1)};
    const uint32_t columns = (uint32_t)strlen(hd_action_text(&widest, text)) + 1;
    return columns > CELL_COLUMNS ? columns : CELL_COLUMNS;
}

/* 256-colour codes close to the page's, by kind, for the lower and the upper half of the stages. */
static const struct look {
    char kind;
    const char *word, *color[2];
} plan_ticks_looks[] = {
    {HD_FORWARD, "forward", {"\033[48;5;25;38;5;231m", "\033[48;5;153;38;5;17m"}},
    {HD_BACKWARD, "backward", {"\033[48;5;130;38;5;231m", "\033[48;5;223;38;5;52m"}},
    {HD_BACKWARD_INPUT, "input gradient", {"\033[48;5;90;38;5;231m", "\033[48;5;182;38;5;53m"}},
    {HD_BACKWARD_WEIGHT, "weight gradient", {"\033[48;5;29;38;5;231m", "\033[48;5;151;38;5;22m"}},
};
enum { LOOK_COUNT = sizeof plan_ticks_looks / sizeof plan_ticks_looks[0] };

static bool plan_ticks_has_color(const struct grid *grid)
{
    return grid->style->plain[0] != '\0';
}

static uint32_t plan_ticks_half_of(const struct hd_pipeline *pipeline, uint32_t stage)
{
    return pipeline->stage_count > pipeline->rank_count && 2 * stage >= pipeline->stage_count;
}

static const char *plan_ticks_color_of(const struct grid *grid, const struct hd_action *action)
{
    for (unsigned i = 0; plan_ticks_has_color(grid) && i < LOOK_COUNT; i++) {
        if (plan_ticks_looks[i].kind == (char)action->kind) {
            return plan_ticks_looks[i]
                .color[plan_ticks_half_of(grid->facts->pipeline, action->stage)];
        }
    }
    return "";
}

/* In colour an action is one block, the blanks between its ticks included. */
static void plan_ticks_put_cell(const struct grid *grid, uint32_t tick, FILE *stream)
{
    const uint32_t place = tick - grid->first;
    const uint32_t index = grid->row[place];
    const bool goes_on =
        tick + 1 < grid->end && grid->onward[place + 1] && grid->row[place + 1] == index;
    const int columns = (int)grid->cell_columns;
    char text[LABEL_BYTES];

    if (index == NOTHING) {
        fprintf(stream, "%-*s", columns, " .");
        return;
    }
    const struct hd_action *action = &grid->facts->pipeline->actions[index];
    const char *cell = grid->onward[place] ? " --" : hd_action_text(action, text);
    if (!plan_ticks_has_color(grid)) {
        fprintf(stream, "%-*s", columns, cell);
        return;
    }
    fprintf(stream, "%s%-*s%s%s%s", plan_ticks_color_of(grid, action), columns - 1,
            grid->onward[place] ? "" : cell, goes_on ? " " : "", grid->style->plain,
            goes_on ? "" : " ");
}

static void plan_ticks_put_numbers(const struct grid *grid, FILE *stream)
{
    fprintf(stream, "%-*s", (int)grid->label_columns, "tick");
    for (uint32_t tick = grid->first; tick < grid->end; tick++) {
        if (tick == grid->first || tick % MARK_TICKS == 0) {
            fprintf(stream, "%-*u", (int)grid->cell_columns, tick);
        } else {
            fprintf(stream, "%-*s", (int)grid->cell_columns, "");
        }
    }
    fputc('\n', stream);
}

static void plan_ticks_put_part(struct grid *grid, FILE *stream)
{
    char label[LABEL_BYTES];

    plan_ticks_put_numbers(grid, stream);
    for (uint32_t rank = 0; rank < grid->facts->pipeline->rank_count; rank++) {
        plan_ticks_fill_row(grid, rank);
        snprintf(label, sizeof label, "rank %u", rank);
        fprintf(stream, "%-*s", (int)grid->label_columns, label);
        for (uint32_t tick = grid->first; tick < grid->end; tick++) {
            plan_ticks_put_cell(grid, tick, stream);
        }
        fputc('\n', stream);
    }
}

static void plan_ticks_put_grid(struct grid *grid, uint32_t part, FILE *stream)
{
    for (uint32_t first = 0; first < grid->tick_count; first += part) {
        const uint32_t rest = grid->tick_count - first;
        grid->first = first;
        grid->end = first + (rest < part ? rest : part);
        if (first > 0) {
            fputc('\n', stream);
        }
        plan_ticks_put_part(grid, stream);
    }
    if (grid->hidden_count > 0) {
        fprintf(stream, "%u action%s not drawn: another begins in the same tick\n",
                grid->hidden_count, grid->hidden_count == 1 ? " is" : "s are");
    }
}

/* The parts of the legend, folded at the width between two of them. */
struct legend {
    const struct grid *grid;
    uint32_t column;
    FILE *stream;
};

static void plan_ticks_put_key(struct legend *legend, const char *color, const char *sign,
                               const char *word)
{
    const uint32_t columns = (uint32_t)(strlen(sign) + 1 + strlen(word));
    const int is_first = legend->column == 0;

    if (!is_first && legend->column + 2 + columns > legend->grid->style->columns) {
        fputc('\n', legend->stream);
        legend->column = 0;
    } else if (!is_first) {
        fputs("  ", legend->stream);
        legend->column += 2;
    }
    fprintf(legend->stream, "%s%s%s %s", color, sign,
            color[0] != '\0' ? legend->grid->style->plain : "", word);
    legend->column += columns;
}

static void plan_ticks_put_kinds(struct legend *legend, uint32_t half)
{
    const struct hd_pipeline *pipeline = legend->grid->facts->pipeline;
    const uint32_t middle = (pipeline->stage_count + 1) / 2;
    const int has_halves = pipeline->stage_count > pipeline->rank_count;
    char word[64];

    for (unsigned i = 0; i < LOOK_COUNT; i++) {
        if (!hd_plan_has_kind(pipeline, plan_ticks_looks[i].kind)) {
            continue;
        }
        snprintf(word, sizeof word, "%s, stages %u-%u", plan_ticks_looks[i].word, half * middle,
                 has_halves && half == 0 ? middle - 1 : pipeline->stage_count - 1);
        plan_ticks_put_key(legend, plan_ticks_looks[i].color[half], "    ", word);
    }
}

static void plan_ticks_put_legend(const struct grid *grid, FILE *stream)
{
    const struct hd_pipeline *pipeline = grid->facts->pipeline;
    struct legend legend = {grid, 0, stream};

    if (plan_ticks_has_color(grid)) {
        plan_ticks_put_kinds(&legend, 0);
        if (pipeline->stage_count > pipeline->rank_count) {
            plan_ticks_put_kinds(&legend, 1);
        }
    } else {
        plan_ticks_put_key(&legend, "", "4B2", "stage 4, backward, microbatch 2");
        plan_ticks_put_key(&legend, "", "--", "goes on");
    }
    plan_ticks_put_key(&legend, "", ".", "empty");
    fputc('\n', stream);
}

void hd_plan_ticks(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                   FILE *stream)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    const double length = ceil(facts->timeline->length - 1e-9);
    char label[LABEL_BYTES];
    struct grid grid = {.facts = facts,
                        .style = style,
                        .tick_count = length > 0 ? (uint32_t)length : 0,
                        .cell_columns = plan_ticks_cell_columns(pipeline)};

    snprintf(label, sizeof label, "rank %u", pipeline->rank_count - 1);
    grid.label_columns = (uint32_t)strlen(label) + 2;
    const uint32_t room =
        style->columns > grid.label_columns ? style->columns - grid.label_columns : 0;
    const uint32_t fitting = room / grid.cell_columns;
    const uint32_t part = fitting > 0 ? fitting : 1;
    grid.next = calloc(pipeline->rank_count, sizeof *grid.next);
    grid.row = calloc(part, sizeof *grid.row);
    grid.onward = calloc(part, 1);
    assert(grid.next != NULL && grid.row != NULL && grid.onward != NULL);
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        grid.next[rank] = pipeline->rank_begin[rank];
    }
    plan_ticks_put_grid(&grid, part, stream);
    plan_ticks_put_legend(&grid, stream);
    free(grid.next);
    free(grid.row);
    free(grid.onward);
}
