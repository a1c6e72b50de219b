/*
 * base/hash.h - SHA-256 (nettle's), to compare what must be equal in two runs or on two ranks: the
 * plan, the parameters, the corpus.  Written as 64 hex digits.
 */
#ifndef HEDDLE_BASE_HASH_H
#define HEDDLE_BASE_HASH_H

#include <nettle/sha2.h>
#include <stdint.h>

#define HD_HASH_BYTES      32u
#define HD_HASH_TEXT_BYTES 65u /* with the final zero */

struct hd_hash {
    struct sha256_ctx context;
};

void hd_hash_begin(struct hd_hash *hash);
void hd_hash_add(struct hd_hash *hash, const void *bytes, uint64_t count);
void hd_hash_add_u64(struct hd_hash *hash, uint64_t value);    /* as 8 bytes, little-endian */
void hd_hash_add_text(struct hd_hash *hash, const char *text); /* with its final zero */
void hd_hash_end(struct hd_hash *hash, uint8_t digest[HD_HASH_BYTES]);
void hd_hash_text(const uint8_t digest[HD_HASH_BYTES], char text[HD_HASH_TEXT_BYTES]);

#endif /* HEDDLE_BASE_HASH_H */
