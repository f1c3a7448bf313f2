/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conv and ConvGrad by oneDNN. Activations are taken in the plan's layout; weights are plain in the
 * arena, and a private copy in scratch has the format that oneDNN prefers, made anew in every call
 * because training changes them.
 */
#include "ops/compute/conv_f32.h"
#include "ops/compute/kernel_check.h"
#include "ops/compute/onednn_kernels.h"
#include "ops/compute/onednn_program.h"
#include "runtime/base/error.h"

/* One convolution in oneDNN's words. */
typedef struct shape {
    dnnl_memory_desc_t x, w, w_any, b, y; /* w: plain; w_any: oneDNN chooses */
    dnnl_dims_t stride, dilation, pad, pad_end;
} shape_t;

/* x_last: the layout of X, or of dX, which may be another. */
static weft_status_t describe_shape(const wefti_conv_t *c, bool x_last, shape_t *s)
{
    weft_status_t status;
    const bool grouped = c->groups > 1;
    const dnnl_dims_t x = {c->images, c->in_channels, c->in[0], c->in[1]};
    const dnnl_dims_t y = {c->images, c->out_channels, c->out[0], c->out[1]};
    const int64_t out = c->out_channels / c->groups, in = c->in_channels / c->groups;
    const dnnl_dims_t w = {out, in, c->kernel[0], c->kernel[1]};
    const dnnl_dims_t wg = {c->groups, out, in, c->kernel[0], c->kernel[1]};
    const dnnl_dims_t b = {c->out_channels};
    const dnnl_data_type_t f32 = dnnl_f32;
    for (int i = 0; i < 2; i++) {
        s->stride[i] = c->stride[i];
        s->dilation[i] = c->dilation[i] - 1;
        s->pad[i] = c->pad[i];
        s->pad_end[i] = (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1 -
                        c->in[i] - c->pad[i];
    }
    WEFT_TRY(status,
             wefti_onednn_status(
                 dnnl_memory_desc_init_by_tag(&s->x, 4, x, f32, x_last ? dnnl_nhwc : dnnl_nchw),
                 "the input"),
             out);
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_memory_desc_init_by_tag(&s->y, 4, y, f32,
                                                              c->out_last ? dnnl_nhwc : dnnl_nchw),
                                 "the output"),
             out);
    WEFT_TRY(
        status,
        wefti_onednn_status(dnnl_memory_desc_init_by_tag(&s->w, grouped ? 5 : 4, grouped ? wg : w,
                                                         f32, grouped ? dnnl_goihw : dnnl_oihw),
                            "the weights"),
        out);
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_memory_desc_init_by_tag(&s->w_any, grouped ? 5 : 4,
                                                              grouped ? wg : w, f32,
                                                              dnnl_format_tag_any),
                                 "the weights"),
             out);
    status =
        wefti_onednn_status(dnnl_memory_desc_init_by_tag(&s->b, 1, b, f32, dnnl_a), "the bias");
out:
    return status;
}

static weft_status_t choose_forward(wefti_onednn_program_t *program, const shape_t *s,
                                    bool has_bias, const char *label,
                                    dnnl_primitive_desc_t *out_desc)
{
    dnnl_convolution_desc_t op;
    weft_status_t status = wefti_onednn_status(
        dnnl_dilated_convolution_forward_desc_init(
            &op, dnnl_forward_training, dnnl_convolution_direct, &s->x, &s->w_any,
            has_bias ? &s->b : NULL, &s->y, s->stride, s->dilation, s->pad, s->pad_end),
        "a convolution");
    return status == WEFT_OK ? wefti_onednn_choose(program, &op, NULL, NULL, label, out_desc)
                             : status;
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
    uint32_t x, w, y, w_own;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Conv: needs two inputs and an output");
    }
    const bool has_bias = wefti_node_has_input(node, 2);
    WEFT_TRY(
        status,
        wefti_conv_describe(node, &node->inputs[0], &node->inputs[1], &node->outputs[0], env, &c),
        out);
    if (has_bias) {
        WEFT_TRY(status, check_bias(node, &node->inputs[2], "input 2", c.out_channels), out);
    }
    WEFT_TRY(status, describe_shape(&c, c.in_last, &s), out);
    WEFT_TRY(status, choose_forward(program, &s, has_bias, "", &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.x, WEFTI_ONEDNN_INPUT, 0, &x), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.w, WEFTI_ONEDNN_INPUT, 1, &w), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.y, WEFTI_ONEDNN_OUTPUT, 0, &y), out);
    WEFT_TRY(status,
             wefti_onednn_tensor_as(program, w, wefti_onednn_wanted(desc, dnnl_query_weights_md),
                                    &w_own),
             out);
    WEFT_TRY(status, wefti_onednn_reorder(program, w, w_own), out);
    wefti_onednn_arg_t args[4] = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w_own}, {DNNL_ARG_DST, y}};
    if (has_bias) {
        args[3].arg = DNNL_ARG_BIAS;
        WEFT_TRY(status, wefti_onednn_tensor(program, &s.b, WEFTI_ONEDNN_INPUT, 2, &args[3].tensor),
                 out);
    }
    status = wefti_onednn_step(program, desc, args, has_bias ? 4 : 3);
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

static weft_status_t add_dw(const grad_t *g, const shape_t *s, wefti_onednn_program_t *program)
{
    weft_status_t status;
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t hint = NULL, desc = NULL;
    uint32_t dw, dw_own;
    const bool want_db = wefti_node_has_output(g->node, 2);
    WEFT_TRY(status, choose_forward(program, s, want_db, NULL, &hint), out);
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_dilated_convolution_backward_weights_desc_init(
                                     &op, dnnl_convolution_direct, &s->x, &s->w_any,
                                     want_db ? &s->b : NULL, &s->y, s->stride, s->dilation, s->pad,
                                     s->pad_end),
                                 "a gradient of weights"),
             out);
    WEFT_TRY(status, wefti_onednn_choose(program, &op, NULL, hint, "dW ", &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s->w, WEFTI_ONEDNN_OUTPUT, 1, &dw), out);
    WEFT_TRY(status,
             wefti_onednn_tensor_as(program, dw,
                                    wefti_onednn_wanted(desc, dnnl_query_diff_weights_md), &dw_own),
             out);
    wefti_onednn_arg_t args[4] = {
        {DNNL_ARG_SRC, g->x}, {DNNL_ARG_DIFF_DST, g->dy}, {DNNL_ARG_DIFF_WEIGHTS, dw_own}};
    if (want_db) {
        args[3].arg = DNNL_ARG_DIFF_BIAS;
        WEFT_TRY(status,
                 wefti_onednn_tensor(program, &s->b, WEFTI_ONEDNN_OUTPUT, 2, &args[3].tensor), out);
    }
    WEFT_TRY(status, wefti_onednn_step(program, desc, args, want_db ? 4 : 3), out);
    status = wefti_onednn_reorder(program, dw_own, dw);
out:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

static weft_status_t add_dx(const grad_t *g, const shape_t *s, wefti_onednn_program_t *program)
{
    weft_status_t status;
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t hint = NULL, desc = NULL;
    uint32_t dx, w_own;
    WEFT_TRY(status, choose_forward(program, s, false, NULL, &hint), out);
    WEFT_TRY(status,
             wefti_onednn_status(dnnl_dilated_convolution_backward_data_desc_init(
                                     &op, dnnl_convolution_direct, &s->x, &s->w_any, &s->y,
                                     s->stride, s->dilation, s->pad, s->pad_end),
                                 "a gradient of the input"),
             out);
    WEFT_TRY(status, wefti_onednn_choose(program, &op, NULL, hint, "dX ", &desc), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s->x, WEFTI_ONEDNN_OUTPUT, 0, &dx), out);
    WEFT_TRY(status,
             wefti_onednn_tensor_as(program, g->w, wefti_onednn_wanted(desc, dnnl_query_weights_md),
                                    &w_own),
             out);
    WEFT_TRY(status, wefti_onednn_reorder(program, g->w, w_own), out);
    const wefti_onednn_arg_t args[3] = {
        {DNNL_ARG_DIFF_DST, g->dy}, {DNNL_ARG_WEIGHTS, w_own}, {DNNL_ARG_DIFF_SRC, dx}};
    status = wefti_onednn_step(program, desc, args, 3);
out:
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_desc_destroy(hint);
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
    shape_t s;
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_input(node, 2) || !wefti_node_has_output(node, 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "ConvGrad: needs dY, X, W and the output dW");
    }
    WEFT_TRY(
        status,
        wefti_conv_describe(node, &node->inputs[1], &node->inputs[2], &node->inputs[0], env, &g.c),
        out);
    WEFT_TRY(status, check_grad(node, &g.c), out);
    WEFT_TRY(status, describe_shape(&g.c, g.c.in_last, &s), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.y, WEFTI_ONEDNN_INPUT, 0, &g.dy), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.x, WEFTI_ONEDNN_INPUT, 1, &g.x), out);
    WEFT_TRY(status, wefti_onednn_tensor(program, &s.w, WEFTI_ONEDNN_INPUT, 2, &g.w), out);
    WEFT_TRY(status, add_dw(&g, &s, program), out);
    if (wefti_node_has_output(node, 0)) {
        const bool last = node->outputs[0].layout == WEFT_LAYOUT_CHANNELS_LAST;
        WEFT_TRY(status, describe_shape(&g.c, last, &s), out);
        status = add_dx(&g, &s, program);
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
