/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/reduce/reduce_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "runtime/base/half.h"

#define LANES ((size_t)16)
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* Every CPU that has AVX2 has F16C. */
#define TARGET __attribute__((target("avx2,f16c")))
#define ONE TARGET __attribute__((always_inline)) static inline

/* f16: the lower and the upper half; bf16: the even and the odd elements, which needs no shuffling.
 */
typedef struct vector {
    __m256 a, b;
} vector_t;
typedef __m256i halves_t;

ONE vector_t load(weft_dtype_t kind, const uint16_t *from, size_t lanes)
{
    uint16_t part[LANES] = {0};
    if (lanes < LANES) {
        memcpy(part, from, lanes * sizeof *from);
        from = part;
    }
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)from);
    if (kind == WEFT_DTYPE_F16) {
        return (vector_t){_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                          _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
    }
    __m256i odd = _mm256_and_si256(half, _mm256_set1_epi32((int)0xffff0000u));
    return (vector_t){_mm256_castsi256_ps(_mm256_slli_epi32(half, 16)), _mm256_castsi256_ps(odd)};
}

ONE __m256 quiet(__m256 value)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)WEFTI_F32_NAN));
    return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

/* To the upper 16 bits of each lane; what is below is left over. See reduce_half_avx512.c. */
ONE __m256i round_bf16(__m256 value)
{
    __m256i nans = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32((int)WEFTI_F32_NAN), nans);
}

ONE halves_t narrow(weft_dtype_t kind, vector_t value)
{
    if (kind == WEFT_DTYPE_F16) { /* the quiet NaN of f32 narrows to that of f16 */
        __m128i low = _mm256_cvtps_ph(quiet(value.a), NEAREST);
        __m128i high = _mm256_cvtps_ph(quiet(value.b), NEAREST);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    return _mm256_blend_epi16(_mm256_srli_epi32(round_bf16(value.a), 16), round_bf16(value.b),
                              0xaa);
}

ONE void store(uint16_t *to, halves_t half, size_t lanes)
{
    if (lanes == LANES) {
        _mm256_storeu_si256((__m256i *)(void *)to, half);
    } else {
        uint16_t part[LANES];
        _mm256_storeu_si256((__m256i *)(void *)part, half);
        memcpy(to, part, lanes * sizeof *to);
    }
}

ONE vector_t add(vector_t x, vector_t y)
{
    return (vector_t){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

ONE vector_t divide(vector_t x, float divisor)
{
    __m256 by = _mm256_set1_ps(divisor);
    return (vector_t){_mm256_div_ps(x.a, by), _mm256_div_ps(x.b, by)};
}

#include "ops/reduce/reduce_half.h"

DEFINE_HALF_SUM(sum_f16, WEFT_DTYPE_F16)
DEFINE_HALF_SUM(sum_bf16, WEFT_DTYPE_BF16)

wefti_reduce_fn wefti_reduce_half_avx2(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F16 ? sum_f16 : sum_bf16;
}

#else
typedef int wefti_reduce_half_avx2_absent_t;
#endif
