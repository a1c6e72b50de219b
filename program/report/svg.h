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
 * Ranks down, ticks across, a legend below; labels are text if they can be read at that width (1.2
 * mm and more).  Colours keep their order of lightness in grey: forward is darker than backward,
 * the lower half of the stages darker than the upper.  The caller checks the stream for errors.
 */
void hd_svg_write(const struct hd_plan_facts *facts, double width_mm, FILE *stream);

/* Escapes text, because a name may contain markup. */
void hd_svg_text(const char *text, FILE *stream);

#endif /* HEDDLE_REPORT_SVG_H */
