/* tests/fuzz/fuzz_npy.c - any bytes as a .npy file: refused, or data that begins inside it. */
#include "train/numpy.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct hd_numpy header;
    char reason[HD_NUMPY_REASON_BYTES] = "";

    if (!hd_numpy_read(bytes, count, &header, reason)) {
        assert(reason[0] != '\0' && memchr(reason, '\0', sizeof reason) != NULL);
        return 0;
    }
    assert(hd_numpy_is(bytes, count) && header.data_offset <= count);
    assert(header.item_bytes == 1 || header.item_bytes == 2 || header.item_bytes == 4 ||
           header.item_bytes == 8);
    /* What a reader then multiplies does not wrap. */
    assert(header.count <= UINT64_MAX / header.item_bytes);
    return 0;
}
