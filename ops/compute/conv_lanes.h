/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 convolution with one image per vector lane.
 *
 * Where images are small and there are many, sixteen of them are transposed into planes whose
 * elements are vectors: planes[channel][y][x][image]. A tap of a run of outputs is then contiguous
 * memory without the gap between lines that conv_f32.h computes and throws away, taps that lie in
 * the padding are left out by lines and by tiles of columns, and the kernels are those of
 * gemm_f32.h. The price is transposing what goes in and out.
 *
 * Sums: an output is the chain over (ky, kx, channel), in pieces as wefti_conv_lanes_run cuts them;
 * a weight's gradient keeps one sum per lane, over blocks of images and of lines, then adds the
 * lanes in the order of a tree. Which form is used depends on shapes alone.
 */
#ifndef WEFT_OPS_COMPUTE_CONV_LANES_H
#define WEFT_OPS_COMPUTE_CONV_LANES_H

#include "ops/compute/conv_f32.h"
#include "ops/compute/lanes_transpose.h"

typedef struct wefti_lane_planes {
    int64_t channels, source[2], size[2], shift[2];
    bool last;
} wefti_lane_planes_t;

/* The forward pass, or the gradient of the input. */
typedef struct wefti_conv_lanes {
    wefti_lane_planes_t planes;
    int64_t images, rows, kernel[2], dilation[2], out[2];
    bool out_last, mirrored;
    int32_t *at; /* of tap (ky, kx, channel) */
    weft_isa_t isa, threads;
    int64_t weight_elems, thread_elems, scratch_elems;
} wefti_conv_lanes_t;

/* The gradient of weights and bias. */
typedef struct wefti_lanes_dw {
    wefti_lane_planes_t x, dy;
    int64_t images, taps, lines; /* lines of one chain */
    int32_t *at;
    weft_isa_t isa, threads;
    int64_t scratch_elems;
} wefti_lanes_dw_t;

/* Are lanes of images the better form for this shape? */
bool wefti_conv_lanes_fit_forward(const wefti_conv_t *conv);
bool wefti_conv_lanes_fit_data_grad(const wefti_conv_t *conv);
bool wefti_conv_lanes_fit_dw(const wefti_conv_t *conv);

/* Only for what fits. at is allocated; free it with wefti_free. */
weft_status_t wefti_conv_lanes_plan(const wefti_conv_t *conv, bool data_grad,
                                    wefti_conv_lanes_t *out_pass);
/* weights as the operator has them; bias may be NULL. */
void wefti_conv_lanes_run(const wefti_conv_lanes_t *pass, const float *source, const float *weights,
                          const float *bias, float *dst, float *scratch);

weft_status_t wefti_lanes_dw_plan(const wefti_conv_t *conv, wefti_lanes_dw_t *out_dw);
/* db may be NULL. */
void wefti_lanes_dw_run(const wefti_lanes_dw_t *dw, const float *x, const float *dy, float *dw_out,
                        float *db, float *scratch);

/* Shared by both files. */
static inline int64_t wefti_lane_plane_elems(const wefti_lane_planes_t *p)
{
    return p->size[0] * p->size[1] * WEFTI_DOT_LANES;
}
wefti_lane_planes_t wefti_lanes_input_planes(const wefti_conv_t *conv);
/* A block of up to sixteen images into planes whose borders are zero and stay so. */
void wefti_lanes_fill(const wefti_lane_planes_t *planes, wefti_to_lanes_fn to_lanes,
                      const float *image, int64_t images, float *dst);

#endif
