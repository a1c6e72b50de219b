/*
 * report/plan_json.h - the members of `heddle plan --json` (docs/interface.md).
 */
#ifndef HEDDLE_REPORT_PLAN_JSON_H
#define HEDDLE_REPORT_PLAN_JSON_H

#include "report/plan_facts.h"

struct cJSON;

/* Adds all members of a plan to `parent`; if `has_actions`, also every action with its tick. */
void hd_plan_json(const struct hd_plan_facts *facts, bool has_actions, struct cJSON *parent);

#endif /* HEDDLE_REPORT_PLAN_JSON_H */
