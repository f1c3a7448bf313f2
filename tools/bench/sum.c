/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/sum.h"

#include <string.h>

typedef uint32_t words_t __attribute__((vector_size(64), aligned(1), may_alias));

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void sum_all(uint8_t *const *to, uint32_t to_count, const uint8_t *const *from,
                                  uint32_t from_count, uint64_t bytes)
{
    uint64_t i = 0;
    for (; i + sizeof(words_t) <= bytes; i += sizeof(words_t)) {
        words_t words = *(const words_t *)(const void *)(from[0] + i);
        for (uint32_t r = 1; r < from_count; r++) {
            words += *(const words_t *)(const void *)(from[r] + i);
        }
        for (uint32_t r = 0; r < to_count; r++) {
            *(words_t *)(void *)(to[r] + i) = words;
        }
    }
    for (; i + sizeof(uint32_t) <= bytes; i += sizeof(uint32_t)) {
        uint32_t sum = 0, word;
        for (uint32_t r = 0; r < from_count; r++) {
            memcpy(&word, from[r] + i, sizeof word);
            sum += word;
        }
        for (uint32_t r = 0; r < to_count; r++) {
            memcpy(to[r] + i, &sum, sizeof sum);
        }
    }
    for (; i < bytes; i++) {
        uint8_t byte = 0;
        for (uint32_t r = 0; r < from_count; r++) {
            byte = (uint8_t)(byte + from[r][i]);
        }
        for (uint32_t r = 0; r < to_count; r++) {
            to[r][i] = byte;
        }
    }
}

/* Two sources and one or two destinations stay in registers. */
static ALWAYS_INLINE void sum_any(uint8_t *const *to, uint32_t to_count, const uint8_t *const *from,
                                  uint32_t from_count, uint64_t bytes)
{
    if (from_count == 2 && to_count <= 2) {
        const uint8_t *const two[] = {from[0], from[1]};
        uint8_t *const both[] = {to[0], to[to_count - 1]};
        if (to_count == 2) {
            sum_all(both, 2, two, 2, bytes);
        } else {
            sum_all(both, 1, two, 2, bytes);
        }
        return;
    }
    sum_all(to, to_count, from, from_count, bytes);
}

static void sum_portable(uint8_t *const *to, uint32_t to_count, const uint8_t *const *from,
                         uint32_t from_count, uint64_t bytes)
{
    sum_any(to, to_count, from, from_count, bytes);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void sum_avx2(uint8_t *const *to, uint32_t to_count,
                                                     const uint8_t *const *from,
                                                     uint32_t from_count, uint64_t bytes)
{
    sum_any(to, to_count, from, from_count, bytes);
}

__attribute__((target("avx512f"))) static void sum_avx512(uint8_t *const *to, uint32_t to_count,
                                                          const uint8_t *const *from,
                                                          uint32_t from_count, uint64_t bytes)
{
    sum_any(to, to_count, from, from_count, bytes);
}
#endif

void wefti_bench_sum(weft_isa_t isa, uint8_t *const *to, uint32_t to_count,
                     const uint8_t *const *from, uint32_t from_count, uint64_t bytes)
{
#if defined(__x86_64__)
    if (isa == WEFT_ISA_AVX512) {
        sum_avx512(to, to_count, from, from_count, bytes);
        return;
    }
    if (isa == WEFT_ISA_AVX2) {
        sum_avx2(to, to_count, from, from_count, bytes);
        return;
    }
#else
    (void)isa;
#endif
    sum_portable(to, to_count, from, from_count, bytes);
}
