/* Lengths are millimetres: the view box is as wide as the figure. */
#include "report/svg.h"

#include <math.h>
#include <string.h>

enum { KIND_COUNT = 4 };

static const double svg_row_mm = 5.0, svg_bar_mm = 4.4, svg_text_mm = 2.3, svg_label_least_mm = 1.2;
static const double svg_digit_ratio = 0.56; /* of a digit's width to the size of the letters */

/* Word in the legend, fill and ink of a kind, by half of the stages. */
struct look {
    char kind;
    const char *word, *fill[2], *ink[2];
};
static const struct look svg_looks[KIND_COUNT] = {
    {'F', "forward", {"#2f67a8", "#a9c8e8"}, {"#ffffff", "#12263a"}},
    {'B', "backward", {"#b9500f", "#f4c48f"}, {"#ffffff", "#33190a"}},
    {'I', "input gradient", {"#8a3f86", "#dfb8dc"}, {"#ffffff", "#301030"}},
    {'W', "weight gradient", {"#2d6e4f", "#a9d8bf"}, {"#ffffff", "#0e2a1d"}},
};

struct figure {
    const struct hd_plan_facts *facts;
    FILE *stream;
    double width_mm, left_mm, tick_mm, grid_mm, label_mm; /* label_mm: the largest */
};

static const struct look *svg_look_of(uint8_t kind)
{
    for (unsigned i = 0; i < KIND_COUNT; i++) {
        if (svg_looks[i].kind == (char)kind) {
            return &svg_looks[i];
        }
    }
    return &svg_looks[0];
}

static bool svg_is_upper_half(const struct hd_pipeline *pipeline, uint32_t stage)
{
    return pipeline->stage_count > pipeline->rank_count && 2 * stage >= pipeline->stage_count;
}

void hd_svg_text(const char *text, FILE *stream)
{
    for (; *text != '\0'; text++) {
        if (strchr("<>&\"'", *text) != NULL || (unsigned char)*text < ' ') {
            fprintf(stream, "&#%u;", (unsigned char)*text < ' ' ? ' ' : (unsigned)*text);
        } else {
            fputc(*text, stream);
        }
    }
}

static void svg_put_action(const struct figure *figure, uint64_t index, double top_mm)
{
    const struct hd_pipeline *pipeline = figure->facts->pipeline;
    const struct hd_action *action = &pipeline->actions[index];
    const struct look *look = svg_look_of(action->kind);
    const unsigned half = svg_is_upper_half(pipeline, action->stage);
    const double start = figure->facts->timeline->start[index];
    const double width = (figure->facts->timeline->end[index] - start) * figure->tick_mm;
    char label[32];

    hd_action_text(action, label);
    const double left = figure->left_mm + start * figure->tick_mm;
    const double fitting = 0.92 * width / (svg_digit_ratio * (double)strlen(label));
    const double size = fmin(fitting, figure->label_mm);
    fprintf(figure->stream,
            "<rect x=\"%.3f\" y=\"%.3f\" width=\"%.3f\" height=\"%.3f\" fill=\"%s\"/>\n", left,
            top_mm, width, svg_bar_mm, look->fill[half]);
    if (size >= svg_label_least_mm) {
        fprintf(figure->stream,
                "<text x=\"%.3f\" y=\"%.3f\" font-size=\"%.3f\" fill=\"%s\" "
                "text-anchor=\"middle\">%s</text>\n",
                left + width / 2, top_mm + svg_bar_mm / 2 + 0.36 * size, size, look->ink[half],
                label);
    }
}

static void svg_put_rank(const struct figure *figure, uint32_t rank, double top_mm)
{
    const struct hd_pipeline *pipeline = figure->facts->pipeline;

    fprintf(figure->stream,
            "<text x=\"0\" y=\"%.3f\" font-size=\"%.3f\" fill=\"#222\">rank %u</text>\n"
            "<rect x=\"%.3f\" y=\"%.3f\" width=\"%.3f\" height=\"%.3f\" fill=\"#e9e9e9\"/>\n",
            top_mm + svg_bar_mm / 2 + 0.36 * svg_text_mm, svg_text_mm, rank, figure->left_mm,
            top_mm, figure->grid_mm, svg_bar_mm);
    for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
        svg_put_action(figure, i, top_mm);
    }
    /* Thin lines between neighbours of one colour. */
    fprintf(figure->stream, "<path d=\"");
    for (uint64_t i = pipeline->rank_begin[rank]; i < pipeline->rank_begin[rank + 1]; i++) {
        fprintf(figure->stream, "M%.3f %.3fv%.3f",
                figure->left_mm + figure->facts->timeline->start[i] * figure->tick_mm, top_mm,
                svg_bar_mm);
    }
    fprintf(figure->stream, "\" stroke=\"#fff\" stroke-width=\"%.3f\"/>\n",
            figure->tick_mm > 1 ? 0.15 : 0.15 * figure->tick_mm);
}

/* A number every 1, 2, 5, 10 .. ticks, as close as there is room. */
static void svg_put_numbers(const struct figure *figure)
{
    static const double factors[] = {2, 2.5, 2};
    double every = 1;

    for (unsigned i = 0; every * figure->tick_mm < 7; i = (i + 1) % 3) {
        every *= factors[i];
    }
    for (double tick = 0; tick < figure->facts->timeline->length; tick += every) {
        fprintf(figure->stream,
                "<text x=\"%.3f\" y=\"2.2\" font-size=\"1.9\" fill=\"#555\" "
                "text-anchor=\"middle\">%.0f</text>\n",
                figure->left_mm + (tick + 0.5) * figure->tick_mm, tick);
    }
}

static void svg_put_key(const struct figure *figure, double *left_mm, double top_mm,
                        const char *fill, const char *word)
{
    const double width = svg_digit_ratio * svg_text_mm * (double)strlen(word) + 6;

    fprintf(figure->stream,
            "<rect x=\"%.3f\" y=\"%.3f\" width=\"2.6\" height=\"2.2\" fill=\"%s\"/>\n"
            "<text x=\"%.3f\" y=\"%.3f\" font-size=\"2.1\" fill=\"#222\">%s</text>\n",
            *left_mm, top_mm, fill, *left_mm + 3.4, top_mm + 1.85, word);
    *left_mm += width;
}

/* One row for each half of the stages. */
static double svg_put_legend(const struct figure *figure, double top_mm)
{
    const struct hd_pipeline *pipeline = figure->facts->pipeline;
    const uint32_t half_count = pipeline->stage_count > pipeline->rank_count ? 2 : 1;
    const uint32_t middle = (pipeline->stage_count + 1) / 2;
    char word[64];

    for (uint32_t half = 0; half < half_count; half++, top_mm += 3.6) {
        double left = figure->left_mm;
        for (unsigned i = 0; i < KIND_COUNT; i++) {
            if (hd_plan_has_kind(pipeline, svg_looks[i].kind)) {
                snprintf(word, sizeof word, "%s, stages %u-%u", svg_looks[i].word, half * middle,
                         half + 1 < half_count ? middle - 1 : pipeline->stage_count - 1);
                svg_put_key(figure, &left, top_mm, svg_looks[i].fill[half], word);
            }
        }
        if (half == 0) {
            svg_put_key(figure, &left, top_mm, "#e9e9e9", "empty");
        }
    }
    return top_mm;
}

/* "1 rank", "4 ranks", "8 microbatches". */
static void svg_put_count(const char *before, double count, const char *noun, FILE *stream)
{
    const char *const plural = noun[strlen(noun) - 1] == 'h' ? "es" : "s";

    fprintf(stream, "%s%.10g %s%s", before, count, noun, count == 1 ? "" : plural);
}

void hd_svg_write(const struct hd_plan_facts *facts, double width_mm, FILE *stream)
{
    const struct hd_pipeline *pipeline = facts->pipeline;
    const double grid_bottom_mm = 3 + svg_row_mm * pipeline->rank_count;
    const double height_mm =
        grid_bottom_mm + 3.6 * (pipeline->stage_count > pipeline->rank_count ? 2 : 1) + 1;
    char label[32];
    struct figure figure = {.facts = facts, .stream = stream, .width_mm = width_mm};

    snprintf(label, sizeof label, "rank %u", pipeline->rank_count - 1);
    figure.left_mm = svg_digit_ratio * svg_text_mm * (double)strlen(label) + 1.5;
    figure.grid_mm = width_mm - figure.left_mm;
    figure.tick_mm = figure.grid_mm / fmax(facts->timeline->length, 1);
    /* So that labels of two ticks are not much larger than those of one. */
    figure.label_mm = fmin(svg_text_mm, fmax(svg_label_least_mm, 0.8 * figure.tick_mm));
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%gmm\" height=\"%gmm\" "
            "viewBox=\"0 0 %g %g\" font-family=\"Helvetica, Arial, sans-serif\">\n<title>",
            width_mm, height_mm, width_mm, height_mm);
    hd_svg_text(pipeline->schedule, stream);
    svg_put_count(": ", pipeline->rank_count, "rank", stream);
    svg_put_count(", ", pipeline->stage_count, "stage", stream);
    svg_put_count(", ", pipeline->microbatch_count, "microbatch", stream);
    svg_put_count(", ", facts->timeline->length, "tick", stream);
    fprintf(stream, ", bubble %.1f %%</title>\n", 100 * facts->timeline->bubble);
    svg_put_numbers(&figure);
    for (uint32_t rank = 0; rank < pipeline->rank_count; rank++) {
        svg_put_rank(&figure, rank, 3 + svg_row_mm * rank);
    }
    svg_put_legend(&figure, grid_bottom_mm + 0.8);
    fputs("</svg>\n", stream);
}
