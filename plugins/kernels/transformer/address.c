/* plugins/kernels/transformer/address.c - from names of lines and weights to addresses. */
#include "stage.h"

#include <assert.h>

void *hd_line_at(const struct hd_frame *frame, enum hd_line line)
{
    const struct hd_layout *layout = &frame->stage->layout;
    if (frame->kept != NULL && layout->kept[line] != HD_NOT_KEPT) {
        return frame->kept + layout->kept[line];
    }
    return frame->section + layout->line[line];
}

void *hd_work_at(const struct hd_stage *stage, enum hd_work work)
{
    return (char *)stage->memory.scratch + stage->layout.work[work];
}

/* An evaluation retains nothing: its head takes lines that no other phase then needs. */
void *hd_head_at(const struct hd_stage *stage, const struct hd_pass *pass, enum hd_head_line line)
{
    if (pass->payload[0] != NULL) {
        return (char *)pass->payload[0] + stage->layout.head[line];
    }
    static const enum hd_line stand_in[] = {HD_LINE_X, HD_LINE_R1, HD_LINE_R2};
    return (char *)stage->memory.scratch + stage->layout.line[stand_in[line]];
}

static uint64_t transformer_block_shift(const struct hd_weight_place *place, uint32_t block,
                                        uint64_t stride)
{
    return place->in_block ? block * stride : 0;
}

void *hd_master_at(const struct hd_stage *stage, enum hd_weight weight, uint32_t block)
{
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    assert(block < stage->spec.block_count);
    return (char *)stage->memory.parameters + place->master +
           transformer_block_shift(place, block, stage->layout.parameter_stride);
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
           transformer_block_shift(place, block, stage->layout.gradient_stride[place->group]);
}

struct hd_frame hd_frame_at(const struct hd_stage *stage, const struct hd_pass *pass,
                            uint32_t block)
{
    const struct hd_layout *layout = &stage->layout;
    char *payload = pass->payload[0];
    struct hd_frame frame = {.stage = stage, .pass = pass, .block = block};
    frame.section = stage->memory.scratch;
    if (payload != NULL) {
        frame.kept = (char *)((uintptr_t)payload + HD_LINE_BYTES + block * layout->kept_stride -
                              layout->first_shift);
    }
    return frame;
}

static struct hd_matrix transformer_matrix(const void *data, uint32_t dtype, uint64_t rows,
                                           uint64_t columns)
{
    assert(rows <= UINT32_MAX && columns <= UINT32_MAX);
    return (struct hd_matrix){
        .data = (void *)data, .dtype = dtype, .rows = (uint32_t)rows, .columns = (uint32_t)columns};
}

struct hd_matrix hd_activation(const struct hd_stage *stage, const void *data, uint64_t rows,
                               uint64_t columns)
{
    return transformer_matrix(data, stage->ops->activation, rows, columns);
}

struct hd_matrix hd_statistic(const struct hd_stage *stage, const void *data, uint64_t rows,
                              uint64_t columns)
{
    return transformer_matrix(data, stage->ops->statistic, rows, columns);
}

struct hd_matrix hd_weight_matrix(const struct hd_frame *frame, enum hd_weight weight)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    return hd_activation(stage, hd_copy_at(stage, weight, frame->block), place->rows,
                         place->columns);
}

struct hd_matrix hd_dgrad_matrix(const struct hd_frame *frame, enum hd_weight weight)
{
    const struct hd_weight_place *place = &frame->stage->layout.weights[weight];
    struct hd_matrix matrix = hd_weight_matrix(frame, weight);
    matrix.data = (char *)matrix.data + (place->dgrad_copy - place->copy);
    return matrix;
}

struct hd_matrix hd_gradient_matrix(const struct hd_frame *frame, enum hd_weight weight)
{
    const struct hd_stage *stage = frame->stage;
    const struct hd_weight_place *place = &stage->layout.weights[weight];
    return hd_statistic(stage, hd_gradient_at(stage, weight, frame->block), place->rows,
                        place->columns);
}
