/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/gemm_f32.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))

/* Lanes 0 .. count - 1. */
TARGET static inline __m256i lane_mask(int count)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
}

/* rows, vectors and full are constants after inlining; full: the last vector has all its lanes. */
TARGET static inline __attribute__((always_inline)) void
tile(const wefti_gemm_tile_t *t, const int rows, const int vectors, const bool full)
{
    __m256 acc[6][2];
    const float *a = t->a;
    const int64_t a_row = t->a_row;
    const __m256i last = lane_mask(t->cols - (vectors - 1) * 8);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            acc[r][v] = _mm256_setzero_ps();
            __builtin_prefetch(t->c + r * t->ldc + 8 * v, 1); /* else the end waits for it */
        }
    }
    for (int64_t k = 0; k < t->k_count; k++) {
        __m256 bv[2];
        const float *b = t->b + (t->b_at != NULL ? t->b_at[k] : k * t->b_k);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            bv[v] = full || v < vectors - 1 ? _mm256_loadu_ps(b + 8 * v)
                                            : _mm256_maskload_ps(b + 8 * v, last);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m256 av = _mm256_broadcast_ss(a + r * a_row);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                acc[r][v] = _mm256_fmadd_ps(av, bv[v], acc[r][v]);
            }
        }
        a += t->a_k;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *c = t->c + r * t->ldc;
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            const __m256i mask = v == vectors - 1 ? last : _mm256_set1_epi32(-1);
            __m256 sum = acc[r][v];
            if (t->add) {
                sum = _mm256_add_ps(_mm256_maskload_ps(c + 8 * v, mask), sum);
            }
            _mm256_maskstore_ps(c + 8 * v, mask, sum);
        }
    }
}

#define CASE(rows, vectors)                                                                        \
    case (rows)*8 + (vectors)*2:                                                                   \
        tile(t, rows, vectors, false);                                                             \
        break;                                                                                     \
    case (rows)*8 + (vectors)*2 + 1:                                                               \
        tile(t, rows, vectors, true);                                                              \
        break
#define CASES(vectors)                                                                             \
    CASE(1, vectors);                                                                              \
    CASE(2, vectors);                                                                              \
    CASE(3, vectors);                                                                              \
    CASE(4, vectors);                                                                              \
    CASE(5, vectors);                                                                              \
    CASE(6, vectors)

TARGET static void run(const wefti_gemm_tile_t *t)
{
    const int vectors = (t->cols + 7) / 8;
    switch (t->rows * 8 + vectors * 2 + (vectors * 8 == t->cols)) {
        CASES(1);
        CASES(2);
    default:
        break;
    }
}

/* Lanes first .. first + 7 of the sixteen. */
TARGET static inline __attribute__((always_inline)) void
dot_half(const wefti_dot_tile_t *t, const int rows, const int cols, int first)
{
    __m256 acc[3][4];
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            acc[r][j] = _mm256_setzero_ps();
        }
    }
    for (int64_t i = 0; i < t->images; i++) {
        const float *a = t->a + i * t->a_image + first;
        const float *b = t->b + i * t->b_image + first;
        for (int64_t p = 0; p < t->vectors * 16; p += 16) {
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++) {
                const __m256 av = _mm256_loadu_ps(a + r * t->a_row + p);
#pragma GCC unroll 4
                for (int j = 0; j < cols; j++) {
                    acc[r][j] = _mm256_fmadd_ps(av, _mm256_loadu_ps(b + t->b_at[j] + p), acc[r][j]);
                }
            }
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            float *sums = t->sums + (r * t->sums_row + j) * 16 + first;
            _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), acc[r][j]));
        }
    }
}

#define DOT(rows, cols)                                                                            \
    case (rows)*8 + (cols):                                                                        \
        dot_half(t, rows, cols, 0);                                                                \
        dot_half(t, rows, cols, 8);                                                                \
        break
#define DOTS(cols)                                                                                 \
    DOT(1, cols);                                                                                  \
    DOT(2, cols);                                                                                  \
    DOT(3, cols)

TARGET static void dot(const wefti_dot_tile_t *t)
{
    switch (t->rows * 8 + t->cols) {
        DOTS(1);
        DOTS(2);
        DOTS(3);
        DOTS(4);
    default:
        break;
    }
}

const wefti_gemm_kernel_t wefti_gemm_kernel_avx2 = {8, 2, {0, 6, 6, 0, 0}, run, 3, 4, dot};
#else
const wefti_gemm_kernel_t wefti_gemm_kernel_avx2 = {0, 0, {0}, NULL, 0, 0, NULL};
#endif
