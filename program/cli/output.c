#include "cli/output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static hd_status output_refuse(struct hd_cli *cli, const char *path)
{
    hd_problem_set(&cli->problem, HD_SYSTEM, HD_EXIT_OUTPUT, "cannot be written: %s",
                   strerror(errno));
    hd_problem_place(&cli->problem, "%s", path);
    return HD_SYSTEM;
}

hd_status hd_cli_output_open(struct hd_cli *cli, const char *path, struct hd_cli_output *output)
{
    struct stat known;

    *output = (struct hd_cli_output){.path = path};
    output->is_special = stat(path, &known) == 0 && !S_ISREG(known.st_mode);
    if ((size_t)snprintf(output->beside, sizeof output->beside, "%s%s", path,
                         output->is_special ? "" : ".part") >= sizeof output->beside) {
        errno = ENAMETOOLONG;
        return output_refuse(cli, path);
    }
    output->stream = fopen(output->beside, "we");
    return output->stream != NULL ? HD_OK : output_refuse(cli, path);
}

hd_status hd_cli_output_close(struct hd_cli *cli, struct hd_cli_output *output, hd_status status)
{
    const bool is_whole = !ferror(output->stream);

    errno = 0;
    if ((fclose(output->stream) != 0 || !is_whole) && status == HD_OK) {
        errno = errno != 0 ? errno : EIO;
        status = output_refuse(cli, output->path);
    }
    if (status == HD_OK && !output->is_special && rename(output->beside, output->path) != 0) {
        status = output_refuse(cli, output->path);
    }
    if (status != HD_OK && !output->is_special) {
        unlink(output->beside);
    }
    return status;
}
