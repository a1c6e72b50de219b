/*
 * tests/test_abi.c - the plugin border, to the byte: size and offset of every public member.
 *
 * tests/golden/abi.txt is what plugins in the field were compiled with.  A member may be added at
 * the end of a struct that begins with its size; whatever else changes a line raises HD_ABI_MAJOR.
 * `test_abi --bless` writes the file anew; read the diff before you commit it.
 */
#include "support/check.h"

#include <heddle/kernel.h>
#include <heddle/schedule.h>
#include <heddle/transport.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *structure, *member; /* member NULL: the struct itself */
    size_t offset, bytes;
};

#define SIZE(structure)                               \
    {                                                 \
#structure, NULL, 0, sizeof(struct structure) \
    }
#define MEMBER(structure, member)                                \
    {                                                            \
#structure, #member, offsetof(struct structure, member), \
            sizeof(((struct structure *)0)->member)              \
    }

/* clang-format off */
static const struct row rows[] = {
    SIZE(hd_option),
    MEMBER(hd_option, name),
    MEMBER(hd_option, initial),
    MEMBER(hd_option, range),
    MEMBER(hd_option, help),
    MEMBER(hd_option, type),
    MEMBER(hd_option, reserved),
    SIZE(hd_option_value),
    MEMBER(hd_option_value, integer),
    MEMBER(hd_option_value, number),
    MEMBER(hd_option_value, text),
    SIZE(hd_error),
    MEMBER(hd_error, size),
    MEMBER(hd_error, status),
    MEMBER(hd_error, rank),
    MEMBER(hd_error, channel),
    MEMBER(hd_error, sequence),
    MEMBER(hd_error, text),
    SIZE(hd_transfer),
    MEMBER(hd_transfer, size),
    MEMBER(hd_transfer, channel),
    MEMBER(hd_transfer, sequence),
    MEMBER(hd_transfer, begin_ns),
    MEMBER(hd_transfer, end_ns),
    MEMBER(hd_transfer, resident_ns),
    SIZE(hd_host),
    MEMBER(hd_host, size),
    MEMBER(hd_host, rank),
    MEMBER(hd_host, rank_count),
    MEMBER(hd_host, option_count),
    MEMBER(hd_host, options),
    MEMBER(hd_host, context),
    MEMBER(hd_host, alloc),
    MEMBER(hd_host, free),
    MEMBER(hd_host, now_ns),
    MEMBER(hd_host, log),
    MEMBER(hd_host, fail),
    MEMBER(hd_host, put),
    MEMBER(hd_host, get),
    MEMBER(hd_host, fence),
    MEMBER(hd_host, trace_transfer),
    MEMBER(hd_host, account),
    MEMBER(hd_host, is_untraced),
    MEMBER(hd_host, reserved),
    SIZE(hd_plugin),
    MEMBER(hd_plugin, magic),
    MEMBER(hd_plugin, size),
    MEMBER(hd_plugin, abi_major),
    MEMBER(hd_plugin, abi_minor),
    MEMBER(hd_plugin, kind),
    MEMBER(hd_plugin, option_count),
    MEMBER(hd_plugin, options),
    MEMBER(hd_plugin, capabilities),
    MEMBER(hd_plugin, name),
    MEMBER(hd_plugin, summary),
    MEMBER(hd_plugin, vendor),
    MEMBER(hd_plugin, version),
    MEMBER(hd_plugin, licence),
    MEMBER(hd_plugin, source),
    MEMBER(hd_plugin, ops),
    SIZE(hd_action),
    MEMBER(hd_action, stage),
    MEMBER(hd_action, microbatch),
    MEMBER(hd_action, kind),
    MEMBER(hd_action, replica),
    MEMBER(hd_action, flags),
    MEMBER(hd_action, ticks),
    SIZE(hd_cost),
    MEMBER(hd_cost, forward),
    MEMBER(hd_cost, backward),
    MEMBER(hd_cost, input_gradient),
    MEMBER(hd_cost, weight_gradient),
    MEMBER(hd_cost, payload_bytes),
    MEMBER(hd_cost, input_gradient_frees_bytes),
    SIZE(hd_shape),
    MEMBER(hd_shape, size),
    MEMBER(hd_shape, rank_count),
    MEMBER(hd_shape, stage_count),
    MEMBER(hd_shape, microbatch_count),
    MEMBER(hd_shape, flags),
    MEMBER(hd_shape, option_count),
    MEMBER(hd_shape, options),
    MEMBER(hd_shape, costs),
    SIZE(hd_plan),
    MEMBER(hd_plan, size),
    MEMBER(hd_plan, capacity),
    MEMBER(hd_plan, count),
    MEMBER(hd_plan, actions),
    SIZE(hd_schedule_ops),
    MEMBER(hd_schedule_ops, size),
    MEMBER(hd_schedule_ops, stages_per_rank),
    MEMBER(hd_schedule_ops, replica_count),
    MEMBER(hd_schedule_ops, reserved),
    MEMBER(hd_schedule_ops, refuse),
    MEMBER(hd_schedule_ops, rank_of),
    MEMBER(hd_schedule_ops, replica_of),
    MEMBER(hd_schedule_ops, scratch_bytes),
    MEMBER(hd_schedule_ops, plan),
    SIZE(hd_channel),
    MEMBER(hd_channel, boundary),
    MEMBER(hd_channel, direction),
    MEMBER(hd_channel, source),
    MEMBER(hd_channel, target),
    MEMBER(hd_channel, depth),
    MEMBER(hd_channel, send_depth),
    MEMBER(hd_channel, bytes),
    SIZE(hd_transport_setup),
    MEMBER(hd_transport_setup, size),
    MEMBER(hd_transport_setup, channel_count),
    MEMBER(hd_transport_setup, channels),
    MEMBER(hd_transport_setup, host),
    MEMBER(hd_transport_setup, inner),
    MEMBER(hd_transport_setup, inner_host),
    MEMBER(hd_transport_setup, deadline_ns),
    MEMBER(hd_transport_setup, memory),
    MEMBER(hd_transport_setup, device),
    MEMBER(hd_transport_setup, alignment_bytes),
    MEMBER(hd_transport_setup, reserved),
    SIZE(hd_message),
    MEMBER(hd_message, sequence),
    MEMBER(hd_message, channel),
    MEMBER(hd_message, group_left),
    SIZE(hd_channel_stats),
    MEMBER(hd_channel_stats, size),
    MEMBER(hd_channel_stats, lane),
    MEMBER(hd_channel_stats, finished_count),
    MEMBER(hd_channel_stats, busy_count),
    MEMBER(hd_channel_stats, resident_ns),
    SIZE(hd_transport_ops),
    MEMBER(hd_transport_ops, size),
    MEMBER(hd_transport_ops, open),
    MEMBER(hd_transport_ops, slot),
    MEMBER(hd_transport_ops, reserve),
    MEMBER(hd_transport_ops, post_send),
    MEMBER(hd_transport_ops, post_recv),
    MEMBER(hd_transport_ops, test),
    MEMBER(hd_transport_ops, wait),
    MEMBER(hd_transport_ops, release),
    MEMBER(hd_transport_ops, progress),
    MEMBER(hd_transport_ops, abort),
    MEMBER(hd_transport_ops, quiesce),
    MEMBER(hd_transport_ops, close),
    MEMBER(hd_transport_ops, stats),
    SIZE(hd_device),
    MEMBER(hd_device, size),
    MEMBER(hd_device, memory),
    MEMBER(hd_device, capabilities),
    MEMBER(hd_device, alignment),
    MEMBER(hd_device, stream),
    MEMBER(hd_device, effective),
    SIZE(hd_stage_spec),
    MEMBER(hd_stage_spec, size),
    MEMBER(hd_stage_spec, layers),
    MEMBER(hd_stage_spec, width),
    MEMBER(hd_stage_spec, heads),
    MEMBER(hd_stage_spec, key_value_heads),
    MEMBER(hd_stage_spec, experts),
    MEMBER(hd_stage_spec, experts_per_token),
    MEMBER(hd_stage_spec, expert_width),
    MEMBER(hd_stage_spec, vocabulary),
    MEMBER(hd_stage_spec, sequence),
    MEMBER(hd_stage_spec, batch),
    MEMBER(hd_stage_spec, normalize_gates),
    MEMBER(hd_stage_spec, rope_theta),
    MEMBER(hd_stage_spec, norm_epsilon),
    MEMBER(hd_stage_spec, init_std),
    MEMBER(hd_stage_spec, balance_weight),
    MEMBER(hd_stage_spec, z_weight),
    MEMBER(hd_stage_spec, precision),
    MEMBER(hd_stage_spec, recompute),
    MEMBER(hd_stage_spec, stage),
    MEMBER(hd_stage_spec, first_block),
    MEMBER(hd_stage_spec, block_count),
    MEMBER(hd_stage_spec, has_embedding),
    MEMBER(hd_stage_spec, has_head),
    MEMBER(hd_stage_spec, split_backward),
    MEMBER(hd_stage_spec, expert_first),
    MEMBER(hd_stage_spec, expert_count),
    MEMBER(hd_stage_spec, scale_rule),
    MEMBER(hd_stage_spec, half_batches),
    MEMBER(hd_stage_spec, forward_us),
    MEMBER(hd_stage_spec, backward_us),
    MEMBER(hd_stage_spec, input_gradient_us),
    MEMBER(hd_stage_spec, weight_gradient_us),
    SIZE(hd_stage_needs),
    MEMBER(hd_stage_needs, size),
    MEMBER(hd_stage_needs, tensor_count),
    MEMBER(hd_stage_needs, term_count),
    MEMBER(hd_stage_needs, boundary_dtype),
    MEMBER(hd_stage_needs, boundary_bytes),
    MEMBER(hd_stage_needs, parameter_bytes),
    MEMBER(hd_stage_needs, optimizer_bytes),
    MEMBER(hd_stage_needs, gradient_bytes),
    MEMBER(hd_stage_needs, payload_bytes),
    MEMBER(hd_stage_needs, scratch_bytes),
    MEMBER(hd_stage_needs, private_bytes),
    MEMBER(hd_stage_needs, forward_flops),
    MEMBER(hd_stage_needs, backward_flops),
    MEMBER(hd_stage_needs, acquisitions),
    MEMBER(hd_stage_needs, reserved),
    MEMBER(hd_stage_needs, memory),
    SIZE(hd_stage_memory),
    MEMBER(hd_stage_memory, size),
    MEMBER(hd_stage_memory, parameters),
    MEMBER(hd_stage_memory, optimizer),
    MEMBER(hd_stage_memory, scratch),
    MEMBER(hd_stage_memory, gradients),
    SIZE(hd_pass),
    MEMBER(hd_pass, size),
    MEMBER(hd_pass, microbatch),
    MEMBER(hd_pass, generation),
    MEMBER(hd_pass, payload),
    MEMBER(hd_pass, input),
    MEMBER(hd_pass, tokens),
    MEMBER(hd_pass, targets),
    MEMBER(hd_pass, output),
    MEMBER(hd_pass, terms),
    MEMBER(hd_pass, output_gradient),
    MEMBER(hd_pass, input_gradient),
    MEMBER(hd_pass, label_scale),
    MEMBER(hd_pass, auxiliary_scale),
    SIZE(hd_tensor),
    MEMBER(hd_tensor, size),
    MEMBER(hd_tensor, dtype),
    MEMBER(hd_tensor, group),
    MEMBER(hd_tensor, initial),
    MEMBER(hd_tensor, decays),
    MEMBER(hd_tensor, dimension_count),
    MEMBER(hd_tensor, shape),
    MEMBER(hd_tensor, gradient_offset),
    MEMBER(hd_tensor, name),
    SIZE(hd_update),
    MEMBER(hd_update, size),
    MEMBER(hd_update, step),
    MEMBER(hd_update, learning_rate),
    MEMBER(hd_update, beta1),
    MEMBER(hd_update, beta2),
    MEMBER(hd_update, epsilon),
    MEMBER(hd_update, weight_decay),
    MEMBER(hd_update, gradient_scale),
    SIZE(hd_kernel_ops),
    MEMBER(hd_kernel_ops, size),
    MEMBER(hd_kernel_ops, open),
    MEMBER(hd_kernel_ops, close),
    MEMBER(hd_kernel_ops, abort),
    MEMBER(hd_kernel_ops, allocate),
    MEMBER(hd_kernel_ops, copy),
    MEMBER(hd_kernel_ops, mark),
    MEMBER(hd_kernel_ops, reached),
    MEMBER(hd_kernel_ops, stage_needs),
    MEMBER(hd_kernel_ops, stage_create),
    MEMBER(hd_kernel_ops, stage_destroy),
    MEMBER(hd_kernel_ops, tensor),
    MEMBER(hd_kernel_ops, tensor_copy),
    MEMBER(hd_kernel_ops, forward),
    MEMBER(hd_kernel_ops, backward),
    MEMBER(hd_kernel_ops, backward_input),
    MEMBER(hd_kernel_ops, backward_weight),
    MEMBER(hd_kernel_ops, norms),
    MEMBER(hd_kernel_ops, update),
};
/* clang-format on */

static const struct {
    const char *name;
    uint64_t value;
} constants[] = {
    {"HD_PLUGIN_MAGIC", HD_PLUGIN_MAGIC},
    {"HD_ABI_MAJOR", HD_ABI_MAJOR},
    {"HD_SEAL_BYTES", HD_SEAL_BYTES},
    {"HD_ACQUISITION_MAX", HD_ACQUISITION_MAX},
    {"HD_DIMENSION_MAX", HD_DIMENSION_MAX},
    {"HD_TENSOR_NAME_MAX", HD_TENSOR_NAME_MAX},
    {"HD_GROUP_COUNT", HD_GROUP_COUNT},
    {"HD_FORWARD", HD_FORWARD},
    {"HD_BACKWARD", HD_BACKWARD},
    {"HD_BACKWARD_INPUT", HD_BACKWARD_INPUT},
    {"HD_BACKWARD_WEIGHT", HD_BACKWARD_WEIGHT},
};

/* The border as text, one line a struct, member or constant; the caller frees it. */
static char *describe(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);

    if (stream == NULL) {
        exit(1);
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(constants); i++) {
        fprintf(stream, "%s %llu\n", constants[i].name, (unsigned long long)constants[i].value);
    }
    for (unsigned i = 0; i < HD_CHECK_COUNT(rows); i++) {
        if (rows[i].member == NULL) {
            fprintf(stream, "\nstruct %s: %zu bytes\n", rows[i].structure, rows[i].bytes);
        } else {
            fprintf(stream, "  %s at %zu, %zu bytes\n", rows[i].member, rows[i].offset,
                    rows[i].bytes);
        }
    }
    fclose(stream);
    return text;
}

static void check_golden(void)
{
    char golden[32768] = "";
    char *now = describe();
    FILE *file = fopen(hd_check_source("tests/golden/abi.txt"), "r");

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    const size_t bytes = fread(golden, 1, sizeof golden - 1, file);
    fclose(file);
    CU_ASSERT(bytes > 0 && bytes < sizeof golden - 1);
    if (strcmp(golden, now) != 0) {
        const char *a = golden;
        const char *b = now;
        for (; *a != '\0' && *a == *b; a++, b++) {
        }
        printf("\nfirst difference, golden: %.60s\nnow: %.60s\n", a, b);
        CU_FAIL("the plugin border has moved");
    }
    free(now);
}

/* The table above must not forget a member: they lie side by side, with gaps of alignment only. */
static void check_complete(void)
{
    size_t end = 0;
    size_t whole = 0;

    for (unsigned i = 0; i <= HD_CHECK_COUNT(rows); i++) {
        if (i == HD_CHECK_COUNT(rows) || rows[i].member == NULL) {
            CU_ASSERT(whole - end < sizeof(void *));
            whole = i < HD_CHECK_COUNT(rows) ? rows[i].bytes : 0;
            end = 0;
            continue;
        }
        CU_ASSERT(rows[i].offset >= end && rows[i].offset - end < sizeof(void *));
        end = rows[i].offset + rows[i].bytes;
    }
}

static int bless(void)
{
    char *now = describe();
    FILE *file = fopen(hd_check_source("tests/golden/abi.txt"), "w");
    const int is_written = file != NULL && fputs(now, file) >= 0 && fclose(file) == 0;

    free(now);
    printf("tests/golden/abi.txt: %s\n", is_written ? "written" : "cannot be written");
    return !is_written;
}

int main(int argument_count, char **arguments)
{
    static const struct hd_check checks[] = {
        {"sizes and offsets are those of the golden file", check_golden},
        {"no member is missing from the table", check_complete},
    };

    if (argument_count > 1 && strcmp(arguments[1], "--bless") == 0) {
        return bless();
    }
    return hd_check_main("abi", checks, HD_CHECK_COUNT(checks));
}
