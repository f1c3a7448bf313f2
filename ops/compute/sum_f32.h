/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of a contiguous row in one fixed shape: 16 accumulators, then a fixed tree. */
#ifndef WEFT_OPS_COMPUTE_SUM_F32_H
#define WEFT_OPS_COMPUTE_SUM_F32_H

#include "ops/compute/support.h"

#define WEFTI_SUM_LANES 16

/* Accumulators j and j + 8, + 4, + 2, + 1 are added. */
WEFTI_INLINE float wefti_sum_lanes_f32(float *acc)
{
    for (int width = WEFTI_SUM_LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) {
            acc[j] += acc[j + width];
        }
    }
    return acc[0];
}

/* Element i goes to accumulator i % 16. */
WEFTI_INLINE float wefti_sum_f32(const float *x, int64_t count)
{
    float acc[WEFTI_SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + WEFTI_SUM_LANES <= count; i += WEFTI_SUM_LANES) {
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            acc[j] += x[i + j];
        }
    }
    for (int j = 0; i + j < count; j++) {
        acc[j] += x[i + j];
    }
    return wefti_sum_lanes_f32(acc);
}

/* The largest element; where some are NaN, it may be any element. The order does not matter, so four
 * vectors hide the latency of a comparison. */
WEFTI_INLINE float wefti_max_f32(const float *x, int64_t count)
{
    enum { LANES = 4 * WEFTI_SUM_LANES };
    float top[LANES];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) {
        top[j] = x[0];
    }
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
        }
    }
    for (int j = 0; i + j < count; j++) {
        top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
    }
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) {
            top[j] = top[j + width] > top[j] ? top[j + width] : top[j];
        }
    }
    return top[0];
}

#endif
