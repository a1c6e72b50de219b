#include "conform/kernel.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_MAX = 512 };

void hd_conform_kernel_device(struct hd_conform_case *check)
{
    struct hd_bench bench;
    _Alignas(8) unsigned char small[sizeof(struct hd_device)];
    const uint32_t room = offsetof(struct hd_device, capabilities);

    if (hd_bench_open_device(&bench, check) != HD_OK) {
        return;
    }
    const struct hd_device *device = &bench.harness.device;
    const uint64_t alignment = device->alignment;
    HD_HOLD(check, alignment >= 1 && alignment <= 4096 && (alignment & (alignment - 1)) == 0,
            "an alignment of %llu bytes", (unsigned long long)alignment);
    HD_HOLD(check, device->memory <= HD_MEMORY_CUDA, "memory of kind %u", device->memory);
    HD_HOLD(check, device->effective != NULL && device->effective[0] != '\0',
            "it does not say what it opened");
    HD_HOLD(check, ((device->capabilities & HD_KERNEL_STREAM) != 0) == (device->stream != NULL),
            "it is asynchronous and has no stream, or the other way round");
    hd_conform_remark(check, "%s", device->effective);
    bench.harness.ops->close(bench.harness.kernel);
    HD_HOLD(check, hd_conform_held_bytes() == 0, "close leaves %llu bytes of the host's",
            (unsigned long long)hd_conform_held_bytes());
    bench.harness.ops->close(NULL);

    /* A caller of an older header has less room. */
    memset(small, 0x5a, sizeof small);
    memcpy(small, &room, sizeof room);
    const hd_status status = bench.harness.ops->open(
        &bench.harness.host, 0, (struct hd_device *)(void *)small, &bench.harness.kernel);
    HD_HOLD(check, status == HD_OK, "open returns %s the second time", hd_status_name(status));
    for (uint32_t i = room; i < sizeof small; i++) {
        HD_HOLD(check, small[i] == 0x5a, "open writes past the %u bytes of hd_device it was given",
                room);
    }
    bench.harness.ops->close(bench.harness.kernel);
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
    struct hd_stage_needs whole, again, part[HD_BENCH_BLOCKS], sum = {0};
    const char *precision = hd_model_name(model);

    const hd_status status = kernel_api_ask(check, model, 0, HD_BENCH_BLOCKS, &whole);
    HD_HOLD(check, status == HD_OK, "%s: stage_needs returns %s, then", precision,
            hd_status_name(status));
    for (uint32_t block = 0; block < HD_BENCH_BLOCKS; block++) {
        HD_HOLD(check, kernel_api_ask(check, model, block, 1, &part[block]) == HD_OK,
                "%s: serves four blocks and not block %u alone", precision, block);
        sum.tensor_count += part[block].tensor_count;
        sum.term_count += part[block].term_count;
        sum.gradient_bytes[0] += part[block].gradient_bytes[0];
        HD_HOLD(check,
                part[block].boundary_bytes == part[0].boundary_bytes &&
                    part[block].boundary_dtype == part[0].boundary_dtype,
                "%s: block %u has another boundary than block 0", precision, block);
        HD_HOLD(check, part[block].payload_bytes >= sizeof(uint64_t),
                "%s: a payload of %llu bytes has no room for the stamp", precision,
                (unsigned long long)part[block].payload_bytes);
        HD_HOLD(check, part[block].acquisitions <= HD_ACQUISITION_MAX, "%s: %u acquisitions",
                precision, part[block].acquisitions);
    }
    kernel_api_ask(check, model, 0, HD_BENCH_BLOCKS, &again);
    HD_HOLD(check, memcmp(&whole, &again, sizeof whole) == 0,
            "%s: asked again it needs other bytes", precision);
    HD_HOLD(check, sum.tensor_count == whole.tensor_count && sum.term_count == whole.term_count,
            "%s: four blocks have %u tensors and %u terms, one by one %u and %u", precision,
            whole.tensor_count, whole.term_count, sum.tensor_count, sum.term_count);
    HD_HOLD(check,
            part[0].boundary_dtype <= HD_BF16 &&
                (model->precision == HD_PRECISION_F32 || part[0].boundary_dtype == HD_BF16),
            "%s: a boundary of dtype %u", precision, part[0].boundary_dtype);
    HD_HOLD(check,
            whole.tensor_count == 0 || part[0].boundary_bytes == kernel_api_boundary_bytes_of(
                                                                     model, part[0].boundary_dtype),
            "%s: a boundary of %llu bytes", precision, (unsigned long long)part[0].boundary_bytes);
}

/* A caller of an older header has less room. */
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
                "stage_needs writes past the %u bytes of hd_stage_needs it was given", room);
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
        const hd_status status = kernel_api_ask(check, &models[i], 0, HD_BENCH_BLOCKS, &needs);
        if (status == HD_OK) {
            continue;
        }
        refused_count++;
        HD_HOLD(check, status < 0, "stage_needs returns %s", hd_status_name(status));
        HD_HOLD(check,
                check->report.count == 1 && check->report.status == status &&
                    strchr(check->report.text, ' ') != NULL,
                "%s: it returns %s and says \"%s\", %u times", hd_model_name(&models[i]),
                hd_status_name(status), check->report.text, check->report.count);
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
            "tensor %u has no name that ends", index);
    HD_HOLD(check, tensor->dimension_count >= 1 && tensor->dimension_count <= HD_DIMENSION_MAX,
            "%s has %u dimensions", tensor->name, tensor->dimension_count);
    HD_HOLD(check, tensor->dtype == HD_F32 || tensor->dtype == HD_F64, "%s crosses as dtype %u",
            tensor->name, tensor->dtype);
    HD_HOLD(check, tensor->group < HD_GROUP_COUNT, "%s is of group %u", tensor->name,
            tensor->group);
    HD_HOLD(check, tensor->initial <= HD_INITIAL_NORMAL && tensor->decays <= 1,
            "%s begins as %u and decays %u", tensor->name, tensor->initial, tensor->decays);
    HD_HOLD(check, kernel_api_element_count(tensor) > 0, "%s has no elements", tensor->name);
}

/* Names differ over the whole model; places within one stage do. */
static void kernel_api_judge_pair(struct hd_conform_case *check, const struct hd_tensor *one,
                                  const struct hd_tensor *other, int is_same_stage)
{
    HD_HOLD(check, strcmp(one->name, other->name) != 0, "two tensors are called %s", one->name);
    if (!is_same_stage || one->group != other->group) {
        return;
    }
    /* Gradients are of four bytes at least, so tensors that begin this close overlap. */
    const struct hd_tensor *first = one->gradient_offset < other->gradient_offset ? one : other;
    const struct hd_tensor *second = first == one ? other : one;
    HD_HOLD(check,
            first->gradient_offset + kernel_api_element_count(first) * 4 <= second->gradient_offset,
            "the gradients of %s and %s overlap", first->name, second->name);
}

static void kernel_api_judge_tensors(struct hd_conform_case *check,
                                     const struct hd_stage_spec *model)
{
    static struct hd_tensor tensors[TENSOR_MAX];
    static const struct hd_cut cut = {{1, 3}, 2};
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &cut) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    const struct hd_chain *chain = &bench.chain;
    assert(chain->tensor_count <= TENSOR_MAX);
    for (uint32_t i = 0; i < chain->tensor_count; i++) {
        const uint32_t stage = i >= chain->stages[1].first_tensor;
        const struct hd_chain_stage *at = &chain->stages[stage];
        struct hd_tensor *tensor = &tensors[i];
        memset(tensor, 0, sizeof *tensor);
        tensor->size = sizeof *tensor;
        const hd_status status = bench.harness.ops->tensor(at->stage, i - at->first_tensor, tensor);
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
            bench.harness.ops->tensor(chain->stages[0].stage, chain->stages[0].needs.tensor_count,
                                      &none) < 0,
            "there is a tensor past the last one");
    hd_bench_close(&bench);
}

void hd_conform_kernel_tensors(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_api_judge_tensors);
}

static void kernel_api_judge_copies(struct hd_conform_case *check,
                                    const struct hd_stage_spec *model)
{
    static const uint32_t copies[] = {HD_MASTER, HD_MOMENT1, HD_MOMENT2};
    struct hd_bench bench;

    if (!hd_bench_open(&bench, check, model, &hd_cut_whole) || !hd_bench_has_tensors(&bench)) {
        return;
    }
    struct hd_chain *chain = &bench.chain;
    for (uint32_t i = 0; i < 3 * chain->tensor_count; i++) {
        const uint32_t tensor = i / 3, copy = copies[i % 3];
        struct hd_tensor about;
        const uint64_t count = hd_chain_tensor(chain, tensor, &about);
        double *values = malloc(2 * count * sizeof *values);
        assert(values != NULL);
        for (uint64_t k = 0; k < count; k++) {
            values[k] = (double)(hd_conform_draw(check) % 4096) / 4096;
        }
        hd_chain_write(chain, tensor, copy, values);
        hd_chain_read(chain, tensor, copy, values + count);
        const int differs = memcmp(values, values + count, count * sizeof *values);
        free(values);
        HD_HOLD(check, differs == 0, "%s: copy %u of %s is not read back as it was written",
                bench.precision, copy, about.name);
    }
    hd_bench_close(&bench);
}

void hd_conform_kernel_copies(struct hd_conform_case *check)
{
    hd_conform_each_variant(check, kernel_api_judge_copies);
}
