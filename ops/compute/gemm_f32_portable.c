/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle of products: fmaf rounds once on every machine. */
#include "ops/compute/gemm_f32.h"

#include <math.h>

static void run_portable(const wefti_gemm_tile_t *t)
{
    for (int r = 0; r < t->rows; r++) {
        float *c = t->c + r * t->ldc;
        float acc[16] = {0};
        for (int64_t k = 0; k < t->k_count; k++) {
            const float a = t->a[r * t->a_row + k * t->a_k];
            const float *b = t->b + (t->b_at != NULL ? t->b_at[k] : k * t->b_k);
            for (int j = 0; j < t->cols; j++) {
                acc[j] = fmaf(a, b[j], acc[j]);
            }
        }
        for (int j = 0; j < t->cols; j++) {
            c[j] = t->add ? c[j] + acc[j] : acc[j];
        }
    }
}

static void dot_portable(const wefti_dot_tile_t *t)
{
    for (int r = 0; r < t->rows; r++) {
        for (int j = 0; j < t->cols; j++) {
            float acc[WEFTI_DOT_LANES] = {0};
            for (int64_t i = 0; i < t->images; i++) {
                const float *a = t->a + i * t->a_image + r * t->a_row;
                const float *b = t->b + i * t->b_image + t->b_at[j];
                for (int64_t p = 0; p < t->vectors * WEFTI_DOT_LANES; p++) {
                    acc[p % WEFTI_DOT_LANES] = fmaf(a[p], b[p], acc[p % WEFTI_DOT_LANES]);
                }
            }
            float *sums = t->sums + (r * t->sums_row + j) * WEFTI_DOT_LANES;
            for (int lane = 0; lane < WEFTI_DOT_LANES; lane++) {
                sums[lane] += acc[lane];
            }
        }
    }
}

const wefti_gemm_kernel_t wefti_gemm_kernel_portable = {16, 1, {0, 4, 0, 0, 0}, run_portable,
                                                        4,  4, dot_portable};
