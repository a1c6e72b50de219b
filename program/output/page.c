#include "output/page.h"
#include "base/try.h"
#include "report/page.h"
#include "output/overlap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4200, NAME_BYTES = 256 };

static const struct hd_record *page_rows_of(const void *context, uint32_t rank, uint32_t step)
{
    return hd_kept_records(context, rank, step);
}

/* A file of the directory as text, owned; NULL if it cannot be read. */
static char *page_text_of(const char *directory, const char *name)
{
    char path[PATH_BYTES];

    snprintf(path, sizeof path, "%.4000s/%s", directory, name);
    return hd_page_file(path);
}

/* "demo-20260101-120000" of "runs/demo-20260101-120000/". */
static void page_name_of(const char *directory, char name[NAME_BYTES])
{
    size_t length = strlen(directory);

    while (length > 1 && directory[length - 1] == '/') {
        length--;
    }
    size_t begin = length;
    while (begin > 0 && directory[begin - 1] != '/') {
        begin--;
    }
    snprintf(name, NAME_BYTES, "%.*s", (int)(length - begin), directory + begin);
}

static hd_status page_make_item(const char *directory, const struct hd_planning *planning,
                                const struct hd_page_trace *trace, char **item,
                                struct hd_problem *problem)
{
    char name[NAME_BYTES];
    char *config = page_text_of(directory, "config.ini");
    char *run = page_text_of(directory, "run.json");
    char *metrics = page_text_of(directory, "metrics.jsonl");

    page_name_of(directory, name);
    const struct hd_page_source source = {
        .name = name,
        .facts = &planning->facts,
        .config = config,
        .run = run,
        .metrics = metrics,
        .trace = trace,
    };
    const hd_status status = hd_page_item(&source, item, problem);
    free(config);
    free(run);
    free(metrics);
    return status;
}

hd_status hd_page_of_directory(const char *directory, const struct hd_planning *planning,
                               char **item, struct hd_problem *problem)
{
    return page_make_item(directory, planning, NULL, item, problem);
}

static hd_status page_write_page(const struct hd_rundir *rundir, char *item,
                                 struct hd_problem *problem)
{
    FILE *stream = NULL;
    HD_TRY(hd_rundir_open(rundir, "report.html", &stream, problem));
    hd_page_write(1, &item, stream); /* commit asks the stream */
    return hd_rundir_commit(rundir, "report.html", stream, problem);
}

hd_status hd_output_write_page(const struct hd_session *session, struct hd_problem *problem)
{
    const struct hd_planning_request request = {
        .missing_reason = "",
        .timeline = HD_TIMELINE_ASAP,
    };
    const struct hd_kept_steps steps = hd_kept_steps(session);
    const struct hd_page_trace trace = {
        .step_count = steps.count,
        .first_step = steps.last - steps.count + 1,
        .rows = page_rows_of,
        .context = session,
    };
    struct hd_planning planning;
    char *item = NULL;

    HD_TRY(hd_planning_create(&planning, session->job, &request, problem));
    hd_status status = page_make_item(session->rundir.path, &planning, &trace, &item, problem);
    if (status == HD_OK) {
        status = page_write_page(&session->rundir, item, problem);
    }
    free(item);
    hd_planning_finish(&planning);
    return status;
}
