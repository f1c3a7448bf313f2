/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/pool_pairs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE TARGET static inline __attribute__((always_inline))

/* The lanes of 8 elements of which count are there. */
INLINE __m256i lanes(int64_t count)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int there = count > 8 ? 8 : (int)count;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(there), index);
}

/* Elements 0, 2, 4, .. and 1, 3, 5, .. of 2 * count. */
INLINE void load_pairs(const float *x, int64_t count, __m256 *even, __m256 *odd)
{
    const __m256 a = _mm256_maskload_ps(x, lanes(2 * count));
    const __m256 b = _mm256_maskload_ps(x + 8, lanes(2 * count - 8));
    const __m256 low = _mm256_permute2f128_ps(a, b, 0x20);
    const __m256 high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}

INLINE void store_pairs(float *x, int64_t count, __m256 even, __m256 odd)
{
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    _mm256_maskstore_ps(x, lanes(2 * count), _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_maskstore_ps(x + 8, lanes(2 * count - 8), _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE void take(__m256 *best, __m256i *where, __m256 value, int tap)
{
    const __m256 wins = _mm256_or_ps(_mm256_cmp_ps(value, *best, _CMP_GT_OQ),
                                     _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    *best = _mm256_blendv_ps(*best, value, wins);
    *where = _mm256_blendv_epi8(*where, _mm256_set1_epi32(tap), _mm256_castps_si256(wins));
}

INLINE void store_bytes(uint8_t *x, int64_t count, __m256i where)
{
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(where), _mm256_extracti128_si256(where, 1));
    uint8_t some[16];
    _mm_storeu_si128((__m128i *)(void *)some, _mm_packus_epi16(words, words));
    if (count >= 8) {
        memcpy(x, some, 8);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] = some[i];
    }
}

INLINE void max_line(const float *top, const float *bottom, int64_t count, float *y, uint8_t *mask)
{
    for (int64_t i = 0; i < count; i += 8) {
        __m256 best, right, left;
        __m256i where = _mm256_setzero_si256();
        load_pairs(top + 2 * i, count - i, &best, &right);
        take(&best, &where, right, 1);
        load_pairs(bottom + 2 * i, count - i, &left, &right);
        take(&best, &where, left, 2);
        take(&best, &where, right, 3);
        _mm256_maskstore_ps(y + i, lanes(count - i), best);
        if (mask != NULL) {
            store_bytes(mask + i, count - i, where);
        }
    }
}

INLINE __m256i load_bytes(const uint8_t *x, int64_t count)
{
    uint8_t some[16] = {0};
    if (count >= 8) {
        memcpy(some, x, 8);
    }
    for (int64_t i = 0; i < count && count < 8; i++) {
        some[i] = x[i];
    }
    return _mm256_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)some));
}

INLINE __m256 only(__m256i where, int tap, __m256 d)
{
    const __m256i here = _mm256_cmpeq_epi32(where, _mm256_set1_epi32(tap));
    return _mm256_and_ps(_mm256_castsi256_ps(here), d);
}

INLINE void max_grad_line(const float *dy, const uint8_t *mask, int64_t count, float *top,
                          float *bottom)
{
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 d =
            _mm256_add_ps(_mm256_setzero_ps(), _mm256_maskload_ps(dy + i, lanes(count - i)));
        const __m256i where = load_bytes(mask + i, count - i);
        store_pairs(top + 2 * i, count - i, only(where, 0, d), only(where, 1, d));
        store_pairs(bottom + 2 * i, count - i, only(where, 2, d), only(where, 3, d));
    }
}

INLINE void mean_line(const float *top, const float *bottom, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i += 8) {
        __m256 even, odd, sum = _mm256_setzero_ps();
        load_pairs(top + 2 * i, count - i, &even, &odd);
        sum = _mm256_add_ps(_mm256_add_ps(sum, even), odd);
        load_pairs(bottom + 2 * i, count - i, &even, &odd);
        sum = _mm256_add_ps(_mm256_add_ps(sum, even), odd);
        _mm256_maskstore_ps(y + i, lanes(count - i), _mm256_mul_ps(sum, _mm256_set1_ps(0.25f)));
    }
}

INLINE void mean_grad_line(const float *dy, int64_t count, float *top, float *bottom)
{
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 d = _mm256_maskload_ps(dy + i, lanes(count - i));
        const __m256 share =
            _mm256_add_ps(_mm256_setzero_ps(), _mm256_mul_ps(d, _mm256_set1_ps(0.25f)));
        store_pairs(top + 2 * i, count - i, share, share);
        store_pairs(bottom + 2 * i, count - i, share, share);
    }
}

TARGET static void max(const wefti_pool_lines_t *l, const float *x, float *y, uint8_t *mask)
{
    for (int64_t line = 0; line < l->lines; line++) {
        const float *top = x + line * 2 * l->wide;
        max_line(top, top + l->wide, l->count, y + line * l->count,
                 mask == NULL ? NULL : mask + line * l->count);
    }
}

TARGET static void max_grad(const wefti_pool_lines_t *l, const float *dy, const uint8_t *mask,
                            float *dx)
{
    for (int64_t line = 0; line < l->lines; line++) {
        float *top = dx + line * 2 * l->wide;
        max_grad_line(dy + line * l->count, mask + line * l->count, l->count, top, top + l->wide);
    }
}

TARGET static void mean(const wefti_pool_lines_t *l, const float *x, float *y)
{
    for (int64_t line = 0; line < l->lines; line++) {
        const float *top = x + line * 2 * l->wide;
        mean_line(top, top + l->wide, l->count, y + line * l->count);
    }
}

TARGET static void mean_grad(const wefti_pool_lines_t *l, const float *dy, float *dx)
{
    for (int64_t line = 0; line < l->lines; line++) {
        float *top = dx + line * 2 * l->wide;
        mean_grad_line(dy + line * l->count, l->count, top, top + l->wide);
    }
}

const wefti_pool_pairs_t wefti_pool_pairs_avx2 = {max, max_grad, mean, mean_grad};
#else
const wefti_pool_pairs_t wefti_pool_pairs_avx2 = {NULL, NULL, NULL, NULL};
#endif
