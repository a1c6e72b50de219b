/*
 * engine/internal.h - what the files of the engine share.  Only they include it.
 *
 * One file of the engine calls another only downwards:
 *
 *   create.c                       builds an engine and takes it apart
 *   step.c                         runs one step
 *   order.c  pass.c  access.c      posts in order; one pass; what callers ask between steps
 *   action.c  device.c             names, publishes and waits for an action; what a stream needs
 *   flight.c  transport.c          passes on a device; the open transport
 *   failure.c                      errors and phases
 */
#ifndef HEDDLE_ENGINE_INTERNAL_H
#define HEDDLE_ENGINE_INTERNAL_H

#include "engine/host.h"
#include "engine/lane.h"
#include "engine/lease.h"
#include "engine/program.h"
#include "engine/region.h"
#include "engine/watchdog.h"

/* One stage of this rank. */
struct hd_local_stage {
    uint32_t stage;
    const struct hd_stage_needs *needs;
    struct hd_stage *instance; /* the kernel's */
    struct hd_stage_memory memory;
    uint32_t acquisitions;
    struct hd_lease_pool pools[HD_ACQUISITION_MAX];
    double *terms;   /* [microbatch_count, term_count] */
    double *squares; /* [tensor_count]; NULL: the kernel computes them on request */
    void *device_terms, *device_squares; /* where passes write them; NULL: into the two above */
};

/* The tokens or targets of one step, on their way to a device. */
struct hd_staging {
    int32_t *host;   /* [microbatch_count, batch, sequence]; NULL: no stage here reads it */
    void *device;    /* the same on the device */
    uint64_t stride; /* of a microbatch, in elements */
};
enum { HD_STAGED_TOKENS = 0, HD_STAGED_TARGETS = 1 };

/* One post of a rank whose transport is serial (engine/order.h). */
struct hd_order_post {
    struct hd_program_message message;
    bool is_send;
    uint32_t group_begin; /* place of the first post of its group */
    uint32_t group_left;  /* posts of its group that follow it */
};

struct hd_order {
    uint32_t post_count; /* of a step; 0: the transport is not serial, or nothing leaves the rank */
    struct hd_order_post *posts; /* [post_count] */
    uint32_t *first_place;       /* [lane_count]: where the lane's part of place_of begins */
    uint32_t *place_of;          /* [first_place + sequence] -> index into posts */

    /* In this step: how many posts were made, may be made, and are known to have moved. */
    uint32_t posted_count, wanted_count, moved_count;
};

/* Two marks for each must stay below HD_MARK_MAX, with the few that begin and end a step. */
#define HD_FLIGHT_MAX     512u
#define HD_FLIGHT_OF_STEP UINT32_MAX /* what begins or ends a step: belongs to no action */

/* One action that the device has and that the host has not seen the end of (engine/flight.c). */
struct hd_flight {
    uint32_t instruction;          /* or HD_FLIGHT_OF_STEP */
    bool is_ready;                 /* ready_mark is passed, and times.ready_ns is the device's */
    uint64_t ready_mark, end_mark; /* ready_mark 0: the device waits for nothing */
    struct hd_record times;        /* the host's, until the marks are passed */
};

struct hd_flights {
    struct hd_flight *rows; /* [HD_FLIGHT_MAX]; NULL: the kernel has no stream */
    uint32_t first, count;
    uint64_t free_ns; /* when the device had finished all that is before the first flight */
};

struct hd_engine {
    struct hd_engine_setup setup;
    const struct hd_kernel_ops *kernel_ops;
    const struct hd_transport_ops *transport_ops; /* the plugin's, or those of a pulse around it */
    uint64_t transport_capabilities;              /* of a hook: those of what it wraps */
    struct hd_plugin_host kernel_host, transport_host, inner_host;

    struct hd_program program;
    struct hd_order order;
    struct hd_kernel *_Atomic kernel; /* the watchdog reads it, too */
    struct hd_device device;
    uint32_t stage_count;
    struct hd_local_stage *stages;
    uint64_t held_slots, peak_slots; /* of all payload pools together: now, and at most so far */
    void *scratch;
    struct hd_regions regions; /* of this kernel, on this device */

    uint32_t lane_count;
    struct hd_lane *lanes;
    uint32_t *lane_of;           /* [remote_count] -> lane; HD_NO_LANE: not of this rank */
    uint32_t remote_count;       /* channels of the whole job that go to the transport */
    struct hd_channel *channels; /* [channel_count of the pipeline] */
    const struct hd_channel **channel_list; /* [remote_count] */
    struct hd_transport_setup transport_setup;
    struct hd_transport *_Atomic transport; /* the watchdog reads it, too */

    struct hd_flights flights;
    struct hd_staging staging[2]; /* tokens, targets; of a device */
    uint64_t actions_end_ns;      /* of the last step, on the device */

    struct hd_recorder recorder;
    struct hd_watchdog watchdog;
    struct hd_rank_state state;
    uint32_t step_count; /* steps begun by this engine: messages are numbered by it */
    pthread_mutex_t failure_lock;
    struct hd_problem failure; /* what a plugin reported; the first stays */
    bool has_failed;
};

/* --- failure.c: every error of a rank leaves by one of three calls -------------------------- */

/*
 * Each passes HD_OK on.  A negative status is recorded: the problem gets the place "rank r, what"
 * and is written to the board as the cause of the run's end, unless another cause is there already.
 *
 *   call   `plugin` returned the status while the rank did `what` ("opening the kernel"): the
 *          problem is what the plugin reported, or that it returned this status
 *   pass   the kernel returned it for the pass of `instruction`, now or, on a device, earlier
 *   own    the engine found the error itself and has filled the problem
 */
hd_status hd_engine_check_call(struct hd_engine *engine, hd_status status,
                               const struct hd_plugin *plugin, const char *what,
                               struct hd_problem *problem);
hd_status hd_engine_check_pass(struct hd_engine *engine, hd_status status,
                               const struct hd_instruction *instruction,
                               struct hd_problem *problem);
hd_status hd_engine_check_own(struct hd_engine *engine, hd_status status, const char *what,
                              struct hd_problem *problem);

/* Keeps what a plugin reports, for check_call; the on_fail of its hosts. [any-thread] */
void hd_engine_note_failure(void *context, const struct hd_plugin *plugin,
                            const struct hd_error *error);

/* As hd_problem_no_memory. */
hd_status hd_engine_no_memory(struct hd_engine *engine, uint64_t bytes, const char *what,
                              struct hd_problem *problem);

/* "running 4B2 of step 7", in text, which it returns. */
const char *hd_engine_name_action(const struct hd_engine *engine,
                                  const struct hd_instruction *instruction, const char *verb,
                                  char text[96]);

/* Publishes the engine's state with a phase that begins now. */
void hd_engine_enter(struct hd_engine *engine, uint32_t phase);

/* --- transport.c [setup] --------------------------------------------------------------------- */

hd_status hd_engine_open_transport(struct hd_engine *engine, struct hd_problem *problem);
void hd_engine_close_transport(struct hd_engine *engine);
/* Calls progress, where the transport has it; HD_OK, or what went wrong. */
static inline hd_status hd_engine_move_transfers(struct hd_engine *engine)
{
    hd_status moved = HD_OK;

    if (engine->transport_ops->progress != NULL) {
        moved = engine->transport_ops->progress(atomic_load(&engine->transport));
    }
    return moved < 0 ? moved : HD_OK;
}

/* --- transfers.c: from a message to the action that it belongs to ---------------------------- */

hd_status hd_engine_map_transfers(struct hd_engine *engine,
                                  struct hd_problem *problem); /* [setup] */
/* Records what a transport reports of a transfer; the on_transfer of its hosts. [any-thread] */
void hd_engine_note_transfer(void *context, const struct hd_transfer *transfer);

/* --- flight.c: only with a stream; a failure fills the problem ------------------------------- */

hd_status hd_flights_mark(struct hd_engine *engine, uint64_t *mark, struct hd_problem *problem);
/* Appends a flight, with its end mark. */
hd_status hd_flights_add(struct hd_engine *engine, const struct hd_flight *flight,
                         struct hd_problem *problem);
/* Ends the flights whose marks are passed; waits at most timeout_ns for the first of them. */
hd_status hd_flights_look(struct hd_engine *engine, uint64_t timeout_ns,
                          struct hd_problem *problem);
/* Waits until at most `left` flights remain. */
hd_status hd_flights_wait(struct hd_engine *engine, uint32_t left, struct hd_problem *problem);

/* --- device.c: what a kernel with a stream needs beside its passes; else does nothing -------- */

hd_status hd_device_check(struct hd_engine *engine, struct hd_problem *problem);
hd_status hd_device_prepare(struct hd_engine *engine, struct hd_problem *problem); /* [setup] */
hd_status hd_device_begin(struct hd_engine *engine, const struct hd_step_input *input,
                          struct hd_problem *problem);
hd_status hd_device_end(struct hd_engine *engine, struct hd_problem *problem);
/* Waits until the device has run all that was enqueued, so that the host may touch it. */
hd_status hd_device_settle(struct hd_engine *engine, struct hd_problem *problem);
void hd_device_finish(struct hd_engine *engine);

/* --- rounding.c: the floating-point control word that every plugin call must leave ----------- */

void hd_engine_set_rounding(void); /* to nearest, no flush to zero */
bool hd_engine_rounding_is_kept(void);

#endif /* HEDDLE_ENGINE_INTERNAL_H */
