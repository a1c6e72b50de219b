/*
 * engine/engine.h - one rank's step: the only code that meets all three plugin kinds.
 *
 * An engine holds the rank's program, its stages on an opened kernel, the lanes (transport channels
 * and local handoffs), the payload pools and the recorder.  A step walks the program: wait for
 * what the action consumes, claim what it writes, run the pass, send, give back.  Receives are
 * posted early (overlap on) or just before their wait (off); the source never waits after a send.
 *
 * Everything is allocated by create.  One thread runs the engine; a watchdog thread moves the
 * heartbeat, looks at the board's abort word, and ends waits.  An error is one struct hd_problem,
 * and it also stands on the board, so that all ranks leave.
 */
#ifndef HEDDLE_ENGINE_ENGINE_H
#define HEDDLE_ENGINE_ENGINE_H

#include "base/problem.h"
#include "engine/board.h"
#include "engine/recorder.h"
#include "plan/pipeline.h"

#include <heddle/kernel.h>
#include <heddle/transport.h>

struct hd_engine; /* opaque */

struct hd_bootstrap; /* of launch/bootstrap.h, or a test's own; the engine only hands it on */

/* What the engine needs of the launcher: put, get and fence as in struct hd_host, and abort. */
struct hd_engine_bootstrap {
    struct hd_bootstrap *context;
    hd_status (*put)(struct hd_bootstrap *context, const char *key, const void *value,
                     uint64_t bytes);
    hd_status (*get)(struct hd_bootstrap *context, const char *key, void *value, uint64_t bytes,
                     uint64_t deadline_ns);
    hd_status (*fence)(struct hd_bootstrap *context, uint64_t deadline_ns);
    void (*abort)(struct hd_bootstrap *context); /* [any-thread] ends every wait of every rank */
};

struct hd_engine_setup {
    const struct hd_pipeline *pipeline;
    const struct hd_stage_spec *specs;  /* [stage_count]: the model, cut into stages */
    const struct hd_stage_needs *needs; /* [stage_count] */
    uint32_t rank;
    uint32_t ordinal; /* of the device: the local rank */
    const struct hd_plugin *kernel, *transport;
    const struct hd_plugin *inner; /* what a transport that is a hook wraps; else NULL */
    const struct hd_option_value *kernel_options, *transport_options, *inner_options; /* as their
                                                                                  tables say */
    uint32_t progress_thread; /* a quick one; where a peer needs it, there is one anyway */
    struct hd_engine_bootstrap bootstrap;
    struct hd_board *board;
    uint32_t overlap, poison, checksum;
    uint32_t fault;            /* enum hd_lease_fault; pools that forget owners have a slot less */
    uint32_t trace_steps;      /* the last so many steps are kept; 0: only the sums */
    uint32_t trace_alternates; /* 1: of those, the odd ones only (bench) */
    uint32_t steps_before;     /* the first step is called steps_before + 1 */
    uint32_t counts_wait_cpu;  /* 1: hd_step_times.wait_cpu_ns, two system calls a wait */
};

extern const char *const hd_engine_memory_remedy; /* of HD_NO_MEMORY: what to do */
hd_status hd_engine_create(const struct hd_engine_setup *setup, struct hd_engine **engine,
                           struct hd_problem *problem);

/* Clean: quiesces, meets the other ranks, closes.  After an error: local, leaks what may be
 * written. Takes NULL. */
void hd_engine_destroy(struct hd_engine *engine);

/* What a step reads: borrowed for the call. */
struct hd_step_input {
    uint32_t step;                 /* from 1; of a run that goes on, from a later one */
    const int32_t *const *tokens;  /* [microbatch_count] -> [batch, sequence]; NULL: no stage with
                                      the embedding here */
    const int32_t *const *targets; /* likewise, where the head is */
    double label_scale, auxiliary_scale;
};

/* Zeroes the gradients, runs every action of this rank's plan, and leaves terms and gradients. */
hd_status hd_engine_step(struct hd_engine *engine, const struct hd_step_input *input,
                         struct hd_problem *problem);

/* The rank's stages, ascending. */
uint32_t hd_engine_stage_count(const struct hd_engine *engine);
uint32_t hd_engine_stage(const struct hd_engine *engine, uint32_t local);

/* The terms of the last step of a local stage: [microbatch_count, term_count]. */
const double *hd_engine_terms(const struct hd_engine *engine, uint32_t local);

/* One copy of one tensor of this rank. */
struct hd_tensor_place {
    uint32_t local; /* stage, as above */
    uint32_t index; /* of the tensor in its stage */
    uint32_t copy;  /* enum hd_copy; hd_engine_tensor does not look at it */
};

/* Tensors of a local stage (kernel.h): its description; one copy, whole, out of or into the stage;
   squared gradient norms [tensor_count]; the optimizer, on all stages. */
hd_status hd_engine_tensor(struct hd_engine *engine, struct hd_tensor_place place,
                           struct hd_tensor *tensor, struct hd_problem *problem);
hd_status hd_engine_read(struct hd_engine *engine, struct hd_tensor_place place, void *values,
                         struct hd_problem *problem);
hd_status hd_engine_write(struct hd_engine *engine, struct hd_tensor_place place,
                          const void *values, struct hd_problem *problem);
hd_status hd_engine_norms(struct hd_engine *engine, uint32_t local, double *squared,
                          struct hd_problem *problem);
hd_status hd_engine_update(struct hd_engine *engine, const struct hd_update *update,
                           struct hd_problem *problem);

/* Publishes a phase that is not an action's (together, update, done). */
void hd_engine_phase(struct hd_engine *engine, uint32_t phase);

/* Nothing is wrong with this rank: its abort word is clear.  What the vote asks. */
uint32_t hd_engine_is_sound(const struct hd_engine *engine);

/* Payload slots leased at once, at most, so far; all pools of the rank together: the plan's
   copies. */
uint64_t hd_engine_peak_slots(const struct hd_engine *engine);

struct hd_recorder *hd_engine_recorder(struct hd_engine *engine);
const char *hd_engine_device(const struct hd_engine *engine); /* "cpu oneDNN ..."; static */

/* After the last step: waits for whoever is still inside the transport (a hook's thread, say), so
   that the recorder has all that it reports. */
void hd_engine_settle(struct hd_engine *engine);

/* What the transport says of a remote channel (its own index): lane "shm", "" if it says nothing or
   the channel is not this rank's. */
void hd_engine_channel(struct hd_engine *engine, uint32_t channel, struct hd_channel_stats *stats);

#endif /* HEDDLE_ENGINE_ENGINE_H */
