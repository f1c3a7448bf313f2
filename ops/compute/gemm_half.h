/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of half types: those of gemm_f32.h on widened operands, rounded once at the end.
 *
 * C is computed in blocks of 384 rows by 768 columns. For 1024 products at a time, the rows of A and
 * the columns of B that a block needs are widened into scratch that fits into the second and third
 * cache, and added to sums in f32. A sum does not depend on its block, so bits are those of f32.
 */
#ifndef WEFT_OPS_COMPUTE_GEMM_HALF_H
#define WEFT_OPS_COMPUTE_GEMM_HALF_H

#include "ops/compute/gemm_f32.h"

typedef struct wefti_gemm_half {
    wefti_gemm_t gemm;                         /* shapes of the whole product */
    weft_isa_t isa;                            /* of conversions */
    weft_dtype_t in, out;                      /* of A and B; of C: the same or f32 */
    size_t b_offset, sums_offset, gemm_offset; /* in scratch */
    size_t scratch_bytes;
} wefti_gemm_half_t;

/* gemm: shapes, as for wefti_gemm_plan. */
weft_status_t wefti_gemm_half_plan(wefti_gemm_half_t *half, const wefti_gemm_t *gemm,
                                   weft_dtype_t in, weft_dtype_t out);
/* bias is f32. */
void wefti_gemm_half_run(const wefti_gemm_half_t *half, const uint16_t *a, const uint16_t *b,
                         const wefti_gemm_bias_t *bias, void *c, void *scratch);

#endif
