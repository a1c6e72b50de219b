#include "base/hash.h"

#include <stdio.h>
#include <string.h>

void hd_hash_begin(struct hd_hash *hash)
{
    sha256_init(&hash->context);
}

void hd_hash_add(struct hd_hash *hash, const void *bytes, uint64_t count)
{
    sha256_update(&hash->context, count, bytes);
}

void hd_hash_add_u64(struct hd_hash *hash, uint64_t value)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
    hd_hash_add(hash, bytes, sizeof bytes);
}

void hd_hash_add_text(struct hd_hash *hash, const char *text)
{
    hd_hash_add(hash, text, strlen(text) + 1);
}

void hd_hash_end(struct hd_hash *hash, uint8_t digest[HD_HASH_BYTES])
{
    sha256_digest(&hash->context, HD_HASH_BYTES, digest);
}

void hd_hash_text(const uint8_t digest[HD_HASH_BYTES], char text[HD_HASH_TEXT_BYTES])
{
    for (unsigned i = 0; i < HD_HASH_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
}
