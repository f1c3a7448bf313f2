/* SPDX-License-Identifier: Apache-2.0 */
/* One row of softmax: shared by the softmax kernels and the loss. */
#ifndef WEFT_OPS_COMPUTE_SOFTMAX_ROW_H
#define WEFT_OPS_COMPUTE_SOFTMAX_ROW_H

#include "ops/compute/math_f32.h"
#include "ops/compute/sum_f32.h"

/*
 * exps = exp(x - top), where top >= x, or NULL; returns their sum, which has the shape of sum_f32.h.
 * soon: two rows that are needed next, requested meanwhile; or NULL.
 */
WEFTI_INLINE float wefti_exps_f32(const float *x, float top, float *exps, int64_t count,
                                  const float *const *soon)
{
    float acc[WEFTI_SUM_LANES] = {0}, terms[WEFTI_SUM_LANES];
    int64_t i = 0;
    for (; i + WEFTI_SUM_LANES <= count; i += WEFTI_SUM_LANES) {
        if (soon != NULL) {
            wefti_prefetch(soon[0] + i, sizeof(terms));
            wefti_prefetch(soon[1] + i, sizeof(terms));
        }
        WEFTI_INDEPENDENT
        for (int j = 0; j < WEFTI_SUM_LANES; j++) {
            float e = wefti_exp_of_negative_f32(x[i + j] - top);
            if (exps != NULL) {
                exps[i + j] = e;
            }
            acc[j] += e;
        }
    }
    /* Where there are 16, the last ones again. */
    const int64_t tail = i == 0 ? 0 : count - WEFTI_SUM_LANES;
    const int rest = (int)(count - i), width = i == 0 ? rest : WEFTI_SUM_LANES;
    if (rest > 0) {
        WEFTI_INDEPENDENT
        for (int j = 0; j < width; j++) {
            terms[j] = wefti_exp_of_negative_f32(x[tail + j] - top);
        }
        for (int j = 0; j < width && exps != NULL; j++) {
            exps[tail + j] = terms[j];
        }
        for (int j = 0; j < rest && i == 0; j++) {
            acc[j] += terms[j];
        }
        if (i > 0) {
            wefti_add_last_f32(acc, terms, rest, acc);
        }
    }
    return wefti_sum_lanes_f32(acc);
}

/* y = softmax(x) or its logarithm; y may be x. exps: count floats, not of a logarithm. NaN in x
 * makes the row NaN. */
WEFTI_INLINE void wefti_log_softmax_row(const float *x, float *y, float *exps, int64_t count,
                                        bool logarithm)
{
    if (count <= 0) {
        return;
    }
    const float *const soon[2] = {x + count, y + count};
    const float top = wefti_max_f32(x, count);
    if (!logarithm) {
        /* a product takes a quarter of the time of a division */
        const float share = 1.0f / wefti_exps_f32(x, top, exps, count, soon);
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] = exps[i] * share;
        }
        return;
    }
    /* The sum is at least 1 (the maximum's own share), or NaN: then so is everything. */
    const float sum = wefti_exps_f32(x, top, NULL, count, soon);
    const float shift = sum >= 1.0f ? (float)wefti_log(sum) : sum;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        y[i] = (x[i] - top) - shift;
    }
}

#endif
