/*
 * engine/engine.h - runs one rank's steps: the only code that meets all three plugin kinds.
 *
 * An engine holds the rank's program, its stages on an opened kernel, the lanes (transport channels
 * and local handoffs), the payload pools and the recorder.  A step walks the program: it waits for
 * what the action consumes, claims the slot that the action writes, runs the pass, sends the
 * output, and gives back what the action has used up.  With overlap, receives are posted early,
 * else just before their wait.  The source never waits after a send.
 *
 * hd_engine_create allocates everything.  One thread runs the engine.  A watchdog thread moves the
 * heartbeat, reads the board's abort word, and ends waits.  An error fills one struct hd_problem
 * and is written to the board too, so that all ranks end.
 */
#ifndef HEDDLE_ENGINE_ENGINE_H
#define HEDDLE_ENGINE_ENGINE_H

#include "base/problem.h"
#include "engine/board.h"
#include "engine/recorder.h"
#include "plan/pipeline.h"

#include <heddle/kernel.h>
#include <heddle/transport.h>

#include <stdbool.h>

struct hd_engine; /* opaque */

struct hd_bootstrap; /* of launch/launch.h, or a test's own; the engine only hands it on */

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
    const struct hd_option_value *kernel_options, *transport_options,
        *inner_options;   /* in the order of their tables */
    bool progress_thread; /* asks for a progress thread; some transports get one anyway */
    struct hd_engine_bootstrap bootstrap;
    struct hd_board *board;
    bool overlap, poison, checksum;
    uint32_t fault;        /* enum hd_lease_fault; a pool that forgets its owners has a slot less */
    uint32_t trace_steps;  /* how many of the last steps are kept; 0: only the sums */
    bool trace_alternates; /* keeps only the odd ones (bench) */
    uint32_t steps_before; /* the first step is called steps_before + 1 */
    bool counts_wait_cpu;  /* fills hd_step_times.wait_cpu_ns, with two system calls a wait */
};

extern const char *const hd_engine_memory_remedy; /* the remedy for HD_NO_MEMORY */
hd_status hd_engine_create(const struct hd_engine_setup *setup, struct hd_engine **engine,
                           struct hd_problem *problem);

/* After a clean run: quiesces, meets the other ranks, closes.  After an error: acts alone, and
   leaks the memory that a peer may still write.  Takes NULL. */
void hd_engine_destroy(struct hd_engine *engine);

/* What a step reads: borrowed for the call. */
struct hd_step_input {
    uint32_t step;                 /* from 1; a resumed run begins at a later one */
    const int32_t *const *tokens;  /* [microbatch_count] -> [batch, sequence]; NULL: this rank has
                                      no stage with the embedding */
    const int32_t *const *targets; /* the same for the head */
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
    uint32_t copy;  /* enum hd_copy; hd_engine_tensor ignores it */
};

/* Tensors of a local stage (kernel.h): the description of one; one whole copy, out of or into the
   stage; squared gradient norms [tensor_count]; the optimizer, on all stages. */
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

/* Publishes a phase that belongs to no action (together, update, done). */
void hd_engine_phase(struct hd_engine *engine, uint32_t phase);

/* This rank has not failed and its abort word is clear: its vote on a step. */
bool hd_engine_is_sound(const struct hd_engine *engine);

/* The most payload slots that were leased at once so far, in all pools of the rank together: the
   plan calls them copies. */
uint64_t hd_engine_peak_slots(const struct hd_engine *engine);

struct hd_recorder *hd_engine_recorder(struct hd_engine *engine);
const char *hd_engine_device(const struct hd_engine *engine); /* "cpu oneDNN ..."; static */

/* After the last step: waits for any other thread inside the transport (of a hook, for example), so
   that the recorder has all that the transport reports. */
void hd_engine_settle(struct hd_engine *engine);

/* The transport's statistics of a remote channel (by the transport's index).  `lane` is what
   carries it, "shm"; "" if the transport does not say, or the channel is not this rank's. */
void hd_engine_channel(struct hd_engine *engine, uint32_t channel, struct hd_channel_stats *stats);

#endif /* HEDDLE_ENGINE_ENGINE_H */
