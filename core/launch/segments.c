#include "launch/segments.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/shm.h>

struct segment {
    int id;
    long maker, attached_count;
    long long made_s;
};

/* Columns: key, shmid, perms, size, cpid, lpid, nattch, uid, gid, cuid, cgid, atime, dtime, ctime.
   The first line holds their names. */
static bool segments_read_line(const char *line, struct segment *segment)
{
    return sscanf(line, "%*d %d %*o %*u %ld %*d %ld %*u %*u %*u %*u %*d %*d %lld", &segment->id,
                  &segment->maker, &segment->attached_count, &segment->made_s) == 4;
}

uint32_t hd_segments_remove(pid_t pid, int64_t since_s)
{
    FILE *table =
        fopen("/proc/sysvipc/shm", "re"); /* absent: the kernel has no System V segments */
    struct segment segment;
    uint32_t removed_count = 0;
    char line[512];

    while (table != NULL && fgets(line, sizeof line, table) != NULL) {
        if (segments_read_line(line, &segment) && segment.maker == pid &&
            segment.attached_count == 0 && segment.made_s >= since_s &&
            shmctl(segment.id, IPC_RMID, NULL) == 0) {
            removed_count++;
        }
    }
    if (table != NULL) {
        fclose(table);
    }
    return removed_count;
}
