#include "report/trace_links.h"

#include <heddle/schedule.h>

#include <stdbool.h>
#include <stdlib.h>

enum { PRODUCER = 1, TRANSFER = 2, CONSUMER = 4, WHOLE = 7 };

static int trace_links_compare_links(const void *left, const void *right)
{
    const struct hd_trace_link *const first = left, *const second = right;
    const uint32_t pairs[][2] = {{first->step, second->step},
                                 {first->direction, second->direction},
                                 {first->boundary, second->boundary},
                                 {first->microbatch, second->microbatch}};

    for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i][0] != pairs[i][1]) {
            return pairs[i][0] < pairs[i][1] ? -1 : 1;
        }
    }
    return 0;
}

static struct hd_trace_link trace_links_link_over(const struct hd_trace_record *record,
                                                  uint32_t direction, uint32_t boundary)
{
    return (struct hd_trace_link){.step = record->step,
                                  .direction = direction,
                                  .boundary = boundary,
                                  .microbatch = record->microbatch};
}

/* The handoff that a pass sends (`is_out`) or receives; W has neither.  An activation crosses the
   boundary with the number of its source stage, a gradient the one below. */
static bool trace_links_find_pass(const struct hd_trace_record *record, bool is_out,
                                  struct hd_trace_link *link)
{
    const bool is_forward = record->action == HD_FORWARD;
    const bool is_backward = record->action == HD_BACKWARD || record->action == HD_BACKWARD_INPUT;
    const bool is_below = is_forward != is_out; /* boundary stage - 1, else stage */

    if (record->kind != HD_TRACE_COMPUTE || (!is_forward && !is_backward) ||
        (is_below && record->stage == 0)) {
        return false;
    }
    *link = trace_links_link_over(record, is_forward ? HD_FORWARD : HD_BACKWARD,
                                  record->stage - (is_below ? 1 : 0));
    return true;
}

static bool trace_links_find_transfer(const struct hd_trace *trace,
                                      const struct hd_trace_record *record,
                                      struct hd_trace_link *link)
{
    if (record->kind != HD_TRACE_TRANSFER) {
        return false;
    }
    const struct hd_pipeline_channel *const channel = &trace->channels[record->channel];
    *link = trace_links_link_over(record, channel->direction, channel->boundary);
    return true;
}

static struct hd_trace_link *trace_links_search(const struct hd_trace_links *links,
                                                const struct hd_trace_link *link)
{
    return bsearch(link, links->links, links->count, sizeof *link, trace_links_compare_links);
}

static void trace_links_mark(const struct hd_trace_links *links, const struct hd_trace_link *link,
                             uint32_t part)
{
    struct hd_trace_link *const found = trace_links_search(links, link);
    if (found != NULL) {
        found->parts |= part;
    }
}

/* Sorts them, and keeps one of equals. */
static void trace_links_sort_links(struct hd_trace_links *links)
{
    uint32_t kept = 0;

    qsort(links->links, links->count, sizeof *links->links, trace_links_compare_links);
    for (uint32_t i = 0; i < links->count; i++) {
        if (kept == 0 ||
            trace_links_compare_links(&links->links[kept - 1], &links->links[i]) != 0) {
            links->links[kept++] = links->links[i];
        }
    }
    links->count = kept;
}

hd_status hd_trace_links_create(struct hd_trace_links *links, const struct hd_trace *trace)
{
    struct hd_trace_link link;

    struct hd_trace_links made = {.links =
                                      calloc((size_t)trace->record_count + 1, sizeof *made.links)};
    if (made.links == NULL) {
        return HD_NO_MEMORY;
    }
    for (uint32_t i = 0; i < trace->record_count; i++) {
        if (trace_links_find_transfer(trace, &trace->records[i], &link)) {
            link.parts = TRANSFER;
            made.links[made.count++] = link;
        }
    }
    trace_links_sort_links(&made);
    for (uint32_t i = 0; i < trace->record_count; i++) {
        if (trace_links_find_pass(&trace->records[i], true, &link)) {
            trace_links_mark(&made, &link, PRODUCER);
        }
        if (trace_links_find_pass(&trace->records[i], false, &link)) {
            trace_links_mark(&made, &link, CONSUMER);
        }
    }
    *links = made;
    return HD_OK;
}

void hd_trace_links_finish(struct hd_trace_links *links)
{
    free(links->links);
    *links = (struct hd_trace_links){0};
}

static uint32_t trace_links_number_of(const struct hd_trace_links *links,
                                      const struct hd_trace_link *link)
{
    const struct hd_trace_link *const found = trace_links_search(links, link);
    return found != NULL && found->parts == WHOLE ? (uint32_t)(found - links->links)
                                                  : HD_TRACE_NO_LINK;
}

uint32_t hd_trace_link_out(const struct hd_trace_links *links, const struct hd_trace_record *record)
{
    struct hd_trace_link link;
    return trace_links_find_pass(record, true, &link) ? trace_links_number_of(links, &link)
                                                      : HD_TRACE_NO_LINK;
}

uint32_t hd_trace_link_in(const struct hd_trace_links *links, const struct hd_trace_record *record)
{
    struct hd_trace_link link;
    return trace_links_find_pass(record, false, &link) ? trace_links_number_of(links, &link)
                                                       : HD_TRACE_NO_LINK;
}

uint32_t hd_trace_link_of(const struct hd_trace_links *links, const struct hd_trace *trace,
                          const struct hd_trace_record *record)
{
    struct hd_trace_link link;
    return trace_links_find_transfer(trace, record, &link) ? trace_links_number_of(links, &link)
                                                           : HD_TRACE_NO_LINK;
}
