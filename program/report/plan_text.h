/*
 * report/plan_text.h - a plan for people: a summary, and its ticks as a grid.
 */
#ifndef HEDDLE_REPORT_PLAN_TEXT_H
#define HEDDLE_REPORT_PLAN_TEXT_H

#include "report/plan_facts.h"

#include <stdio.h>

/* The width of lines, and the escapes around a title ("" without colour). */
struct hd_plan_style {
    uint32_t columns;
    const char *bold, *plain;
};

/* One line for each fact; lists fold at the width. */
void hd_plan_text(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                  FILE *stream);

/*
 * One row for each rank, four columns for each tick (more if a label needs them): "4B2 ", then " --
 * ", or " .  " if it is empty.  In colour an action is a block, by kind and half of the stages. The
 * grid folds at the width, with tick numbers above each part and a legend below.  An action is
 * drawn in the tick in which it begins, even if that is not a whole number; if two begin in one
 * tick, the later is left out and counted below the grid.
 */
void hd_plan_ticks(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                   FILE *stream);

#endif /* HEDDLE_REPORT_PLAN_TEXT_H */
