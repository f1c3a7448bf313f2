/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/base/half.h"

#define LANES ((size_t)16)
#define TARGET __attribute__((target("avx512f")))
/* Inlined into callers that fix source_count, so that the tree below becomes straight-line code. */
#define INLINED TARGET __attribute__((always_inline)) static inline

INLINED __m512 sum1(const float *const *sources, size_t at, __mmask16 mask)
{
    return _mm512_maskz_loadu_ps(mask, sources[0] + at);
}

INLINED __m512 sum2(const float *const *sources, size_t at, __mmask16 mask)
{
    return _mm512_add_ps(sum1(sources, at, mask), sum1(sources + 1, at, mask));
}

INLINED __m512 sum4(const float *const *sources, size_t at, __mmask16 mask)
{
    return _mm512_add_ps(sum2(sources, at, mask), sum2(sources + 2, at, mask));
}

INLINED __m512 sum8(const float *const *sources, size_t at, __mmask16 mask)
{
    return _mm512_add_ps(sum4(sources, at, mask), sum4(sources + 4, at, mask));
}

/* The tree by binary counter over subtrees of 8, see reduce_portable.c. */
INLINED __m512 tree(const float *const *sources, uint32_t count, size_t at, __mmask16 mask)
{
    __m512 stack[12];
    uint32_t depth = 0;
    uint32_t done = 0;
    for (; count - done >= 8; done += 8) {
        __m512 sum = sum8(sources + done, at, mask);
        for (uint32_t ones = done / 8; ones & 1u; ones >>= 1) {
            sum = _mm512_add_ps(stack[--depth], sum);
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
    __m512 sum = stack[--depth];
    while (depth > 0) {
        sum = _mm512_add_ps(stack[--depth], sum);
    }
    return sum;
}

/* Divides and makes every NaN the one quiet NaN: two cheap instructions, hidden behind the loads.
 */
INLINED __m512 finish(__m512 sum, __m512 divisor, int multiplies)
{
    sum = multiplies ? _mm512_mul_ps(sum, divisor) : _mm512_div_ps(sum, divisor);
    __mmask16 nans = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(sum, nans,
                              _mm512_castsi512_ps(_mm512_set1_epi32((int)WEFTI_F32_NAN)));
}

INLINED void body(float *const *destinations, uint32_t destination_count,
                  const float *const *sources, uint32_t source_count, size_t elem_count,
                  float divisor, int multiplies)
{
    const __m512 divide_by = _mm512_set1_ps(multiplies ? 1.0f / divisor : divisor);
    const __mmask16 all = 0xffff;
    size_t at = 0;
    for (; elem_count - at >= 4 * LANES; at += 4 * LANES) {
        __m512 a = finish(tree(sources, source_count, at, all), divide_by, multiplies);
        __m512 b = finish(tree(sources, source_count, at + LANES, all), divide_by, multiplies);
        __m512 c = finish(tree(sources, source_count, at + 2 * LANES, all), divide_by, multiplies);
        __m512 d = finish(tree(sources, source_count, at + 3 * LANES, all), divide_by, multiplies);
        for (uint32_t k = 0; k < destination_count; k++) {
            float *dst = destinations[k] + at;
            _mm512_storeu_ps(dst, a);
            _mm512_storeu_ps(dst + LANES, b);
            _mm512_storeu_ps(dst + 2 * LANES, c);
            _mm512_storeu_ps(dst + 3 * LANES, d);
        }
    }
    while (at < elem_count) {
        size_t lanes = elem_count - at < LANES ? elem_count - at : LANES;
        __mmask16 mask = (__mmask16)((1u << lanes) - 1u);
        __m512 sum = finish(tree(sources, source_count, at, mask), divide_by, multiplies);
        for (uint32_t k = 0; k < destination_count; k++) {
            _mm512_mask_storeu_ps(destinations[k] + at, mask, sum);
        }
        at += lanes;
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

void wefti_reduce_f32_avx512(const wefti_reduce_step_t *step)
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
typedef int wefti_reduce_f32_avx512_absent_t;
#endif
