#include "report/plan_facts.h"

#include <assert.h>

static bool plan_facts_is_loop(const struct hd_pipeline *pipeline)
{
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        if (pipeline->stage_rank[stage] != stage % pipeline->rank_count) {
            return false;
        }
    }
    return true;
}

/* Up the ranks from 0 and down again, as often as there are stages. */
static bool plan_facts_is_folded(const struct hd_pipeline *pipeline)
{
    for (uint32_t stage = 0; stage < pipeline->stage_count; stage++) {
        const uint32_t lap = stage / pipeline->rank_count;
        const uint32_t step = stage % pipeline->rank_count;
        if (pipeline->stage_rank[stage] !=
            (lap % 2 == 0 ? step : pipeline->rank_count - 1 - step)) {
            return false;
        }
    }
    return true;
}

const char *hd_plan_placement(const struct hd_pipeline *pipeline)
{
    if (pipeline->replica_count > 1) {
        return "bidirectional";
    }
    if (plan_facts_is_loop(pipeline)) {
        return "loop";
    }
    return plan_facts_is_folded(pipeline) ? "v" : "custom";
}

const char *hd_plan_timeline_name(uint32_t kind)
{
    static const char *const names[] = {"asap", "drawn", "costed"};
    assert(kind < sizeof names / sizeof *names);
    return names[kind];
}

bool hd_plan_has_kind(const struct hd_pipeline *pipeline, char kind)
{
    for (uint64_t i = 0; i < pipeline->action_count; i++) {
        if ((char)pipeline->actions[i].kind == kind) {
            return true;
        }
    }
    return false;
}
