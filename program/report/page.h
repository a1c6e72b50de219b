/*
 * report/page.h - report.html: one self-contained file for one plan or run, or for several.
 *
 *   assets/   page.css, page.html and the scripts, which the build puts into the binary
 *   item      one plan or run as one line of JSON; a page holds a list of them
 *   page      the assets and the items; it opens from disk and loads nothing from the network
 *
 * Items are data, never markup: every < > & in them is written as \u003c and so on, and the scripts
 * set text as text.  A page can be read again: its items are lines between two fixed marks, so
 * `heddle report` can join the items of several pages.
 *
 * An item, by member (times in ticks, of a trace in nanoseconds):
 *   name    the title to show
 *   facts   as `heddle plan --json` (docs/interface.md)
 *   grid    replica_of [microbatches]; ranks [{kind "FFB", stage [], microbatch [], gap [], ticks
 *           []}]: gap is the time since the action before; ticks only where they are not 1 2 1 1
 *   config  the ini, complete; run: run.json; either may be null
 *   metrics {every, step [], loss [], ..}: columns of metrics.jsonl, one row in `every`; or null
 *   trace   {first, steps [[rank rows]], transfers [[rank rows]]}: per action six spans after the
 *           one before: gap, exposed wait, credit wait, launch, pass, send; per action that reads
 *           what another rank sent: when the transfer began, since the step's first action, and
 *           how long it took (-1: not known), resident at its source, at its target; or null
 */
#ifndef HEDDLE_REPORT_PAGE_H
#define HEDDLE_REPORT_PAGE_H

#include "engine/recorder.h"
#include "report/plan_facts.h"

#include <stdint.h>
#include <stdio.h>

/* The recorded steps of a run. */
struct hd_page_trace {
    uint32_t first_step, step_count;
    /* The rows of one rank and step, in the order of its plan; borrowed for the call. */
    const struct hd_record *(*rows)(const void *context, uint32_t rank, uint32_t step);
    const void *context;
};

/* The parts of an item; all borrowed, NULL if there is none. */
struct hd_page_source {
    const char *name;
    const struct hd_plan_facts *facts;
    const char *config;  /* text of the ini */
    const char *run;     /* text of run.json */
    const char *metrics; /* text of metrics.jsonl */
    const struct hd_page_trace *trace;
};

/* One line of JSON, owned by the caller (free).  HD_EXIT_FAILED if it cannot allocate memory, or if
   `run` is not JSON. */
hd_status hd_page_item(const struct hd_page_source *source, char **item,
                       struct hd_problem *problem);

/* Writes the whole page; the caller checks the stream for errors. */
void hd_page_write(uint32_t item_count, char *const *items, FILE *stream);

/* A whole file as text, owned by the caller (free); NULL and errno if it cannot be read. */
char *hd_page_file(const char *path);

struct hd_page_items {
    uint32_t count;
    char **items; /* [count], owned */
};

/* Appends the items of the page at `path`.  HD_EXIT_USAGE if the file is not a page of heddle, or
   is cut short. */
hd_status hd_page_read(const char *path, struct hd_page_items *items, struct hd_problem *problem);
/* Appends one item; the list then owns it. */
void hd_page_items_add(struct hd_page_items *items, char *item);
void hd_page_items_finish(struct hd_page_items *items);

#endif /* HEDDLE_REPORT_PAGE_H */
