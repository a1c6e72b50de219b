/* engine/rounding.c - the processor's floating-point control word (MXCSR). */
#include "engine/internal.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { ROUNDING_MASK = 0xffc0, ROUNDING = 0x1f80 };

void hd_engine_set_rounding(void)
{
    _mm_setcsr(ROUNDING);
}

bool hd_engine_rounding_is_kept(void)
{
    return (_mm_getcsr() & ROUNDING_MASK) == ROUNDING;
}
#else
void hd_engine_set_rounding(void)
{
}

bool hd_engine_rounding_is_kept(void)
{
    return true;
}
#endif
