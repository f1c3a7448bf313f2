/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 matrix product with one defined result.
 *
 * C[m, n] = alpha * S(m, n) + beta * bias[m, n], where S adds up blocks of WEFTI_GEMM_K_BLOCK
 * products in order, each block being a chain of fused multiply-adds that starts at zero:
 *
  *     S = 0;
 *     for each block { s = 0;  for k in block { s = fma(A[m, k], B[k, n], s); }  S = S + s; }
 *
 * Every element is defined alone, so tiles, packing, threads, and the instruction set change
 * nothing. oneDNN's dnnl_sgemm has no such definition (its edge tiles split k differently on AVX2
 * and AVX-512), picks the instruction set once per process and allocates in every call; that is why
 * products are done here.
 */
#ifndef WEFT_OPS_COMPUTE_GEMM_F32_H
#define WEFT_OPS_COMPUTE_GEMM_F32_H

#include <stdbool.h>

#include <weft/types.h>

#define WEFTI_GEMM_K_BLOCK 256

/* Shapes and choices, fixed at prepare. */
typedef struct wefti_gemm {
    int64_t m, n, k;
    bool trans_a, trans_b; /* A is [k, m], B is [n, k] */
    int64_t lda, ldb, ldc; /* elements from row to row */
    float alpha, beta;
    weft_isa_t isa;
    uint32_t threads;
    bool swap;   /* vectors run along m: computed as C' = B' A', then transposed */
    bool pack;   /* the vector operand lies the other way and is transposed */
    bool panels; /* it is copied, a tile's columns at a time */
    size_t panels_elems, thread_elems; /* scratch of a thread: the panels, and all of it */
    size_t scratch_bytes;
} wefti_gemm_t;

/* Fills the choices in; m, n, k at least 1. WEFT_ERR_UNSUPPORTED when sizes overflow. */
weft_status_t wefti_gemm_plan(wefti_gemm_t *gemm);

/* "gemm:avx512" and so on. */
const char *wefti_gemm_name(const wefti_gemm_t *gemm);

/*
 * Where the addend lies: element (m, n) at bias[m * row + n * col], strides may be 0. NULL: none.
 */
typedef struct wefti_gemm_bias {
    const float *data;
    int64_t row, col;
} wefti_gemm_bias_t;

/* C may not overlap anything. accumulate: S starts from what C holds instead of 0. */
void wefti_gemm_run(const wefti_gemm_t *gemm, const float *a, const float *b,
                    const wefti_gemm_bias_t *bias, bool accumulate, float *c, void *scratch);

/* dst[j * ldd + i] = src[i * lds + j] for i < rows, j < cols. */
void wefti_transpose_f32(weft_isa_t isa, const float *src, int64_t lds, int64_t rows, int64_t cols,
                         float *dst, int64_t ldd);

/*
 * One tile: C[r, j] (+)= sum over k < k_count of a[r * a_row + k * a_k] * b[k * b_k + j], for r <
 * rows and j < cols. add: the block's sum is added to C, else stored. Rows and cols are at most the
 * kernel's tile.
 */
typedef struct wefti_gemm_tile {
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t b_k;
    const int32_t *b_at; /* not NULL: row k of b lies at b + b_at[k], and a_k is 1 */
    float *c;
    int64_t ldc;
    int64_t k_count;
    int rows, cols;
    bool add;
} wefti_gemm_tile_t;

/*
 * Dot products that keep WEFTI_DOT_LANES partial sums each, whatever the vectors of the machine:
 * sums[(r * sums_row + j) * 16 + lane] += chain over images i and positions p of
 * a[i * a_image + r * a_row + p * 16 + lane] * b[i * b_image + b_at[j] + p * 16 + lane].
 */
#define WEFTI_DOT_LANES 16
typedef struct wefti_dot_tile {
    const float *a;
    int64_t a_row, a_image;
    const float *b;
    int64_t b_image;
    const int32_t *b_at;
    float *sums;
    int64_t sums_row;
    int64_t images, vectors; /* vectors of 16 lanes per image */
    int rows, cols;
} wefti_dot_tile_t;

typedef struct wefti_gemm_kernel {
    int lanes;       /* elements of one vector */
    int max_vectors; /* vectors of one tile's row */
    int max_rows[5]; /* most rows of a tile that is v vectors wide */
    void (*run)(const wefti_gemm_tile_t *tile);
    int dot_rows, dot_cols; /* largest tile of dot */
    void (*dot)(const wefti_dot_tile_t *tile);
} wefti_gemm_kernel_t;

/* All tiles of tile->c[rows, cols]; tile's own rows and cols are not read. */
void wefti_gemm_tiles(const wefti_gemm_kernel_t *kernel, const wefti_gemm_tile_t *tile,
                      int64_t rows, int64_t cols);

/* The best kernel that isa and the CPU allow. */
const wefti_gemm_kernel_t *wefti_gemm_kernel(weft_isa_t isa);

extern const wefti_gemm_kernel_t wefti_gemm_kernel_portable;
extern const wefti_gemm_kernel_t wefti_gemm_kernel_avx2;
extern const wefti_gemm_kernel_t wefti_gemm_kernel_avx512;

#endif
