/* SPDX-License-Identifier: Apache-2.0 */
/* One row of softmax: shared by the softmax kernels and the loss. */
#ifndef WEFT_OPS_COMPUTE_SOFTMAX_ROW_H
#define WEFT_OPS_COMPUTE_SOFTMAX_ROW_H

#include "ops/compute/math_f32.h"
#include "ops/compute/sum_f32.h"

/* y = softmax(x) or its logarithm; y may be x. exps: count floats. NaN in x makes the row NaN. */
WEFTI_INLINE void wefti_log_softmax_row(const float *x, float *y, float *exps, int64_t count,
                                        bool logarithm)
{
    if (count <= 0) {
        return;
    }
    float top = x[0];
    for (int64_t i = 1; i < count; i++) {
        top = x[i] > top ? x[i] : top;
    }
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        exps[i] = wefti_exp_f32(x[i] - top);
    }
    float sum = wefti_sum_f32(exps, count);
    if (!logarithm) {
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = exps[i] / sum;
        }
        return;
    }
    /* The sum is at least 1 (the maximum's own share), or NaN: then so is everything. */
    float shift = sum >= 1.0f ? (float)wefti_log(sum) : sum;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = (x[i] - top) - shift;
    }
}

#endif
