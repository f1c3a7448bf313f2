/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/base/half.h"

#define LANES ((size_t)32)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define INLINED TARGET __attribute__((always_inline)) static inline
#define TABLE wefti_reduce_float_avx512

typedef struct vector {
    __m512 a, b;
} vector_t;

INLINED __mmask32 mask_of(size_t lanes)
{
    return lanes == LANES ? ~(__mmask32)0 : ((__mmask32)1 << lanes) - 1;
}

INLINED vector_t load_f32(const float *from, size_t lanes)
{
    if (lanes == LANES) {
        return (vector_t){_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)};
    }
    return (vector_t){_mm512_maskz_loadu_ps((__mmask16)mask_of(lanes), from),
                      _mm512_maskz_loadu_ps((__mmask16)(mask_of(lanes) >> 16), from + 16)};
}

INLINED vector_t load(weft_dtype_t dtype, const void *source, size_t at, size_t lanes)
{
    const uint16_t *from = (const uint16_t *)source + at;
    if (dtype == WEFT_DTYPE_F32) {
        return load_f32((const float *)source + at, lanes);
    }
    if (dtype == WEFT_DTYPE_F16 && lanes == LANES) {
        const __m256i *halves = (const __m256i *)(const void *)from;
        return (vector_t){_mm512_cvtph_ps(_mm256_loadu_si256(halves)),
                          _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1))};
    }
    __m512i both =
        lanes == LANES ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(mask_of(lanes), from);
    if (dtype == WEFT_DTYPE_F16) {
        return (vector_t){_mm512_cvtph_ps(_mm512_castsi512_si256(both)),
                          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(both, 1))};
    }
    __m512i odd = _mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u));
    return (vector_t){_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), _mm512_castsi512_ps(odd)};
}

INLINED vector_t load_wide(weft_dtype_t dtype, const void *source, size_t at, size_t lanes)
{
    vector_t x = load_f32((const float *)source + at, lanes);
    if (dtype != WEFT_DTYPE_BF16) {
        return x;
    }
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return (vector_t){_mm512_permutex2var_ps(x.a, even, x.b),
                      _mm512_permutex2var_ps(x.a, odd, x.b)};
}

INLINED vector_t combine(bool prod, vector_t x, vector_t y)
{
    if (prod) {
        return (vector_t){_mm512_mul_ps(x.a, y.a), _mm512_mul_ps(x.b, y.b)};
    }
    return (vector_t){_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b)};
}

INLINED vector_t scale(vector_t x, float by, bool divides)
{
    const __m512 all = _mm512_set1_ps(by);
    if (divides) {
        return (vector_t){_mm512_div_ps(x.a, all), _mm512_div_ps(x.b, all)};
    }
    return (vector_t){_mm512_mul_ps(x.a, all), _mm512_mul_ps(x.b, all)};
}

INLINED bool any_nan(vector_t x)
{
    return _mm512_cmp_ps_mask(x.a, x.b, _CMP_UNORD_Q) != 0;
}

INLINED vector_t quiet(vector_t x)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)WEFTI_F32_NAN));
    return (vector_t){
        _mm512_mask_mov_ps(x.a, _mm512_cmp_ps_mask(x.a, x.a, _CMP_UNORD_Q), nan),
        _mm512_mask_mov_ps(x.b, _mm512_cmp_ps_mask(x.b, x.b, _CMP_UNORD_Q), nan),
    };
}

/*
 * In integers, since vcvtneps2bf16 would flush denormals: what is kept of all elements in one
 * register, what is dropped in another. Rounds up where more than half is dropped, or half of an
 * odd number.
 */
INLINED __m512i narrow_bf16(vector_t x)
{
    const __mmask32 odd = 0xaaaaaaaau;
    const __m512i one = _mm512_set1_epi16(1);
    __m512i a = _mm512_castps_si512(x.a), b = _mm512_castps_si512(x.b);
    __m512i kept = _mm512_mask_mov_epi16(_mm512_srli_epi32(a, 16), odd, b);
    __m512i dropped = _mm512_mask_mov_epi16(a, odd, _mm512_slli_epi32(b, 16));
    __m512i more = _mm512_ternarylogic_epi32(dropped, kept, one, 0xf8); /* dropped | (kept & 1) */
    __mmask32 up = _mm512_cmpgt_epu16_mask(more, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_add_epi16(kept, up, kept, one);
}

INLINED __m256i narrow_f16(__m512 x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* f16: in the lower halves of both registers; bf16: in a. */
INLINED vector_t narrow(weft_dtype_t dtype, vector_t x)
{
    if (dtype == WEFT_DTYPE_F16) { /* the quiet NaN of f32 narrows to that of f16 */
        return (vector_t){_mm512_castsi512_ps(_mm512_castsi256_si512(narrow_f16(x.a))),
                          _mm512_castsi512_ps(_mm512_castsi256_si512(narrow_f16(x.b)))};
    }
    return dtype == WEFT_DTYPE_F32 ? x : (vector_t){_mm512_castsi512_ps(narrow_bf16(x)), x.b};
}

INLINED void store_f32(float *to, vector_t x, size_t lanes)
{
    if (lanes == LANES) {
        _mm512_storeu_ps(to, x.a);
        _mm512_storeu_ps(to + 16, x.b);
    } else {
        _mm512_mask_storeu_ps(to, (__mmask16)mask_of(lanes), x.a);
        _mm512_mask_storeu_ps(to + 16, (__mmask16)(mask_of(lanes) >> 16), x.b);
    }
}

INLINED void store(weft_dtype_t dtype, void *destination, size_t at, vector_t x, size_t lanes)
{
    uint16_t *to = (uint16_t *)destination + at;
    if (dtype == WEFT_DTYPE_F32) {
        store_f32((float *)destination + at, x, lanes);
    } else if (dtype == WEFT_DTYPE_F16) {
        _mm256_mask_storeu_epi16(to, (__mmask16)mask_of(lanes),
                                 _mm512_castsi512_si256(_mm512_castps_si512(x.a)));
        _mm256_mask_storeu_epi16(to + 16, (__mmask16)(mask_of(lanes) >> 16),
                                 _mm512_castsi512_si256(_mm512_castps_si512(x.b)));
    } else {
        _mm512_mask_storeu_epi16(to, mask_of(lanes), _mm512_castps_si512(x.a));
    }
}

INLINED void store_wide(weft_dtype_t dtype, void *destination, size_t at, vector_t x, size_t lanes)
{
    if (dtype == WEFT_DTYPE_BF16) {
        const __m512i lower =
            _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
        x = (vector_t){_mm512_permutex2var_ps(x.a, lower, x.b),
                       _mm512_permutex2var_ps(x.a, upper, x.b)};
    }
    store_f32((float *)destination + at, x, lanes);
}

#include "ops/reduce/reduce_float.h"

#else
typedef int wefti_reduce_float_avx512_absent_t;
#endif
