#include "conform/mirror.h"

#include "base/clock.h"
#include "base/try.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, PAIR_MAX = 14, STAGING_BYTES = 1024 * PAGE_BYTES, PART_ALIGNMENT = 256 };

/* What the suite gets as the kernel. */
struct hd_kernel {
    const struct hd_kernel_ops *ops; /* of the plugin */
    const struct hd_host *host;
    struct hd_kernel *kernel;
    struct hd_kernel_ops table; /* NULL where the plugin has NULL */
    unsigned char *staging;     /* whole pages, reused by every copy */
    uint64_t limit_ns;
};

/* A range of host memory and its copy on the device. */
struct pair {
    void *host, *device;
    uint64_t bytes;
};

struct hd_stage {
    struct hd_kernel *mirror;
    struct hd_stage *stage; /* of the plugin */
    struct hd_stage_needs needs;
    uint64_t token_bytes;
    struct pair regions[5];
    void *payload[HD_ACQUISITION_MAX], *input, *input_gradient, *output, *output_gradient;
    void *tokens, *targets, *terms, *squares;
};

static hd_status mirror_rest(const struct hd_kernel *mirror)
{
    uint64_t mark, passed_ns;

    HD_TRY(mirror->ops->mark(mirror->kernel, &mark));
    const hd_status status =
        mirror->ops->reached(mirror->kernel, mark, mirror->limit_ns, &passed_ns);
    return status == HD_IN_PROGRESS ? HD_TIMEOUT : status;
}

/* Ranges that follow each other in the staging buffer and are copied before one wait. */
struct batch {
    struct pair parts[PAIR_MAX];
    uint64_t offsets[PAIR_MAX], used_bytes;
    uint32_t count;
};

/* Adds as much of `pair` from byte `at` on as fits; returns the bytes added. */
static uint64_t mirror_add_part(struct batch *batch, const struct pair *pair, uint64_t at)
{
    const uint64_t left = pair->bytes - at, room = STAGING_BYTES - batch->used_bytes;
    const uint64_t bytes = left < room ? left : room;

    if (bytes == 0 || batch->count == PAIR_MAX) {
        return 0;
    }
    batch->parts[batch->count] =
        (struct pair){(unsigned char *)pair->host + at, (unsigned char *)pair->device + at, bytes};
    batch->offsets[batch->count++] = batch->used_bytes;
    batch->used_bytes += (bytes + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
    return bytes;
}

static hd_status mirror_go_up(const struct hd_kernel *mirror, const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct pair *part = &batch->parts[i];
        unsigned char *staged = mirror->staging + batch->offsets[i];
        memcpy(staged, part->host, part->bytes);
        HD_TRY(mirror->ops->copy(mirror->kernel, part->device, staged, part->bytes, 0));
    }
    return HD_OK;
}

/* Unchanged bytes are not written, because their page may be locked. */
static hd_status mirror_come_back(const struct hd_kernel *mirror, const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct pair *part = &batch->parts[i];
        HD_TRY(mirror->ops->copy(mirror->kernel, mirror->staging + batch->offsets[i], part->device,
                                 part->bytes, 0));
    }
    HD_TRY(mirror_rest(mirror));
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct pair *part = &batch->parts[i];
        const unsigned char *staged = mirror->staging + batch->offsets[i];
        if (memcmp(part->host, staged, part->bytes) != 0) {
            memcpy(part->host, staged, part->bytes);
        }
    }
    return HD_OK;
}

typedef hd_status batch_call(const struct hd_kernel *mirror, const struct batch *batch);

static hd_status mirror_move_all(const struct hd_kernel *mirror, const struct pair *pairs,
                                 uint32_t count, batch_call *move)
{
    struct batch batch = {.count = 0};
    hd_status status = HD_OK;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = 0;
        while (pairs[i].host != NULL && at < pairs[i].bytes && status == HD_OK) {
            const uint64_t bytes = mirror_add_part(&batch, &pairs[i], at);
            if (bytes == 0) { /* the staging buffer is full */
                status = move(mirror, &batch);
                status = status == HD_OK ? mirror_rest(mirror) : status;
                batch = (struct batch){.count = 0};
            }
            at += bytes;
        }
    }
    return status == HD_OK && batch.count > 0 ? move(mirror, &batch) : status;
}

static hd_status mirror_all_up(const struct hd_kernel *mirror, const struct pair *pairs,
                               uint32_t count)
{
    return mirror_move_all(mirror, pairs, count, mirror_go_up);
}

static hd_status mirror_all_back(const struct hd_kernel *mirror, const struct pair *pairs,
                                 uint32_t count)
{
    return mirror_move_all(mirror, pairs, count, mirror_come_back);
}

/* --- stages ----------------------------------------------------------------------------------- */

static hd_status mirror_take(const struct hd_kernel *mirror, uint64_t bytes, void **out)
{
    *out = NULL;
    return bytes > 0 ? mirror->ops->allocate(mirror->kernel, bytes, "conform", out) : HD_OK;
}

static hd_status mirror_take_all(struct hd_stage *stage, const struct hd_stage_memory *memory)
{
    const struct hd_stage_needs *needs = &stage->needs;
    const struct pair regions[5] = {
        {memory->parameters, NULL, needs->parameter_bytes},
        {memory->optimizer, NULL, needs->optimizer_bytes},
        {memory->scratch, NULL, needs->scratch_bytes},
        {memory->gradients[0], NULL, needs->gradient_bytes[0]},
        {memory->gradients[1], NULL, needs->gradient_bytes[1]},
    };
    const struct {
        void **out;
        uint64_t bytes;
    } rows[] = {
        {&stage->payload[0], needs->payload_bytes},
        {&stage->payload[1], needs->payload_bytes},
        {&stage->input, needs->boundary_bytes},
        {&stage->input_gradient, needs->boundary_bytes},
        {&stage->output, needs->boundary_bytes},
        {&stage->output_gradient, needs->boundary_bytes},
        {&stage->tokens, stage->token_bytes},
        {&stage->targets, stage->token_bytes},
        {&stage->terms, needs->term_count * sizeof(double)},
        {&stage->squares, needs->tensor_count * sizeof(double)},
    };

    for (uint32_t i = 0; i < 5; i++) {
        stage->regions[i] = regions[i];
        HD_TRY(mirror_take(stage->mirror, regions[i].bytes, &stage->regions[i].device));
    }
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HD_TRY(mirror_take(stage->mirror, rows[i].bytes, rows[i].out));
    }
    return HD_OK;
}

static hd_status mirror_stage_create(struct hd_kernel *mirror, const struct hd_stage_spec *spec,
                                     const struct hd_stage_memory *memory, struct hd_stage **out)
{
    struct hd_stage *stage = calloc(1, sizeof *stage);

    assert(stage != NULL);
    stage->mirror = mirror;
    stage->needs.size = sizeof stage->needs;
    stage->token_bytes = (uint64_t)spec->batch * spec->sequence * sizeof(int32_t);
    hd_status status = mirror->ops->stage_needs(mirror->host, spec, &stage->needs);
    if (status == HD_OK) {
        status = mirror_take_all(stage, memory);
    }
    if (status == HD_OK) {
        status = mirror_all_up(mirror, stage->regions, 5);
    }
    const struct hd_stage_memory there = {
        .size = sizeof there,
        .parameters = stage->regions[0].device,
        .optimizer = stage->regions[1].device,
        .scratch = stage->regions[2].device,
        .gradients = {stage->regions[3].device, stage->regions[4].device},
    };
    if (status == HD_OK) {
        status = mirror->ops->stage_create(mirror->kernel, spec, &there, &stage->stage);
    }
    if (status != HD_OK) {
        free(stage);
        return status;
    }
    *out = stage;
    return mirror_all_back(mirror, stage->regions, 5);
}

static void mirror_stage_destroy(struct hd_stage *stage)
{
    if (stage != NULL) {
        stage->mirror->ops->stage_destroy(stage->stage);
        free(stage);
    }
}

static hd_status mirror_tensor(struct hd_stage *stage, uint32_t index, struct hd_tensor *out)
{
    return stage->mirror->ops->tensor(stage->stage, index, out);
}

static hd_status mirror_tensor_copy(struct hd_stage *stage, uint32_t index, uint32_t copy,
                                    uint32_t into, void *host)
{
    HD_TRY(mirror_all_up(stage->mirror, stage->regions, 5));
    HD_TRY(stage->mirror->ops->tensor_copy(stage->stage, index, copy, into, host));
    return mirror_all_back(stage->mirror, stage->regions, 5);
}

/* --- passes ----------------------------------------------------------------------------------- */

static void *mirror_writable(const void *address)
{
    return (void *)(uintptr_t)address; /* a write to a locked page is a fault */
}

static void *mirror_there(const struct pair *pair)
{
    return pair->host != NULL ? pair->device : NULL;
}

typedef hd_status pass_call(struct hd_stage *stage, const struct hd_pass *pass);

static hd_status mirror_run(struct hd_stage *stage, const struct hd_pass *pass, pass_call *call)
{
    const struct hd_stage_needs *needs = &stage->needs;
    const struct pair pairs[PAIR_MAX] = {
        stage->regions[0],
        stage->regions[1],
        stage->regions[2],
        stage->regions[3],
        {pass->payload[0], stage->payload[0], needs->payload_bytes},
        {pass->payload[1], stage->payload[1], needs->payload_bytes},
        {mirror_writable(pass->input), stage->input, needs->boundary_bytes},
        {pass->input_gradient, stage->input_gradient, needs->boundary_bytes},
        {pass->output, stage->output, needs->boundary_bytes},
        {mirror_writable(pass->output_gradient), stage->output_gradient, needs->boundary_bytes},
        {mirror_writable(pass->tokens), stage->tokens, stage->token_bytes},
        {mirror_writable(pass->targets), stage->targets, stage->token_bytes},
        {pass->terms, stage->terms, needs->term_count * sizeof(double)},
        stage->regions[4],
    };
    struct hd_pass copy = *pass;

    copy.payload[0] = mirror_there(&pairs[4]);
    copy.payload[1] = mirror_there(&pairs[5]);
    copy.input = mirror_there(&pairs[6]);
    copy.input_gradient = mirror_there(&pairs[7]);
    copy.output = mirror_there(&pairs[8]);
    copy.output_gradient = mirror_there(&pairs[9]);
    copy.tokens = mirror_there(&pairs[10]);
    copy.targets = mirror_there(&pairs[11]);
    copy.terms = mirror_there(&pairs[12]);
    HD_TRY(mirror_all_up(stage->mirror, pairs, PAIR_MAX));
    HD_TRY(call(stage->stage, &copy));
    return mirror_all_back(stage->mirror, pairs, PAIR_MAX);
}

static hd_status mirror_forward(struct hd_stage *stage, const struct hd_pass *pass)
{
    return mirror_run(stage, pass, stage->mirror->ops->forward);
}

static hd_status mirror_backward(struct hd_stage *stage, const struct hd_pass *pass)
{
    return mirror_run(stage, pass, stage->mirror->ops->backward);
}

static hd_status mirror_backward_input(struct hd_stage *stage, const struct hd_pass *pass)
{
    return mirror_run(stage, pass, stage->mirror->ops->backward_input);
}

static hd_status mirror_backward_weight(struct hd_stage *stage, const struct hd_pass *pass)
{
    return mirror_run(stage, pass, stage->mirror->ops->backward_weight);
}

static hd_status mirror_norms(struct hd_stage *stage, double *squared)
{
    const struct pair result = {squared, stage->squares,
                                stage->needs.tensor_count * sizeof(double)};

    HD_TRY(mirror_all_up(stage->mirror, stage->regions, 5));
    HD_TRY(stage->mirror->ops->norms(stage->stage, stage->squares));
    HD_TRY(mirror_all_back(stage->mirror, stage->regions, 5));
    return mirror_move_all(stage->mirror, &result, 1, mirror_come_back);
}

static hd_status mirror_update(struct hd_stage *stage, const struct hd_update *parameters)
{
    HD_TRY(mirror_all_up(stage->mirror, stage->regions, 5));
    HD_TRY(stage->mirror->ops->update(stage->stage, parameters));
    return mirror_all_back(stage->mirror, stage->regions, 5);
}

/* --- the kernel ------------------------------------------------------------------------------- */

static void mirror_close_both(struct hd_kernel *mirror)
{
    mirror->ops->close(mirror->kernel);
    free(mirror->staging);
    free(mirror);
}

static const struct hd_kernel_ops mirror_whole = {
    .size = sizeof mirror_whole,
    .close = mirror_close_both,
    .stage_create = mirror_stage_create,
    .stage_destroy = mirror_stage_destroy,
    .tensor = mirror_tensor,
    .tensor_copy = mirror_tensor_copy,
    .forward = mirror_forward,
    .backward = mirror_backward,
    .norms = mirror_norms,
    .update = mirror_update,
};

hd_status hd_mirror_open(struct hd_harness *harness, uint64_t limit_ms)
{
    struct hd_kernel *mirror = calloc(1, sizeof *mirror);
    void *staging = NULL;

    if (mirror == NULL || posix_memalign(&staging, PAGE_BYTES, STAGING_BYTES) != 0) {
        free(mirror);
        return HD_NO_MEMORY;
    }
    *mirror = (struct hd_kernel){.ops = harness->ops,
                                 .host = &harness->host,
                                 .kernel = harness->kernel,
                                 .staging = staging,
                                 .limit_ns = limit_ms * HD_MS_NS,
                                 .table = mirror_whole};
    mirror->table.open = harness->ops->open;
    mirror->table.stage_needs = harness->ops->stage_needs;
    if (harness->ops->backward_input != NULL) {
        mirror->table.backward_input = mirror_backward_input;
        mirror->table.backward_weight = mirror_backward_weight;
    }
    harness->ops = &mirror->table;
    harness->kernel = mirror;
    return HD_OK;
}
