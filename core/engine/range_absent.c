/* engine/range_absent.c - for a build without the headers of NVTX: no ranges. */
#include "engine/range.h"

void hd_range_push(const char *head, const struct hd_action *action)
{
    (void)head;
    (void)action;
}

void hd_range_push_step(uint32_t step)
{
    (void)step;
}

void hd_range_pop(void)
{
}
