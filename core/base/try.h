/*
 * base/try.h - leaves the function with the first status that is not HD_OK.  For functions that
 * have nothing to undo.
 */
#ifndef HEDDLE_BASE_TRY_H
#define HEDDLE_BASE_TRY_H

#include <heddle/plugin.h>

#define HD_TRY(call)                     \
    do {                                 \
        const hd_status tried_ = (call); \
        if (tried_ != HD_OK) {           \
            return tried_;               \
        }                                \
    } while (0)

#endif /* HEDDLE_BASE_TRY_H */
