#include "base/problem.h"
#include "launch/launch.h"

#include <stdlib.h>

hd_status hd_launch_check_environment(struct hd_problem *problem)
{
    static const struct {
        const char *variable; /* how many tasks the launcher has started */
        const char *remedy;
    } rows[] = {
        {"SLURM_STEP_NUM_TASKS", "start it once: srun -n 1 -c CORES heddle run ..."},
        {"OMPI_COMM_WORLD_SIZE", "start it once: heddle run ..., without mpirun"},
        {"PMI_SIZE", "start it once: heddle run ..., without mpiexec"},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const value = getenv(rows[i].variable);
        const unsigned long task_count = value != NULL ? strtoul(value, NULL, 10) : 0;
        if (task_count > 1) {
            hd_problem_place(problem, "environment");
            hd_problem_key(problem, "%s", rows[i].variable);
            hd_problem_remedy(problem, "%s", rows[i].remedy);
            return hd_problem_set(problem, HD_UNSUPPORTED, HD_EXIT_USAGE,
                                  "it is %lu, so a launcher has started this command %lu times, "
                                  "and each would fork all ranks of the pipeline",
                                  task_count, task_count);
        }
    }
    return HD_OK;
}
