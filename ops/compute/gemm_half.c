/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/gemm_half.h"

#include "ops/compute/halves.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#define ROWS INT64_C(384)
#define COLS INT64_C(768)
#define PRODUCTS (INT64_C(4) * WEFTI_GEMM_K_BLOCK)
#define GRAIN_ELEMS INT64_C(32768) /* worth a thread */

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The product of one block: operands lie side by side. */
static weft_status_t plan_block(const wefti_gemm_t *whole, int64_t rows, int64_t cols,
                                int64_t products, wefti_gemm_t *out)
{
    *out = *whole;
    out->m = rows;
    out->n = cols;
    out->k = products;
    out->lda = whole->trans_a ? rows : products;
    out->ldb = whole->trans_b ? products : cols;
    out->ldc = cols;
    out->alpha = 1;
    out->beta = 0;
    return wefti_gemm_plan(out);
}

weft_status_t wefti_gemm_half_plan(wefti_gemm_half_t *half, const wefti_gemm_t *gemm,
                                   weft_dtype_t in, weft_dtype_t out)
{
    const int64_t rows[] = {min_i64(gemm->m, ROWS), gemm->m % ROWS};
    const int64_t cols[] = {min_i64(gemm->n, COLS), gemm->n % COLS};
    const int64_t products[] = {min_i64(gemm->k, PRODUCTS), gemm->k % PRODUCTS};
    size_t bytes = 0;
    *half = (wefti_gemm_half_t){.gemm = *gemm, .in = in, .out = out};
    half->isa = gemm->isa > WEFT_ISA_AVX512 ? WEFT_ISA_AVX512 : gemm->isa;
    WEFT_RETURN_IF_ERROR(wefti_gemm_plan(&half->gemm)); /* checks sizes */
    for (int i = 0; i < 8; i++) {
        wefti_gemm_t block;
        if (rows[i & 1] > 0 && cols[i >> 1 & 1] > 0 && products[i >> 2] > 0) {
            WEFT_RETURN_IF_ERROR(
                plan_block(gemm, rows[i & 1], cols[i >> 1 & 1], products[i >> 2], &block));
            bytes = block.scratch_bytes > bytes ? block.scratch_bytes : bytes;
        }
    }
    half->b_offset = wefti_align_up((size_t)(rows[0] * products[0]) * sizeof(float), 64);
    half->sums_offset =
        half->b_offset + wefti_align_up((size_t)(cols[0] * products[0]) * sizeof(float), 64);
    half->gemm_offset =
        half->sums_offset + wefti_align_up((size_t)(rows[0] * cols[0]) * sizeof(float), 64);
    half->scratch_bytes = half->gemm_offset + bytes;
    return WEFT_OK;
}

/* Rows of a matrix of half types, or of sums. */
typedef struct rows_job {
    const wefti_gemm_half_t *half;
    const uint16_t *from;
    const float *sums;
    void *to;
    int64_t from_stride, to_stride, length;
} rows_job_t;

static void widen_rows(const void *context, wefti_range_t range)
{
    const rows_job_t *job = context;
    for (int64_t i = range.from; i < range.to; i++) {
        wefti_halves_widen(job->half->isa, job->half->in, job->from + i * job->from_stride,
                           job->length, (float *)job->to + i * job->to_stride);
    }
}

static void narrow_rows(const void *context, wefti_range_t range)
{
    const rows_job_t *job = context;
    for (int64_t i = range.from; i < range.to; i++) {
        wefti_halves_narrow(job->half->isa, job->half->out, job->sums + i * job->from_stride,
                            job->length, (uint16_t *)job->to + i * job->to_stride);
    }
}

static void each_row(rows_job_t job, int64_t rows, wefti_range_fn fn)
{
    const int64_t grain = GRAIN_ELEMS / job.length + 1;
    wefti_parallel_for(job.half->gemm.threads, rows, grain, fn, &job);
}

/* The part of an operand that begins at (row, col) as it is multiplied. */
static void widen_part(const wefti_gemm_half_t *half, const uint16_t *x, int64_t stride,
                       bool turned, int64_t row, int64_t rows, int64_t col, int64_t cols, float *to)
{
    const rows_job_t job = {.half = half,
                            .from = turned ? x + col * stride + row : x + row * stride + col,
                            .to = to,
                            .from_stride = stride,
                            .to_stride = turned ? rows : cols,
                            .length = turned ? rows : cols};
    each_row(job, turned ? cols : rows, widen_rows);
}

/* Rows from row on, columns from col on. */
static void run_block(const wefti_gemm_half_t *half, const uint16_t *a, const uint16_t *b,
                      const wefti_gemm_bias_t *bias, void *c, char *scratch, int64_t row,
                      int64_t col)
{
    const wefti_gemm_t *g = &half->gemm;
    const int64_t rows = min_i64(ROWS, g->m - row), cols = min_i64(COLS, g->n - col);
    const bool direct = half->out == WEFT_DTYPE_F32;
    float *wide_a = (float *)(void *)scratch, *wide_b = (float *)(void *)(scratch + half->b_offset);
    float *sums =
        direct ? (float *)c + row * g->ldc + col : (float *)(void *)(scratch + half->sums_offset);
    wefti_gemm_bias_t part = *bias;
    part.data = bias->data == NULL ? NULL : bias->data + row * bias->row + col * bias->col;
    for (int64_t k = 0; k < g->k; k += PRODUCTS) {
        const int64_t products = min_i64(PRODUCTS, g->k - k);
        const bool last = k + products == g->k;
        wefti_gemm_t block;
        widen_part(half, a, g->lda, g->trans_a, row, rows, k, products, wide_a);
        widen_part(half, b, g->ldb, g->trans_b, k, products, col, cols, wide_b);
        (void)plan_block(g, rows, cols, products, &block); /* prepare has tried all */
        block.ldc = direct ? g->ldc : cols;
        block.alpha = last ? g->alpha : 1;
        block.beta = g->beta;
        wefti_gemm_run(&block, wide_a, wide_b, last ? &part : NULL, k > 0, sums,
                       scratch + half->gemm_offset);
    }
    if (!direct) {
        const rows_job_t job = {.half = half,
                                .sums = sums,
                                .to = (uint16_t *)c + row * g->ldc + col,
                                .from_stride = cols,
                                .to_stride = g->ldc,
                                .length = cols};
        each_row(job, rows, narrow_rows);
    }
}

void wefti_gemm_half_run(const wefti_gemm_half_t *half, const uint16_t *a, const uint16_t *b,
                         const wefti_gemm_bias_t *bias, void *c, void *scratch)
{
    for (int64_t col = 0; col < half->gemm.n; col += COLS) {
        for (int64_t row = 0; row < half->gemm.m; row += ROWS) {
            run_block(half, a, b, bias, c, scratch, row, col);
        }
    }
}
