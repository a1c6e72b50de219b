/* run/region.c - where things are in the memory that the ranks of a session share. */
#include "run/session.h"

#include <assert.h>

struct hd_board *hd_session_board(void *region)
{
    return region;
}

static void *region_at(void *region, uint64_t offset)
{
    return (unsigned char *)region + offset;
}

struct hd_results *hd_session_results(const struct hd_session *session, void *region)
{
    return region_at(region, session->results_offset);
}

static double *region_step_numbers(const struct hd_session *session, void *region, uint32_t row)
{
    return (double *)region_at(region, session->steps_offset) +
           (uint64_t)row * session->job->config->train.steps;
}

double *hd_session_losses(const struct hd_session *session, void *region)
{
    return region_step_numbers(session, region, 0);
}

double *hd_session_norms(const struct hd_session *session, void *region)
{
    return region_step_numbers(session, region, 1);
}

double *hd_session_step_seconds(const struct hd_session *session, void *region)
{
    return region_step_numbers(session, region, 2);
}

struct hd_rank_result *hd_session_rank(const struct hd_session *session, void *region,
                                       uint32_t rank)
{
    assert(rank < session->job->pipeline->rank_count);
    return (struct hd_rank_result *)region_at(region, session->ranks_offset) + rank;
}

struct hd_session_lane *hd_session_lane(const struct hd_session *session, void *region,
                                        uint32_t channel)
{
    return (struct hd_session_lane *)region_at(region, session->lanes_offset) + channel;
}

struct hd_record *hd_session_records(const struct hd_session *session, void *region, uint32_t rank)
{
    return (struct hd_record *)region_at(region, session->records_offset) +
           rank * session->record_count;
}
