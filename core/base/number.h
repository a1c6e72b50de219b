/* base/number.h - the larger or smaller of two numbers, and rounding up. [any-thread] */
#ifndef HEDDLE_BASE_NUMBER_H
#define HEDDLE_BASE_NUMBER_H

#include <stdint.h>

static inline uint32_t hd_min_u32(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

static inline uint32_t hd_max_u32(uint32_t one, uint32_t other)
{
    return one > other ? one : other;
}

static inline uint64_t hd_min_u64(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t hd_max_u64(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static inline double hd_max_f64(double one, double other)
{
    return one > other ? one : other;
}

/* The smallest multiple of `unit` that is at least `value`; `unit` is not 0. */
static inline uint64_t hd_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

#endif /* HEDDLE_BASE_NUMBER_H */
