/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/pool_pairs.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
#define INLINE TARGET static inline __attribute__((always_inline))

/* The lanes of 16 elements of which count are there. */
INLINE __mmask16 lanes(int64_t count)
{
    return count >= 16 ? (__mmask16)0xffff
           : count > 0 ? (__mmask16)((1u << count) - 1)
                       : (__mmask16)0;
}

/* Elements 0, 2, 4, .. and 1, 3, 5, .. of 2 * count. */
INLINE void load_pairs(const float *x, int64_t count, __m512 *even, __m512 *odd)
{
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 a = _mm512_maskz_loadu_ps(lanes(2 * count), x);
    const __m512 b = _mm512_maskz_loadu_ps(lanes(2 * count - 16), x + 16);
    *even = _mm512_permutex2var_ps(a, first, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(first, _mm512_set1_epi32(1)), b);
}

INLINE void store_pairs(float *x, int64_t count, __m512 even, __m512 odd)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_mask_storeu_ps(x, lanes(2 * count), _mm512_permutex2var_ps(even, low, odd));
    if (count > 8) {
        _mm512_mask_storeu_ps(x + 16, lanes(2 * count - 16),
                              _mm512_permutex2var_ps(even, high, odd));
    }
}

INLINE void take(__m512 *best, __m512i *where, __m512 value, int tap)
{
    const __mmask16 wins = _mm512_cmp_ps_mask(value, *best, _CMP_GT_OQ) |
                           _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    *best = _mm512_mask_mov_ps(*best, wins, value);
    *where = _mm512_mask_mov_epi32(*where, wins, _mm512_set1_epi32(tap));
}

INLINE void max_line(const float *top, const float *bottom, int64_t count, float *y, uint8_t *mask)
{
    for (int64_t i = 0; i < count; i += 16) {
        __m512 best, right, left;
        __m512i where = _mm512_setzero_si512();
        load_pairs(top + 2 * i, count - i, &best, &right);
        take(&best, &where, right, 1);
        load_pairs(bottom + 2 * i, count - i, &left, &right);
        take(&best, &where, left, 2);
        take(&best, &where, right, 3);
        _mm512_mask_storeu_ps(y + i, lanes(count - i), best);
        if (mask != NULL) {
            _mm_mask_storeu_epi8(mask + i, lanes(count - i), _mm512_cvtepi32_epi8(where));
        }
    }
}

INLINE __m512i load_bytes(const uint8_t *x, int64_t count)
{
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes(count), x));
}

INLINE __m512 only(__m512i where, int tap, __m512 d)
{
    return _mm512_maskz_mov_ps(_mm512_cmpeq_epi32_mask(where, _mm512_set1_epi32(tap)), d);
}

INLINE void max_grad_line(const float *dy, const uint8_t *mask, int64_t count, float *top,
                          float *bottom)
{
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 d =
            _mm512_add_ps(_mm512_setzero_ps(), _mm512_maskz_loadu_ps(lanes(count - i), dy + i));
        const __m512i where = load_bytes(mask + i, count - i);
        store_pairs(top + 2 * i, count - i, only(where, 0, d), only(where, 1, d));
        store_pairs(bottom + 2 * i, count - i, only(where, 2, d), only(where, 3, d));
    }
}

INLINE void mean_line(const float *top, const float *bottom, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i += 16) {
        __m512 even, odd, sum = _mm512_setzero_ps();
        load_pairs(top + 2 * i, count - i, &even, &odd);
        sum = _mm512_add_ps(_mm512_add_ps(sum, even), odd);
        load_pairs(bottom + 2 * i, count - i, &even, &odd);
        sum = _mm512_add_ps(_mm512_add_ps(sum, even), odd);
        _mm512_mask_storeu_ps(y + i, lanes(count - i), _mm512_mul_ps(sum, _mm512_set1_ps(0.25f)));
    }
}

INLINE void mean_grad_line(const float *dy, int64_t count, float *top, float *bottom)
{
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 d = _mm512_maskz_loadu_ps(lanes(count - i), dy + i);
        const __m512 share =
            _mm512_add_ps(_mm512_setzero_ps(), _mm512_mul_ps(d, _mm512_set1_ps(0.25f)));
        store_pairs(top + 2 * i, count - i, share, share);
        store_pairs(bottom + 2 * i, count - i, share, share);
    }
}

/* Lines of up to 8 outputs: two of them fill a vector, and their outputs lie side by side. */
INLINE void max_two_lines(const wefti_pool_lines_t *l, const float *x, float *y, uint8_t *mask)
{
    const int64_t count = l->count, step = 2 * l->wide;
    int32_t from[16];
    for (int i = 0; i < 16; i++) {
        from[i] = i < count ? 2 * i : i < 2 * count ? 16 + 2 * (i - (int)count) : 0;
    }
    const __m512i even = _mm512_loadu_si512(from);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    const __mmask16 in = lanes(2 * count), out = lanes(2 * count);
    for (int64_t line = 0; line + 2 <= l->lines; line += 2, x += 2 * step, y += 2 * count) {
        const __m512 top = _mm512_maskz_loadu_ps(in, x);
        const __m512 bottom = _mm512_maskz_loadu_ps(in, x + l->wide);
        const __m512 next_top = _mm512_maskz_loadu_ps(in, x + step);
        const __m512 next_bottom = _mm512_maskz_loadu_ps(in, x + step + l->wide);
        __m512 best = _mm512_permutex2var_ps(top, even, next_top);
        __m512i where = _mm512_setzero_si512();
        take(&best, &where, _mm512_permutex2var_ps(top, odd, next_top), 1);
        take(&best, &where, _mm512_permutex2var_ps(bottom, even, next_bottom), 2);
        take(&best, &where, _mm512_permutex2var_ps(bottom, odd, next_bottom), 3);
        _mm512_mask_storeu_ps(y, out, best);
        if (mask != NULL) {
            _mm_mask_storeu_epi8(mask, out, _mm512_cvtepi32_epi8(where));
            mask += 2 * count;
        }
    }
    if (l->lines % 2 != 0) {
        max_line(x, x + l->wide, count, y, mask);
    }
}

TARGET static void max(const wefti_pool_lines_t *l, const float *x, float *y, uint8_t *mask)
{
    if (l->count <= 8) {
        max_two_lines(l, x, y, mask);
        return;
    }
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

const wefti_pool_pairs_t wefti_pool_pairs_avx512 = {max, max_grad, mean, mean_grad};
#else
const wefti_pool_pairs_t wefti_pool_pairs_avx512 = {NULL, NULL, NULL, NULL};
#endif
