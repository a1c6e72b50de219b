/*
 * report/plan_text.h - a plan for people: a summary, and its ticks as a grid.
 */
#ifndef HEDDLE_REPORT_PLAN_TEXT_H
#define HEDDLE_REPORT_PLAN_TEXT_H

#include "report/plan_facts.h"

#include <stdio.h>

/* How wide lines may be, and what makes a title stand out ("" without colour). */
struct hd_plan_style {
    uint32_t columns;
    const char *bold, *plain;
};

/* One line a fact; lists fold at the width. */
void hd_plan_text(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                  FILE *stream);

/*
 * One row a rank, four columns a tick (more where a label needs them): "4B2 ", then " -- ", " .  "
 * when empty; in colour an action is one block, by kind and half of the stages.  A legend follows.
 * Folded at the width, with tick numbers above each part.  Times that are no whole ticks are drawn
 * in the tick in which they begin; where two begin in one, the later is counted below the grid and
 * left out.
 */
void hd_plan_ticks(const struct hd_plan_facts *facts, const struct hd_plan_style *style,
                   FILE *stream);

#endif /* HEDDLE_REPORT_PLAN_TEXT_H */
