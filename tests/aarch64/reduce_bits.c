/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a hash of the bits of every reduction, on numbers that include NaNs, infinities, zeros of
 * both signs and denormals. Built for two processors: run.sh compares what they print.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ops/reduce/reduce.h"
#include "runtime/base/float_mode.h"
#include "runtime/base/hash.h"

#define ELEMS 1003u /* blocks and a tail */
#define SOURCES 7u

static uint64_t sources[SOURCES][ELEMS];
static uint64_t result[ELEMS];

/* Bits of any pattern, of which every eighth byte begins a row of equal ones. */
static void fill(uint64_t seed)
{
    uint8_t *bytes = (uint8_t *)sources;
    for (size_t i = 0; i < sizeof sources; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 56);
        if (i % 64 < 8) {
            bytes[i] = (uint8_t)(i / 64 % 3 == 0 ? 0x00 : i / 64 % 3 == 1 ? 0xff : 0x80);
        }
    }
}

/* As a program may have set its thread: denormals flushed. */
static void flush_denormals(void)
{
#if defined(__x86_64__)
    wefti_float_mode_set(wefti_float_mode() | 0x8040u);
#elif defined(__aarch64__)
    wefti_float_mode_set(wefti_float_mode() | 1u << 24);
#endif
}

int main(void)
{
    flush_denormals();
    for (int dtype = WEFT_DTYPE_F64; dtype <= WEFT_DTYPE_U8; dtype++) {
        for (int reduction = WEFT_REDUCTION_SUM; reduction <= WEFT_REDUCTION_MAX; reduction++) {
            for (uint32_t count = 1; count <= SOURCES; count += 2) {
                const void *from[SOURCES];
                void *to = result;
                for (uint32_t i = 0; i < count; i++) {
                    from[i] = sources[i];
                }
                const weft_reduce_t reduce = {.sources = from,
                                              .source_count = count,
                                              .destination_count = 1,
                                              .destinations = &to,
                                              .elem_count = ELEMS,
                                              .dtype = (weft_dtype_t)dtype,
                                              .reduction = (weft_reduction_t)reduction};
                fill((uint64_t)dtype * 31 + count);
                memset(result, 0, sizeof result);
                weft_status_t status = wefti_reduce(&reduce, WEFT_ISA_PORTABLE);
                printf("%d %d %u %d %016" PRIx64 "\n", dtype, reduction, count, (int)status,
                       wefti_hash_bytes(WEFTI_HASH_START, result, sizeof result));
            }
        }
    }
    return 0;
}
