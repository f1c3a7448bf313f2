/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of a contiguous row in one fixed shape: 16 accumulators, then a fixed tree. */
#ifndef WEFT_OPS_COMPUTE_SUM_F32_H
#define WEFT_OPS_COMPUTE_SUM_F32_H

#include "ops/compute/support.h"

#define WEFTI_SUM_LANES 16

/* Element i goes to accumulator i % 16; then accumulators j and j + 8, + 4, + 2, + 1 are added. */
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
    for (int width = WEFTI_SUM_LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++) {
            acc[j] += acc[j + width];
        }
    }
    return acc[0];
}

#endif
