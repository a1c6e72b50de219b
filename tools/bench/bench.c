/* bench/bench.c - spreads, and the machine. */
#include "bench/bench.h"
#include "base/text.h"
#include "report/run_json.h"

#include <assert.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bench_by_value(const void *left, const void *right)
{
    const double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

/* The least value that `percent` of all do not exceed. */
static double bench_nearest_rank(const double *sorted, uint32_t count, uint32_t percent)
{
    const uint64_t rank = ((uint64_t)count * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

void hd_bench_spread(double *values, uint32_t count, struct hd_bench_spread *spread)
{
    assert(values != NULL || count == 0);
    *spread = (struct hd_bench_spread){NAN, NAN, NAN, NAN, NAN, count};
    if (count == 0) {
        return;
    }
    qsort(values, count, sizeof *values, bench_by_value);
    spread->median = bench_nearest_rank(values, count, 50);
    spread->min = values[0];
    spread->p90 = bench_nearest_rank(values, count, 90);
    spread->p99 = bench_nearest_rank(values, count, 99);
    spread->max = values[count - 1];
}

void hd_bench_machine(struct hd_bench_machine *machine)
{
    cpu_set_t cores;

    *machine = (struct hd_bench_machine){.core_count = 1, .load = NAN};
    hd_run_cpu(machine->cpu, sizeof machine->cpu);
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
        machine->core_count = (uint32_t)CPU_COUNT(&cores);
    }
    if (getloadavg(&machine->load, 1) != 1) {
        machine->load = NAN;
    }
}

double hd_bench_ratio(double left, double right)
{
    return right > 0 ? left / right : NAN;
}

/* The three parts of FIRST:LAST:xFACTOR; false: the text has another form. */
static bool bench_read_parts(const char *text, uint64_t *first, uint64_t *last, uint64_t *factor)
{
    char copy[128];
    char *rest = copy;

    if (strlen(text) >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, strlen(text) + 1);
    const char *begin = strsep(&rest, ":");
    const char *end = strsep(&rest, ":");
    const char *by = strsep(&rest, ":");
    *last = *first = 0;
    *factor = 2;
    return rest == NULL && hd_text_to_bytes(begin, first) &&
           (end == NULL || hd_text_to_bytes(end, last)) &&
           (by == NULL || (by[0] == 'x' && hd_text_to_unsigned(by + 1, factor)));
}

uint32_t hd_bench_sizes(const char *text, uint32_t count_max, uint64_t *sizes,
                        char reason[HD_BENCH_REASON_BYTES])
{
    uint64_t first, last, factor;
    uint32_t count = 0;

    reason[0] = '\0';
    if (!bench_read_parts(text, &first, &last, &factor) || first == 0 || factor < 2) {
        snprintf(reason, HD_BENCH_REASON_BYTES,
                 "%.60s must be FIRST:LAST:xFACTOR, with bytes above 0 and a factor of at least 2",
                 text);
        return 0;
    }
    last = strchr(text, ':') != NULL ? last : first;
    for (uint64_t size = first; size <= last && count < count_max; size *= factor) {
        sizes[count++] = size;
        if (size > last / factor) {
            return count;
        }
    }
    if (count == 0) {
        snprintf(reason, HD_BENCH_REASON_BYTES, "%.60s ends below its first size", text);
    } else {
        snprintf(reason, HD_BENCH_REASON_BYTES, "%.60s has more than %u sizes", text, count_max);
    }
    return 0;
}
