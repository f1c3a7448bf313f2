/* SPDX-License-Identifier: Apache-2.0 */
/* Conv, ConvGrad and ConvTranspose; X and Y in either layout, weights plain. */
#include "ops/compute/conv_depthwise.h"
#include "ops/compute/conv_lanes.h"
#include "ops/compute/kernel_check.h"
#include "ops/compute/product_kernels.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

/* How a pass is computed; which one, depends on shapes alone. */
typedef enum form { PLANES, LANES_OF_IMAGES, LANES_OF_CHANNELS } form_t;

typedef struct conv_state {
    wefti_conv_t conv;
    form_t form, dw_form;
    wefti_conv_pass_t pass; /* forward, or the gradient of the input */
    wefti_conv_lanes_t lanes;
    wefti_depthwise_t depthwise;
    wefti_conv_dw_t dw; /* the gradient of weights and bias */
    wefti_lanes_dw_t lanes_dw;
    wefti_depthwise_t depthwise_dw;
    bool has_bias, want_dx, want_db;
} conv_state_t;

static void destroy(void *opaque)
{
    conv_state_t *state = opaque;
    if (state == NULL) {
        return;
    }
    wefti_conv_pass_deinit(&state->pass);
    wefti_conv_dw_deinit(&state->dw);
    wefti_free(NULL, state->lanes.at);
    wefti_free(NULL, state->lanes_dw.at);
    wefti_depthwise_deinit(&state->depthwise);
    wefti_depthwise_deinit(&state->depthwise_dw);
    wefti_free(NULL, state);
}

static const char *implementation(void *state)
{
    return wefti_conv_name(((const conv_state_t *)state)->conv.isa);
}

static weft_status_t check_bias(const weft_node_desc_t *node, const weft_tensor_desc_t *bias,
                                const char *what, int64_t channels)
{
    weft_status_t status = wefti_check_f32(node, bias, what, false);
    return status == WEFT_OK ? wefti_check_shape(node, bias, what, 1, &channels) : status;
}

/* Only planes are filled from half types. */
static weft_status_t check_wide(const wefti_conv_t *c, bool needed)
{
    return needed && c->dtype != WEFT_DTYPE_F32
               ? wefti_error(WEFT_ERR_UNSUPPORTED, "Conv: no kernel for type %s",
                             weft_dtype_name(c->dtype))
               : WEFT_OK;
}

/* The forward pass or the gradient of the input in its better form. */
static weft_status_t plan_pass(const wefti_conv_t *c, bool data_grad, conv_state_t *state,
                               int64_t *out_elems)
{
    WEFT_RETURN_IF_ERROR(
        check_wide(c, wefti_depthwise_fits(c) || (data_grad ? wefti_conv_lanes_fit_data_grad(c)
                                                            : wefti_conv_lanes_fit_forward(c))));
    if (wefti_depthwise_fits(c)) {
        state->form = LANES_OF_CHANNELS;
        WEFT_RETURN_IF_ERROR(wefti_depthwise_plan(c, data_grad, &state->depthwise));
        *out_elems = state->depthwise.scratch_elems;
    } else if (data_grad ? wefti_conv_lanes_fit_data_grad(c) : wefti_conv_lanes_fit_forward(c)) {
        state->form = LANES_OF_IMAGES;
        WEFT_RETURN_IF_ERROR(wefti_conv_lanes_plan(c, data_grad, &state->lanes));
        *out_elems = state->lanes.scratch_elems;
    } else {
        WEFT_RETURN_IF_ERROR(wefti_conv_pass_plan(c, data_grad, &state->pass));
        *out_elems = state->pass.scratch_elems;
    }
    return WEFT_OK;
}

/* The gradient of weights, likewise. */
static weft_status_t plan_dw(const wefti_conv_t *c, conv_state_t *state, int64_t *out_elems)
{
    WEFT_RETURN_IF_ERROR(check_wide(c, wefti_depthwise_fits(c) || wefti_conv_lanes_fit_dw(c)));
    if (wefti_depthwise_fits(c)) {
        state->dw_form = LANES_OF_CHANNELS;
        WEFT_RETURN_IF_ERROR(wefti_depthwise_plan(c, false, &state->depthwise_dw));
        *out_elems = state->depthwise_dw.scratch_elems;
    } else if (wefti_conv_lanes_fit_dw(c)) {
        state->dw_form = LANES_OF_IMAGES;
        WEFT_RETURN_IF_ERROR(wefti_lanes_dw_plan(c, &state->lanes_dw));
        *out_elems = state->lanes_dw.scratch_elems;
    } else {
        WEFT_RETURN_IF_ERROR(wefti_conv_dw_plan(c, &state->dw));
        *out_elems = state->dw.scratch_elems;
    }
    return WEFT_OK;
}

static weft_status_t describe_forward(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                      conv_state_t *state, size_t *out_scratch_bytes)
{
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Conv: expected two inputs and one output");
    }
    WEFT_RETURN_IF_ERROR(wefti_conv_describe(node, &node->inputs[0], &node->inputs[1],
                                             &node->outputs[0], env, &state->conv));
    state->has_bias = wefti_node_has_input(node, 2);
    if (state->has_bias) {
        WEFT_RETURN_IF_ERROR(
            check_bias(node, &node->inputs[2], "input 2", state->conv.out_channels));
    }
    int64_t elems;
    WEFT_RETURN_IF_ERROR(plan_pass(&state->conv, false, state, &elems));
    *out_scratch_bytes = (size_t)elems * sizeof(float);
    return WEFT_OK;
}

static weft_status_t describe_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   conv_state_t *state, size_t *out_scratch_bytes)
{
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_input(node, 2) || !wefti_node_has_output(node, 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "ConvGrad: expected inputs dY, X, W and output dW");
    }
    const weft_tensor_desc_t *dy = &node->inputs[0], *x = &node->inputs[1], *w = &node->inputs[2];
    wefti_conv_t *c = &state->conv;
    WEFT_RETURN_IF_ERROR(wefti_conv_describe(node, x, w, dy, env, c));
    WEFT_RETURN_IF_ERROR(wefti_check_f32(node, &node->outputs[1], "output 1", false));
    WEFT_RETURN_IF_ERROR(wefti_check_shape(node, &node->outputs[1], "output 1", w->rank, w->dims));
    state->want_db = wefti_node_has_output(node, 2);
    if (state->want_db) {
        WEFT_RETURN_IF_ERROR(check_bias(node, &node->outputs[2], "output 2", c->out_channels));
    }
    int64_t elems, dx_elems = 0;
    WEFT_RETURN_IF_ERROR(plan_dw(c, state, &elems));
    state->want_dx = wefti_node_has_output(node, 0);
    if (state->want_dx) {
        WEFT_RETURN_IF_ERROR(wefti_check_type(node, &node->outputs[0], "output 0",
                                              c->dtype == WEFT_DTYPE_F32, c->dtype));
        WEFT_RETURN_IF_ERROR(
            wefti_check_shape(node, &node->outputs[0], "output 0", x->rank, x->dims));
        wefti_conv_t with_dx = *c;
        with_dx.in_last = node->outputs[0].layout == WEFT_LAYOUT_CHANNELS_LAST;
        WEFT_RETURN_IF_ERROR(plan_pass(&with_dx, true, state, &dx_elems));
        elems = dx_elems > elems ? dx_elems : elems;
    }
    *out_scratch_bytes = (size_t)elems * sizeof(float);
    return WEFT_OK;
}

/* The convolution of Y, which is in the place of its input, with the shape of X. */
static weft_status_t describe_transposed(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                         conv_state_t *state, size_t *out_scratch_bytes)
{
    if (!wefti_node_has_input(node, 0) || !wefti_node_has_input(node, 1) ||
        !wefti_node_has_output(node, 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "ConvTranspose: expected two inputs and one output");
    }
    const weft_tensor_desc_t *x = &node->inputs[0], *w = &node->inputs[1], *y = &node->outputs[0];
    wefti_window_t window;
    WEFT_RETURN_IF_ERROR(
        wefti_window_resolve_transposed(node, x->rank, x->dims, w->dims + 2, &window));
    weft_attr_t attrs[WEFTI_CONV_ATTRS];
    int64_t pads[2 * WEFTI_MAX_SPATIAL];
    weft_node_desc_t conv = *node;
    conv.attrs = attrs;
    conv.attr_count =
        wefti_window_conv_attrs(&window, weft_node_attr_int(node, "group", 1), pads, attrs);
    WEFT_RETURN_IF_ERROR(wefti_conv_describe(&conv, y, w, x, env, &state->conv));
    state->has_bias = wefti_node_has_input(node, 2);
    if (state->has_bias) {
        WEFT_RETURN_IF_ERROR(
            check_bias(node, &node->inputs[2], "input 2", state->conv.in_channels));
    }
    int64_t elems;
    WEFT_RETURN_IF_ERROR(plan_pass(&state->conv, true, state, &elems));
    *out_scratch_bytes = (size_t)elems * sizeof(float);
    return WEFT_OK;
}

typedef weft_status_t (*describe_fn)(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                     conv_state_t *state, size_t *out_scratch_bytes);

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             describe_fn describe, void **out_state, size_t *out_scratch_bytes)
{
    *out_state = NULL;
    conv_state_t *state = wefti_alloc(NULL, sizeof *state);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = describe(node, env, state, out_scratch_bytes);
    if (status != WEFT_OK) {
        destroy(state);
        return status;
    }
    *out_state = state;
    return WEFT_OK;
}

static weft_status_t conv_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, describe_forward, out_state, out_scratch_bytes);
}

/* bias may be NULL. */
static void run_pass(const conv_state_t *state, const void *source, const float *weights,
                     const float *bias, void *dst, float *scratch)
{
    if (state->form == LANES_OF_CHANNELS) {
        wefti_depthwise_run(&state->depthwise, source, weights, bias, dst, scratch);
    } else if (state->form == LANES_OF_IMAGES) {
        wefti_conv_lanes_run(&state->lanes, source, weights, bias, dst, scratch);
    } else {
        wefti_conv_pass_run(&state->pass, source, weights, bias, dst, scratch);
    }
}

static weft_status_t conv_run(const weft_kernel_call_t *call)
{
    const conv_state_t *state = call->state;
    run_pass(state, call->inputs[0], call->inputs[1], state->has_bias ? call->inputs[2] : NULL,
             call->outputs[0], call->scratch);
    return WEFT_OK;
}

static weft_status_t grad_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, describe_grad, out_state, out_scratch_bytes);
}

static weft_status_t grad_run(const weft_kernel_call_t *call)
{
    const conv_state_t *state = call->state;
    const void *dy = call->inputs[0], *x = call->inputs[1];
    const float *w = call->inputs[2];
    float *db = state->want_db ? call->outputs[2] : NULL;
    if (state->dw_form == LANES_OF_CHANNELS) {
        wefti_depthwise_dw_run(&state->depthwise_dw, x, dy, call->outputs[1], db, call->scratch);
    } else if (state->dw_form == LANES_OF_IMAGES) {
        wefti_lanes_dw_run(&state->lanes_dw, x, dy, call->outputs[1], db, call->scratch);
    } else {
        wefti_conv_dw_run(&state->dw, x, dy, call->outputs[1], db, call->scratch);
    }
    if (state->want_dx) {
        run_pass(state, dy, w, NULL, call->outputs[0], call->scratch);
    }
    return WEFT_OK;
}

static weft_status_t transposed_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        void **out_state, size_t *out_scratch_bytes)
{
    return prepare(node, env, describe_transposed, out_state, out_scratch_bytes);
}

const weft_kernel_t wefti_kernel_conv = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "",
    .op = "Conv",
    .since_version = 1,
    .prepare = conv_prepare,
    .run = conv_run,
    .destroy = destroy,
    .implementation = implementation,
};

const weft_kernel_t wefti_kernel_conv_grad = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "com.microsoft",
    .op = "ConvGrad",
    .since_version = 1,
    .prepare = grad_prepare,
    .run = grad_run,
    .destroy = destroy,
    .implementation = implementation,
};

const weft_kernel_t wefti_kernel_conv_transpose = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "",
    .op = "ConvTranspose",
    .since_version = 1,
    .prepare = transposed_prepare,
    .run = conv_run,
    .destroy = destroy,
    .implementation = implementation,
};
