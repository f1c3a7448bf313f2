/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/gemm_f32.h"

#include <string.h>

#include "ops/compute/lanes_transpose.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/parallel.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Columns of the vector operand are copied together where at least so many rows use them and a
 * block is so large: lines far apart share few sets of the first-level cache and need a page each.
 */
#define PANEL_ROWS 128
#define PANEL_COLS 32
#define PANEL_BLOCK_ELEMS (INT64_C(1) << 17)
/* Panels copied at once and the rows that run over them: with 256 columns an operand of many rows is
 * read from memory once in 256 columns. Both lie in a second-level cache of 512 KiB. */
#define PANEL_GROUP 256
#define PANEL_ROW_BLOCK 120 /* whole tiles of 4, 6, 8 and 12 rows */
/* Sums of so many rows stay in cache from one block of k to the next. */
#define PIECE_ROWS 1920

const wefti_gemm_kernel_t *wefti_gemm_kernel(weft_isa_t isa)
{
#if defined(__x86_64__)
    if (isa >= WEFT_ISA_AVX512 && __builtin_cpu_supports("avx512f")) {
        return &wefti_gemm_kernel_avx512;
    }
    if (isa >= WEFT_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &wefti_gemm_kernel_avx2;
    }
#endif
    (void)isa;
    return &wefti_gemm_kernel_portable;
}

const char *wefti_gemm_name(const wefti_gemm_t *gemm)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(gemm->isa);
    return kernel == &wefti_gemm_kernel_avx512 ? "gemm:avx512"
           : kernel == &wefti_gemm_kernel_avx2 ? "gemm:avx2"
                                               : "gemm:portable";
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void wefti_transpose_f32(weft_isa_t isa, const float *src, int64_t lds, int64_t rows, int64_t cols,
                         float *dst, int64_t ldd)
{
    const wefti_to_lanes_fn to_lanes = wefti_to_lanes(isa);
    int64_t i = 0;
    for (; i + WEFTI_DOT_LANES <= rows; i += WEFTI_DOT_LANES) {
        to_lanes(src + i * lds, lds, WEFTI_DOT_LANES, cols, dst + i, ldd);
    }
#if defined(__SSE__)
    for (; i + 4 <= rows; i += 4) {
        const float *s = src + i * lds;
        int64_t j = 0;
        for (; j + 4 <= cols; j += 4) {
            __m128 r0 = _mm_loadu_ps(s + j);
            __m128 r1 = _mm_loadu_ps(s + lds + j);
            __m128 r2 = _mm_loadu_ps(s + 2 * lds + j);
            __m128 r3 = _mm_loadu_ps(s + 3 * lds + j);
            _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
            _mm_storeu_ps(dst + j * ldd + i, r0);
            _mm_storeu_ps(dst + (j + 1) * ldd + i, r1);
            _mm_storeu_ps(dst + (j + 2) * ldd + i, r2);
            _mm_storeu_ps(dst + (j + 3) * ldd + i, r3);
        }
        for (; j < cols; j++) {
            for (int64_t r = 0; r < 4; r++) {
                dst[j * ldd + i + r] = s[r * lds + j];
            }
        }
    }
#endif
    for (; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            dst[j * ldd + i] = src[i * lds + j];
        }
    }
}

weft_status_t wefti_gemm_plan(wefti_gemm_t *gemm)
{
    const int64_t m = gemm->m, n = gemm->n, k = gemm->k;
    const int64_t limit = INT64_C(1) << 40;
    if (m > limit / n || n > limit / k || k > limit / m || m > INT32_MAX || n > INT32_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "matrix product too large: %lld x %lld x %lld",
                           (long long)m, (long long)n, (long long)k);
    }
    gemm->threads = gemm->threads == 0 ? 1 : gemm->threads;
    /* Elements moved beside the product itself, and products of lanes that hold nothing (a product
     * costs about a fiftieth of a move). Either choice gives the same bits. */
    const int64_t lanes = wefti_gemm_kernel(gemm->isa)->lanes;
    const double work = (double)k / 50;
    const double normal = (gemm->trans_b ? (double)n * (double)k : 0) +
                          work * (double)m * (double)((n + lanes - 1) / lanes * lanes);
    const double swapped = (gemm->trans_a ? 0 : (double)m * (double)k) + (double)m * (double)n +
                           work * (double)n * (double)((m + lanes - 1) / lanes * lanes);
    gemm->swap = swapped < normal;
    gemm->pack = gemm->swap ? !gemm->trans_a : gemm->trans_b;
    const int64_t rows = gemm->swap ? n : m, cols = gemm->swap ? m : n;
    gemm->panels = gemm->pack || (rows >= PANEL_ROWS &&
                                  min_i64(k, WEFTI_GEMM_K_BLOCK) * cols >= PANEL_BLOCK_ELEMS);
    const int64_t piece_cols = gemm->panels ? min_i64(cols, PANEL_GROUP) : cols;
    const int64_t panels = gemm->panels ? piece_cols * min_i64(k, WEFTI_GEMM_K_BLOCK) : 0;
    const int64_t sums = gemm->swap ? min_i64(rows, PIECE_ROWS) * piece_cols : 0;
    gemm->panels_elems = wefti_align_up((size_t)panels, 16);
    gemm->thread_elems = gemm->panels_elems + wefti_align_up((size_t)sums, 16);
    gemm->scratch_bytes = gemm->threads * gemm->thread_elems * sizeof(float);
    return WEFT_OK;
}

/* One k block of C[rows, cols]: a by broadcast, b by vectors. */
typedef struct panel_job {
    wefti_gemm_tile_t tile; /* a, b, c of element (0, 0) */
    int64_t rows, cols;
    const wefti_gemm_kernel_t *kernel;
    float *panels; /* not NULL: b goes through them */
    bool turned;   /* b is [cols, k] */
    weft_isa_t isa;
} panel_job_t;

/*
 * Widths that keep the most registers busy: 3 vectors by 8 rows, or 4 by 6 where there are no more
 * rows. No single vector is left over, since it could not hide the latency of its few
 * multiply-adds.
 */
static int next_width(const wefti_gemm_kernel_t *kernel, int64_t left, int64_t rows)
{
    const int64_t vectors = (left + kernel->lanes - 1) / kernel->lanes;
    int64_t take = min_i64(vectors, kernel->max_vectors);
    if (kernel->max_vectors == 4 && vectors > 4) {
        const int64_t width = rows <= kernel->max_rows[4] ? 4 : 3;
        take = vectors % width == 1 ? width - 1 : width;
    }
    return (int)min_i64(left, take * kernel->lanes);
}

/* b and b_k: column col, wherever that lies. */
static void tile_at(const panel_job_t *job, int64_t row, int64_t rows_end, int64_t col, int cols,
                    const float *b, int64_t b_k)
{
    const int vectors = (cols + job->kernel->lanes - 1) / job->kernel->lanes;
    const int64_t step = job->kernel->max_rows[vectors];
    wefti_gemm_tile_t t = job->tile;
    t.cols = cols;
    t.b = b;
    t.b_k = b_k;
    for (int64_t r = row; r < rows_end; r += t.rows) {
        t.rows = (int)min_i64(step, rows_end - r);
        t.a = job->tile.a + r * t.a_row;
        t.c = job->tile.c + r * t.ldc + col;
        job->kernel->run(&t);
    }
}

/* Columns [col, col + cols) side by side. */
static void fill_panel(const panel_job_t *job, int64_t col, int cols, float *panel)
{
    const wefti_gemm_tile_t *t = &job->tile;
    if (job->turned) {
        wefti_transpose_f32(job->isa, t->b + col * t->b_k, t->b_k, cols, t->k_count, panel, cols);
        return;
    }
    for (int64_t k = 0; k < t->k_count; k++) {
        memcpy(panel + k * cols, t->b + k * t->b_k + col, (size_t)cols * sizeof *panel);
    }
}

/* All panels stay in the second-level cache with a block of rows, one of them in the first. */
static void run_panels(const panel_job_t *job)
{
    int cols;
    for (int64_t row = 0; row < job->rows; row += PANEL_ROW_BLOCK) {
        const int64_t next = min_i64(job->rows, row + PANEL_ROW_BLOCK);
        for (int64_t col = 0; col < job->cols; col += cols) {
            float *panel = job->panels + col * job->tile.k_count;
            cols = next_width(job->kernel, min_i64(job->cols - col, PANEL_COLS), job->rows);
            if (row == 0) {
                fill_panel(job, col, cols, panel);
            }
            tile_at(job, row, next, col, cols, panel, cols);
        }
    }
}

/* The operand that is read most often stays in the first-level cache. */
static void run_block(const panel_job_t *job)
{
    const wefti_gemm_tile_t *t = &job->tile;
    int cols;
    if (job->panels != NULL) {
        run_panels(job);
        return;
    }
    if (job->cols > job->rows) {
        for (int64_t col = 0; col < job->cols; col += cols) {
            cols = next_width(job->kernel, job->cols - col, job->rows);
            tile_at(job, 0, job->rows, col, cols, t->b + col, t->b_k);
        }
        return;
    }
    for (int64_t row = 0; row < job->rows;) {
        int64_t next = job->rows;
        for (int64_t col = 0; col < job->cols; col += cols) {
            cols = next_width(job->kernel, job->cols - col, job->rows);
            const int vectors = (cols + job->kernel->lanes - 1) / job->kernel->lanes;
            if (col == 0) {
                next = min_i64(job->rows, row + job->kernel->max_rows[vectors]);
            }
            tile_at(job, row, next, col, cols, t->b + col, t->b_k);
        }
        row = next;
    }
}

void wefti_gemm_tiles(const wefti_gemm_kernel_t *kernel, const wefti_gemm_tile_t *tile,
                      int64_t rows, int64_t cols)
{
    const panel_job_t job = {.tile = *tile, .rows = rows, .cols = cols, .kernel = kernel};
    run_block(&job);
}

/* What is done once all blocks are summed: alpha and the addend, for C[m, n] from element (i, j). */
static void finish(const wefti_gemm_t *g, const wefti_gemm_bias_t *bias, int64_t i, int64_t j,
                   int64_t m, int64_t n, float *c)
{
    const float alpha = g->alpha, beta = g->beta;
    const bool scale = alpha != 1;
    const bool add = bias != NULL && bias->data != NULL;
    for (int64_t r = 0; r < m && (scale || add); r++) {
        float *row = c + r * g->ldc;
        const float *addend = add ? bias->data + (i + r) * bias->row + j * bias->col : NULL;
        if (scale) {
            for (int64_t q = 0; q < n; q++) {
                row[q] *= alpha;
            }
        }
        if (add && bias->col == 1) { /* a case of its own, so that it becomes vectors */
            for (int64_t q = 0; q < n; q++) {
                row[q] += beta * addend[q];
            }
        } else if (add) {
            for (int64_t q = 0; q < n; q++) {
                row[q] += beta * addend[q * bias->col];
            }
        }
    }
}

typedef struct product {
    const wefti_gemm_t *g;
    const wefti_gemm_bias_t *bias;
    panel_job_t job; /* the whole product, without C */
    bool accumulate;
    float *c, *scratch;
    int64_t unit, units, parts; /* of rows, or of columns where those are more */
} product_t;

/* All blocks of k are summed while this piece of C is in cache. */
static void run_piece(const product_t *p, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      float *scratch)
{
    const wefti_gemm_t *g = p->g;
    const bool swap = g->swap;
    const int64_t i = swap ? col : row, j = swap ? row : col;
    const float *a = p->job.tile.a + row * p->job.tile.a_row;
    const float *b = p->job.tile.b + (g->pack ? col * p->job.tile.b_k : col);
    float *c = p->c + i * g->ldc + j, *sums = swap ? scratch + g->panels_elems : c;
    panel_job_t job = p->job;
    job.rows = rows;
    job.cols = cols;
    job.panels = g->panels ? scratch : NULL;
    job.tile.c = sums;
    job.tile.ldc = swap ? cols : g->ldc;
    if (swap && p->accumulate) {
        wefti_transpose_f32(g->isa, c, g->ldc, cols, rows, sums, cols);
    }
    for (int64_t k = 0; k < g->k; k += WEFTI_GEMM_K_BLOCK) {
        job.tile.k_count = min_i64(g->k - k, WEFTI_GEMM_K_BLOCK);
        job.tile.a = a + k * job.tile.a_k;
        job.tile.b = b + (g->pack ? k : k * job.tile.b_k);
        job.tile.add = k > 0 || p->accumulate;
        run_block(&job);
    }
    if (swap) {
        wefti_transpose_f32(g->isa, sums, cols, rows, cols, c, g->ldc);
    }
    finish(g, p->bias, i, j, swap ? cols : rows, swap ? rows : cols, c);
}

static void run_part(const void *context, int64_t part)
{
    const product_t *p = context;
    const panel_job_t *job = &p->job;
    const bool by_cols = job->cols > job->rows;
    const int64_t from = p->units * part / p->parts * p->unit;
    const int64_t to =
        min_i64(by_cols ? job->cols : job->rows, p->units * (part + 1) / p->parts * p->unit);
    const int64_t row_end = by_cols ? job->rows : to, col_end = by_cols ? to : job->cols;
    const int64_t most = p->g->panels ? PANEL_GROUP : job->cols;
    float *scratch = p->scratch + (size_t)part * p->g->thread_elems;
    for (int64_t row = by_cols ? 0 : from; row < row_end; row += PIECE_ROWS) {
        for (int64_t col = by_cols ? from : 0; col < col_end; col += most) {
            run_piece(p, row, min_i64(row_end - row, PIECE_ROWS), col, min_i64(col_end - col, most),
                      scratch);
        }
    }
}

void wefti_gemm_run(const wefti_gemm_t *g, const float *a, const float *b,
                    const wefti_gemm_bias_t *bias, bool accumulate, float *c, void *scratch)
{
    /* Strides of the broadcast operand [rows, k] and of the vector operand [k, cols]. */
    const bool narrow_trans = g->swap ? !g->trans_b : g->trans_a;
    const int64_t narrow_ld = g->swap ? g->ldb : g->lda;
    product_t p = {.g = g, .bias = bias, .accumulate = accumulate, .c = c, .scratch = scratch};
    p.job.kernel = wefti_gemm_kernel(g->isa);
    p.job.isa = g->isa;
    p.job.turned = g->pack;
    p.job.rows = g->swap ? g->n : g->m;
    p.job.cols = g->swap ? g->m : g->n;
    p.job.tile.a = g->swap ? b : a;
    p.job.tile.a_row = narrow_trans ? 1 : narrow_ld;
    p.job.tile.a_k = narrow_trans ? narrow_ld : 1;
    p.job.tile.b = g->swap ? a : b;
    p.job.tile.b_k = g->swap ? g->lda : g->ldb;
    /* The longer side is split over threads, at multiples that keep tiles whole. */
    const bool by_cols = p.job.cols > p.job.rows;
    p.unit = by_cols ? 48 : 24;
    p.units = ((by_cols ? p.job.cols : p.job.rows) + p.unit - 1) / p.unit;
    p.parts = min_i64(p.units, g->threads);
    wefti_parallel(p.parts, run_part, &p);
}
