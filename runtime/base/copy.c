/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/copy.h"

#include <stdint.h>
#include <string.h>

/* Measured between two cores' second-level caches of 2 MiB: up to a fifth less time in between,
 * nothing outside. */
#define AHEAD_MIN_BYTES ((size_t)8 << 10)
#define AHEAD_MAX_BYTES ((size_t)512 << 10)
#define AHEAD_BYTES ((size_t)4 << 10)
#define WRITE_AHEAD_BYTES ((size_t)2 << 10)
#define STEP_BYTES 256u
#define LINE_BYTES 64u

/* Lines to be written are asked for as such, and less far ahead: they are mostly near. */
#if defined(__x86_64__)
#define ASKS_TO_WRITE __attribute__((target("prfchw"))) /* does nothing on a CPU without it */
#else
#define ASKS_TO_WRITE
#endif

ASKS_TO_WRITE static void copy_ahead(uint8_t *restrict to, const uint8_t *restrict from,
                                     size_t bytes)
{
    size_t at = 0;
    for (; at + AHEAD_BYTES + STEP_BYTES <= bytes; at += STEP_BYTES) {
        for (size_t line = 0; line < STEP_BYTES; line += LINE_BYTES) {
            __builtin_prefetch(from + at + AHEAD_BYTES + line, 0, 2);
            __builtin_prefetch(to + at + WRITE_AHEAD_BYTES + line, 1, 3);
        }
        memcpy(to + at, from + at, STEP_BYTES);
    }
    memcpy(to + at, from + at, bytes - at);
}

void wefti_copy(void *to, const void *from, size_t bytes)
{
    uintptr_t apart = (uintptr_t)to - (uintptr_t)from;
    if (bytes < AHEAD_MIN_BYTES || bytes > AHEAD_MAX_BYTES || apart < bytes || -apart < bytes) {
        memmove(to, from, bytes);
    } else {
        copy_ahead(to, from, bytes);
    }
}
