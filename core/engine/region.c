#include "engine/region.h"
#include "base/memory.h"

#include <string.h>

hd_status hd_regions_take(const struct hd_regions *regions, uint64_t bytes, const char *tag,
                          void **out)
{
    if (regions->ops != NULL) {
        *out = NULL;
        return bytes > 0 ? regions->ops->allocate(regions->kernel, bytes, tag, out) : HD_OK;
    }
    *out = hd_memory_take(bytes, regions->alignment, tag);
    return *out != NULL ? HD_OK : HD_NO_MEMORY;
}

void hd_regions_give(const struct hd_regions *regions, void *memory)
{
    if (regions->ops == NULL) {
        hd_memory_give(memory);
    }
}

hd_status hd_regions_fill(const struct hd_regions *regions, void *target, uint64_t bytes,
                          uint8_t value)
{
    if (regions->is_device) {
        return bytes > 0 ? regions->ops->copy(regions->kernel, target, NULL, bytes, value) : HD_OK;
    }
    if (bytes > 0) {
        memset(target, value, bytes);
    }
    return HD_OK;
}
