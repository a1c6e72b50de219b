/* run/bench.c - spreads, and the machine. */
#include "run/bench.h"
#include "report/run_json.h"

#include <assert.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>

static int by_value(const void *left, const void *right)
{
    const double one = *(const double *)left, other = *(const double *)right;
    return (one > other) - (one < other);
}

/* The least value that `percent` of all do not exceed. */
static double nearest_rank(const double *sorted, uint32_t count, uint32_t percent)
{
    const uint64_t rank = ((uint64_t)count * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

void hd_bench_spread(double *values, uint32_t count, struct hd_bench_spread *spread)
{
    assert(values != NULL || count == 0);
    *spread = (struct hd_bench_spread){NAN, NAN, NAN, count};
    if (count == 0) {
        return;
    }
    qsort(values, count, sizeof *values, by_value);
    spread->median = nearest_rank(values, count, 50);
    spread->min = values[0];
    spread->p90 = nearest_rank(values, count, 90);
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
