/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of a contiguous row in one fixed shape: 16 accumulators, then a fixed tree. */
#ifndef WEFT_OPS_COMPUTE_SUM_F32_H
#define WEFT_OPS_COMPUTE_SUM_F32_H

#include "ops/compute/support.h"
#include "ops/compute/vector.h"

#define WEFTI_SUM_LANES 16

/* Accumulators j and j + 8, + 4, + 2, + 1 are added. */
WEFTI_INLINE float wefti_sum_lanes_f32(const float *acc)
{
    float sums[8];
    WEFTI_F32X(8, sums) = WEFTI_F32X(8, acc) + WEFTI_F32X(8, acc + 8);
    const wefti_f32x4_t four = WEFTI_F32X(4, sums) + WEFTI_F32X(4, sums + 4);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Adds the last rest < 16 of 16 terms to the accumulators that have their places. out may be acc;
 * it is written in halves, for which a reader of all of it would wait long. */
WEFTI_INLINE void wefti_add_last_f32(const float *acc, const float *terms, int rest, float *out)
{
    for (int half = 0; half < 16; half += 8) {
        const wefti_i32x8_t place = {0, 1, 2, 3, 4, 5, 6, 7};
        const wefti_i32x8_t before = (place + (half + rest - WEFTI_SUM_LANES)) >> 31;
        const wefti_f32x8_t last = (wefti_f32x8_t)(WEFTI_I32X(8, terms + half) & ~before);
        WEFTI_F32X(8, out + half) = WEFTI_F32X(8, acc + half) + last;
    }
}

/*
 * Element i goes to accumulator i % 16. The last count % 16 elements go to the last accumulators:
 * the last 16 elements are then read as one vector, of which the first are not added.
 */
WEFTI_INLINE float wefti_sum_f32(const float *x, int64_t count)
{
    float acc[WEFTI_SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + WEFTI_SUM_LANES <= count; i += WEFTI_SUM_LANES) {
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            acc[j] += x[i + j];
        }
    }
    if (i == 0) {
        for (int j = 0; j < count; j++) {
            acc[j] += x[j];
        }
    } else if (i < count) {
        wefti_add_last_f32(acc, x + count - WEFTI_SUM_LANES, (int)(count - i), acc);
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
