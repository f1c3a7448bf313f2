/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "runtime/base/half.h"

#define LANES ((size_t)32)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c")))
#define ONE TARGET __attribute__((always_inline)) static inline

/* f16: the lower and the upper half; bf16: the even and the odd elements, which needs no shuffling.
 */
typedef struct vector {
    __m512 a, b;
} vector_t;
typedef __m512i halves_t;

ONE __mmask32 mask_of(size_t lanes)
{
    return lanes == LANES ? ~(__mmask32)0 : ((__mmask32)1 << lanes) - 1;
}

ONE vector_t load(weft_dtype_t kind, const uint16_t *from, size_t lanes)
{
    if (kind == WEFT_DTYPE_F16 && lanes == LANES) {
        const __m256i *at = (const __m256i *)(const void *)from;
        return (vector_t){_mm512_cvtph_ps(_mm256_loadu_si256(at)),
                          _mm512_cvtph_ps(_mm256_loadu_si256(at + 1))};
    }
    __m512i half =
        lanes == LANES ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(mask_of(lanes), from);
    if (kind == WEFT_DTYPE_F16) {
        return (vector_t){_mm512_cvtph_ps(_mm512_castsi512_si256(half)),
                          _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))};
    }
    __m512i odd = _mm512_and_si512(half, _mm512_set1_epi32((int)0xffff0000u));
    return (vector_t){_mm512_castsi512_ps(_mm512_slli_epi32(half, 16)), _mm512_castsi512_ps(odd)};
}

ONE __m256i narrow_f16(__m512 value)
{
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/*
 * To the upper 16 bits of each lane; what is below is left over. In integers, since vcvtneps2bf16
 * would flush denormals: half of the last kept bit is added, less one where that bit is even.
 */
ONE __m512i round_bf16(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __mmask16 nans = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i half = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fff), odd, _mm512_set1_epi32(0x8000));
    bits = _mm512_add_epi32(bits, half);
    return _mm512_mask_mov_epi32(bits, nans, _mm512_set1_epi32((int)WEFTI_F32_NAN));
}

ONE halves_t narrow(weft_dtype_t kind, vector_t value)
{
    if (kind == WEFT_DTYPE_F16) {
        __mmask32 nans = _mm512_cmp_ps_mask(value.a, value.a, _CMP_UNORD_Q) |
                         (__mmask32)_mm512_cmp_ps_mask(value.b, value.b, _CMP_UNORD_Q) << 16;
        __m512i half =
            _mm512_inserti64x4(_mm512_castsi256_si512(narrow_f16(value.a)), narrow_f16(value.b), 1);
        return _mm512_mask_mov_epi16(half, nans, _mm512_set1_epi16((short)WEFTI_F16_NAN));
    }
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(round_bf16(value.a), 16), 0xaaaaaaaau,
                                 round_bf16(value.b));
}

ONE void store(uint16_t *to, halves_t half, size_t lanes)
{
    if (lanes == LANES) {
        _mm512_storeu_si512(to, half);
    } else {
        _mm512_mask_storeu_epi16(to, mask_of(lanes), half);
    }
}

ONE vector_t add(vector_t x, vector_t y)
{
    return (vector_t){_mm512_add_ps(x.a, y.a), _mm512_add_ps(x.b, y.b)};
}

ONE vector_t divide(vector_t x, float divisor)
{
    __m512 by = _mm512_set1_ps(divisor);
    return (vector_t){_mm512_div_ps(x.a, by), _mm512_div_ps(x.b, by)};
}

#include "ops/reduce/reduce_half.h"

DEFINE_HALF_SUM(sum_f16, WEFT_DTYPE_F16)
DEFINE_HALF_SUM(sum_bf16, WEFT_DTYPE_BF16)

wefti_reduce_fn wefti_reduce_half_avx512(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F16 ? sum_f16 : sum_bf16;
}

#else
typedef int wefti_reduce_half_avx512_absent_t;
#endif
