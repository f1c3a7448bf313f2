/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolutions and pooling. The order of sums depends on which form ops/compute chooses for a shape:
 * lanes of images (conv_lanes.h) where many small images have few channels, else planes
 * (conv_f32.h). Both are computed here, so the choice is that of ops/compute/conv_lanes.c.
 */
#include "devices/opencl/kernels.h"

#include <string.h>

#define LANES 16
#define TILE 4              /* outputs of a work item, where it may choose */
#define PLANE_ROWS 4        /* fewer rows have another order: not here */
#define BLOCK_OUTPUTS 512   /* conv_dw.c */
#define PIECE_OUTPUTS 256   /* gemm: WEFTI_PACKED_COLS */
#define LANE_LINES 320      /* conv_lanes_dw.c */
#define LANE_BYTES 1048576. /* conv_lanes.c: of planes */
#define COPY 6
#define TO_LANES 8
#define FROM_LANES 9

typedef struct conv {
    int64_t images, in_channels, out_channels;
    int64_t in[2], out[2], kernel[2], stride[2], dilation[2], pad[2];
} conv_t;

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static weft_status_t describe(const weft_node_desc_t *desc, const weft_tensor_desc_t *x,
                              const weft_tensor_desc_t *w, const weft_tensor_desc_t *y, conv_t *c)
{
    int64_t pads[4];
    const weft_attr_t *mode = cl_attr(desc, "auto_pad");
    if (x->rank != 4 || w->rank != 4 || y->rank != 4 || cl_attr_int(desc, "group", 1) != 1 ||
        (mode != NULL && mode->s != NULL && mode->s[0] != '\0' && strcmp(mode->s, "NOTSET") != 0)) {
        return cl_refuse(desc, "expected two dimensions, one group and explicit pads");
    }
    TRY(cl_attr_ints(desc, "pads", 4, 0, pads));
    TRY(cl_attr_ints(desc, "strides", 2, 1, c->stride));
    TRY(cl_attr_ints(desc, "dilations", 2, 1, c->dilation));
    c->images = x->dims[0];
    c->in_channels = x->dims[1];
    c->out_channels = w->dims[0];
    for (int d = 0; d < 2; d++) {
        c->in[d] = x->dims[2 + d];
        c->out[d] = y->dims[2 + d];
        c->kernel[d] = w->dims[2 + d];
        c->pad[d] = pads[d];
        int64_t window = (c->kernel[d] - 1) * c->dilation[d] + 1;
        if (c->stride[d] < 1 || c->dilation[d] < 1 || c->kernel[d] < 1 || c->in[d] < 1 ||
            c->out[d] != (c->in[d] + pads[d] + pads[2 + d] - window) / c->stride[d] + 1) {
            return cl_refuse(desc, "shapes do not fit");
        }
    }
    return w->dims[1] == c->in_channels && y->dims[0] == c->images &&
                   y->dims[1] == c->out_channels && c->images > 0 && c->in_channels > 0
               ? WEFT_OK
               : cl_refuse(desc, "shapes do not fit");
}

/* ---- which form ---- */

static double area(const int64_t size[2])
{
    return (double)size[0] * (double)size[1];
}

static double waste(const int64_t out[2], int64_t width)
{
    return (double)((out[0] - 1) * width + out[1] + LANES / 2) / area(out);
}

/* Planes of source with a window around: their shift and size. */
static bool planes_fit(const conv_t *c, bool gradient, int64_t size[2])
{
    bool inside = true;
    for (int d = 0; d < 2; d++) {
        int64_t around = (c->kernel[d] - 1) * c->dilation[d];
        int64_t shift = gradient ? around - c->pad[d] : c->pad[d];
        size[d] = (gradient ? c->in[d] : c->out[d]) + around;
        inside = inside && shift >= 0 && shift + (gradient ? c->out[d] : c->in[d]) <= size[d];
    }
    return inside && c->stride[0] == 1 && c->stride[1] == 1 && c->images >= LANES;
}

static bool has_room(double planes, double sums)
{
    return (planes + sums) * LANES * sizeof(float) <= LANE_BYTES;
}

static double taps_of(const conv_t *c)
{
    return (double)c->kernel[0] * (double)c->kernel[1] * (double)c->in_channels *
           (double)c->out_channels;
}

static bool pays(const conv_t *c, double products, double wasted, double used, double in,
                 double out)
{
    double lanes = (double)((c->images + LANES - 1) / LANES * LANES) / (double)c->images;
    return products * wasted + COPY * (in + out) >
           (products * used + TO_LANES * in + FROM_LANES * out) * lanes;
}

static bool lanes_forward(const conv_t *c)
{
    int64_t size[2];
    double in = (double)c->in_channels * area(c->in), out = area(c->out);
    double sums = (double)c->out_channels * out;
    return planes_fit(c, false, size) && has_room((double)c->in_channels * area(size), sums) &&
           pays(c, taps_of(c) * out, waste(c->out, size[1]), 1, in, sums);
}

static bool lanes_data_grad(const conv_t *c)
{
    int64_t size[2];
    double in = area(c->in), out = (double)c->out_channels * area(c->out);
    double sums = (double)c->in_channels * in;
    double used = c->out[0] < c->in[0] ? 1.2 * (double)c->out[0] / (double)c->in[0] : 1;
    return planes_fit(c, true, size) && has_room((double)c->out_channels * area(size), sums) &&
           pays(c, taps_of(c) * in, waste(c->in, size[1]), used < 1 ? used : 1, out, sums);
}

static bool lanes_dw(const conv_t *c)
{
    int64_t size[2];
    double in = (double)c->in_channels * area(c->in);
    double out = (double)c->out_channels * area(c->out);
    return planes_fit(c, false, size) && has_room(((double)c->in_channels + 1) * area(size), out) &&
           taps_of(c) + (double)c->out_channels <= LANE_BYTES / LANES &&
           pays(c, taps_of(c) * area(c->out), waste(c->out, size[1]), 1, in + out, 0);
}

/* ---- convolutions ---- */

/* What a pass reads, from source to destination. */
static void add_pass(cl_node_t *node, const conv_t *c, bool gradient, bool lanes)
{
    const int64_t *source = gradient ? c->out : c->in, *to = gradient ? c->in : c->out;
    int64_t shift[2];
    for (int d = 0; d < 2; d++) {
        shift[d] = gradient ? (c->kernel[d] - 1) * c->dilation[d] - c->pad[d] : c->pad[d];
    }
    const int64_t numbers[] = {gradient ? c->in_channels : c->out_channels,
                               gradient ? c->out_channels : c->in_channels,
                               source[0],
                               source[1],
                               to[0],
                               to[1],
                               c->kernel[0],
                               c->kernel[1],
                               c->stride[0],
                               c->stride[1],
                               shift[0],
                               shift[1],
                               c->dilation[0],
                               c->dilation[1],
                               lanes,
                               gradient};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(node, numbers[i]);
    }
}

/* Elements of the weights, with rows rounded up to lines of vectors. */
static int64_t weight_lines(const conv_t *c, bool gradient)
{
    int64_t rows = gradient ? c->in_channels : c->out_channels;
    return c->kernel[0] * c->kernel[1] * (gradient ? c->out_channels : c->in_channels) *
           ((rows + LANES - 1) / LANES);
}

static cl_step_t step_of(const char *function, int64_t count, uint32_t operands,
                         const uint32_t *chosen)
{
    cl_step_t step = cl_each(function, count);
    step.selected = operands;
    memcpy(step.chosen, chosen, operands * sizeof *chosen);
    return step;
}

/* Weights in the order of the pass, then tiles of the destination. */
static void add_pass_steps(cl_node_t *node, const conv_t *c, bool gradient, bool lanes,
                           const uint32_t operands[5])
{
    int64_t rows = gradient ? c->in_channels : c->out_channels;
    const int64_t *to = gradient ? c->in : c->out;
    int64_t width = lanes && rows > 6 ? 3 : TILE;
    const uint32_t weights[] = {operands[1], operands[2]};
    const uint32_t pass[] = {operands[0], operands[2], operands[3], operands[4]};
    cl_add_step(node, step_of("conv_weights", weight_lines(c, gradient), 2, weights));
    cl_add_step(node, step_of("conv_pass",
                              c->images * to[0] * ((to[1] + width - 1) / width) *
                                  ((rows + LANES - 1) / LANES),
                              4, pass));
}

static bool is_small(const conv_t *c)
{
    double elems = (double)c->images * (double)(c->in_channels + c->out_channels + 2 * LANES);
    return elems * (area(c->in) + area(c->out)) < INT32_MAX && taps_of(c) < INT32_MAX / LANES;
}

PREPARE(cl_prepare_conv)
{
    cl_node_t node = cl_start(3, 1);
    conv_t c;
    bool has_bias = cl_has(desc->inputs, desc->input_count, 2);
    (void)env;
    TRY(cl_need_f32(desc, has_bias ? 3 : 2, 1, 0));
    TRY(describe(desc, &desc->inputs[0], &desc->inputs[1], &desc->outputs[0], &c));
    if ((has_bias && cl_elems(&desc->inputs[2]) != c.out_channels) || !is_small(&c)) {
        return cl_refuse(desc, "shapes do not fit, or are too large");
    }
    bool lanes = lanes_forward(&c);
    add_pass(&node, &c, false, lanes);
    const int64_t numbers[] = {0, 0, c.images, has_bias, 0, 0, 0, 0, 0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(&node, numbers[i]);
    }
    node.scratch_bytes = (size_t)(weight_lines(&c, false) * LANES) * sizeof(float);
    add_pass_steps(&node, &c, false, lanes, (const uint32_t[]){0, 1, 4, 2, 3});
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Pieces of the sums of dW: lines of a chain, or images of a block and outputs of a chain. */
static void add_pieces(cl_node_t *node, const conv_t *c, bool lanes)
{
    int64_t block = LANES, piece = LANE_LINES / (6 * c->out[1]);
    piece = piece < 1 ? 1 : min_of(piece, c->out[0]);
    if (!lanes) {
        int64_t outputs = c->out[0] * c->out[1];
        block = min_of(c->images, (BLOCK_OUTPUTS + outputs - 1) / outputs);
        int64_t pieces = (block * outputs + PIECE_OUTPUTS - 1) / PIECE_OUTPUTS;
        piece = ((block * outputs + pieces - 1) / pieces + 3) / 4 * 4;
    }
    cl_add_number(node, block);
    cl_add_number(node, piece);
}

PREPARE(cl_prepare_conv_grad)
{
    cl_node_t node = cl_start(3, 3);
    conv_t c;
    bool has_dx = cl_has(desc->outputs, desc->output_count, 0);
    bool has_db = cl_has(desc->outputs, desc->output_count, 2);
    (void)env;
    TRY(cl_need_f32(desc, 3, 0, 0));
    for (uint32_t i = 0; i < desc->output_count; i++) {
        if (desc->outputs[i].dtype != WEFT_DTYPE_NONE &&
            (desc->outputs[i].dtype != WEFT_DTYPE_F32 ||
             desc->outputs[i].layout != WEFT_LAYOUT_PLAIN)) {
            return cl_refuse(desc, "operands must be f32 in plain layout");
        }
    }
    TRY(describe(desc, &desc->inputs[1], &desc->inputs[2], &desc->inputs[0], &c));
    if (!cl_has(desc->outputs, desc->output_count, 1) ||
        !cl_same_shape(&desc->outputs[1], &desc->inputs[2]) ||
        (has_dx && !cl_same_shape(&desc->outputs[0], &desc->inputs[1])) ||
        (has_db && cl_elems(&desc->outputs[2]) != c.out_channels)) {
        return cl_refuse(desc, "shapes do not fit");
    }
    bool by_lanes = lanes_dw(&c);
    bool strides = c.stride[0] != 1 || c.stride[1] != 1;
    if ((has_dx && strides) || !is_small(&c) || (!by_lanes && c.out_channels < PLANE_ROWS)) {
        return cl_refuse(desc, "expected strides of 1 where dX is needed, at least 4 "
                               "channels, and not too large shapes");
    }
    bool lanes = lanes_data_grad(&c);
    int64_t sums = c.out_channels * (c.in_channels * c.kernel[0] * c.kernel[1] + 1);
    int64_t taps = c.in_channels * c.kernel[0] * c.kernel[1], lane_count = by_lanes ? LANES : 1;
    int64_t lines = (c.out_channels + LANES - 1) / LANES;
    int64_t pixels = c.images * c.out[0] * c.out[1] * lines;
    int64_t at_lines = (lane_count * sums + LANES - 1) / LANES * LANES;
    int64_t at_weights = at_lines + pixels * LANES;
    add_pass(&node, &c, true, lanes);
    const int64_t numbers[] = {c.pad[0], c.pad[1], c.images, has_db, by_lanes};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(&node, numbers[i]);
    }
    add_pieces(&node, &c, by_lanes);
    cl_add_number(&node, at_weights);
    cl_add_number(&node, at_lines);
    node.scratch_bytes =
        (size_t)(at_weights + (has_dx ? weight_lines(&c, true) * LANES : 0)) * sizeof(float);
    if (has_dx) { /* dY, weights, scratch, no bias, dX */
        add_pass_steps(&node, &c, true, lanes, (const uint32_t[]){0, 2, 6, 0, 3});
    }
    cl_add_step(&node, step_of("conv_lines", pixels, 2, (const uint32_t[]){0, 6}));
    cl_add_step(&node, step_of("conv_dw", lane_count * (taps / 4 + 1) * lines, 2,
                               (const uint32_t[]){1, 6}));
    cl_add_step(&node, step_of("conv_dw_total", sums, 3, (const uint32_t[]){6, 4, 5}));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* ---- pooling ---- */

static weft_status_t describe_pool(const weft_node_desc_t *desc, const weft_tensor_desc_t *x,
                                   const weft_tensor_desc_t *y, cl_node_t *node)
{
    int64_t kernel[2], stride[2], pads[4], dilation[2];
    const weft_attr_t *mode = cl_attr(desc, "auto_pad");
    if (x->rank != 4 || y->rank != 4 || x->dims[0] != y->dims[0] || x->dims[1] != y->dims[1] ||
        (mode != NULL && mode->s != NULL && mode->s[0] != '\0' && strcmp(mode->s, "NOTSET") != 0)) {
        return cl_refuse(desc, "expected two dimensions and explicit pads");
    }
    TRY(cl_attr_ints(desc, "kernel_shape", 2, 0, kernel));
    TRY(cl_attr_ints(desc, "strides", 2, 1, stride));
    TRY(cl_attr_ints(desc, "pads", 4, 0, pads));
    TRY(cl_attr_ints(desc, "dilations", 2, 1, dilation));
    if (kernel[0] < 1 || kernel[1] < 1 || kernel[0] * kernel[1] > 255 || stride[0] < 1 ||
        stride[1] < 1 || dilation[0] < 1 || dilation[1] < 1) {
        return cl_refuse(desc, "the window is too large");
    }
    const int64_t numbers[] = {x->dims[2], x->dims[3], y->dims[2],  y->dims[3],
                               kernel[0],  kernel[1],  stride[0],   stride[1],
                               pads[0],    pads[1],    dilation[0], dilation[1]};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(node, numbers[i]);
    }
    return WEFT_OK;
}

static int64_t lines_of(const weft_tensor_desc_t *x)
{
    return x->dims[3] > 0 ? x->dims[0] * x->dims[1] * x->dims[2] : 0;
}

PREPARE(cl_prepare_max_pool)
{
    cl_node_t node = cl_start(1, 2);
    bool has_mask = cl_has(desc->outputs, desc->output_count, 1);
    (void)env;
    TRY(cl_need_f32(desc, 1, 1, 0));
    if (has_mask && (desc->outputs[1].dtype != WEFT_DTYPE_U8 ||
                     !cl_same_shape(&desc->outputs[1], &desc->outputs[0]))) {
        return cl_refuse(desc, "indices are not supported");
    }
    TRY(describe_pool(desc, &desc->inputs[0], &desc->outputs[0], &node));
    cl_add_number(&node, has_mask);
    cl_add_step(&node, cl_each("max_pool", lines_of(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_max_pool_grad)
{
    cl_node_t node = cl_start(2, 1);
    (void)env;
    TRY(cl_need_f32(desc, 2, 1, 1u << 1));
    if (desc->inputs[1].dtype != WEFT_DTYPE_U8 ||
        !cl_same_shape(&desc->inputs[1], &desc->inputs[0])) {
        return cl_refuse(desc, "expected a mask");
    }
    TRY(describe_pool(desc, &desc->outputs[0], &desc->inputs[0], &node));
    cl_add_step(&node, cl_each("max_pool_grad", lines_of(&desc->outputs[0])));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}
