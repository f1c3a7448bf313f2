/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 convolution as products over shifted planes.
 *
 * An image is copied once into zero-padded planes, one per channel and phase of the stride, all of
 * one width. In them the inputs of one kernel tap for all outputs are one run of memory at a fixed
 * offset:
 *
  *     planes   . . . . . .        output (y, x) is position p = y * width + x; its tap (c, ky, kx)
 *              . a b c d .        lies at at[c, ky, kx] + p. So output row o is a product of the
 *              . e f g h .        weights' row o with "rows" of memory that overlap: no im2col is
 *              . . . . . .        written. The few positions between lines are computed and
 *                                 discarded.
 *
 * The gradient of the input is the same with spread and mirrored planes of dY; the gradient of
 * weights and bias is dot products of dY's planes with X's. Sums are chains as gemm_f32.h defines
 * them, so bits depend on neither instruction set nor threads nor layout. oneDNN falls back to
 * reference code (ref:any, 40 to 400 times slower) for channels-last with plain weights, and
 * differs between instruction sets.
 */
#ifndef WEFT_OPS_COMPUTE_CONV_F32_H
#define WEFT_OPS_COMPUTE_CONV_F32_H

#include "ops/compute/gemm_f32.h"

#include <weft/registry.h>

/* Images whose products one chain of a weight gradient takes; part of the definition of its bits.
 */
#define WEFTI_CONV_DW_IMAGES 8

/* Shapes of one convolution; index 0 is height, 1 is width. 1-D convolutions have height 1. */
typedef struct wefti_conv {
    int64_t images, in_channels, out_channels, groups;
    int64_t in[2], out[2], kernel[2], stride[2], dilation[2], pad[2]; /* pad: at the beginning */
    bool in_last, out_last;                                           /* channels-last */
    weft_isa_t isa, threads;
} wefti_conv_t;

/* Reads and checks X, W, the shape of Y (or dY) and the attributes. */
weft_status_t wefti_conv_describe(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                  const weft_tensor_desc_t *w, const weft_tensor_desc_t *y,
                                  const weft_kernel_env_t *env, wefti_conv_t *out_conv);

/* Planes of one image's channels of one group. */
typedef struct wefti_planes {
    int64_t channels; /* of the group */
    int64_t all_channels;
    int64_t source[2];
    int64_t spread[2]; /* distance of source elements */
    int64_t shift[2];  /* where source element 0 goes; may be negative */
    int64_t phase[2];  /* the stride: position u lies in phase u % phase at u / phase */
    int64_t size[2];   /* lines and elements per line of a plane */
    int64_t plane;     /* elements from plane to plane */
    bool last;
} wefti_planes_t;

/* Elements of one image's planes, slack for whole vectors included. */
int64_t wefti_planes_elems(const wefti_planes_t *planes);
/* Copies; what lies between the source's elements must be zero already and stays so. */
void wefti_planes_fill(const wefti_planes_t *planes, const float *image, int64_t first_channel,
                       float *dst);

/* A product over planes: the forward pass, or the gradient of the input. */
typedef struct wefti_conv_pass {
    wefti_planes_t planes;
    int64_t images, groups, rows, k; /* per group: output channels, taps */
    int64_t out[2], out_channels;
    bool out_last;
    int64_t vectors_elems; /* positions, rounded up to whole vectors */
    int32_t *at;           /* k offsets */
    weft_isa_t isa, threads;
    int64_t scratch_elems; /* of one thread */
} wefti_conv_pass_t;

/* at is allocated; free it with wefti_free. WEFT_ERR_UNSUPPORTED when planes grow too large. */
weft_status_t wefti_conv_pass_forward(const wefti_conv_t *conv, wefti_conv_pass_t *out_pass);
weft_status_t wefti_conv_pass_data_grad(const wefti_conv_t *conv, wefti_conv_pass_t *out_pass);
/* weights: [groups * rows, k]; bias may be NULL; scratch of threads * scratch_elems. */
void wefti_conv_pass_run(const wefti_conv_pass_t *pass, const float *source, const float *weights,
                         const float *bias, float *dst, float *scratch);

/* The gradient of weights and bias. */
typedef struct wefti_conv_dw {
    wefti_planes_t x, dy;
    int64_t images, groups, rows, taps; /* taps: k, and one that is always 1, for the bias */
    int64_t vectors;
    int32_t *at;
    weft_isa_t isa, threads;
    int64_t scratch_elems;
} wefti_conv_dw_t;

weft_status_t wefti_conv_dw_plan(const wefti_conv_t *conv, wefti_conv_dw_t *out_dw);
/* db may be NULL. */
void wefti_conv_dw_run(const wefti_conv_dw_t *dw, const float *x, const float *dy, float *dw_out,
                       float *db, float *scratch);

/* "conv:avx512" and so on. */
const char *wefti_conv_name(weft_isa_t isa);

#endif
