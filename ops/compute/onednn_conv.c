/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conv and ConvGrad by oneDNN. The arena has weights plain and activations in the plan's layout;
 * what oneDNN computes with are private copies in scratch where it is faster in another format,
 * made anew in every call because training changes all of them.
 */
#include "ops/compute/conv_f32.h"
#include "ops/compute/kernel_check.h"
#include "ops/compute/onednn_kernels.h"
#include "ops/compute/onednn_program.h"
#include "runtime/base/error.h"

typedef enum part { FORWARD, WEIGHTS_GRAD, DATA_GRAD } part_t;

/* One convolution in oneDNN's words. */
typedef struct shape {
    dnnl_memory_desc_t x_at, y_at, w_at; /* as the arena has them */
    dnnl_memory_desc_t x, y, w, b;       /* as the primitive is asked to have them */
    dnnl_dims_t stride, dilation, pad, pad_end;
} shape_t;

static weft_status_t set_desc(dnnl_memory_desc_t *desc, int rank, const dnnl_dims_t dims,
                              dnnl_format_tag_t tag)
{
    return wefti_onednn_status(dnnl_memory_desc_init_by_tag(desc, rank, dims, dnnl_f32, tag),
                               "a tensor");
}

/* x_last: the layout of X, or of dX, which may be another. tag: of the activations. */
static weft_status_t describe_shape(const wefti_conv_t *c, bool x_last, dnnl_format_tag_t tag,
                                    shape_t *s)
{
    weft_status_t status;
    const int64_t out = c->out_channels / c->groups, in = c->in_channels / c->groups;
    const bool grouped = c->groups > 1;
    const int w_rank = grouped ? 5 : 4;
    const dnnl_dims_t x = {c->images, c->in_channels, c->in[0], c->in[1]};
    const dnnl_dims_t y = {c->images, c->out_channels, c->out[0], c->out[1]};
    const dnnl_dims_t w = {out, in, c->kernel[0], c->kernel[1]};
    const dnnl_dims_t w_groups = {c->groups, out, in, c->kernel[0], c->kernel[1]};
    const dnnl_dims_t b = {c->out_channels};
    for (int i = 0; i < 2; i++) {
        s->stride[i] = c->stride[i];
        s->dilation[i] = c->dilation[i] - 1;
        s->pad[i] = c->pad[i];
        s->pad_end[i] = (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1 -
                        c->in[i] - c->pad[i];
    }
    WEFT_TRY(status, set_desc(&s->x_at, 4, x, x_last ? dnnl_nhwc : dnnl_nchw), out);
    WEFT_TRY(status, set_desc(&s->y_at, 4, y, c->out_last ? dnnl_nhwc : dnnl_nchw), out);
    WEFT_TRY(status,
             set_desc(&s->w_at, w_rank, grouped ? w_groups : w, grouped ? dnnl_goihw : dnnl_oihw),
             out);
    WEFT_TRY(status, set_desc(&s->x, 4, x, tag), out);
    WEFT_TRY(status, set_desc(&s->y, 4, y, tag), out);
    WEFT_TRY(status, set_desc(&s->w, w_rank, grouped ? w_groups : w, dnnl_format_tag_any), out);
    status = set_desc(&s->b, 1, b, dnnl_a);
out:
    return status;
}

/*
 * Formats for the activations, the better one first; README.md has the figures. Channels-last is
 * good everywhere and costs nothing where the plan has it. From plain there is a copy anyway, and
 * "any" lets oneDNN take blocks of 16 channels, which it fills with zeros: no loss forward, but the
 * gradients of few channels have only AVX2 code for it.
 */
static void format_order(const wefti_conv_t *c, bool x_last, part_t part, dnnl_format_tag_t out[2])
{
    const bool whole_blocks = c->in_channels % 16 == 0 && c->out_channels % 16 == 0;
    const bool blocked = !x_last && !c->out_last && (part == FORWARD || whole_blocks);
    out[0] = blocked ? dnnl_format_tag_any : dnnl_nhwc;
    out[1] = blocked ? dnnl_nhwc : dnnl_format_tag_any;
}

static weft_status_t init_op(part_t part, const shape_t *s, bool has_bias,
                             dnnl_convolution_desc_t *op)
{
    const dnnl_memory_desc_t *b = has_bias ? &s->b : NULL;
    dnnl_status_t status;
    switch (part) {
    case FORWARD:
        status = dnnl_dilated_convolution_forward_desc_init(
            op, dnnl_forward_training, dnnl_convolution_direct, &s->x, &s->w, b, &s->y, s->stride,
            s->dilation, s->pad, s->pad_end);
        break;
    case WEIGHTS_GRAD:
        status = dnnl_dilated_convolution_backward_weights_desc_init(
            op, dnnl_convolution_direct, &s->x, &s->w, b, &s->y, s->stride, s->dilation, s->pad,
            s->pad_end);
        break;
    default:
        status = dnnl_dilated_convolution_backward_data_desc_init(op, dnnl_convolution_direct,
                                                                  &s->x, &s->w, &s->y, s->stride,
                                                                  s->dilation, s->pad, s->pad_end);
        break;
    }
    return wefti_onednn_status(status, "such a convolution");
}

static weft_status_t choose_as(wefti_onednn_program_t *program, part_t part, const shape_t *s,
                               bool has_bias, dnnl_primitive_desc_t *out_desc)
{
    static const char *const labels[] = {"", "dW ", "dX "};
    weft_status_t status;
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t hint = NULL;
    if (part != FORWARD) {
        WEFT_TRY(status, init_op(FORWARD, s, has_bias, &op), out);
        WEFT_TRY(status, wefti_onednn_choose(program, &op, NULL, NULL, NULL, &hint), out);
    }
    WEFT_TRY(status, init_op(part, s, has_bias, &op), out);
    status = wefti_onednn_choose(program, &op, NULL, hint, labels[part], out_desc);
out:
    dnnl_primitive_desc_destroy(hint);
    return status;
}

/* The first format that has more than reference code; out_shape is filled in for it. */
static weft_status_t choose(wefti_onednn_program_t *program, const wefti_conv_t *c, part_t part,
                            bool x_last, bool has_bias, shape_t *out_shape,
                            dnnl_primitive_desc_t *out_desc)
{
    weft_status_t status = WEFT_ERR_UNSUPPORTED;
    dnnl_format_tag_t formats[2];
    format_order(c, x_last, part, formats);
    for (int i = 0; i < 2 && status == WEFT_ERR_UNSUPPORTED; i++) {
        status = describe_shape(c, x_last, formats[i], out_shape);
        if (status == WEFT_OK) {
            status = choose_as(program, part, out_shape, has_bias, out_desc);
        }
    }
    return status;
}

/* A convolution of f32. */
static weft_status_t describe_wide(const weft_node_desc_t *node, const weft_tensor_desc_t *x,
                                   const weft_tensor_desc_t *w, const weft_tensor_desc_t *y,
                                   const weft_kernel_env_t *env, wefti_conv_t *out_conv)
{
    WEFT_RETURN_IF_ERROR(wefti_check_f32(node, x, "the input", true));
    return wefti_conv_describe(node, x, w, y, env, out_conv);
}

static weft_status_t check_bias(const weft_node_desc_t *node, const weft_tensor_desc_t *bias,
                                const char *what, int64_t channels)
{
    weft_status_t status = wefti_check_f32(node, bias, what, false);
    return status == WEFT_OK ? wefti_check_shape(node, bias, what, 1, &channels) : status;
}

static weft_status_t describe_forward(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                      wefti_onednn_program_t *program)
{
    weft_status_t status;
    wefti_conv_t c;
    shape_t s;
    dnnl_primitive_desc_t desc = NULL;
    uint32_t x, w, y, x_own, w_own, y_own;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Conv: expected two inputs and one output");
    }
    const bool has_bias = wefti_node_has_input(node, 2);
    WEFT_TRY(status,
             describe_wide(node, &node->inputs[0], &node->inputs[1], &node->outputs[0], env, &c),
             out);
    if (has_bias) {
        WEFT_TRY(status, check_bias(node, &node->inputs[2], "input 2", c.out_channels), out);
    }
    WEFT_TRY(status, choose(program, &c, FORWARD, c.in_last, has_bias, &s, &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.x_at, WEFTI_ONEDNN_INPUT, 0, &x), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.w_at, WEFTI_ONEDNN_INPUT, 1, &w), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.y_at, WEFTI_ONEDNN_OUTPUT, 0, &y), out);
    WEFT_TRY(
        status,
        wefti_onednn_input_as(program, x, wefti_onednn_wanted(desc, dnnl_query_src_md), &x_own),
        out);
    WEFT_TRY(
        status,
        wefti_onednn_input_as(program, w, wefti_onednn_wanted(desc, dnnl_query_weights_md), &w_own),
        out);
    WEFT_TRY(
        status,
        wefti_onednn_tensor_as(program, y, wefti_onednn_wanted(desc, dnnl_query_dst_md), &y_own),
        out);
    wefti_onednn_arg_t args[4] = {
        {DNNL_ARG_SRC, x_own}, {DNNL_ARG_WEIGHTS, w_own}, {DNNL_ARG_DST, y_own}};
    if (has_bias) {
        args[3].arg = DNNL_ARG_BIAS;
        WEFT_TRY(status, wefti_onednn_tensor(program, &s.b, WEFTI_ONEDNN_INPUT, 2, &args[3].tensor),
                 out);
    }
    WEFT_TRY(status, wefti_onednn_step(program, desc, args, has_bias ? 4 : 3), out);
    status = wefti_onednn_reorder(program, y_own, y);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

/* What both gradients share: the node's inputs as tensors. */
typedef struct grad {
    const weft_node_desc_t *node;
    wefti_conv_t c;
    uint32_t dy, x, w;
} grad_t;

static weft_status_t add_inputs(wefti_onednn_program_t *program, grad_t *g)
{
    weft_status_t status;
    shape_t s;
    WEFT_TRY(status, describe_shape(&g->c, g->c.in_last, dnnl_nhwc, &s), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.y_at, WEFTI_ONEDNN_INPUT, 0, &g->dy), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.x_at, WEFTI_ONEDNN_INPUT, 1, &g->x), out);
    status = wefti_onednn_tensor(program, &s.w_at, WEFTI_ONEDNN_INPUT, 2, &g->w);
out:
    return status;
}

static weft_status_t add_dw(wefti_onednn_program_t *program, const grad_t *g)
{
    weft_status_t status;
    shape_t s;
    dnnl_primitive_desc_t desc = NULL;
    uint32_t x, dy, dw, dw_own;
    const bool want_db = wefti_node_has_output(g->node, 2);
    WEFT_TRY(status, choose(program, &g->c, WEIGHTS_GRAD, g->c.in_last, want_db, &s, &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.w_at, WEFTI_ONEDNN_OUTPUT, 1, &dw), out);
    WEFT_TRY(status,
             wefti_onednn_input_as(program, g->x, wefti_onednn_wanted(desc, dnnl_query_src_md), &x),
             out);
    WEFT_TRY(status,
             wefti_onednn_input_as(program, g->dy,
                                   wefti_onednn_wanted(desc, dnnl_query_diff_dst_md), &dy),
             out);
    WEFT_TRY(status,
             wefti_onednn_tensor_as(program, dw,
                                    wefti_onednn_wanted(desc, dnnl_query_diff_weights_md), &dw_own),
             out);
    wefti_onednn_arg_t args[4] = {
        {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw_own}};
    if (want_db) {
        args[3].arg = DNNL_ARG_DIFF_BIAS;
        WEFT_TRY(status,
                 wefti_onednn_tensor(program, &s.b, WEFTI_ONEDNN_OUTPUT, 2, &args[3].tensor), out);
    }
    WEFT_TRY(status, wefti_onednn_step(program, desc, args, want_db ? 4 : 3), out);
    status = wefti_onednn_reorder(program, dw_own, dw);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static weft_status_t add_dx(wefti_onednn_program_t *program, const grad_t *g)
{
    weft_status_t status;
    shape_t s;
    dnnl_primitive_desc_t desc = NULL;
    uint32_t dy, w, dx, dx_own;
    const bool last = g->node->outputs[0].layout == WEFT_LAYOUT_CHANNELS_LAST;
    WEFT_TRY(status, choose(program, &g->c, DATA_GRAD, last, false, &s, &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.x_at, WEFTI_ONEDNN_OUTPUT, 0, &dx), out);
    WEFT_TRY(status,
             wefti_onednn_input_as(program, g->dy,
                                   wefti_onednn_wanted(desc, dnnl_query_diff_dst_md), &dy),
             out);
    WEFT_TRY(
        status,
        wefti_onednn_input_as(program, g->w, wefti_onednn_wanted(desc, dnnl_query_weights_md), &w),
        out);
    WEFT_TRY(status,
             wefti_onednn_tensor_as(program, dx, wefti_onednn_wanted(desc, dnnl_query_diff_src_md),
                                    &dx_own),
             out);
    const wefti_onednn_arg_t args[3] = {
        {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx_own}};
    WEFT_TRY(status, wefti_onednn_step(program, desc, args, 3), out);
    status = wefti_onednn_reorder(program, dx_own, dx);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static weft_status_t check_grad(const weft_node_desc_t *node, const wefti_conv_t *c)
{
    weft_status_t status;
    const weft_tensor_desc_t *x = &node->inputs[1], *w = &node->inputs[2];
    WEFT_TRY(status, wefti_check_f32(node, &node->outputs[1], "output 1", false), out);
    WEFT_TRY(status, wefti_check_shape(node, &node->outputs[1], "output 1", w->rank, w->dims), out);
    if (wefti_node_has_output(node, 2)) {
        WEFT_TRY(status, check_bias(node, &node->outputs[2], "output 2", c->out_channels), out);
    }
    if (wefti_node_has_output(node, 0)) {
        WEFT_TRY(status, wefti_check_f32(node, &node->outputs[0], "output 0", true), out);
        status = wefti_check_shape(node, &node->outputs[0], "output 0", x->rank, x->dims);
    }
out:
    return status;
}

static weft_status_t describe_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   wefti_onednn_program_t *program)
{
    weft_status_t status;
    grad_t g = {.node = node};
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_input(node, 2) || !wefti_node_has_output(node, 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "ConvGrad: expected inputs dY, X, W and output dW");
    }
    WEFT_TRY(status,
             describe_wide(node, &node->inputs[1], &node->inputs[2], &node->inputs[0], env, &g.c),
             out);
    WEFT_TRY(status, check_grad(node, &g.c), out);
    WEFT_TRY(status, add_inputs(program, &g), out);
    WEFT_TRY(status, add_dw(program, &g), out);
    if (wefti_node_has_output(node, 0)) {
        status = add_dx(program, &g);
    }
out:
    return status;
}

static weft_status_t prepare_forward(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     void **out_state, size_t *out_scratch_bytes)
{
    return wefti_onednn_prepare(node, env, describe_forward, out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return wefti_onednn_prepare(node, env, describe_grad, out_state, out_scratch_bytes);
}

const weft_kernel_t wefti_onednn_conv = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "",
    .op = "Conv",
    .since_version = 1,
    .prepare = prepare_forward,
    .run = wefti_onednn_run,
    .destroy = wefti_onednn_destroy,
    .implementation = wefti_onednn_implementation,
    .family = "onednn",
};

const weft_kernel_t wefti_onednn_conv_grad = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "com.microsoft",
    .op = "ConvGrad",
    .since_version = 1,
    .prepare = prepare_grad,
    .run = wefti_onednn_run,
    .destroy = wefti_onednn_destroy,
    .implementation = wefti_onednn_implementation,
    .family = "onednn",
};
