/* base/bf16.h - bfloat16 as bits: the upper half of a float32, rounded to nearest even. */
#ifndef HEDDLE_BASE_BF16_H
#define HEDDLE_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float hd_bf16_to_float(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* A NaN stays a NaN, but may lose its payload. */
static inline uint16_t hd_bf16_from_float(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((word >> 16) | 0x40u);
    }
    return (uint16_t)((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

#endif /* HEDDLE_BASE_BF16_H */
