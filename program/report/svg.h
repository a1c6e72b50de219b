/*
 * report/svg.h - the ticks of a plan as a vector figure for a paper.
 */
#ifndef HEDDLE_REPORT_SVG_H
#define HEDDLE_REPORT_SVG_H

#include "report/plan_facts.h"

#include <stdio.h>

#define HD_SVG_WIDTH_MM_USUAL 170.0 /* a page of two columns */
#define HD_SVG_WIDTH_MM_LEAST 40.0
#define HD_SVG_WIDTH_MM_MOST  2000.0

/*
 * Ranks down, ticks across, labels as text where they can be read at that width (1.2 mm and more),
 * a legend below.  Colours keep their order of lightness in grey: forward darker than backward, the
 * stages of the lower half darker than those of the upper.  Whether the stream took it is for the
 * caller to ask.
 */
void hd_svg_write(const struct hd_plan_facts *facts, double width_mm, FILE *stream);

/* Text as text: a name may hold markup. */
void hd_svg_text(const char *text, FILE *stream);

#endif /* HEDDLE_REPORT_SVG_H */
