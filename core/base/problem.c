#include "base/problem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

hd_status hd_problem_set(struct hd_problem *problem, hd_status status, int32_t exit_code,
                         const char *format, ...)
{
    va_list arguments;

    assert(status < 0 && exit_code > 0);
    if (problem->exit_code != 0) {
        return status;
    }
    problem->exit_code = exit_code;
    va_start(arguments, format);
    vsnprintf(problem->message, sizeof problem->message, format, arguments);
    va_end(arguments);
    return status;
}

hd_status hd_problem_no_memory(struct hd_problem *problem, uint64_t bytes, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (bytes == 0) {
        return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                              "cannot allocate memory for %s", what);
    }
    return hd_problem_set(problem, HD_NO_MEMORY, HD_EXIT_FAILED,
                          "cannot allocate %llu bytes for %s", (unsigned long long)bytes, what);
}

#define SET_PART(part)                                                     \
    do {                                                                   \
        va_list arguments;                                                 \
        va_start(arguments, format);                                       \
        vsnprintf(problem->part, sizeof problem->part, format, arguments); \
        va_end(arguments);                                                 \
    } while (0)

void hd_problem_place(struct hd_problem *problem, const char *format, ...)
{
    SET_PART(place);
}

void hd_problem_key(struct hd_problem *problem, const char *format, ...)
{
    SET_PART(key);
}

void hd_problem_remedy(struct hd_problem *problem, const char *format, ...)
{
    SET_PART(remedy);
}

int hd_problem_line(const struct hd_problem *problem, char *line, uint32_t capacity)
{
    const char *const parts[] = {problem->place, problem->key, problem->message, problem->cycle,
                                 problem->remedy};
    uint32_t length = 0;

    assert(capacity > 0);
    line[0] = '\0';
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i][0] != '\0') {
            char *const rest = length < capacity ? line + length : NULL;
            length += (uint32_t)snprintf(rest, rest ? capacity - length : 0, "%s%s",
                                         length > 0 ? ": " : "", parts[i]);
        }
    }
    return (int)length;
}

hd_status hd_problem_read(struct hd_problem *problem, const void *bytes, uint64_t byte_count)
{
    if (byte_count != sizeof *problem) {
        return HD_PROTOCOL;
    }
    memcpy(problem, bytes, sizeof *problem);
    problem->place[sizeof problem->place - 1] = '\0';
    problem->key[sizeof problem->key - 1] = '\0';
    problem->message[sizeof problem->message - 1] = '\0';
    problem->remedy[sizeof problem->remedy - 1] = '\0';
    problem->cycle[sizeof problem->cycle - 1] = '\0';
    return HD_OK;
}

const char *hd_status_name(hd_status status)
{
    static const struct {
        hd_status status;
        const char *name;
    } rows[] = {
        {HD_OK, "HD_OK"},
        {HD_IN_PROGRESS, "HD_IN_PROGRESS"},
        {HD_BUSY, "HD_BUSY"},
        {HD_INVALID, "HD_INVALID"},
        {HD_UNSUPPORTED, "HD_UNSUPPORTED"},
        {HD_NO_MEMORY, "HD_NO_MEMORY"},
        {HD_TIMEOUT, "HD_TIMEOUT"},
        {HD_PEER_LOST, "HD_PEER_LOST"},
        {HD_ABORTED, "HD_ABORTED"},
        {HD_PROTOCOL, "HD_PROTOCOL"},
        {HD_DEVICE, "HD_DEVICE"},
        {HD_SYSTEM, "HD_SYSTEM"},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == status) {
            return rows[i].name;
        }
    }
    return "an unknown status";
}

int32_t hd_exit_of(hd_status status)
{
    switch (status) {
    case HD_TIMEOUT:
    case HD_PEER_LOST:
        return HD_EXIT_PEER;
    case HD_UNSUPPORTED:
    case HD_DEVICE:
        return HD_EXIT_PLUGIN;
    default:
        return HD_EXIT_FAILED;
    }
}
