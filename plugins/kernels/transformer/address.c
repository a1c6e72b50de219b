/* plugins/kernels/transformer/address.c - see address.h. */
#include "address.h"

#include <assert.h>
#include <string.h>

void hd_place_scratch(struct hd_stage *stage)
{
    char *const scratch = stage->memory.scratch;
    void *work[HD_WORK_COUNT], *section[HD_SAVED_COUNT];
    for (size_t i = 0; i < HD_WORK_COUNT; i++) {
        work[i] = scratch + stage->layout.work[i];
    }
    for (size_t i = 0; i < HD_SAVED_COUNT; i++) {
        section[i] = scratch + stage->layout.section[i];
    }
    memcpy(&stage->work, work, sizeof work);
    memcpy(&stage->section, section, sizeof section);
}

struct hd_block hd_block_at(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint32_t index)
{
    const struct hd_layout *layout = &stage->layout;
    const uintptr_t begin = (uintptr_t)pass->payload[0] + HD_STAMP_BYTES +
                            index * layout->kept_stride - layout->first_shift;
    struct hd_block block = {.stage = stage, .pass = pass, .index = index};
    void *saved[HD_SAVED_COUNT];
    memcpy(saved, &stage->section, sizeof saved);
    for (size_t i = index == 0 ? HD_SAVED(r1) : HD_SAVED(x); i < HD_SAVED_COUNT; i++) {
        if (pass->payload[0] != NULL && layout->kept[i] != HD_NOT_KEPT) {
            saved[i] = (void *)(begin + layout->kept[i]);
        }
    }
    memcpy(&block.saved, saved, sizeof saved);
    return block;
}

/* In an evaluation the head uses tensors of the section that no later phase needs. */
struct hd_head hd_head_at(const struct hd_stage *stage, const struct hd_pass *pass)
{
    const struct hd_saved *section = &stage->section;
    const uint64_t *at = stage->layout.head;
    char *const payload = pass->payload[0];
    if (payload == NULL) {
        return (struct hd_head){.x = section->x, .r = section->r1, .lse = section->r2};
    }
    return (struct hd_head){.x = payload + at[HD_HEAD(x)],
                            .r = payload + at[HD_HEAD(r)],
                            .lse = payload + at[HD_HEAD(lse)]};
}

static uint64_t address_shift(const struct hd_weight_place *place, uint32_t block, uint64_t stride)
{
    return place->in_block ? block * stride : 0;
}

void *hd_master_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    assert(block < stage->spec.block_count);
    return (char *)stage->memory.parameters + place->master +
           address_shift(place, block, stage->layout.parameter_stride);
}

void *hd_copy_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    return (char *)hd_master_at(stage, weight, block) + (place->copy - place->master);
}

void *hd_gradient_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    return (char *)stage->memory.gradients[place->group] + place->gradient +
           address_shift(place, block, stage->layout.gradient_stride[place->group]);
}

struct hd_matrix hd_matrix_of(const void *data, uint32_t dtype, uint64_t rows, uint64_t columns)
{
    assert(rows <= UINT32_MAX && columns <= UINT32_MAX);
    return (struct hd_matrix){
        .data = (void *)data, .dtype = dtype, .rows = (uint32_t)rows, .columns = (uint32_t)columns};
}
