/*
 * config/config_keys.c - every key of the ini file, one row each, and how to find a row.
 *
 * To add a key, add one row here and one member of the same name to struct hd_config (config.h).
 * Nothing else: the parser, the checks of type and range, `heddle config` with its --json, and
 * error messages read this table.  A rule between two keys goes into config_check.c.  The order of
 * the rows is that of `heddle config`.
 */
#include "base/text.h"
#include "config/internal.h"

#include <stdio.h>
#include <string.h>

#define KEY(section, name, type, initial, range, help)        \
    {                                                         \
#section, #name, initial, range, help, HD_KEY_##type, \
            offsetof(struct hd_config, section.name), NULL    \
    }
/* A key of which this version implements only the value `served`. */
#define PART(section, name, type, initial, range, help, served) \
    {                                                           \
#section, #name, initial, range, help, HD_KEY_##type,   \
            offsetof(struct hd_config, section.name), served    \
    }

/* clang-format off */
const struct hd_key hd_keys[] = {
    KEY(pipeline, schedule, TEXT, "1f1b", "NAME | FILE.so | FILE.csv",
        "plugin or table that gives each rank's order of passes"),
    KEY(pipeline, ranks, COUNT, "4", "1..4096", "worker processes of the pipeline"),
    KEY(pipeline, stages_per_rank, COUNT, "auto", "auto | 1..16384",
        "stages on each rank; auto: as many as the schedule asks for"),
    KEY(pipeline, microbatches, COUNT, "8", "1..65536", "microbatches of one step"),
    KEY(pipeline, overlap, FLAG, "on", "on | off",
        "start a transfer early and wait for it only when its tensor is used"),
    KEY(pipeline, transfer_slots, COUNTS, "auto", "auto | 1..65536",
        "slots of the channels: auto, one number, or a list by remote boundary, forward then "
        "backward"),
    KEY(pipeline, payload_slots, COUNTS, "auto", "auto | 1..65536",
        "payloads that a stage can retain: auto, one number, or a list by stage"),

    KEY(transport, name, TEXT, "shm", "NAME | FILE.so",
        "plugin that moves tensors between ranks"),
    KEY(transport, inner, TEXT, "none", "none | NAME | FILE.so",
        "transport that a hook wraps"),
    KEY(transport, timeout_s, NUMBER, "60", "0<..1000000",
        "seconds without progress after which a wait fails"),
    KEY(transport, first_step_timeout_s, NUMBER, "300", "0<..1000000",
        "the same in the first step"),
    KEY(transport, progress_thread, FLAG, "off", "off | on",
        "run a thread that moves transfers during long passes"),
    KEY(transport, issue_order, CHOICE, "canonical", "canonical | grouped | program",
        "order in which a rank issues transfers on a serial transport (law 7)"),

    KEY(kernels, name, TEXT, "cpu", "NAME | FILE.so", "plugin that computes a stage"),
    KEY(kernels, precision, CHOICE, "bf16", "bf16 | mxfp8 | f32",
        "number format of matrix products"),
    KEY(kernels, recompute, CHOICE, "none", "none | full | experts",
        "what the backward computes again instead of retaining it"),
    KEY(kernels, scale_rule, CHOICE, "up", "up | floor",
        "how mxfp8 rounds the scale of a block"),

    KEY(model, layers, COUNT, "auto", "auto | 1..65536",
        "transformer blocks; auto: 8, or one for each stage if there are more stages"),
    KEY(model, width, COUNT, "128", "2..1048576", "elements of the residual stream"),
    KEY(model, heads, COUNT, "4", "1..65536",
        "attention heads; width must be a multiple of twice this"),
    KEY(model, key_value_heads, COUNT, "auto", "auto | 1..65536",
        "heads of keys and values, a divisor of heads; auto: equal to heads"),
    KEY(model, experts, COUNT, "8", "0..65536",
        "experts of a block; 0: a dense feed-forward layer"),
    KEY(model, experts_per_token, COUNT, "2", "1..65536", "experts that each token is sent to"),
    KEY(model, expert_width, COUNT, "192", "1..1048576", "hidden elements of an expert"),
    KEY(model, vocabulary, COUNT, "256", "2..16777216", "number of different tokens"),
    KEY(model, sequence, COUNT, "128", "1..1048576", "tokens of a sample"),
    KEY(model, rope_theta, NUMBER, "10000", "1..1e12", "base of the rotary position angles"),
    KEY(model, norm_epsilon, NUMBER, "1e-5", "0..1", "added to the mean square in every norm"),
    KEY(model, normalize_gates, FLAG, "off", "off | on",
        "scale the gates of a token's experts so that they sum to 1"),
    KEY(model, balance_loss, NUMBER, "0.01", "0..1000000", "weight of the load balancing loss"),
    KEY(model, z_loss, NUMBER, "0.001", "0..1000000", "weight of the router's z-loss"),
    KEY(model, initial_deviation, NUMBER, "0.02", "0..1000",
        "standard deviation of the initial weights"),
    KEY(model, half_batches, COUNT, "1", "1 | 2",
        "parts into which a forward divides its microbatch"),
    KEY(model, split, COUNTS, "auto", "auto | 1..65536",
        "layers of each stage, such as 4,4,4,3; auto: even, the first stages get the remainder"),

    KEY(data, corpus, TEXT, "builtin", "builtin | FILE", "training text or tokens"),
    KEY(data, format, CHOICE, "auto", "auto | text | tokens",
        "contents of the corpus; auto: tokens for .npy and .bin, else text"),
    KEY(data, token_bytes, COUNT, "auto", "auto | 1 | 2 | 4",
        "bytes of one token; auto: from the vocabulary"),
    KEY(data, microbatch_size, COUNT, "4", "1..65536", "samples of a microbatch"),

    KEY(train, steps, COUNT, "60", "1..1000000000", "optimizer steps of the whole run"),
    KEY(train, learning_rate, NUMBER, "3e-3", "0..1000", "the highest learning rate of the run"),
    KEY(train, warmup_steps, COUNT, "10", "0..1000000000",
        "steps in which the learning rate rises from 0"),
    KEY(train, decay, CHOICE, "none", "none | cosine",
        "how the learning rate falls after the warm-up"),
    KEY(train, final_rate, NUMBER, "0.1", "0..1",
        "learning rate at the end of the decay, as a fraction of learning_rate"),
    KEY(train, weight_decay, NUMBER, "0.1", "0..1000", "weight decay of AdamW"),
    KEY(train, beta1, NUMBER, "0.9", "0..<1", "decay of AdamW's first moment"),
    KEY(train, beta2, NUMBER, "0.95", "0..<1", "decay of AdamW's second moment"),
    KEY(train, epsilon, NUMBER, "1e-8", "0<..1", "epsilon of AdamW"),
    KEY(train, clip_norm, NUMBER, "1.0", "0..1e12",
        "largest global norm of the gradient; 0: no clipping"),
    KEY(train, skip_max, COUNT, "0", "0..1000000",
        "consecutive steps that may be skipped because a value is not finite"),
    KEY(train, seed, SEED, "1", "0..18446744073709551615",
        "seed of the initial weights"),

    KEY(cost, forward, NUMBERS, "1", "0..1e12",
        "ticks of a forward: one number, or one for each stage"),
    KEY(cost, backward, NUMBERS, "2", "0..1e12", "ticks of a whole backward"),
    KEY(cost, input_gradient, NUMBERS, "1", "0..1e12",
        "ticks of a backward's half for the input gradient"),
    KEY(cost, weight_gradient, NUMBERS, "1", "0..1e12",
        "ticks of a backward's half for the weight gradient"),
    KEY(cost, transfer, NUMBERS, "0", "0..1e12",
        "ticks of a transfer: one number, or one for each boundary"),
    KEY(cost, mode, CHOICE, "overlapped", "overlapped | blocking | serial",
        "what a transfer blocks: nothing, both ranks, or their other transfers"),
    KEY(cost, tick_us, NUMBER, "1000", "0..1e9", "microseconds of one tick"),
    PART(cost, from, TEXT, "none", "none | DIRECTORY",
         "run directory to take measured costs from", "none"),

    KEY(memory, budget_gb, NUMBER, "none", "none | 0<..1e9",
        "memory that a rank may use, in 1e9 bytes"),
    KEY(memory, copy_gb, NUMBER, "auto", "auto | 0..1e9",
        "memory of one payload; auto: from the kernels"),
    KEY(memory, state_gb, NUMBER, "auto", "auto | 0..1e9",
        "memory of one stage's parameters, gradients and moments; auto: from the kernels"),

    KEY(output, directory, PATH, "auto", "auto | DIRECTORY",
        "directory that a run writes; auto: runs/NAME-YYYYMMDD-HHMMSS"),
    KEY(output, trace, FLAG, "on", "on | off", "record the times of actions"),
    KEY(output, trace_steps, COUNT, "3", "1..1000000", "number of last steps in the trace"),
    KEY(output, checkpoint_every, STEPS, "0", "0..1000000000 | never",
        "steps between checkpoints; 0: only at the end and on a signal"),

    KEY(debug, poison, FLAG, "off", "off | on", "fill released and claimed slots with NaN"),
    KEY(debug, checksum, FLAG, "off", "off | on", "add a checksum to every message"),
    KEY(debug, fault, CHOICE, "none",
        "none | lease_off | early_release | forward_order | unproven_order",
        "deliberate fault: reuse payload slots too early, or run without law 7"),

    PART(grid, data, COUNT, "1", "1..4096",
         "copies of the pipeline, each with its own samples", "1"),
    PART(grid, expert, COUNT, "1", "1..4096", "ranks that share the experts of a stage", "1"),

    KEY(bench, sizes, TEXT, "8:64M:x4", "FIRST[:LAST[:xFACTOR]]", "message sizes of bench p2p"),
    KEY(bench, iterations, COUNT, "auto", "auto | 1..1000000000", "measured repetitions"),
    KEY(bench, warmup, COUNT, "auto", "auto | 1..1000000000",
        "repetitions before the first measured one"),
    KEY(bench, window, COUNT, "depth", "depth | 1..65536",
        "messages that bench p2p sends before it waits"),
    KEY(bench, direction, CHOICE, "one", "one | both",
        "whether bench p2p sends one way or both ways at once"),
    KEY(bench, against, TEXT, "none", "none | NAME | FILE.so",
        "transport that bench p2p and bench skew compare with"),
};
/* clang-format on */

const uint32_t hd_key_count = sizeof hd_keys / sizeof hd_keys[0];

const struct hd_key *hd_key_find(const char *section, const char *name)
{
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].section, section) == 0 && strcmp(hd_keys[i].name, name) == 0) {
            return &hd_keys[i];
        }
    }
    return NULL;
}

static bool config_keys_is_plugin_section(const char *section)
{
    char kind[64];
    const char *dot = strchr(section, '.');

    if (dot == NULL || (size_t)(dot - section) >= sizeof kind) {
        return false;
    }
    memcpy(kind, section, (size_t)(dot - section));
    kind[dot - section] = '\0';
    return hd_kind_of_name(kind) != 0;
}

hd_status hd_section_check(const char *section, struct hd_problem *problem)
{
    struct hd_nearest nearest = {.wanted = section};

    if (config_keys_is_plugin_section(section)) {
        if (hd_text_is_name(strchr(section, '.') + 1)) {
            return HD_OK;
        }
        hd_problem_key(problem, "[%.100s]", section);
        hd_problem_remedy(problem, "use a name that `heddle list` shows");
        return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE,
                              "a plugin's name has only a-z, 0-9 and _, at most 48 bytes");
    }
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].section, section) == 0) {
            return HD_OK;
        }
        hd_nearest_offer(&nearest, hd_keys[i].section);
    }
    hd_problem_key(problem, "[%.100s]", section);
    hd_problem_remedy(problem, "the nearest one is [%s]", nearest.name);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such section");
}

hd_status hd_key_unknown(const char *section, const char *name, struct hd_problem *problem)
{
    struct hd_nearest nearest = {.wanted = name};

    hd_problem_key(problem, "%.60s.%.60s", section, name);
    for (uint32_t i = 0; i < hd_key_count; i++) {
        if (strcmp(hd_keys[i].name, name) == 0) {
            hd_problem_remedy(problem, "it belongs to [%s]", hd_keys[i].section);
            return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such key");
        }
        if (strcmp(hd_keys[i].section, section) == 0) {
            hd_nearest_offer(&nearest, hd_keys[i].name);
        }
    }
    hd_problem_remedy(problem, "the nearest one is %s.%s", section, nearest.name);
    return hd_problem_set(problem, HD_INVALID, HD_EXIT_USAGE, "no such key");
}
