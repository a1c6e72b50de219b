/*
 * tests/support/engine_crew.h - a few steps of a plan by real engines, without a run around them.
 *
 * The ranks are threads of this process, or processes (support/transport_harness.h); each has an
 * engine with a kernel and a transport, on one board.  No corpus, file or launcher: a small plan
 * takes some milliseconds, so that hundreds can be tried.  What comes out is one digest of all
 * losses, gradients and parameters, in global order, whatever the plan: equal digests are equal
 * bits.
 */
#ifndef HD_TESTS_SUPPORT_ENGINE_CREW_H
#define HD_TESTS_SUPPORT_ENGINE_CREW_H

#include "plan/pipeline.h"

struct hd_crew_job {
    const struct hd_pipeline *pipeline; /* one replica, its slots given */
    const char *words[32];              /* section.key=value, as on the command line */
    const char *kernel_file;            /* of a kernel that is not among the plugins; or NULL */
    uint32_t word_count;
    uint32_t step_count;    /* 1 to 4 */
    uint32_t as_processes;  /* else threads */
    uint32_t hesitation_us; /* every rank sleeps for up to so long before each first use: of its
                               engine, and of every call of the bootstrap */
    uint64_t seed;          /* of the hesitation */
    uint64_t limit_ms;      /* nobody moves for so long: the engines say who waits for whom */
};

/* 0, or 1 after a line on stderr. */
int hd_crew_run(const struct hd_crew_job *job, uint64_t *digest);

/* Adds "section.key=value" to the job; the text is the caller's. */
void hd_crew_add(struct hd_crew_job *job, const char *word);

#endif /* HD_TESTS_SUPPORT_ENGINE_CREW_H */
