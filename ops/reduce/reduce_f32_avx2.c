/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/base/half.h"

#define LANES ((size_t)8)
#define TARGET __attribute__((target("avx2")))
/* Inlined into callers that fix source_count, so that the tree below becomes straight-line code. */
#define INLINED TARGET __attribute__((always_inline)) static inline

/* mask NULL: all lanes. Known where this is inlined, so that full vectors are loaded plainly. */
INLINED __m256 sum1(const float *const *sources, size_t at, const __m256i *mask)
{
    const float *from = sources[0] + at;
    return mask ? _mm256_maskload_ps(from, *mask) : _mm256_loadu_ps(from);
}

INLINED __m256 sum2(const float *const *sources, size_t at, const __m256i *mask)
{
    return _mm256_add_ps(sum1(sources, at, mask), sum1(sources + 1, at, mask));
}

INLINED __m256 sum4(const float *const *sources, size_t at, const __m256i *mask)
{
    return _mm256_add_ps(sum2(sources, at, mask), sum2(sources + 2, at, mask));
}

INLINED __m256 sum8(const float *const *sources, size_t at, const __m256i *mask)
{
    return _mm256_add_ps(sum4(sources, at, mask), sum4(sources + 4, at, mask));
}

/* The tree by binary counter over subtrees of 8, see reduce_portable.c. */
INLINED __m256 tree(const float *const *sources, uint32_t count, size_t at, const __m256i *mask)
{
    __m256 stack[12];
    uint32_t depth = 0;
    uint32_t done = 0;
    for (; count - done >= 8; done += 8) {
        __m256 sum = sum8(sources + done, at, mask);
        for (uint32_t ones = done / 8; ones & 1u; ones >>= 1) {
            sum = _mm256_add_ps(stack[--depth], sum);
        }
        stack[depth++] = sum;
    }
    if (count & 4u) {
        stack[depth++] = sum4(sources + done, at, mask);
        done += 4;
    }
    if (count & 2u) {
        stack[depth++] = sum2(sources + done, at, mask);
        done += 2;
    }
    if (count & 1u) {
        stack[depth++] = sum1(sources + done, at, mask);
    }
    __m256 sum = stack[--depth];
    while (depth > 0) {
        sum = _mm256_add_ps(stack[--depth], sum);
    }
    return sum;
}

/* Divides and makes every NaN the one quiet NaN: two cheap instructions, hidden behind the loads.
 */
INLINED __m256 finish(__m256 sum, __m256 divisor, int multiplies)
{
    sum = multiplies ? _mm256_mul_ps(sum, divisor) : _mm256_div_ps(sum, divisor);
    __m256 nans = _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q);
    return _mm256_blendv_ps(sum, _mm256_castsi256_ps(_mm256_set1_epi32((int)WEFTI_F32_NAN)), nans);
}

INLINED void body(float *const *destinations, uint32_t destination_count,
                  const float *const *sources, uint32_t source_count, size_t elem_count,
                  float divisor, int multiplies)
{
    const __m256 divide_by = _mm256_set1_ps(multiplies ? 1.0f / divisor : divisor);
    size_t at = 0;
    for (; elem_count - at >= 4 * LANES; at += 4 * LANES) {
        __m256 a = finish(tree(sources, source_count, at, NULL), divide_by, multiplies);
        __m256 b = finish(tree(sources, source_count, at + LANES, NULL), divide_by, multiplies);
        __m256 c = finish(tree(sources, source_count, at + 2 * LANES, NULL), divide_by, multiplies);
        __m256 d = finish(tree(sources, source_count, at + 3 * LANES, NULL), divide_by, multiplies);
        for (uint32_t k = 0; k < destination_count; k++) {
            float *dst = destinations[k] + at;
            _mm256_storeu_ps(dst, a);
            _mm256_storeu_ps(dst + LANES, b);
            _mm256_storeu_ps(dst + 2 * LANES, c);
            _mm256_storeu_ps(dst + 3 * LANES, d);
        }
    }
    for (; elem_count - at >= LANES; at += LANES) {
        __m256 sum = finish(tree(sources, source_count, at, NULL), divide_by, multiplies);
        for (uint32_t k = 0; k < destination_count; k++) {
            _mm256_storeu_ps(destinations[k] + at, sum);
        }
    }
    if (at < elem_count) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(elem_count - at)), lane);
        __m256 sum = finish(tree(sources, source_count, at, &mask), divide_by, multiplies);
        for (uint32_t k = 0; k < destination_count; k++) {
            _mm256_maskstore_ps(destinations[k] + at, mask, sum);
        }
    }
}

/* The addresses in locals: kept in registers, where stores cannot seem to change them. */
TARGET static void two_to_two(float *const *destinations, const float *const *sources,
                              size_t elem_count, float divisor)
{
    float *const to[2] = {destinations[0], destinations[1]};
    const float *const from[2] = {sources[0], sources[1]};
    body(to, 2, from, 2, elem_count, divisor, 1);
}

TARGET static void any_exact(float *const *destinations, uint32_t destination_count,
                             const float *const *sources, uint32_t source_count, size_t elem_count,
                             float divisor)
{
    switch (source_count) {
    case 4:
        body(destinations, destination_count, sources, 4, elem_count, divisor, 1);
        break;
    case 8:
        body(destinations, destination_count, sources, 8, elem_count, divisor, 1);
        break;
    default:
        body(destinations, destination_count, sources, source_count, elem_count, divisor, 1);
    }
}

TARGET static void any_inexact(float *const *destinations, uint32_t destination_count,
                               const float *const *sources, uint32_t source_count,
                               size_t elem_count, float divisor)
{
    body(destinations, destination_count, sources, source_count, elem_count, divisor, 0);
}

void wefti_reduce_f32_avx2(const wefti_reduce_step_t *step)
{
    float *const *destinations = (float *const *)step->destinations;
    const float *const *sources = (const float *const *)step->sources;
    const uint32_t source_count = step->source_count, destination_count = step->destination_count;
    const size_t elem_count = (size_t)step->elem_count;
    const float divisor = wefti_reduce_divisor(step);
    if (source_count == 2 && destination_count == 2 && wefti_divides_exactly(divisor)) {
        two_to_two(destinations, sources, elem_count, divisor);
    } else if (wefti_divides_exactly(divisor)) {
        any_exact(destinations, destination_count, sources, source_count, elem_count, divisor);
    } else {
        any_inexact(destinations, destination_count, sources, source_count, elem_count, divisor);
    }
}

#else
typedef int wefti_reduce_f32_avx2_absent_t;
#endif
