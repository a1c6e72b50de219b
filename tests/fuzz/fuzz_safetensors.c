/*
 * tests/fuzz/fuzz_safetensors.c - any bytes as a safetensors header: refused with its place, or
 * tensors that cover the data of the file, each byte once.
 *
 * The first two bytes say how much data follows the header; the rest is the header.
 */
#include "train/safetensors.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void check(const struct hd_safetensors *file, uint64_t data_bytes)
{
    uint64_t covered_bytes = 0;

    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct hd_safetensors_tensor *const tensor = &file->tensors[i];
        assert(tensor->dimension_count <= HD_SAFETENSORS_DIMENSION_MAX);
        assert(tensor->offset >= file->file_bytes - data_bytes);
        assert(tensor->bytes <= file->file_bytes - tensor->offset);
        assert(hd_safetensors_find(file, tensor->name) == tensor);
        assert(hd_safetensors_count(tensor) <= file->file_bytes ||
               strstr("BOOL U8 I8 F8_E4M3 F8_E5M2", tensor->type) == NULL);
        covered_bytes += tensor->bytes;
    }
    for (uint32_t i = 0; i < file->note_count; i++) {
        assert(hd_safetensors_note(file, file->notes[i].key) == file->notes[i].value);
    }
    assert(covered_bytes == data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct hd_safetensors file = {.descriptor = -1, .path = "input"};
    struct hd_problem problem = {0};

    if (count < 2) {
        return 0;
    }
    const uint64_t header_bytes = count - 2, data_bytes = bytes[0] + 256u * bytes[1];
    file.file_bytes = HD_SAFETENSORS_LENGTH_BYTES + header_bytes + data_bytes;
    if (hd_safetensors_parse(&file, (const char *)bytes + 2, header_bytes, &problem) == HD_OK) {
        check(&file, data_bytes);
    } else {
        assert(problem.exit_code == HD_EXIT_USAGE && problem.message[0] != '\0');
        assert(strcmp(problem.place, "input") == 0);
    }
    hd_safetensors_close(&file);
    return 0;
}
