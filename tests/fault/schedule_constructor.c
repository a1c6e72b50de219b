/* Its constructor does what the environment says: crashes, ends the process, speaks, never
   returns; otherwise sound. */
#include "fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void construct(void)
{
    const char *const does = getenv("FAULT_CONSTRUCTOR");

    if (does == NULL) {
        return;
    }
    puts("a constructor speaks");
    fflush(stdout);
    if (strcmp(does, "exit") == 0) {
        exit(0);
    }
    if (strcmp(does, "hang") == 0) {
        for (;;) {
            pause();
        }
    }
    abort();
}

static const struct hd_schedule_ops ops = {.size = sizeof ops, .rank_of = rank_of, .plan = plan};
HD_EXPORT const struct hd_plugin hd_plugin = {HD_PLUGIN_HEAD(HD_KIND_SCHEDULE),
                                              .name = "constructor", .summary = "crashes early",
                                              .ops = &ops};
