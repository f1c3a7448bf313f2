/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commonest pooling: windows of 2 x 2, stride 2, no padding, plain layout. Two input lines make
 * one output line; even and odd elements are separated by permutes, so lines of any length are
 * whole vectors and one masked one.
 */
#ifndef WEFT_OPS_COMPUTE_POOL_PAIRS_H
#define WEFT_OPS_COMPUTE_POOL_PAIRS_H

#include "ops/compute/pool.h"

/* What to do: lines of count outputs each. Line i of the small tensor is at i * count; its two
 * lines of the large one are at i * 2 * wide and i * 2 * wide + wide. */
typedef struct wefti_pool_lines {
    int64_t lines, count, wide;
} wefti_pool_lines_t;

typedef struct wefti_pool_pairs {
    /* As pool_max.c defines maxima; mask may be NULL. */
    void (*max)(const wefti_pool_lines_t *l, const float *x, float *y, uint8_t *mask);
    /* Writes all of both lines but an element left over; a mask above 3 counts nowhere. */
    void (*max_grad)(const wefti_pool_lines_t *l, const float *dy, const uint8_t *mask, float *dx);
    void (*mean)(const wefti_pool_lines_t *l, const float *x, float *y);
    void (*mean_grad)(const wefti_pool_lines_t *l, const float *dy, float *dx);
} wefti_pool_pairs_t;

bool wefti_pool_is_pairs(const wefti_pool_t *pool);

/* mask may be NULL. */
void wefti_pool_pairs_max(const wefti_pool_t *pool, const float *x, float *y, uint8_t *mask);
void wefti_pool_pairs_max_grad(const wefti_pool_t *pool, const float *dy, const uint8_t *mask,
                               float *dx);
void wefti_pool_pairs_mean(const wefti_pool_t *pool, const float *x, float *y);
void wefti_pool_pairs_mean_grad(const wefti_pool_t *pool, const float *dy, float *dx);

extern const wefti_pool_pairs_t wefti_pool_pairs_avx2, wefti_pool_pairs_avx512;

#endif
