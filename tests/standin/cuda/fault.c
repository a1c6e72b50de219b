/*
 * standin/cuda/fault.c - what a test wants to go wrong, and how often what was called.
 */
#include "standin/cuda/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULT_MAX = 16, CALL_MAX = 96, NAME_BYTES = 48 };

enum fate { FATE_RETURN, FATE_ASYNC, FATE_HANG };

struct fault {
    char call[NAME_BYTES];
    unsigned left; /* calls until it strikes; 0: it has */
    enum fate fate;
    int error;
};

static struct {
    pthread_mutex_t lock;
    struct fault faults[FAULT_MAX];
    struct {
        const char *name; /* static: the calls name themselves */
        uint64_t count;
    } calls[CALL_MAX];
} plan = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* For the next work that this thread enqueues. */
static _Thread_local cudaError_t next_failure;
static _Thread_local int next_hangs;

static int read_row(const char *row, struct fault *fault)
{
    char fate[NAME_BYTES];
    int end = 0;

    *fault = (struct fault){.fate = FATE_RETURN};
    if (sscanf(row, "%47[A-Za-z0-9]:%u:%47[^ ]%n", fault->call, &fault->left, fate, &end) != 3 ||
        fault->left == 0 || row[end] != '\0') {
        return -1;
    }
    if (strcmp(fate, "hang") == 0) {
        fault->fate = FATE_HANG;
        return 0;
    }
    fault->fate = strncmp(fate, "async:", 6) == 0 ? FATE_ASYNC : FATE_RETURN;
    fault->error = atoi(fault->fate == FATE_ASYNC ? fate + 6 : fate);
    return fault->error > 0 ? 0 : -1;
}

static int add(const struct fault *fault)
{
    for (size_t i = 0; i < FAULT_MAX; i++) {
        if (plan.faults[i].left == 0) {
            plan.faults[i] = *fault;
            return 0;
        }
    }
    return -1;
}

int standin_fault(const char *rows)
{
    char *copy = strdup(rows);
    char *rest = NULL;
    struct fault fault;
    int result = copy != NULL ? 0 : -1;

    pthread_mutex_lock(&plan.lock);
    for (char *row = result == 0 ? strtok_r(copy, " ", &rest) : NULL; row != NULL && result == 0;
         row = strtok_r(NULL, " ", &rest)) {
        result = read_row(row, &fault) == 0 ? add(&fault) : -1;
    }
    pthread_mutex_unlock(&plan.lock);
    free(copy);
    return result;
}

static void count_call(const char *call)
{
    for (size_t i = 0; i < CALL_MAX; i++) {
        if (plan.calls[i].name == NULL || strcmp(plan.calls[i].name, call) == 0) {
            plan.calls[i].name = call;
            plan.calls[i].count++;
            return;
        }
    }
}

cudaError_t standin_fault_of(const char *call)
{
    cudaError_t error = cudaSuccess;

    next_failure = cudaSuccess;
    next_hangs = 0;
    pthread_mutex_lock(&plan.lock);
    count_call(call);
    for (size_t i = 0; i < FAULT_MAX; i++) {
        struct fault *fault = &plan.faults[i];
        if (fault->left == 0 || strcmp(fault->call, call) != 0 || --fault->left > 0) {
            continue;
        }
        if (fault->fate == FATE_RETURN) {
            error = (cudaError_t)fault->error;
        } else if (fault->fate == FATE_ASYNC) {
            next_failure = (cudaError_t)fault->error;
        } else {
            next_hangs = 1;
        }
    }
    pthread_mutex_unlock(&plan.lock);
    return error;
}

void standin_take_fate(struct work *work)
{
    work->failure = next_failure;
    work->is_hung = next_hangs;
    next_failure = cudaSuccess;
    next_hangs = 0;
}

uint64_t standin_call_count(const char *call)
{
    uint64_t count = 0;

    pthread_mutex_lock(&plan.lock);
    for (size_t i = 0; i < CALL_MAX && plan.calls[i].name != NULL; i++) {
        if (strcmp(plan.calls[i].name, call) == 0) {
            count = plan.calls[i].count;
        }
    }
    pthread_mutex_unlock(&plan.lock);
    return count;
}
