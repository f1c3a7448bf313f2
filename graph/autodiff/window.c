/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of convolution, pooling and padding. */
#include <string.h>

#include "graph/autodiff/differentiate.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

weft_status_t wefti_diff_conv(wefti_diff_t *diff)
{
    const wefti_node_t *forward = wefti_diff_node(diff);
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 0),
                         wefti_diff_input(diff, 1)};
    wefti_diff_op_t op = {.domain = "com.microsoft",
                          .op = "ConvGrad",
                          .inputs = inputs,
                          .input_count = 3,
                          .attrs = forward->attrs,
                          .attr_count = forward->attr_count,
                          .output_count = wefti_diff_input(diff, 2) != WEFTI_NONE ? 3 : 2};
    return wefti_diff_give_each(diff, &op);
}

/* By the convolution whose input has the shape of Y: dX is that convolution of dY, dW its gradient
 * of the weights. */
weft_status_t wefti_diff_conv_transpose(wefti_diff_t *diff)
{
    weft_node_desc_t desc;
    wefti_window_t window;
    weft_attr_t attrs[WEFTI_CONV_ATTRS];
    int64_t pads[2 * WEFTI_MAX_SPATIAL];
    uint32_t dy = wefti_diff_output_grad(diff, 0), x = wefti_diff_input(diff, 0),
             w = wefti_diff_input(diff, 1), db = wefti_diff_input(diff, 2);
    WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(diff->graph, diff->node, &desc));
    WEFT_RETURN_IF_ERROR(wefti_window_resolve_transposed(
        &desc, desc.inputs[0].rank, desc.inputs[0].dims, desc.inputs[1].dims + 2, &window));
    const uint32_t count =
        wefti_window_conv_attrs(&window, weft_node_attr_int(&desc, "group", 1), pads, attrs);
    if (wefti_diff_wants(diff, 1)) {
        static const bool absent[] = {true, false};
        const wefti_diff_op_t dw = {.domain = "com.microsoft",
                                    .op = "ConvGrad",
                                    .inputs = (uint32_t[]){x, dy, w},
                                    .input_count = 3,
                                    .attrs = attrs,
                                    .attr_count = count,
                                    .output_absent = absent,
                                    .output_count = 2};
        WEFT_RETURN_IF_ERROR(wefti_diff_give_op(diff, 1, &dw));
    }
    if (db != WEFTI_NONE && wefti_diff_wants(diff, 2)) {
        const weft_tensor_desc_t y = diff->graph->values[dy].type;
        int64_t column[WEFT_MAX_DIMS] = {y.dims[1]};
        for (uint32_t d = 1; d + 1 < y.rank; d++) {
            column[d] = 1;
        }
        WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, dy, column, y.rank - 1, &db));
        WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, db, column, 1, &db));
        WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, 2, db));
    }
    const wefti_diff_op_t dx = {.domain = "",
                                .op = "Conv",
                                .inputs = (uint32_t[]){dy, w},
                                .input_count = 2,
                                .attrs = attrs,
                                .attr_count = count};
    return wefti_diff_give_op(diff, 0, &dx);
}

/* A gradient operator of domain weft with the forward attributes and input_shape. */
static weft_status_t pool_grad(wefti_diff_t *diff, const char *name, const uint32_t *inputs,
                               uint32_t input_count)
{
    weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    weft_attr_t shape = {
        .name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = x.dims, .count = x.rank};
    wefti_diff_op_t op = {
        .domain = "weft", .op = name, .inputs = inputs, .input_count = input_count};
    WEFT_RETURN_IF_ERROR(wefti_diff_attrs_with(diff, &shape, &op.attrs, &op.attr_count));
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_max_pool(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), WEFTI_NONE};
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    if (wefti_diff_output(diff, 1) != WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "MaxPool with Indices");
    }
    /* The forward node keeps from now on where each maximum was. */
    WEFT_RETURN_IF_ERROR(wefti_diff_need_output(diff, "weft", "MaxPoolMask", 1, &inputs[1]));
    return pool_grad(diff, "MaxPoolGrad", inputs, 2);
}

weft_status_t wefti_diff_average_pool(wefti_diff_t *diff)
{
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    return wefti_diff_wants(diff, 0) ? pool_grad(diff, "AveragePoolGrad", &dy, 1) : WEFT_OK;
}

/* dY repeated, by the number of elements. */
weft_status_t wefti_diff_global_average_pool(wefti_diff_t *diff)
{
    const weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    /* The kernel takes one or two dimensions: more are one. */
    int64_t dims[] = {x.dims[0], x.dims[1], x.dims[2], x.rank > 3 ? x.dims[3] : 1};
    const int64_t sums[] = {x.dims[0], x.dims[1], 1, 1};
    const uint32_t rank = x.rank < 4 ? x.rank : 4;
    for (uint32_t d = 4; d < x.rank; d++) {
        dims[3] *= x.dims[d];
    }
    weft_attr_t attrs[] = {
        {.name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = dims, .count = rank},
        {.name = "kernel_shape", .type = WEFT_ATTR_TYPE_INTS, .ints = dims + 2, .count = rank - 2},
    };
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, dy, sums, rank, &dy));
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "AveragePoolGrad",
                          .inputs = &dy,
                          .input_count = 1,
                          .attrs = attrs,
                          .attr_count = 2};
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &dy));
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, dy, x.dims, x.rank, &dy));
    return wefti_diff_give(diff, 0, dy);
}

weft_status_t wefti_diff_pad(wefti_diff_t *diff)
{
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    int64_t pads[2 * WEFT_MAX_DIMS];
    weft_node_desc_t desc;
    bool known = false;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    uint32_t rank = diff->graph->values[wefti_diff_input(diff, 0)].type.rank;
    const weft_attr_t *mode = wefti_node_attr(wefti_diff_node(diff), "mode");
    if (mode && (mode->type != WEFT_ATTR_TYPE_STRING || strcmp(mode->s, "constant") != 0)) {
        return wefti_diff_unsupported(diff, "a mode other than 'constant'");
    }
    weft_status_t status =
        wefti_graph_node_desc(diff->graph, diff->node, &diff->graph->arena, &desc);
    if (status < 0 || (status = wefti_pad_amounts(&desc, pads, &known)) < 0) {
        return status;
    }
    if (!known) {
        return wefti_diff_unsupported(diff, "non-constant pads");
    }
    for (uint32_t i = 0; i < 2 * rank; i++) {
        if (pads[i] < 0) {
            return wefti_diff_unsupported(diff, "negative pads");
        }
    }
    weft_attr_t attr = {
        .name = "pads", .type = WEFT_ATTR_TYPE_INTS, .ints = pads, .count = 2 * (size_t)rank};
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "PadGrad",
                          .inputs = &dy,
                          .input_count = 1,
                          .attrs = &attr,
                          .attr_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}
