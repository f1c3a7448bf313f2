/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f32 convolution as products.
 *
 * An image is copied once into zero-padded planes, one per channel and phase of the stride, all of
 * one width. In them the inputs of one kernel tap for the outputs of one line are one run of memory
 * at a fixed offset:
 *
 *     planes   . . . . . .        output (y, x) is position p = y * width + x; its tap (c, ky, kx)
 *              . a b c d .        lies at at[c, ky, kx] + p. A panel of the product's operand, some
 *              . e f g h .        taps by some outputs, is copied from these runs and stays in the
 *              . . . . . .        first-level cache while all weights are multiplied with it.
 *
 *     forward  Y[o, p]  = sum over taps k of    W[o, k] * panel[k, p]
 *     dW       dW[o, k] = sum over outputs p of dY[o, p] * panel[k, p]
 *     dX       as forward, from the planes of dY and with the weights turned. With a stride s the
 *              inputs of each phase (y % s, x % s) are a convolution of their own, with those taps
 *              that reach them.
 *
 * A group with few channels (depthwise) has too few rows to pay for panels: the product then reads
 * the planes where they are, and the positions between lines are computed and discarded; dW is dot
 * products of dY's planes with X's.
 *
 * Sums are chains as gemm_f32.h defines them, cut at places that depend on shapes alone, so bits
 * depend on neither instruction set nor threads nor layout. oneDNN falls back to reference code
 * (ref:any, 40 to 400 times slower) for channels-last with plain weights, and differs between
 * instruction sets.
 */
#ifndef WEFT_OPS_COMPUTE_CONV_F32_H
#define WEFT_OPS_COMPUTE_CONV_F32_H

#include "ops/compute/gemm_f32.h"

#include <weft/registry.h>

/* Any sum stays the same, -0 too: without a bias bits do not depend on the layout. */
#define WEFTI_ADD_NOTHING (-0.0f)

/* Where element at of a tensor of f32 or a half type is. */
static inline const void *wefti_conv_at(weft_dtype_t dtype, const void *data, int64_t at)
{
    return (const char *)data + at * (dtype == WEFT_DTYPE_F32 ? 4 : 2);
}

/* Shapes of one convolution; index 0 is height, 1 is width. 1-D convolutions have height 1. */
typedef struct wefti_conv {
    int64_t images, in_channels, out_channels, groups;
    int64_t in[2], out[2], kernel[2], stride[2], dilation[2], pad[2]; /* pad: at the beginning */
    bool in_last, out_last;                                           /* channels-last */
    weft_dtype_t dtype; /* of X, Y and their gradients: f32, or a half type in plain layout */
    weft_isa_t isa;
    uint32_t threads;
} wefti_conv_t;

/* Reads and checks X, W, the shape of Y (or dY) and the attributes. */
weft_status_t wefti_conv_describe(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                  const weft_tensor_desc_t *w, const weft_tensor_desc_t *y,
                                  const weft_kernel_env_t *env, wefti_conv_t *out_conv);

/* Of dimension d: taps so far apart meet inputs of the same phase of the stride. */
int64_t wefti_conv_tap_period(const wefti_conv_t *conv, int d);

/* Planes of one image's channels of one group. */
typedef struct wefti_planes {
    int64_t channels; /* of the group */
    int64_t all_channels;
    int64_t source[2];
    int64_t shift[2]; /* where source element 0 goes; may be negative */
    int64_t phase[2]; /* the stride: position u lies in phase u % phase at u / phase */
    int64_t dilation[2];
    int64_t phases[2]; /* planes per channel; phase i is that of tap i */
    int64_t size[2];   /* lines and elements per line of a plane */
    bool last;
    weft_dtype_t dtype; /* of the image; planes are f32 */
    weft_isa_t isa;
} wefti_planes_t;

/* Elements from plane to plane, and of one image's planes with slack for whole vectors. */
int64_t wefti_planes_stride(const wefti_planes_t *planes);
int64_t wefti_planes_elems(const wefti_planes_t *planes);
/* WEFT_ERR_UNSUPPORTED when offsets would not fit 32 bits. */
weft_status_t wefti_planes_check(const wefti_planes_t *planes);
/* Copies channels first .. first + count - 1 of image. What the source does not cover must be zero
 * already and stays so. */
void wefti_planes_fill(const wefti_planes_t *planes, const void *image, int64_t first,
                       int64_t count, float *dst);
/* The planes that the forward pass and the gradient of weights read, and those of dY for dX. */
wefti_planes_t wefti_planes_of_input(const wefti_conv_t *conv);
wefti_planes_t wefti_planes_of_gradient(const wefti_conv_t *conv);
/* The offset of tap (y, x) of the window that begins at position 0. */
int64_t wefti_planes_tap(const wefti_planes_t *planes, int64_t channel, int64_t y, int64_t x);

/* Some positions of the planes, line by line: the columns of a product. */
typedef struct wefti_positions {
    int64_t first[2], count[2];
    int64_t image_elems; /* from image to image */
} wefti_positions_t;

#define WEFTI_PACKED_COLS 256

/*
 * dst[k * ld + i] = planes[at[k] + position first + i] for k < rows and i < cols, where positions
 * of successive images follow each other. At most WEFTI_PACKED_COLS; up to a vector after the last
 * element is overwritten.
 */
void wefti_pack_positions(const wefti_planes_t *planes, const wefti_positions_t *positions,
                          const float *filled, const int32_t *at, int64_t rows, int64_t first,
                          int64_t cols, float *dst, int64_t ld);

/* The outputs of one phase, and the taps that they have. */
typedef struct wefti_conv_grid {
    wefti_positions_t at;
    int64_t to[2];   /* output of the first position */
    int64_t k;       /* products of each sum */
    int64_t offsets; /* first of k in pass->at */
    int64_t taps[2], first_tap[2], tap_step[2];
} wefti_conv_grid_t;

/* The forward pass, or the gradient of the input. */
typedef struct wefti_conv_pass {
    wefti_planes_t planes;
    int64_t images, groups, rows, out[2], out_channels;
    int64_t step[2]; /* from output to output of a grid */
    bool out_last;
    bool packed;        /* panels are copied */
    bool whole;         /* every output is in a grid */
    bool turned;        /* weights are those of the forward pass, to be turned */
    weft_dtype_t dtype; /* of source and destination */
    int64_t block;
    int64_t grid_count, kernel_elems, kernel_width;
    wefti_conv_grid_t *grids;
    int32_t *at;
    weft_isa_t isa;
    uint32_t threads;
    int64_t weight_elems; /* turned weights at the beginning of scratch */
    int64_t planes_elems, sums_elems;
    int64_t thread_elems, scratch_elems;
} wefti_conv_pass_t;

/* Deinit is for planned and for zeroed ones. WEFT_ERR_UNSUPPORTED when planes grow too large. */
weft_status_t wefti_conv_pass_plan(const wefti_conv_t *conv, bool data_grad,
                                   wefti_conv_pass_t *out_pass);
void wefti_conv_pass_deinit(wefti_conv_pass_t *pass);
/* weights as the operator has them; bias may be NULL; scratch of scratch_elems. */
void wefti_conv_pass_run(const wefti_conv_pass_t *pass, const void *source, const float *weights,
                         const float *bias, void *dst, float *scratch);

/* The gradient of weights and bias. */
typedef struct wefti_conv_dw {
    wefti_planes_t x, dy;
    int64_t images, groups, rows, taps; /* taps: k, and one that is always 1, for the bias */
    bool packed;
    int64_t block; /* images per block; part of the definition of the bits */
    int32_t *at;
    wefti_positions_t positions;
    int64_t piece;   /* packed: outputs of one chain at most */
    int64_t lanes;   /* packed: rows rounded up to whole vectors */
    int64_t vectors; /* not packed: of dY's planes */
    weft_isa_t isa;
    uint32_t threads;
    int64_t planes_elems, sums_elems, scratch_elems;
} wefti_conv_dw_t;

weft_status_t wefti_conv_dw_plan(const wefti_conv_t *conv, wefti_conv_dw_t *out_dw);
void wefti_conv_dw_deinit(wefti_conv_dw_t *dw);
/* db may be NULL. */
void wefti_conv_dw_run(const wefti_conv_dw_t *dw, const void *x, const void *dy, float *dw_out,
                       float *db, float *scratch);

/* "conv:avx512" and so on. */
const char *wefti_conv_name(weft_isa_t isa);

#endif
