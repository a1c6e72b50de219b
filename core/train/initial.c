#include "train/initial.h"
#include "base/hash.h"

#include <assert.h>
#include <math.h>

enum { ROUND_COUNT = 10 };

/* Multipliers and key increments of the paper's table 2 and section 4.3. */
#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0       0x9E3779B9u
#define WEYL_1       0xBB67AE85u
#define TWO_PI       6.283185307179586476925286766559

struct stream {
    uint32_t key[2];
    uint32_t upper[2]; /* upper half of every counter */
};

void hd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t block[4])
{
    uint32_t word[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t round_key[2] = {key[0], key[1]};

    for (int round = 0; round < ROUND_COUNT; round++) {
        const uint64_t product_0 = (uint64_t)MULTIPLIER_0 * word[0];
        const uint64_t product_1 = (uint64_t)MULTIPLIER_1 * word[2];
        word[0] = (uint32_t)(product_1 >> 32) ^ word[1] ^ round_key[0];
        word[1] = (uint32_t)product_1;
        word[2] = (uint32_t)(product_0 >> 32) ^ word[3] ^ round_key[1];
        word[3] = (uint32_t)product_0;
        round_key[0] += WEYL_0;
        round_key[1] += WEYL_1;
    }
    for (int i = 0; i < 4; i++) {
        block[i] = word[i];
    }
}

static uint32_t initial_word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static struct stream initial_stream_of(const char *name, uint64_t seed)
{
    struct hd_hash hash;
    uint8_t digest[HD_HASH_BYTES];

    hd_hash_begin(&hash);
    hd_hash_add_u64(&hash, seed);
    hd_hash_add_text(&hash, name);
    hd_hash_end(&hash, digest);
    return (struct stream){.key = {initial_word_at(digest), initial_word_at(digest + 4)},
                           .upper = {initial_word_at(digest + 8), initial_word_at(digest + 12)}};
}

static double initial_normal_at(const struct stream *stream, uint64_t element)
{
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), stream->upper[0],
                                 stream->upper[1]};
    uint32_t block[4];

    hd_philox(counter, stream->key, block);
    const uint64_t first = (uint64_t)block[1] << 32 | block[0];
    const uint64_t second = (uint64_t)block[3] << 32 | block[2];
    /* (0, 1], so that the logarithm is finite; and [0, 1). */
    const double radius_uniform = (double)((first >> 11) + 1) * 0x1p-53;
    const double angle_uniform = (double)(second >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(radius_uniform)) * cos(TWO_PI * angle_uniform);
}

static double initial_value_at(const struct hd_tensor *tensor, const struct stream *stream,
                               uint64_t element)
{
    if (tensor->initial == HD_INITIAL_NORMAL) {
        return initial_normal_at(stream, element);
    }
    return tensor->initial == HD_INITIAL_ONE ? 1.0 : 0.0;
}

uint64_t hd_tensor_count(const struct hd_tensor *tensor)
{
    uint64_t count = 1;

    assert(tensor->dimension_count <= HD_DIMENSION_MAX);
    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

void hd_initial_fill(const struct hd_tensor *tensor, uint64_t seed, double deviation, void *values)
{
    const struct stream stream = initial_stream_of(tensor->name, seed);
    const double scale = tensor->initial == HD_INITIAL_NORMAL ? deviation : 1.0;
    const uint64_t count = hd_tensor_count(tensor);

    assert(tensor->dtype == HD_F32 || tensor->dtype == HD_F64);
    assert(tensor->initial <= HD_INITIAL_NORMAL);
    for (uint64_t i = 0; i < count; i++) {
        const double value = scale * initial_value_at(tensor, &stream, i);
        if (tensor->dtype == HD_F64) {
            ((double *)values)[i] = value;
        } else {
            ((float *)values)[i] = (float)value;
        }
    }
}
