/* SPDX-License-Identifier: Apache-2.0 */
/* One row of softmax: shared by the softmax kernels and the loss. */
#ifndef WEFT_OPS_COMPUTE_SOFTMAX_ROW_H
#define WEFT_OPS_COMPUTE_SOFTMAX_ROW_H

#include "ops/compute/math_f32.h"
#include "ops/compute/sum_f32.h"

/* exps = exp(x - top), where top >= x; returns their sum, which has the shape of sum_f32.h. */
WEFTI_INLINE float wefti_exps_f32(const float *x, float top, float *exps, int64_t count)
{
    float acc[WEFTI_SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + WEFTI_SUM_LANES <= count; i += WEFTI_SUM_LANES) {
        WEFTI_INDEPENDENT
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            float e = wefti_exp_of_negative_f32(x[i + j] - top);
            exps[i + j] = e;
            acc[j] += e;
        }
    }
    if (i == 0) {
        for (int j = 0; j < count; j++) {
            exps[j] = wefti_exp_of_negative_f32(x[j] - top);
            acc[j] += exps[j];
        }
    } else if (i < count) { /* some elements again */
        const int64_t tail = count - WEFTI_SUM_LANES;
        WEFTI_INDEPENDENT
        for (int64_t j = tail; j < tail + WEFTI_SUM_LANES; j++) {
            exps[j] = wefti_exp_of_negative_f32(x[j] - top);
        }
        wefti_add_last_f32(acc, exps + tail, (int)(count - i));
    }
    return wefti_sum_lanes_f32(acc);
}

/* y = softmax(x) or its logarithm; y may be x. exps: count floats. NaN in x makes the row NaN. */
WEFTI_INLINE void wefti_log_softmax_row(const float *x, float *y, float *exps, int64_t count,
                                        bool logarithm)
{
    if (count <= 0) {
        return;
    }
    const float top = wefti_max_f32(x, count);
    const float sum = wefti_exps_f32(x, top, exps, count);
    if (!logarithm) {
        const float share = 1.0f / sum; /* a product takes a quarter of the time of a division */
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = exps[i] * share;
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
