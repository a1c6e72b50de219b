/* engine/range.c - ranges by NVTX, whose headers load the profiler that the environment names. */
#include "engine/range.h"
#include "plan/pipeline.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

enum { UNKNOWN, OFF, ON };

/* Tells whether a name must be made, which costs more than this check. */
static bool range_is_on(void)
{
    static _Atomic int known = UNKNOWN;

    if (known == UNKNOWN) {
        const char *path = getenv("NVTX_INJECTION64_PATH");
        known = path != NULL && path[0] != '\0' ? ON : OFF;
    }
    return known == ON;
}

void hd_range_push(const char *head, const struct hd_action *action)
{
    char name[64], text[32];

    if (range_is_on()) {
        snprintf(name, sizeof name, "%s%s", head, hd_action_text(action, text));
        nvtxRangePushA(name);
    }
}

void hd_range_push_step(uint32_t step)
{
    char name[32];

    if (range_is_on()) {
        snprintf(name, sizeof name, "step %u", step);
        nvtxRangePushA(name);
    }
}

void hd_range_pop(void)
{
    if (range_is_on()) {
        nvtxRangePop();
    }
}
