/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Depthwise f32 convolution, with one channel per vector lane.
 *
 * Sixteen channels of some lines are transposed into vectors, pixel after pixel. Every tap is then
 * one vector, whatever the stride, and no sum crosses lanes:
 *
 *     plain    a b c d ..        lanes    a a' a" ..   the next pixel: b b' b" ..
 *     channel' a' b' c' ..
 *
 * Lines have columns of zeros on both sides. An output is the chain over its taps (ky, kx) whose line
 * lies inside the image; a weight's gradient adds up two chains, over the even and the odd outputs of
 * a line, for each line. Products are rounded before they are added, which compilers do alike for all
 * instruction sets.
 */
#ifndef WEFT_OPS_COMPUTE_CONV_DEPTHWISE_H
#define WEFT_OPS_COMPUTE_CONV_DEPTHWISE_H

#include "ops/compute/conv_f32.h"

/*
 * Outputs to, to + to_step ... of one dimension: number n reads source first + tap * step + n *
 * source_step with the weight weight + tap * weight_step.
 */
typedef struct wefti_depthwise_axis {
    int64_t count, to, to_step;
    int64_t taps, first, step, source_step;
    int64_t weight, weight_step;
} wefti_depthwise_axis_t;

typedef struct wefti_depthwise {
    int64_t images, channels, kernel[2];
    int64_t source[2], out[2];
    bool source_last, out_last, whole; /* whole: every output has an axis in both dimensions */
    int64_t axis_count[2];
    wefti_depthwise_axis_t *axes[2]; /* one for the forward pass, one per phase for dX */
    int64_t zeros, pitch;            /* pixels of a line of the source: zeros in front, and all */
    int64_t band;                    /* lines of outputs that are computed together */
    weft_isa_t isa;
    uint32_t threads;
    int64_t source_elems, thread_elems, scratch_elems; /* of a band */
} wefti_depthwise_t;

/* Is this the form for the shape? */
bool wefti_depthwise_fits(const wefti_conv_t *conv);

/* Deinit is for planned and for zeroed ones. data_grad: dX in the place of the forward pass. */
weft_status_t wefti_depthwise_plan(const wefti_conv_t *conv, bool data_grad,
                                   wefti_depthwise_t *out_pass);
void wefti_depthwise_deinit(wefti_depthwise_t *pass);
/* bias may be NULL. */
void wefti_depthwise_run(const wefti_depthwise_t *pass, const float *source, const float *weights,
                         const float *bias, float *dst, float *scratch);
/* The gradient of weights and bias, of a pass that is planned forward; db may be NULL. */
void wefti_depthwise_dw_run(const wefti_depthwise_t *pass, const float *x, const float *dy,
                            float *dw, float *db, float *scratch);

#endif
