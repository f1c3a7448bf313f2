/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "runtime/base/half.h"

#define LANES ((size_t)16)
/* Every CPU that has AVX2 has F16C. */
#define TARGET __attribute__((target("avx2,f16c")))
#define INLINED TARGET __attribute__((always_inline)) static inline
#define TABLE wefti_reduce_float_avx2

typedef struct vector {
    __m256 a, b;
} vector_t;

/* The first lanes - first of 8. */
INLINED __m256i mask_of(size_t lanes, int first)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lanes - first), lane);
}

INLINED vector_t load_f32(const float *from, size_t lanes)
{
    if (lanes == LANES) {
        return (vector_t){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    return (vector_t){_mm256_maskload_ps(from, mask_of(lanes, 0)),
                      _mm256_maskload_ps(from + 8, mask_of(lanes, 8))};
}

INLINED vector_t load(weft_dtype_t dtype, const void *source, size_t at, size_t lanes)
{
    const uint16_t *from = (const uint16_t *)source + at;
    uint16_t part[LANES] = {0};
    if (dtype == WEFT_DTYPE_F32) {
        return load_f32((const float *)source + at, lanes);
    }
    if (lanes < LANES) {
        memcpy(part, from, lanes * sizeof *from);
        from = part;
    }
    if (dtype == WEFT_DTYPE_F16) {
        const __m128i *halves = (const __m128i *)(const void *)from;
        return (vector_t){_mm256_cvtph_ps(_mm_loadu_si128(halves)),
                          _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
    }
    __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i odd = _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u));
    return (vector_t){_mm256_castsi256_ps(_mm256_slli_epi32(both, 16)), _mm256_castsi256_ps(odd)};
}

INLINED vector_t load_wide(weft_dtype_t dtype, const void *source, size_t at, size_t lanes)
{
    const float *from = (const float *)source + at;
    float part[LANES];
    if (dtype != WEFT_DTYPE_BF16) {
        return load_f32(from, lanes);
    }
    if (lanes < LANES) {
        vector_t x = load_f32(from, lanes);
        _mm256_storeu_ps(part, x.a);
        _mm256_storeu_ps(part + 8, x.b);
        from = part;
    }
    /* 0-3 8-11 and 4-7 12-15, so that even and odd come out in order */
    __m256 x =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 8), 1);
    __m256 y = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + 4)),
                                    _mm_loadu_ps(from + 12), 1);
    return (vector_t){_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd)};
}

INLINED vector_t combine(bool prod, vector_t x, vector_t y)
{
    if (prod) {
        return (vector_t){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
    }
    return (vector_t){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

INLINED vector_t scale(vector_t x, float by, bool divides)
{
    const __m256 all = _mm256_set1_ps(by);
    if (divides) {
        return (vector_t){_mm256_div_ps(x.a, all), _mm256_div_ps(x.b, all)};
    }
    return (vector_t){_mm256_mul_ps(x.a, all), _mm256_mul_ps(x.b, all)};
}

INLINED bool any_nan(vector_t x)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q)) != 0;
}

INLINED vector_t quiet(vector_t x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)WEFTI_F32_NAN));
    return (vector_t){_mm256_blendv_ps(x.a, nan, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
                      _mm256_blendv_ps(x.b, nan, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}

/* As in reduce_float_avx512.c; compared with signs, so what is dropped counts from -0x8000. */
INLINED __m256i narrow_bf16(vector_t x)
{
    __m256i a = _mm256_castps_si256(x.a), b = _mm256_castps_si256(x.b);
    __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
    __m256i dropped = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
    dropped = _mm256_xor_si256(dropped, _mm256_set1_epi16((short)0x8000));
    __m256i more = _mm256_or_si256(dropped, _mm256_and_si256(kept, _mm256_set1_epi16(1)));
    return _mm256_sub_epi16(kept, _mm256_cmpgt_epi16(more, _mm256_setzero_si256()));
}

INLINED __m128i narrow_f16(__m256 x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* f16: in the lower halves of both registers; bf16: in a. */
INLINED vector_t narrow(weft_dtype_t dtype, vector_t x)
{
    if (dtype == WEFT_DTYPE_F16) { /* the quiet NaN of f32 narrows to that of f16 */
        return (vector_t){_mm256_castsi256_ps(_mm256_castsi128_si256(narrow_f16(x.a))),
                          _mm256_castsi256_ps(_mm256_castsi128_si256(narrow_f16(x.b)))};
    }
    return dtype == WEFT_DTYPE_F32 ? x : (vector_t){_mm256_castsi256_ps(narrow_bf16(x)), x.b};
}

INLINED void store_f32(float *to, vector_t x, size_t lanes)
{
    if (lanes == LANES) {
        _mm256_storeu_ps(to, x.a);
        _mm256_storeu_ps(to + 8, x.b);
    } else {
        _mm256_maskstore_ps(to, mask_of(lanes, 0), x.a);
        _mm256_maskstore_ps(to + 8, mask_of(lanes, 8), x.b);
    }
}

INLINED void store(weft_dtype_t dtype, void *destination, size_t at, vector_t x, size_t lanes)
{
    uint16_t *to = (uint16_t *)destination + at;
    uint16_t part[LANES];
    uint16_t *whole = lanes == LANES ? to : part;
    if (dtype == WEFT_DTYPE_F32) {
        store_f32((float *)destination + at, x, lanes);
        return;
    }
    if (dtype == WEFT_DTYPE_F16) {
        _mm_storeu_si128((__m128i *)(void *)whole, _mm_castps_si128(_mm256_castps256_ps128(x.a)));
        _mm_storeu_si128((__m128i *)(void *)(whole + 8),
                         _mm_castps_si128(_mm256_castps256_ps128(x.b)));
    } else {
        _mm256_storeu_si256((__m256i *)(void *)whole, _mm256_castps_si256(x.a));
    }
    if (lanes != LANES) {
        memcpy(to, part, lanes * sizeof *to);
    }
}

INLINED void store_wide(weft_dtype_t dtype, void *destination, size_t at, vector_t x, size_t lanes)
{
    if (dtype == WEFT_DTYPE_BF16) {
        __m256 low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
        x = (vector_t){_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31)};
    }
    store_f32((float *)destination + at, x, lanes);
}

#include "ops/reduce/reduce_float.h"

#else
typedef int wefti_reduce_float_avx2_absent_t;
#endif
