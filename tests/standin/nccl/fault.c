/* standin/nccl/fault.c - what a test wants to go wrong, as STANDIN_NCCL_FAULT says. */
#include "standin/nccl/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULT_MAX = 16, NAME_BYTES = 48, TEXT_BYTES = 1024 };

struct fault {
    char call[NAME_BYTES];
    unsigned left; /* calls until it strikes; 0: it has */
    enum fate fate;
    int error;
};

static struct fault faults[FAULT_MAX];
static unsigned fault_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_row(const char *row)
{
    struct fault fault = {.fate = FATE_RETURN};
    char fate[NAME_BYTES];

    if (sscanf(row, "%47[A-Za-z]:%u:%47s", fault.call, &fault.left, fate) != 3 ||
        fault_count == FAULT_MAX) {
        fprintf(stderr, "STANDIN_NCCL_FAULT: cannot read '%s'\n", row);
        exit(2);
    }
    if (strcmp(fate, "hang") == 0) {
        fault.fate = FATE_HANG;
    } else if (strncmp(fate, "async:", 6) == 0) {
        fault.fate = FATE_ASYNC;
        fault.error = atoi(fate + 6);
    } else {
        fault.error = atoi(fate);
    }
    faults[fault_count++] = fault;
}

static void read_rows(void)
{
    const char *rows = getenv("STANDIN_NCCL_FAULT");
    char text[TEXT_BYTES], *rest = NULL;

    snprintf(text, sizeof text, "%s", rows != NULL ? rows : "");
    for (char *row = strtok_r(text, " ", &rest); row != NULL; row = strtok_r(NULL, " ", &rest)) {
        read_row(row);
    }
}

enum fate fate_of(const char *call, int *error)
{
    enum fate fate = FATE_NONE;

    pthread_once(&once, read_rows);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (fault->left > 0 && strcmp(fault->call, call) == 0 && --fault->left == 0) {
            fate = fault->fate;
            *error = fault->error;
        }
    }
    pthread_mutex_unlock(&lock);
    return fate;
}
