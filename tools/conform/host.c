#include "conform/host.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

enum { PATH_BYTES = 320 };

static int host_open_host(const char *name)
{
    char path[PATH_BYTES];

    if (name[0] == '\0' || strchr(name, '/') != NULL ||
        snprintf(path, sizeof path, "/run/netns/%s", name) >= (int)sizeof path) {
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

bool hd_conform_is_host(const char *name)
{
    const int file = host_open_host(name);

    if (file >= 0) {
        close(file);
    }
    return file >= 0;
}

/* /sys shows the network devices of the namespace in which it was mounted. */
static bool host_show_devices(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("", "/", NULL, MS_SLAVE | MS_REC, NULL) == 0 &&
           mount("sysfs", "/sys", "sysfs", MS_RDONLY, NULL) == 0;
}

hd_status hd_conform_enter_host(const char *name, struct hd_problem *problem)
{
    const int file = host_open_host(name);

    if (file < 0) {
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "there is no network namespace %.100s", name);
    }
    const bool is_inside = setns(file, CLONE_NEWNET) == 0;
    close(file);
    if (!is_inside || !host_show_devices()) {
        return hd_problem_set(problem, HD_SYSTEM, HD_EXIT_FAILED,
                              "cannot enter the network namespace %.100s: %s", name,
                              strerror(errno));
    }
    return HD_OK;
}
