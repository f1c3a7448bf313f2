/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11):
 * a keyed bijection of 128-bit counters. Any element of the sequence can be computed alone, in any
 * order, on any rank.
 */
#ifndef WEFT_OPS_COMPUTE_PHILOX_H
#define WEFT_OPS_COMPUTE_PHILOX_H

#include "ops/compute/support.h"

#define WEFTI_PHILOX_LANES 32

/* Counters of as many blocks; in place they become their four random words. */
typedef struct wefti_philox {
    uint32_t x[4][WEFTI_PHILOX_LANES];
} wefti_philox_t;

/* One round: x0 and x2 are multiplied, the products' halves change places. */
#define WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0, key1)                                             \
    do {                                                                                           \
        uint64_t a_ = (uint64_t)(x0)*0xd2511f53u;                                                  \
        uint64_t b_ = (uint64_t)(x2)*0xcd9e8d57u;                                                  \
        (x0) = (uint32_t)(b_ >> 32) ^ (x1) ^ (key0);                                               \
        (x2) = (uint32_t)(a_ >> 32) ^ (x3) ^ (key1);                                               \
        (x1) = (uint32_t)b_;                                                                       \
        (x3) = (uint32_t)a_;                                                                       \
    } while (0)

/* Words are exact, so every instruction set makes the same ones. Rounds are written out: the loop
 * over lanes is then the one that becomes vectors. */
WEFTI_INLINE void wefti_philox_4x32_10(wefti_philox_t *at, uint32_t key0, uint32_t key1)
{
    const uint32_t golden = 0x9e3779b9u, root = 0xbb67ae85u; /* of 3, less 1 */
    WEFTI_INDEPENDENT
    for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
        uint32_t x0 = at->x[0][l], x1 = at->x[1][l], x2 = at->x[2][l], x3 = at->x[3][l];
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0, key1);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + golden, key1 + root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 2 * golden, key1 + 2 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 3 * golden, key1 + 3 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 4 * golden, key1 + 4 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 5 * golden, key1 + 5 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 6 * golden, key1 + 6 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 7 * golden, key1 + 7 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 8 * golden, key1 + 8 * root);
        WEFTI_PHILOX_ROUND(x0, x1, x2, x3, key0 + 9 * golden, key1 + 9 * root);
        at->x[0][l] = x0;
        at->x[1][l] = x1;
        at->x[2][l] = x2;
        at->x[3][l] = x3;
    }
}

/*
 * The same for blocks first to first + WEFTI_PHILOX_LANES - 1 of a sequence: counters are (block,
 * high), and words have the order of blocks. The three do the same for an instruction set each.
 */
WEFTI_INLINE void wefti_philox_words_portable(uint64_t first, uint64_t high, uint64_t key,
                                              uint32_t *words)
{
    wefti_philox_t blocks;
    for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
        uint64_t block = first + (uint64_t)l;
        blocks.x[0][l] = (uint32_t)block;
        blocks.x[1][l] = (uint32_t)(block >> 32);
        blocks.x[2][l] = (uint32_t)high;
        blocks.x[3][l] = (uint32_t)(high >> 32);
    }
    wefti_philox_4x32_10(&blocks, (uint32_t)key, (uint32_t)(key >> 32));
    for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
        for (int w = 0; w < 4; w++) {
            words[4 * l + w] = blocks.x[w][l];
        }
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

/* A block lies in 128 bits: x0 and x2 are multiplied where they are, and the four halves of the
 * products change places by one shuffle. */
#define WEFTI_PHILOX_WORDS(bits, type)                                                             \
    {                                                                                              \
        enum { VECTORS = WEFTI_PHILOX_LANES * 128 / (bits), PAIRS = (bits) / 64 };                 \
        uint64_t pairs[PAIRS], steps[PAIRS], factors[PAIRS], keys[PAIRS], turns[PAIRS];            \
        for (int i = 0; i < PAIRS; i++) {                                                          \
            pairs[i] = i % 2 == 0 ? first + (uint64_t)i / 2 : high;                                \
            steps[i] = i % 2 == 0 ? PAIRS / 2 : 0;                                                 \
            factors[i] = i % 2 == 0 ? 0xd2511f53u : 0xcd9e8d57u;                                   \
            keys[i] = i % 2 == 0 ? (uint32_t)key : (uint32_t)(key >> 32);                          \
            turns[i] = i % 2 == 0 ? 0x9e3779b9u : 0xbb67ae85u; /* of 3, less 1 */                  \
        }                                                                                          \
        const type step = _mm##bits##_loadu_si##bits((const void *)steps);                         \
        const type factor = _mm##bits##_loadu_si##bits((const void *)factors);                     \
        const type turn = _mm##bits##_loadu_si##bits((const void *)turns);                         \
        type x[VECTORS], k = _mm##bits##_loadu_si##bits((const void *)keys);                       \
        x[0] = _mm##bits##_loadu_si##bits((const void *)pairs);                                    \
        for (int v = 1; v < VECTORS; v++) {                                                        \
            x[v] = _mm##bits##_add_epi64(x[v - 1], step);                                          \
        }                                                                                          \
        for (int round = 0; round < 10; round++) {                                                 \
            for (int v = 0; v < VECTORS; v++) {                                                    \
                const type product = _mm##bits##_mul_epu32(x[v], factor);                          \
                const type turned = _mm##bits##_shuffle_epi32(product, 0x1b);                      \
                x[v] = _mm##bits##_srli_epi64(x[v], 32);                                           \
                x[v] = _mm##bits##_xor_si##bits(_mm##bits##_xor_si##bits(turned, x[v]), k);        \
            }                                                                                      \
            k = _mm##bits##_add_epi32(k, turn);                                                    \
        }                                                                                          \
        for (int v = 0; v < VECTORS; v++) {                                                        \
            _mm##bits##_storeu_si##bits((void *)(words + v * (bits) / 32), x[v]);                  \
        }                                                                                          \
    }
WEFTI_TARGET_AVX2 WEFTI_INLINE void wefti_philox_words_avx2(uint64_t first, uint64_t high,
                                                            uint64_t key, uint32_t *words)
    WEFTI_PHILOX_WORDS(256, __m256i) WEFTI_TARGET_AVX512 WEFTI_INLINE
    void wefti_philox_words_avx512(uint64_t first, uint64_t high, uint64_t key, uint32_t *words)
        WEFTI_PHILOX_WORDS(512, __m512i)
#else
#define wefti_philox_words_avx2 wefti_philox_words_portable
#define wefti_philox_words_avx512 wefti_philox_words_portable
#endif

#endif
