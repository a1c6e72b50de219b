/* bench/skew_svg.c - lengths are millimetres, times milliseconds; figure->scale converts them. */
#include "bench/skew.h"
#include "report/svg.h"

#include <math.h>

static const double skew_svg_head_mm = 6.0, skew_svg_row_mm = 7.4, skew_svg_bar_mm = 2.4,
                    skew_svg_left_mm = 13.0, skew_svg_right_mm = 62.0;
static const double skew_svg_text_mm = 2.3, skew_svg_small_mm = 2.0, skew_svg_foot_mm = 11.0,
                    skew_svg_axis_mm = 5.0, skew_svg_device_mm = 3.0;

/* The bars of the figure and of its legend. */
enum { BUSY, WAITED, COMPUTE, STRETCHED, EXPOSED, LOOK_COUNT };
static const struct {
    const char *fill, *word;
} skew_svg_looks[LOOK_COUNT] = {
    [BUSY] = {"#c9b8dd", "message, until the source's slot is free"},
    [WAITED] = {"#6a4a97", "the target waits for it"},
    [COMPUTE] = {"#2f67a8", "compute, its length without a message"},
    [STRETCHED] = {"#b9500f", "stretch of the compute"},
    [EXPOSED] = {"#d9d9d9", "the source waits for its slot"},
};

struct figure {
    const struct hd_skew *skew;
    FILE *stream;
    double width_mm, scale; /* mm a ms */
};

/* A time before the post is drawn at the post. */
static double skew_svg_x_of(const struct figure *figure, double time_ms)
{
    return skew_svg_left_mm + fmax(0, time_ms) * figure->scale;
}

/* A bar without a length is not drawn. */
static void skew_svg_put_bar(const struct figure *figure, unsigned look, const double span_ms[2],
                             double top_mm)
{
    const double begin_mm = skew_svg_x_of(figure, span_ms[0]),
                 end_mm = skew_svg_x_of(figure, span_ms[1]);

    if (end_mm > begin_mm) {
        fprintf(figure->stream,
                "<rect x=\"%.3f\" y=\"%.3f\" width=\"%.3f\" height=\"%.3f\" fill=\"%s\"/>\n",
                begin_mm, top_mm, end_mm - begin_mm, skew_svg_bar_mm, skew_svg_looks[look].fill);
    }
}

/* One pair of bars, with its numbers to the right. */
static void skew_svg_put_point(const struct figure *figure, const struct hd_skew_point *point,
                               double top_mm)
{
    const double begin = point->begin_ms, end = begin + point->compute_ms;
    const double alone = begin + fmin(point->solo_ms, point->compute_ms);
    const double lower_mm = top_mm + skew_svg_bar_mm + 0.3;
    FILE *stream = figure->stream;

    skew_svg_put_bar(figure, BUSY, (const double[]){0, point->free_ms}, top_mm);
    skew_svg_put_bar(figure, WAITED, (const double[]){point->arrival_ms, point->readable_ms},
                     top_mm);
    skew_svg_put_bar(figure, COMPUTE, (const double[]){begin, alone}, lower_mm);
    skew_svg_put_bar(figure, STRETCHED, (const double[]){alone, end}, lower_mm);
    skew_svg_put_bar(figure, EXPOSED, (const double[]){end, end + point->source_wait_ms}, lower_mm);
    fprintf(stream,
            "<path d=\"M%.3f %.3fv%.3f\" stroke=\"#111\" stroke-width=\"0.25\"/>\n"
            "<text x=\"%.3f\" y=\"%.3f\" font-size=\"%.1f\" text-anchor=\"end\">%.2f ms</text>\n",
            skew_svg_x_of(figure, point->arrival_ms), top_mm - 0.6, 2 * skew_svg_bar_mm + 1.5,
            skew_svg_left_mm - 1.2, lower_mm + 0.4, skew_svg_small_mm, point->late_ms);
    fprintf(stream,
            "<text x=\"%.3f\" y=\"%.3f\" font-size=\"%.1f\">compute %.3f ms, alone %.3f (%+.1f "
            "%%)</text>\n"
            "<text x=\"%.3f\" y=\"%.3f\" font-size=\"%.1f\" fill=\"#444\">waits: target %.3f ms, "
            "source %.3f ms</text>\n",
            figure->width_mm - skew_svg_right_mm + 2, top_mm + 1.8, skew_svg_small_mm,
            point->compute_ms, point->solo_ms, 100 * (point->compute_ms / point->solo_ms - 1),
            figure->width_mm - skew_svg_right_mm + 2, lower_mm + 1.9, skew_svg_small_mm,
            point->target_wait_ms, point->source_wait_ms);
}

static void skew_svg_put_series(const struct figure *figure, const struct hd_skew_series *series,
                                double top_mm)
{
    fprintf(figure->stream, "<text x=\"0\" y=\"%.3f\" font-size=\"%.1f\" font-weight=\"bold\">",
            top_mm + 3.2, skew_svg_text_mm);
    hd_svg_text(series->transport, figure->stream);
    fputs("</text>\n", figure->stream);
    fprintf(figure->stream, "<text x=\"%.3f\" y=\"%.3f\" font-size=\"%.1f\" fill=\"#444\">",
            skew_svg_left_mm + 12, top_mm + 3.2, skew_svg_small_mm);
    hd_svg_text(series->carrier, figure->stream);
    if (series->period_us > 0) {
        fprintf(figure->stream, ", progress thread every %u us", series->period_us);
    }
    fputs("</text>\n", figure->stream);
    for (uint32_t i = 0; i < series->point_count; i++) {
        skew_svg_put_point(figure, &series->points[i],
                           top_mm + skew_svg_head_mm + skew_svg_row_mm * i);
    }
}

static double skew_svg_height_of(const struct hd_skew_series *series)
{
    return skew_svg_head_mm + skew_svg_row_mm * series->point_count;
}

/* The end of the last bar. */
static double skew_svg_end_of(const struct hd_skew *skew)
{
    double end_ms = skew->stage_ms;

    for (uint32_t i = 0; i < skew->series_count; i++) {
        for (uint32_t k = 0; k < skew->series[i].point_count; k++) {
            const struct hd_skew_point *point = &skew->series[i].points[k];
            end_ms = fmax(end_ms, point->begin_ms + point->compute_ms + point->source_wait_ms);
            end_ms = fmax(end_ms, fmax(point->readable_ms, point->free_ms));
        }
    }
    return end_ms;
}

/* A number every 1, 2 or 5 times a power of ten, as many as fit. */
static void skew_svg_put_axis(const struct figure *figure, double end_ms, double top_mm)
{
    static const double factors[] = {2, 2.5, 2};
    double every = 0.01;

    for (unsigned i = 0; every * figure->scale < 12; i = (i + 1) % 3) {
        every *= factors[i];
    }
    for (double time_ms = 0; time_ms <= end_ms; time_ms += every) {
        fprintf(figure->stream,
                "<path d=\"M%.3f %.3fv1\" stroke=\"#777\" stroke-width=\"0.2\"/>\n"
                "<text x=\"%.3f\" y=\"%.3f\" font-size=\"1.9\" fill=\"#555\" "
                "text-anchor=\"middle\">%.6g%s</text>\n",
                skew_svg_x_of(figure, time_ms), top_mm, skew_svg_x_of(figure, time_ms),
                top_mm + 3.2, time_ms, time_ms == 0 ? " ms" : "");
    }
}

static void skew_svg_put_legend(const struct figure *figure, double top_mm)
{
    double x_mm = 0;

    for (unsigned i = 0; i < LOOK_COUNT; i++) {
        const double y_mm = top_mm + (i < 2 ? 0 : 3.6);
        x_mm = i == 2 ? 0 : x_mm;
        fprintf(figure->stream,
                "<rect x=\"%.3f\" y=\"%.3f\" width=\"2.6\" height=\"2.2\" fill=\"%s\"/>\n"
                "<text x=\"%.3f\" y=\"%.3f\" font-size=\"2.1\">%s</text>\n",
                x_mm, y_mm, skew_svg_looks[i].fill, x_mm + 3.4, y_mm + 1.85,
                skew_svg_looks[i].word);
        x_mm += 58;
    }
    fprintf(figure->stream,
            "<path d=\"M%.3f %.3fv2.6\" stroke=\"#111\" stroke-width=\"0.25\"/>\n"
            "<text x=\"%.3f\" y=\"%.3f\" font-size=\"2.1\">the target arrives</text>\n",
            118.0, top_mm - 0.2, 119.4, top_mm + 1.85);
}

/* The device names a stand-in as such. */
static void skew_svg_put_device(const struct figure *figure, double top_mm)
{
    if (figure->skew->device[0] == '\0') {
        return;
    }
    fprintf(figure->stream, "<text x=\"0\" y=\"%.3f\" font-size=\"2.1\" fill=\"#444\">",
            top_mm + 1.85);
    hd_svg_text(figure->skew->device, figure->stream);
    fputs("</text>\n", figure->stream);
}

void hd_skew_svg_write(const struct hd_skew *skew, double width_mm, FILE *stream)
{
    const double end_ms = skew_svg_end_of(skew);
    double height_mm = skew_svg_axis_mm + skew_svg_foot_mm +
                       (skew->device[0] != '\0' ? skew_svg_device_mm : 0),
           top_mm = 0;

    for (uint32_t i = 0; i < skew->series_count; i++) {
        height_mm += skew_svg_height_of(&skew->series[i]);
    }
    const struct figure figure = {skew, stream, width_mm,
                                  (width_mm - skew_svg_left_mm - skew_svg_right_mm) / end_ms};
    fprintf(stream,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%gmm\" height=\"%gmm\" "
            "viewBox=\"0 0 %g %g\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n"
            "<title>A late peer: %llu bytes, stages of %g ms, medians of %u</title>\n",
            width_mm, height_mm, width_mm, height_mm, (unsigned long long)skew->bytes,
            skew->stage_ms, skew->iterations);
    for (uint32_t i = 0; i < skew->series_count; i++) {
        skew_svg_put_series(&figure, &skew->series[i], top_mm);
        top_mm += skew_svg_height_of(&skew->series[i]);
    }
    skew_svg_put_axis(&figure, end_ms, top_mm);
    skew_svg_put_legend(&figure, top_mm + skew_svg_axis_mm + 1);
    skew_svg_put_device(&figure, top_mm + skew_svg_axis_mm + skew_svg_foot_mm);
    fputs("</svg>\n", stream);
}
