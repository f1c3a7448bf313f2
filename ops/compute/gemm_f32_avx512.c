/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/gemm_f32.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,fma")))

/* How the broadcast operand lies. Addresses are kept to displacements from few pointers, because
 * whatever integer arithmetic stands in the loop competes with the multiply-adds for their two
 * ports. */
enum { ANY = 0, ROWS_ADJACENT = 1, K_ADJACENT = 2, TABLE = 3 /* K_ADJACENT, b by b_at */ };

/* Everything below is inlined with constant rows, vectors and lie, so that the accumulators are
 * registers. */
#define INLINE TARGET static inline __attribute__((always_inline))

/* The products of one k. rows_at: pointers to rows 0, 3, 6 and 9. */
INLINE void step(__m512 acc[12][4], const float *const rows_at[4], int64_t a_row, const float *b,
                 int64_t k, __mmask16 last, const int rows, const int vectors, const int lie)
{
    __m512 bv[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        bv[v] = lie == ANY && v == vectors - 1 ? _mm512_maskz_loadu_ps(last, b + 16 * v)
                                               : _mm512_loadu_ps(b + 16 * v);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        const float *a = lie == ROWS_ADJACENT ? rows_at[0] + r : rows_at[r / 3] + r % 3 * a_row + k;
        const __m512 av = _mm512_set1_ps(*a);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            acc[r][v] = _mm512_fmadd_ps(av, bv[v], acc[r][v]);
        }
    }
}

INLINE void tile(const wefti_gemm_tile_t *t, const int rows, const int vectors, const int lie)
{
    __m512 acc[12][4];
    const int64_t a_row = t->a_row, a_k = t->a_k, b_k = t->b_k;
    const float *b = t->b;
    const int32_t *b_at = t->b_at;
    const float *at[4] = {t->a, t->a + 3 * a_row, t->a + 6 * a_row, t->a + 9 * a_row};
    const __mmask16 last = (__mmask16)(0xffffu >> (vectors * 16 - t->cols));
    int64_t k = t->k_count;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            acc[r][v] = _mm512_setzero_ps();
            __builtin_prefetch(t->c + r * t->ldc + 16 * v, 1); /* else the end waits for it */
        }
    }
    if (lie == K_ADJACENT || lie == TABLE) {
        for (; k >= 4; k -= 4) {
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++) {
                step(acc, at, a_row, lie == TABLE ? b + b_at[u] : b, u, last, rows, vectors, lie);
                b += lie == TABLE ? 0 : b_k;
            }
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++) {
                at[g] += 4;
            }
            b_at += lie == TABLE ? 4 : 0;
        }
    }
    for (; k > 0; k--) {
        step(acc, at, a_row, lie == TABLE ? b + *b_at++ : b, 0, last, rows, vectors, lie);
        b += lie == TABLE ? 0 : b_k;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            at[g] += a_k;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        float *c = t->c + r * t->ldc;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const __mmask16 mask = v == vectors - 1 ? last : (__mmask16)0xffff;
            __m512 sum = acc[r][v];
            if (t->add) {
                sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c + 16 * v), sum);
            }
            _mm512_mask_storeu_ps(c + 16 * v, mask, sum);
        }
    }
}

#define CASE(rows, vectors)                                                                        \
    case (rows)*8 + (vectors):                                                                     \
        tile(t, rows, vectors, LIE);                                                               \
        break
#define CASES_TO_6(vectors)                                                                        \
    CASE(1, vectors);                                                                              \
    CASE(2, vectors);                                                                              \
    CASE(3, vectors);                                                                              \
    CASE(4, vectors);                                                                              \
    CASE(5, vectors);                                                                              \
    CASE(6, vectors)
#define CASES_TO_8(vectors)                                                                        \
    CASES_TO_6(vectors);                                                                           \
    CASE(7, vectors);                                                                              \
    CASE(8, vectors)
#define CASES_TO_12(vectors)                                                                       \
    CASES_TO_8(vectors);                                                                           \
    CASE(9, vectors);                                                                              \
    CASE(10, vectors);                                                                             \
    CASE(11, vectors);                                                                             \
    CASE(12, vectors)

#define RUN(name)                                                                                  \
    TARGET static void name(const wefti_gemm_tile_t *t)                                            \
    {                                                                                              \
        switch (t->rows * 8 + (t->cols + 15) / 16) {                                               \
            CASES_TO_12(1);                                                                        \
            CASES_TO_12(2);                                                                        \
            CASES_TO_8(3);                                                                         \
            CASES_TO_6(4);                                                                         \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }

#define LIE ANY
RUN(run_any)
#undef LIE
#define LIE ROWS_ADJACENT
RUN(run_rows_adjacent)
#undef LIE
#define LIE K_ADJACENT
RUN(run_k_adjacent)
#undef LIE
#define LIE TABLE
RUN(run_table)
#undef LIE

static void run(const wefti_gemm_tile_t *t)
{
    if (t->b_at != NULL) { /* always whole vectors: convolutions pad their buffers */
        run_table(t);
    } else if (t->cols % 16 != 0) {
        run_any(t);
    } else if (t->a_row == 1) {
        run_rows_adjacent(t);
    } else {
        run_k_adjacent(t);
    }
}

INLINE void dot_tile(const wefti_dot_tile_t *t, const int rows, const int cols)
{
    __m512 acc[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            acc[r][j] = _mm512_setzero_ps();
        }
    }
    /* One loop over all vectors: short runs would mispredict the end of each. */
    const float *a = t->a, *b = t->b;
    const int64_t a_skip = t->a_image - t->vectors * 16, b_skip = t->b_image - t->vectors * 16;
    int64_t b_at[4], left = t->vectors;
#pragma GCC unroll 4
    for (int j = 0; j < cols; j++) {
        b_at[j] = t->b_at[j];
    }
    for (int64_t p = t->images * t->vectors; p > 0; p--) {
        __m512 bv[4];
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            bv[j] = _mm512_loadu_ps(b + b_at[j]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512 av = _mm512_loadu_ps(a + r * t->a_row);
#pragma GCC unroll 4
            for (int j = 0; j < cols; j++) {
                acc[r][j] = _mm512_fmadd_ps(av, bv[j], acc[r][j]);
            }
        }
        left--;
        const int64_t end = -(int64_t)(left == 0); /* all ones after the last of a run */
        a += 16 + (a_skip & end);
        b += 16 + (b_skip & end);
        left += t->vectors & end;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < cols; j++) {
            float *sums = t->sums + (r * t->sums_row + j) * 16;
            _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), acc[r][j]));
        }
    }
}

#define DOT(rows, cols)                                                                            \
    case (rows)*8 + (cols):                                                                        \
        dot_tile(t, rows, cols);                                                                   \
        break
#define DOTS(cols)                                                                                 \
    DOT(1, cols);                                                                                  \
    DOT(2, cols);                                                                                  \
    DOT(3, cols);                                                                                  \
    DOT(4, cols);                                                                                  \
    DOT(5, cols);                                                                                  \
    DOT(6, cols)

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

const wefti_gemm_kernel_t wefti_gemm_kernel_avx512 = {16, 4, {0, 12, 12, 8, 6}, run, 6, 4, dot};
#else
const wefti_gemm_kernel_t wefti_gemm_kernel_avx512 = {0, 0, {0}, NULL, 0, 0, NULL};
#endif
