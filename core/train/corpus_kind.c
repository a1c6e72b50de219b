#include "train/corpus_kind.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

enum { UNIT_MIN = 16 }; /* fewer ids than this prove nothing about their width */

struct magic {
    const char *bytes;
    uint32_t count;
    struct hd_foreign_file file;
};

#define UNPACK "unpack it first"

/* The headers of llm.c are 256 int32 numbers; the first two are the magic number and a version. */
static const struct magic corpus_kind_magics[] = {
    {"\x1f\x8b", 2, {"a gzip archive", UNPACK}},
    {"\x28\xb5\x2f\xfd", 4, {"a zstd archive", UNPACK}},
    {"\xfd\x37\x7a\x58\x5a\x00", 6, {"an xz archive", UNPACK}},
    {"BZh91AY&SY", 10, {"a bzip2 archive", UNPACK}},
    {"PK\x03\x04",
     4,
     {"a zip archive (numpy's .npz is one)", "unpack it, and name the .npy that it holds"}},
    {"PAR1", 4, {"a Parquet table", "write its token ids to a .npy file first"}},
    {"ARROW1", 6, {"an Arrow table", "write its token ids to a .npy file first"}},
    {"\x89HDF\r\n\x1a\n", 8, {"an HDF5 file", "write its token ids to a .npy file first"}},
    {"MMIDIDX\x00\x00",
     9,
     {"the index of a Megatron data set",
      "name the .bin file beside it, and set data.token_bytes to the width of its ids"}},
    {"\x88\xd8\x34\x01\x01\x00\x00\x00",
     8,
     {"a token file of llm.c, whose header is 1024 bytes",
      "cut the header off (tail -c +1025), and set data.token_bytes = 2"}},
    {"\xa1\xd9\x34\x01",
     4,
     {"a token file of llm.c, whose header is 1024 bytes",
      "cut the header off (tail -c +1025), and set data.token_bytes = 4"}},
    {"version https://git-lfs",
     23,
     {"a pointer of git-lfs, not the file itself", "fetch the file (git lfs pull)"}},
};

const struct hd_foreign_file *hd_foreign_file(const uint8_t *bytes, uint64_t count)
{
    for (size_t i = 0; i < sizeof corpus_kind_magics / sizeof corpus_kind_magics[0]; i++) {
        const struct magic *const magic = &corpus_kind_magics[i];
        if (count >= magic->count && memcmp(bytes, magic->bytes, magic->count) == 0) {
            return &magic->file;
        }
    }
    return NULL;
}

/* Whether ids of `wide_bytes` are zero above their first `narrow_bytes`, not throughout. */
static bool corpus_kind_is_padded(const uint8_t *ids, uint64_t id_count, uint32_t narrow_bytes,
                                  uint32_t wide_bytes)
{
    bool has_value = false;

    for (uint64_t i = 0; i < id_count; i++) {
        for (uint32_t byte = 0; byte < wide_bytes; byte++) {
            const bool is_zero = ids[i * wide_bytes + byte] == 0;
            if (byte >= narrow_bytes && !is_zero) {
                return false;
            }
            has_value = has_value || !is_zero;
        }
    }
    return has_value;
}

uint32_t hd_corpus_likely_width(const uint8_t *ids, uint64_t byte_count, uint32_t id_bytes)
{
    const uint64_t looked = byte_count < HD_CORPUS_LOOK_BYTES ? byte_count : HD_CORPUS_LOOK_BYTES;

    assert(id_bytes >= 1);
    for (uint32_t wide_bytes = 4; wide_bytes > id_bytes; wide_bytes /= 2) {
        const uint64_t id_count = looked / wide_bytes;
        if (byte_count % wide_bytes == 0 && id_count >= UNIT_MIN &&
            corpus_kind_is_padded(ids, id_count, id_bytes, wide_bytes)) {
            return wide_bytes;
        }
    }
    return id_bytes;
}
