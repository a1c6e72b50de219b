/* engine/internal.h - what the files of the engine share; nobody else includes it. */
#ifndef HEDDLE_ENGINE_INTERNAL_H
#define HEDDLE_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/flight.h"
#include "engine/lane.h"
#include "engine/lease.h"
#include "engine/order.h"
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
    double *squares; /* [tensor_count]; NULL: asked of the kernel when they are wanted */
    void *device_terms, *device_squares; /* where passes write them; NULL: right here */
};

/* What one step reads, on its way to a device. */
struct hd_staging {
    int32_t *host;   /* [microbatch_count, batch, sequence]; NULL: no stage here reads it */
    void *device;    /* likewise */
    uint64_t stride; /* of a microbatch, in elements */
};
enum { HD_STAGED_TOKENS = 0, HD_STAGED_TARGETS = 1 };

/* A plugin's view of the core. */
struct hd_engine_host {
    struct hd_engine *engine;
    const struct hd_plugin *plugin;
    const char *tag; /* of what it allocates; static */
    struct hd_host host;
};

struct hd_engine {
    struct hd_engine_setup setup;
    const struct hd_kernel_ops *kernel_ops;
    const struct hd_transport_ops *transport_ops; /* the plugin's, or those of a pulse around it */
    uint64_t transport_capabilities;              /* of a hook: its inner's */
    struct hd_engine_host kernel_host, transport_host, inner_host;

    struct hd_program program;
    struct hd_order order;
    struct hd_kernel *_Atomic kernel; /* the watchdog looks, too */
    struct hd_device device;
    uint32_t stage_count;
    struct hd_local_stage *stages;
    uint64_t held_slots, peak_slots; /* of all payload pools together: now, and the most so far */
    void *scratch;
    struct hd_regions regions; /* of this kernel, on this device */

    uint32_t lane_count;
    struct hd_lane *lanes;
    uint32_t *lane_of;     /* [remote_count] -> lane; HD_NO_LANE: not of this rank */
    uint32_t remote_count; /* channels of the whole job that go to the transport */
    struct hd_channel *channels;
    const struct hd_channel **channel_list;
    struct hd_transport_setup transport_setup;
    struct hd_transport *_Atomic transport; /* the watchdog looks, too */

    struct hd_flights flights;
    struct hd_staging staging[2]; /* tokens, targets; of a device */
    uint64_t actions_end_ns;      /* of the last step, on the device */

    struct hd_recorder recorder;
    struct hd_watchdog watchdog;
    struct hd_rank_state state;
    uint32_t step_count; /* begun here: messages are numbered by it, whatever a step is called */
    pthread_mutex_t failure_lock;
    struct hd_problem failure; /* what a plugin reported; the first stays */
    uint32_t has_failed;
};

/* engine/transport.c: [setup].  check comes first: what the transport has is asked from then on. */
hd_status hd_engine_check_transport(struct hd_engine *engine, struct hd_problem *problem);
hd_status hd_engine_open_transport(struct hd_engine *engine, struct hd_problem *problem);
void hd_engine_close_transport(struct hd_engine *engine);

/* engine/transfers.c: which action a message is of, before the first step; and what a transport
   says of its way.  note: [any-thread] */
hd_status hd_engine_map_transfers(struct hd_engine *engine, struct hd_problem *problem);
void hd_engine_note_transfer(struct hd_engine *engine, const struct hd_transfer *transfer);

/* engine/host.c */
void hd_engine_host_init(struct hd_engine_host *host, struct hd_engine *engine,
                         const struct hd_plugin *plugin, const struct hd_option_value *options);

/*
 * A call of `plugin` returned the negative `status` while the rank did `what` ("running 4B2").
 * Fills the problem from the plugin's own report, puts it on the board as the run's cause, and
 * returns the status.  An abort takes the cause that is there.
 */
hd_status hd_engine_fail(struct hd_engine *engine, hd_status status, const struct hd_plugin *plugin,
                         const char *what, struct hd_problem *problem);
/* Likewise for what the engine itself found: `problem` is filled already. */
hd_status hd_engine_blame(struct hd_engine *engine, hd_status status, const char *what,
                          struct hd_problem *problem);

/* A pass failed with `status`, now or, on a device, some time ago: as hd_engine_fail, and a payload
   that was refused is given its slot, which the kernel does not know. */
hd_status hd_engine_kernel_failed(struct hd_engine *engine, hd_status status,
                                  const struct hd_instruction *instruction, const char *what,
                                  struct hd_problem *problem);

/* Publishes the engine's state with a new phase, from now on. */
void hd_engine_enter(struct hd_engine *engine, uint32_t phase);

/* engine/flight.c: only with a stream; a failure fills the problem, as above.  Enqueues a mark;
   appends a flight, with its end mark; looks at the first ones, waiting for timeout_ns for one of
   them at most; waits until only `left` are under way; publishes what the device is at. */
hd_status hd_flights_mark(struct hd_engine *engine, uint64_t *mark, struct hd_problem *problem);
hd_status hd_flights_add(struct hd_engine *engine, const struct hd_flight *flight,
                         struct hd_problem *problem);
hd_status hd_flights_look(struct hd_engine *engine, uint64_t timeout_ns,
                          struct hd_problem *problem);
hd_status hd_flights_wait(struct hd_engine *engine, uint32_t left, struct hd_problem *problem);
void hd_flights_show(struct hd_engine *engine);

/* engine/device.c: what a kernel with a stream needs beside its passes; nothing for others. */
hd_status hd_device_check(struct hd_engine *engine, struct hd_problem *problem);
hd_status hd_device_prepare(struct hd_engine *engine, struct hd_problem *problem); /* [setup] */
hd_status hd_device_begin(struct hd_engine *engine, const struct hd_step_input *input,
                          struct hd_problem *problem);
hd_status hd_device_end(struct hd_engine *engine, struct hd_problem *problem);
/* Where the host is to touch what was enqueued: waits for it. */
hd_status hd_device_settle(struct hd_engine *engine, struct hd_problem *problem);
void hd_device_finish(struct hd_engine *engine);

/* The floating-point control word that every plugin call must leave: no flush to zero, to
   nearest. */
void hd_engine_set_rounding(void);
uint32_t hd_engine_rounding_is_kept(void);

#endif /* HEDDLE_ENGINE_INTERNAL_H */
