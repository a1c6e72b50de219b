/*
 * tests/support/transport_harness.h - a transport between real processes, without the core.
 *
 *   parent   loads heddle_transport_NAME.so from HD_PLUGIN_DIR, forks the ranks, collects their
 *            exit codes, and kills whoever is left at the deadline
 *   rank     a process, or a thread (as_threads): opens the plugin with the job's channels, runs
 *            the job's body, then quiesces, meets the others in a fence, closes, and must hold no
 *            memory then
 *
 * The ranks' struct hd_host is served from memory that is shared since before the fork: put
 * refuses a key that this rank has used (HD_INVALID, as the core's bootstrap), get finds what any
 * rank has put, fence sleeps on a futex until its deadline.  host->fail keeps the last report and
 * counts them.
 *
 * In a body, HD_REQUIRE(rank, condition) says where and why it fails and ends the rank with exit
 * code 1; so a body is `int body(struct hd_testbed_rank *rank)` and returns 0 at its end.
 * Nothing here is timed but by deadlines.  CUnit is not used in a rank, only around the run.
 */
#ifndef HD_TESTS_SUPPORT_TRANSPORT_HARNESS_H
#define HD_TESTS_SUPPORT_TRANSPORT_HARNESS_H

#include <heddle/transport.h>

#include <stdatomic.h>
#include <stdint.h>

#define HD_TESTBED_RANK_MAX    32u
#define HD_TESTBED_CHANNEL_MAX 128u
#define HD_TESTBED_WORD_COUNT  256u
#define HD_TESTBED_KILLED      137 /* the exit code of a rank that died of SIGKILL: 128 + 9 */

/* What host->fail was last told in this rank. */
struct hd_testbed_report {
    uint32_t count;
    hd_status status;
    uint32_t rank;
    uint32_t channel;
    uint64_t sequence;
    char text[512];
};

struct hd_testbed_rank {
    uint32_t rank;
    const struct hd_testbed_job *job; /* borrowed */
    const struct hd_plugin *plugin;   /* static */
    uint64_t capabilities;            /* of a hook: what it keeps of its inner's */
    const struct hd_transport_ops *ops;
    struct hd_transport *transport; /* NULL when not open; a body that closes it sets NULL */
    struct hd_transport_setup setup;
    struct hd_host host, inner_host;
    struct hd_testbed_report report;
    _Atomic uint64_t *words;     /* [HD_TESTBED_WORD_COUNT], zero at first, shared by all ranks */
    const _Atomic int32_t *pids; /* of all ranks; known after the first fence */
    struct hd_testbed_region *region;
    int code;       /* of a thread: what it ended with */
    uint32_t leaks; /* set by a body whose quiesce said that close must leak */
    const struct hd_channel *channel_list[HD_TESTBED_CHANNEL_MAX]; /* what setup points to */
};

struct hd_testbed_job {
    const char *name;  /* of the plugin: "shm" */
    const char *inner; /* what it wraps; NULL: it is no hook */
    uint32_t rank_count;
    uint32_t channel_count;
    const struct hd_channel *channels; /* [channel_count] */
    const struct hd_option_value *options, *inner_options;
    uint32_t option_count, inner_option_count;
    uint32_t as_threads; /* the ranks are threads of this process, and share its memory */
    uint32_t unopened;   /* the body opens by itself, with hd_testbed_open */
    uint64_t limit_ms;   /* of the whole run; 0: 60 s */
    int (*body)(struct hd_testbed_rank *rank);
    const void *argument;  /* the body's own */
    const int *exit_codes; /* that the ranks must end with; NULL: all 0 */
};

/* A plugin with its options: what a conformance check is run on. */
struct hd_testbed_variant {
    const char *label; /* "ucx_tag over tcp" */
    const char *name;  /* of the plugin */
    const struct hd_option_value *options;
    uint32_t option_count;
    uint32_t holds_back;     /* a source whose target takes nothing gets HD_BUSY in the end */
    uint32_t has_late_write; /* a stopped peer may write here when it wakes: quiesce says so */
    uint32_t needs_source;   /* what a peer has sent comes only while it goes on moving */
    uint32_t is_mortal;      /* a peer's death may take this process with it: nobody is killed */
    const char *inner;       /* of a hook, with its options; NULL */
    const struct hd_option_value *inner_options;
    uint32_t inner_option_count;
};

/* All of them: every transport, and those of UCX over each kind of lane; the last is empty. */
extern const struct hd_testbed_variant hd_testbed_variants[];

/* The job's plugin, inner and options become the variant's. */
void hd_testbed_choose(struct hd_testbed_job *job, const struct hd_testbed_variant *variant);
/* What the variant promises; a hook's messages may be held back, so it is never in place. */
uint64_t hd_testbed_capabilities(const struct hd_testbed_variant *variant);

/* Has the plugin been built?  One whose library is not installed is left out. */
int hd_testbed_is_built(const struct hd_testbed_variant *variant);

/* Runs the job.  0, or how many ranks did not end as expected, each with a line on stderr. */
uint32_t hd_testbed_run(const struct hd_testbed_job *job);

/* Above all bits of a contract: not under a hook, which makes each of many messages slow. */
#define HD_TESTBED_PLAIN ((uint64_t)1 << 63)

/* In a check: runs the job, whose plugin is left open, on every variant that promises all of
   `capabilities`, which at least one must; nobody dies where that is not survived. */
void hd_testbed_run_where(uint64_t capabilities, const struct hd_testbed_job *job);

/* The descriptor of a plugin of HD_PLUGIN_DIR, else of tests/fault, or NULL after a line on
   stderr. */
const struct hd_plugin *hd_testbed_load(const char *name);

/* In a rank: opens `rank->setup` within `limit_ms` into rank->transport. */
hd_status hd_testbed_open(struct hd_testbed_rank *rank, uint64_t limit_ms);
/* Quiesce, fence, close; the first status that is not HD_OK.  Without one, nothing to do. */
hd_status hd_testbed_close(struct hd_testbed_rank *rank);
/* All ranks meet here, within ten seconds. */
hd_status hd_testbed_fence(struct hd_testbed_rank *rank);
/* Ends the fences of all ranks, now and later: HD_ABORTED. [any-thread] */
void hd_testbed_abort(struct hd_testbed_rank *rank);
uint64_t hd_testbed_deadline_ns(uint64_t from_now_ms);

/* Says on stderr what did not hold, with the rank's last report; returns 1. */
int hd_testbed_complain(const struct hd_testbed_rank *rank, const char *file, int line,
                        const char *what);

#define HD_REQUIRE(rank, condition)                                           \
    do {                                                                      \
        if (!(condition)) {                                                   \
            return hd_testbed_complain(rank, __FILE__, __LINE__, #condition); \
        }                                                                     \
    } while (0)

#endif /* HD_TESTS_SUPPORT_TRANSPORT_HARNESS_H */
