/*
 * report/trace_links.h - which records of a trace belong to one handoff; internal to trace_json.
 *
 * A handoff is whole if the trace has its producer's pass, its transfer and its consumer's pass in
 * one step.  Any of the three finds it, with the same number.
 */
#ifndef HEDDLE_REPORT_TRACE_LINKS_H
#define HEDDLE_REPORT_TRACE_LINKS_H

#include "report/trace_json.h"

#define HD_TRACE_NO_LINK UINT32_MAX

struct hd_trace_link {
    uint32_t step, direction, boundary, microbatch;
    uint32_t parts; /* bits of producer 1, transfer 2, consumer 4 */
};

struct hd_trace_links {
    uint32_t count;
    struct hd_trace_link *links; /* [count], sorted; owned */
};

/* On HD_NO_MEMORY nothing is set. */
hd_status hd_trace_links_create(struct hd_trace_links *links, const struct hd_trace *trace);
void hd_trace_links_finish(struct hd_trace_links *links);

/* The whole handoff that a pass produces or consumes, or that a transfer carries; or
   HD_TRACE_NO_LINK. */
uint32_t hd_trace_link_out(const struct hd_trace_links *links,
                           const struct hd_trace_record *record);
uint32_t hd_trace_link_in(const struct hd_trace_links *links, const struct hd_trace_record *record);
uint32_t hd_trace_link_of(const struct hd_trace_links *links, const struct hd_trace *trace,
                          const struct hd_trace_record *record);

#endif /* HEDDLE_REPORT_TRACE_LINKS_H */
