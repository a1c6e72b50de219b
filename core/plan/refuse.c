#include "plan/refuse.h"

#include "base/memory.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void *hd_plan_take(uint64_t count, uint64_t element_bytes, struct hd_problem *problem)
{
    void *const memory = hd_memory_take(count * element_bytes, 64, "plan");
    if (memory == NULL) {
        hd_problem_no_memory(problem, count * element_bytes, "the plan");
    }
    return memory;
}

hd_status hd_law_refuse(struct hd_problem *problem, uint32_t law, uint32_t rank, const char *format,
                        ...)
{
    char message[sizeof problem->message];
    va_list arguments;

    assert(law >= 1 && law <= 7);
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    problem->law = law;
    hd_problem_place(problem, "rank %u", rank);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_PLAN, "%s", message);
}
