#include "conform/kernel_checks.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_MAX = 512 };

void hd_conform_kernel_device(struct hd_conform_case *check)
{
    struct hd_kernel_rig rig;
    _Alignas(8) unsigned char small[sizeof(struct hd_device)];
    const uint32_t room = offsetof(struct hd_device, capabilities);

    if (hd_kernel_rig_open_device(&rig, check) != HD_OK) {
        return;
    }
    const struct hd_device *device = &rig.harness.device;
    const uint64_t alignment = device->alignment;
    HD_HOLD(check, alignment >= 1 && alignment <= 4096 && (alignment & (alignment - 1)) == 0,
            "the alignment of %llu bytes is not a power of two from 1 to 4096",
            (unsigned long long)alignment);
    HD_HOLD(check, device->memory <= HD_MEMORY_CUDA, "the device has unknown memory kind %u",
            device->memory);
    HD_HOLD(check, device->effective != NULL && device->effective[0] != '\0',
            "the device does not describe itself");
    HD_HOLD(check, ((device->capabilities & HD_KERNEL_STREAM) != 0) == (device->stream != NULL),
            "the STREAM capability and the stream pointer contradict each other");
    hd_conform_remark(check, "%s", device->effective);
    rig.harness.ops->close(rig.harness.kernel);
    HD_HOLD(check, hd_conform_held_bytes() == 0, "close does not free %llu bytes of the host",
            (unsigned long long)hd_conform_held_bytes());
    rig.harness.ops->close(NULL);

    /* A caller built with an older header passes a smaller struct. */
    memset(small, 0x5a, sizeof small);
    memcpy(small, &room, sizeof room);
    const hd_status status = rig.harness.ops->open(
        &rig.harness.host, 0, (struct hd_device *)(void *)small, &rig.harness.kernel);
    HD_HOLD(check, status == HD_OK, "open returns %s the second time", hd_status_name(status));
    for (uint32_t i = room; i < sizeof small; i++) {
        HD_HOLD(check, small[i] == 0x5a, "open writes past the %u bytes of struct hd_device", room);
    }
    rig.harness.ops->close(rig.harness.kernel);
}

/* --- needs --------------------------------------------------------------------------------- */

static hd_status kernel_api_ask(struct hd_conform_case *check, const struct hd_stage_spec *model,
                                uint32_t first_block, uint32_t block_count,
                                struct hd_stage_needs *needs)
{
    const struct hd_kernel_ops *ops = check->plugin->ops;
    struct hd_stage_spec spec = *model;

    spec.first_block = first_block;
    spec.block_count = block_count;
    spec.has_embedding = first_block == 0;
    spec.has_head = first_block + block_count == spec.layers;
    memset(needs, 0, sizeof *needs);
    needs->size = sizeof *needs;
    return ops->stage_needs(&check->host, &spec, needs);
}

static uint64_t kernel_api_boundary_bytes_of(const struct hd_stage_spec *model, uint32_t dtype)
{
    const uint64_t element = dtype == HD_F64 ? 8 : dtype == HD_F32 ? 4 : 2;
    return (uint64_t)model->batch * model->sequence * model->width * element;
}

static void kernel_api_judge_cuts(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    struct hd_stage_needs whole, again, part[HD_KERNEL_RIG_BLOCKS], sum = {0};
    const char *variant = hd_variant_name(model);

    const hd_status status = kernel_api_ask(check, model, 0, HD_KERNEL_RIG_BLOCKS, &whole);
    HD_HOLD(check, status == HD_OK, "%s: the second stage_needs returns %s", variant,
            hd_status_name(status));
    for (uint32_t block = 0; block < HD_KERNEL_RIG_BLOCKS; block++) {
        HD_HOLD(check, kernel_api_ask(check, model, block, 1, &part[block]) == HD_OK,
                "%s: four blocks are supported, but block %u alone is not", variant, block);
        sum.tensor_count += part[block].tensor_count;
        sum.term_count += part[block].term_count;
        sum.gradient_bytes[0] += part[block].gradient_bytes[0];
        HD_HOLD(check,
                part[block].boundary_bytes == part[0].boundary_bytes &&
                    part[block].boundary_dtype == part[0].boundary_dtype,
                "%s: block %u has another boundary than block 0", variant, block);
        HD_HOLD(check, part[block].payload_bytes >= sizeof(uint64_t),
                "%s: a payload of %llu bytes has no room for the stamp", variant,
                (unsigned long long)part[block].payload_bytes);
        HD_HOLD(check, part[block].acquisitions <= HD_ACQUISITION_MAX,
                "%s: %u acquisitions are too many", variant, part[block].acquisitions);
    }
    kernel_api_ask(check, model, 0, HD_KERNEL_RIG_BLOCKS, &again);
    HD_HOLD(check, memcmp(&whole, &again, sizeof whole) == 0,
            "%s: equal calls of stage_needs give different needs", variant);
    HD_HOLD(check, sum.tensor_count == whole.tensor_count && sum.term_count == whole.term_count,
            "%s: four blocks have %u tensors and %u terms, but their sums are %u and %u", variant,
            whole.tensor_count, whole.term_count, sum.tensor_count, sum.term_count);
    HD_HOLD(check,
            part[0].boundary_dtype <= HD_BF16 &&
                (model->precision == HD_PRECISION_F32 || part[0].boundary_dtype == HD_BF16),
            "%s: the boundary has dtype %u", variant, part[0].boundary_dtype);
    HD_HOLD(check,
            whole.tensor_count == 0 || part[0].boundary_bytes == kernel_api_boundary_bytes_of(
                                                                     model, part[0].boundary_dtype),
            "%s: the boundary has %llu bytes", variant, (unsigned long long)part[0].boundary_bytes);
}

/* A caller built with an older header passes a smaller struct. */
static void kernel_api_judge_room(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    const struct hd_kernel_ops *ops = check->plugin->ops;
    const uint32_t room = offsetof(struct hd_stage_needs, private_bytes);
    _Alignas(8) unsigned char small[sizeof(struct hd_stage_needs)];
    struct hd_stage_spec spec = *model;

    spec.block_count = spec.layers;
    spec.has_embedding = spec.has_head = 1;
    memset(small, 0x5a, sizeof small);
    memcpy(small, &room, sizeof room);
    ops->stage_needs(&check->host, &spec, (struct hd_stage_needs *)(void *)small);
    for (uint32_t i = room; i < sizeof small; i++) {
        HD_HOLD(check, small[i] == 0x5a,
                "stage_needs writes past the %u bytes of struct hd_stage_needs", room);
    }
}

static void kernel_api_judge_needs(struct hd_conform_case *check, const struct hd_stage_spec *model)
{
    struct hd_stage_spec dense = *model;

    kernel_api_judge_cuts(check, model);
    dense.experts = dense.experts_per_token = dense.expert_count = 0;
    struct hd_stage_needs needs;
    if (!hd_conform_is_decided(check) && kernel_api_ask(check, &dense, 0, 1, &needs) == HD_OK) {
        kernel_api_judge_cuts(check, &dense);
    }
    if (!hd_conform_is_decided(check)) {
        kernel_api_judge_room(check, model);
    }
}

void hd_conform_kernel_needs(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_api_judge_needs);
}

void hd_conform_kernel_refusal(struct hd_conform_case *check)
{
    struct hd_stage_spec models[5];
    uint32_t refused_count = 0;

    for (uint32_t i = 0; i < 5; i++) {
        models[i] = hd_conform_model(i < 3 ? i : HD_PRECISION_BF16);
    }
    models[3].recompute = HD_RECOMPUTE_FULL;
    models[4].half_batches = 2;
    for (uint32_t i = 0; i < 5; i++) {
        struct hd_stage_needs needs;
        check->report = (struct hd_conform_report){0};
        const hd_status status = kernel_api_ask(check, &models[i], 0, HD_KERNEL_RIG_BLOCKS, &needs);
        if (status == HD_OK) {
            continue;
        }
        refused_count++;
        HD_HOLD(check, status < 0, "stage_needs returns %s", hd_status_name(status));
        HD_HOLD(check,
                check->report.count == 1 && check->report.status == status &&
                    strchr(check->report.text, ' ') != NULL,
                "%s: stage_needs returns %s and reports \"%s\", %u times",
                hd_variant_name(&models[i]), hd_status_name(status), check->report.text,
                check->report.count);
    }
    hd_conform_remark(check, "%u of 5 refused", refused_count);
}

/* --- tensors ------------------------------------------------------------------------------- */

static uint64_t kernel_api_element_count(const struct hd_tensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

static void kernel_api_judge_tensor(struct hd_conform_case *check, const struct hd_tensor *tensor,
                                    uint32_t index)
{
    HD_HOLD(check,
            memchr(tensor->name, '\0', HD_TENSOR_NAME_MAX) != NULL && tensor->name[0] != '\0',
            "tensor %u has no terminated name", index);
    HD_HOLD(check, tensor->dimension_count >= 1 && tensor->dimension_count <= HD_DIMENSION_MAX,
            "%s has %u dimensions", tensor->name, tensor->dimension_count);
    HD_HOLD(check, tensor->dtype == HD_F32 || tensor->dtype == HD_F64, "%s has dtype %u",
            tensor->name, tensor->dtype);
    HD_HOLD(check, tensor->group < HD_GROUP_COUNT, "%s has group %u", tensor->name, tensor->group);
    HD_HOLD(check, tensor->initial <= HD_INITIAL_NORMAL && tensor->decays <= 1,
            "%s has initial %u and decays %u", tensor->name, tensor->initial, tensor->decays);
    HD_HOLD(check, kernel_api_element_count(tensor) > 0, "%s has no elements", tensor->name);
}

/* Names are unique in the whole model, places within one stage. */
static void kernel_api_judge_pair(struct hd_conform_case *check, const struct hd_tensor *one,
                                  const struct hd_tensor *other, bool is_same_stage)
{
    HD_HOLD(check, strcmp(one->name, other->name) != 0, "two tensors have the name %s", one->name);
    if (!is_same_stage || one->group != other->group) {
        return;
    }
    /* An element of a gradient has at least four bytes. */
    const struct hd_tensor *first = one->gradient_offset < other->gradient_offset ? one : other;
    const struct hd_tensor *second = first == one ? other : one;
    HD_HOLD(check,
            first->gradient_offset + kernel_api_element_count(first) * 4 <= second->gradient_offset,
            "the gradients of %s and %s overlap", first->name, second->name);
}

void hd_conform_kernel_tensors(struct hd_kernel_rig *rig)
{
    static struct hd_tensor tensors[TENSOR_MAX];
    struct hd_conform_case *check = rig->check;
    const struct hd_chain *chain = &rig->chain;

    assert(chain->tensor_count <= TENSOR_MAX);
    for (uint32_t i = 0; i < chain->tensor_count; i++) {
        const uint32_t stage = i >= chain->stages[1].first_tensor;
        const struct hd_chain_stage *at = &chain->stages[stage];
        struct hd_tensor *tensor = &tensors[i];
        memset(tensor, 0, sizeof *tensor);
        tensor->size = sizeof *tensor;
        const hd_status status = rig->harness.ops->tensor(at->stage, i - at->first_tensor, tensor);
        HD_HOLD(check, status == HD_OK, "tensor %u of %u returns %s", i - at->first_tensor,
                at->needs.tensor_count, hd_status_name(status));
        kernel_api_judge_tensor(check, tensor, i);
        HD_HOLD(check,
                tensor->gradient_offset + kernel_api_element_count(tensor) * 4 <=
                    at->needs.gradient_bytes[tensor->group],
                "the gradient of %s ends past its region", tensor->name);
        for (uint32_t k = 0; k < i && !hd_conform_is_decided(check); k++) {
            kernel_api_judge_pair(check, tensor, &tensors[k], k >= at->first_tensor);
        }
        if (hd_conform_is_decided(check)) {
            return;
        }
    }
    struct hd_tensor none = {.size = sizeof none};
    HD_HOLD(check,
            rig->harness.ops->tensor(chain->stages[0].stage, chain->stages[0].needs.tensor_count,
                                     &none) < 0,
            "tensor succeeds for an index past the last one");
}

/* What the check writes into element `at` of a copy. */
static double kernel_api_value(const struct hd_conform_case *check, uint32_t copy, uint64_t at)
{
    return (double)(hd_conform_mix(check->subject->seed ^ ((uint64_t)copy << 40) ^ at) % 4096) /
           4096;
}

/* Everything is written before anything is read, so copies that share memory are found. */
void hd_conform_kernel_copies(struct hd_kernel_rig *rig)
{
    struct hd_conform_case *check = rig->check;
    struct hd_chain *chain = &rig->chain;
    const uint32_t count = 3 * chain->tensor_count; /* masters, first and second moments */

    for (uint32_t i = 0; i < 2 * count; i++) {
        const uint32_t tensor = i % count / 3, copy = HD_MASTER + i % 3;
        const bool is_reading = i >= count;
        struct hd_tensor about;
        const uint64_t elements = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(elements * sizeof *values);
        bool is_kept = true;
        assert(values != NULL);
        for (uint64_t k = 0; k < elements; k++) {
            values[k] = kernel_api_value(check, i % count, k);
        }
        if (!is_reading) {
            hd_chain_write(chain, tensor, copy, values);
        } else {
            hd_chain_read(chain, tensor, copy, values);
        }
        for (uint64_t k = 0; is_reading && k < elements; k++) {
            const double wanted = kernel_api_value(check, i % count, k);
            is_kept = is_kept && memcmp(&values[k], &wanted, sizeof wanted) == 0;
        }
        free(values);
        HD_HOLD(check, is_kept, "%s: copy %u of %s does not read back as it was written",
                rig->variant, copy, about.name);
    }
}
