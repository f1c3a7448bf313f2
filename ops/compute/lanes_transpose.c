/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen images to sixteen lanes and back, four positions at a time: 128-bit pieces of four
 * images, eight or sixteen apart stand in one vector, so that a 4 x 4 transpose inside 128 bits
 * finishes the work.
 */
#include "ops/compute/lanes_transpose.h"

#include <stdbool.h>

#include "ops/compute/gemm_f32.h"

#define LANES 16

static void to_portable(const float *src, int64_t src_image, int images, int64_t count, float *dst,
                        int64_t dst_step)
{
    for (int64_t j = 0; j < count; j++) {
        for (int i = 0; i < LANES; i++) {
            dst[j * dst_step + i] = i < images ? src[i * src_image + j] : 0;
        }
    }
}

static void from_portable(const float *src, int64_t src_step, int images, int64_t count, float add,
                          float *dst, int64_t dst_image)
{
    for (int i = 0; i < images; i++) {
        for (int64_t j = 0; j < count; j++) {
            dst[i * dst_image + j] = src[j * src_step + i] + add;
        }
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))

AVX2 INLINE void turn256(__m256 r[4])
{
    const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const __m256 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = _mm256_shuffle_ps(a, c, 0x44);
    r[1] = _mm256_shuffle_ps(a, c, 0xee);
    r[2] = _mm256_shuffle_ps(b, d, 0x44);
    r[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/* dst[k * dst_step + 0..7] = src[0..7 * src_step + k] + add for k < 4. */
AVX2 INLINE void turn_half(const float *src, int64_t src_step, __m256 add, bool adds, float *dst,
                           int64_t dst_step)
{
    __m256 r[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const float *from = src + k * src_step;
        r[k] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)),
                                    _mm_loadu_ps(from + 4 * src_step), 1);
    }
    turn256(r);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_ps(dst + k * dst_step, adds ? _mm256_add_ps(r[k], add) : r[k]);
    }
}

AVX2 static void to_avx2(const float *src, int64_t src_image, int images, int64_t count, float *dst,
                         int64_t dst_step)
{
    const __m256 zero = _mm256_setzero_ps();
    int64_t j = 0;
    for (; images == LANES && j + 4 <= count; j += 4) {
        float *to = dst + j * dst_step;
        turn_half(src + j, src_image, zero, false, to, dst_step);
        turn_half(src + 8 * src_image + j, src_image, zero, false, to + 8, dst_step);
    }
    to_portable(src + j, src_image, images, count - j, dst + j * dst_step, dst_step);
}

AVX2 static void from_avx2(const float *src, int64_t src_step, int images, int64_t count, float add,
                           float *dst, int64_t dst_image)
{
    int64_t j = 0;
    for (; images == LANES && j + 8 <= count; j += 8) {
        for (int i = 0; i < LANES; i += 4) {
            turn_half(src + j * src_step + i, src_step, _mm256_set1_ps(add), true,
                      dst + i * dst_image + j, dst_image);
        }
    }
    from_portable(src + j * src_step, src_step, images, count - j, add, dst + j, dst_image);
}

AVX512 INLINE void turn512(__m512 r[4])
{
    const __m512 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    const __m512 c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(a, c, 0x44);
    r[1] = _mm512_shuffle_ps(a, c, 0xee);
    r[2] = _mm512_shuffle_ps(b, d, 0x44);
    r[3] = _mm512_shuffle_ps(b, d, 0xee);
}

/* dst[k * dst_step + 0..15] = src[0..15 * src_step + k] + add for k < 4. */
AVX512 INLINE void turn_four(const float *src, int64_t src_step, __m512 add, bool adds, float *dst,
                             int64_t dst_step)
{
    __m512 r[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        const float *from = src + k * src_step;
        r[k] = _mm512_castps128_ps512(_mm_loadu_ps(from));
        r[k] = _mm512_insertf32x4(r[k], _mm_loadu_ps(from + 4 * src_step), 1);
        r[k] = _mm512_insertf32x4(r[k], _mm_loadu_ps(from + 8 * src_step), 2);
        r[k] = _mm512_insertf32x4(r[k], _mm_loadu_ps(from + 12 * src_step), 3);
    }
    turn512(r);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        _mm512_storeu_ps(dst + k * dst_step, adds ? _mm512_add_ps(r[k], add) : r[k]);
    }
}

AVX512 static void to_avx512(const float *src, int64_t src_image, int images, int64_t count,
                             float *dst, int64_t dst_step)
{
    int64_t j = 0;
    for (; images == LANES && j + 4 <= count; j += 4) {
        turn_four(src + j, src_image, _mm512_setzero_ps(), false, dst + j * dst_step, dst_step);
    }
    to_portable(src + j, src_image, images, count - j, dst + j * dst_step, dst_step);
}

AVX512 static void from_avx512(const float *src, int64_t src_step, int images, int64_t count,
                               float add, float *dst, int64_t dst_image)
{
    int64_t j = 0;
    for (; images == LANES && j + LANES <= count; j += LANES) {
        for (int i = 0; i < LANES; i += 4) {
            turn_four(src + j * src_step + i, src_step, _mm512_set1_ps(add), true,
                      dst + i * dst_image + j, dst_image);
        }
    }
    for (; images == LANES && j + 4 <= count; j += 4) {
        __m512 r[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            r[k] = _mm512_add_ps(_mm512_loadu_ps(src + (j + k) * src_step), _mm512_set1_ps(add));
        }
        turn512(r);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            float *to = dst + k * dst_image + j;
            _mm_storeu_ps(to, _mm512_castps512_ps128(r[k]));
            _mm_storeu_ps(to + 4 * dst_image, _mm512_extractf32x4_ps(r[k], 1));
            _mm_storeu_ps(to + 8 * dst_image, _mm512_extractf32x4_ps(r[k], 2));
            _mm_storeu_ps(to + 12 * dst_image, _mm512_extractf32x4_ps(r[k], 3));
        }
    }
    from_portable(src + j * src_step, src_step, images, count - j, add, dst + j, dst_image);
}
#endif

wefti_to_lanes_fn wefti_to_lanes(weft_isa_t isa)
{
#if defined(__x86_64__)
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(isa);
    return kernel == &wefti_gemm_kernel_avx512 ? to_avx512
           : kernel == &wefti_gemm_kernel_avx2 ? to_avx2
                                               : to_portable;
#else
    (void)isa;
    return to_portable;
#endif
}

wefti_from_lanes_fn wefti_from_lanes(weft_isa_t isa)
{
#if defined(__x86_64__)
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(isa);
    return kernel == &wefti_gemm_kernel_avx512 ? from_avx512
           : kernel == &wefti_gemm_kernel_avx2 ? from_avx2
                                               : from_portable;
#else
    (void)isa;
    return from_portable;
#endif
}
