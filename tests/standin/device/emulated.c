/* tests/standin/device/emulated.c - launches of the op table, run where they are made. */
#include "tests/standin/device/emulated.h"

#include <assert.h>
#include <string.h>

static double partials[HD_CUDA_PARTIALS];

static hd_status launch(struct hd_ops_device *device, enum hd_cuda_kernel kernel,
                        struct hd_cuda_grid grid, const void *args)
{
    const struct hd_cuda_row *row = &hd_cuda_rows[kernel];
    const struct hd_standin_kernel *found = hd_standin_find(row->symbol);
    const struct hd_standin_grid blocks = {
        {grid.x, grid.y, grid.z}, row->threads, row->shared_bytes};
    (void)device;
    assert(found != NULL && found->argument_bytes == row->argument_bytes);
    hd_standin_launch(found, &blocks, args);
    return HD_OK;
}

struct hd_ops_device hd_emulated_device(void *scratch, uint64_t bytes)
{
    memset(partials, 0xFF, sizeof partials);
    return (struct hd_ops_device){
        .launch = launch, .scratch = {scratch, bytes}, .partials = partials};
}

struct hd_ops_device *hd_emulated_bare(void)
{
    static struct hd_ops_device device;
    device = hd_emulated_device(NULL, 0);
    return &device;
}
