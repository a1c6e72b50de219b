#include "launch/agree.h"

#include "base/number.h"

#include <string.h>

enum { SHOWN_BYTES = 400 }; /* of a value, at most */

static const char *agree_next_line(const char *text)
{
    const size_t length = strcspn(text, "\n");

    return text + length + (text[length] == '\n');
}

hd_status hd_agree_check(const struct hd_agreement *agreement, struct hd_problem *problem)
{
    const char *ours = agreement->ours;
    const char *theirs = agreement->theirs;

    while (*ours != '\0' && agree_next_line(ours) - ours == agree_next_line(theirs) - theirs &&
           strncmp(ours, theirs, strcspn(ours, "\n")) == 0) {
        ours = agree_next_line(ours);
        theirs = agree_next_line(theirs);
    }
    if (*ours == '\0' && *theirs == '\0') {
        return HD_OK;
    }
    const char *const value = strstr(ours, " = ");
    const size_t key_bytes = value != NULL ? (size_t)(value - ours) : 0;
    hd_problem_place(problem, "launch");
    hd_problem_remedy(problem, "start all ranks with the same configuration, plugins and files");
    if (key_bytes > 0 && strncmp(ours, theirs, key_bytes + 3) == 0) {
        hd_problem_key(problem, "%.*s", (int)key_bytes, ours);
        ours += key_bytes + 3;
        theirs += key_bytes + 3;
    }
    return hd_problem_set(problem, HD_PROTOCOL, HD_EXIT_USAGE,
                          "rank %u on %.63s has %.*s, rank 0 has %.*s", agreement->rank,
                          agreement->host, (int)hd_min_u64(strcspn(theirs, "\n"), SHOWN_BYTES),
                          theirs, (int)hd_min_u64(strcspn(ours, "\n"), SHOWN_BYTES), ours);
}
