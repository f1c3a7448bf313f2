/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of convolution, pooling and padding. */
#include <string.h>

#include "graph/autodiff/differentiate.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

weft_status_t wefti_diff_conv(wefti_diff_t *diff)
{
    weft_status_t status;
    uint32_t node;
    const wefti_node_t *forward = wefti_diff_node(diff);
    bool has_bias = wefti_diff_input(diff, 2) != WEFTI_NONE;
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 0),
                         wefti_diff_input(diff, 1)};
    bool absent[] = {!wefti_diff_wants(diff, 0), !wefti_diff_wants(diff, 1),
                     !wefti_diff_wants(diff, 2)};
    wefti_diff_op_t op = {.domain = "com.microsoft",
                          .op = "ConvGrad",
                          .inputs = inputs,
                          .input_count = 3,
                          .attrs = forward->attrs,
                          .attr_count = forward->attr_count,
                          .output_absent = absent,
                          .output_count = has_bias ? 3 : 2};
    if (absent[0] && absent[1] && absent[2]) {
        return WEFT_OK;
    }
    WEFT_TRY(status, wefti_diff_emit(diff, &op, &node), done);
    for (uint32_t i = 0; i < op.output_count; i++) {
        if (!absent[i]) {
            WEFT_TRY(status, wefti_diff_give(diff, i, diff->graph->nodes[node].outputs[i]), done);
        }
    }
done:
    return status;
}

/* A gradient operator of domain weft with the forward attributes and input_shape. */
static weft_status_t pool_grad(wefti_diff_t *diff, const char *name, const uint32_t *inputs,
                               uint32_t input_count)
{
    weft_status_t status;
    uint32_t grad;
    weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    weft_attr_t shape = {
        .name = "input_shape", .type = WEFT_ATTR_INTS, .ints = x.dims, .count = x.rank};
    wefti_diff_op_t op = {
        .domain = "weft", .op = name, .inputs = inputs, .input_count = input_count};
    WEFT_TRY(status, wefti_diff_attrs_with(diff, &shape, &op.attrs, &op.attr_count), done);
    WEFT_TRY(status, wefti_diff_emit_value(diff, &op, &grad), done);
    WEFT_TRY(status, wefti_diff_give(diff, 0, grad), done);
done:
    return status;
}

weft_status_t wefti_diff_max_pool(wefti_diff_t *diff)
{
    weft_status_t status;
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), WEFTI_NONE};
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    if (wefti_diff_output(diff, 1) != WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "MaxPool with Indices");
    }
    /* The forward node keeps from now on where each maximum was. */
    WEFT_TRY(status, wefti_diff_need_output(diff, "weft", "MaxPoolMask", 1, &inputs[1]), done);
    WEFT_TRY(status, pool_grad(diff, "MaxPoolGrad", inputs, 2), done);
done:
    return status;
}

weft_status_t wefti_diff_average_pool(wefti_diff_t *diff)
{
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    return wefti_diff_wants(diff, 0) ? pool_grad(diff, "AveragePoolGrad", &dy, 1) : WEFT_OK;
}

weft_status_t wefti_diff_global_average_pool(wefti_diff_t *diff)
{
    weft_status_t status;
    uint32_t grad, dy = wefti_diff_output_grad(diff, 0);
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    weft_attr_t attrs[] = {
        {.name = "input_shape", .type = WEFT_ATTR_INTS, .ints = x.dims, .count = x.rank},
        {.name = "kernel_shape", .type = WEFT_ATTR_INTS, .ints = x.dims + 2, .count = x.rank - 2},
    };
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "AveragePoolGrad",
                          .inputs = &dy,
                          .input_count = 1,
                          .attrs = attrs,
                          .attr_count = 2};
    WEFT_TRY(status, wefti_diff_emit_value(diff, &op, &grad), done);
    WEFT_TRY(status, wefti_diff_give(diff, 0, grad), done);
done:
    return status;
}

/* Begins then ends for every dimension, wherever this version of Pad keeps them. */
static bool read_pads(const wefti_diff_t *diff, uint32_t rank, int64_t *pads)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    int64_t given[2 * WEFT_MAX_DIMS], axes[WEFT_MAX_DIMS];
    uint32_t count = 0, axis_count = rank;
    memset(pads, 0, 2 * rank * sizeof(*pads));
    for (uint32_t i = 0; i < rank; i++) {
        axes[i] = i;
    }
    if (node->version < 11) {
        const weft_attr_t *attr = wefti_node_attr(node, node->version < 2 ? "paddings" : "pads");
        if (!attr || attr->type != WEFT_ATTR_INTS || attr->count != 2 * (size_t)rank) {
            return false;
        }
        memcpy(pads, attr->ints, attr->count * sizeof(*pads));
        return true;
    }
    const wefti_value_t *values = diff->graph->values;
    if (!wefti_const_ints(&values[wefti_diff_input(diff, 1)].type, given, 2 * WEFT_MAX_DIMS,
                          &count)) {
        return false;
    }
    uint32_t axes_value = wefti_diff_input(diff, 3);
    if (axes_value != WEFTI_NONE &&
        !wefti_const_ints(&values[axes_value].type, axes, WEFT_MAX_DIMS, &axis_count)) {
        return false;
    }
    for (uint32_t i = 0; i < axis_count; i++) {
        uint32_t axis;
        if (count != 2 * axis_count || wefti_infer_axis(axes[i], rank, "axis", &axis) < 0) {
            return false;
        }
        pads[axis] = given[i];
        pads[rank + axis] = given[axis_count + i];
    }
    return true;
}

weft_status_t wefti_diff_pad(wefti_diff_t *diff)
{
    weft_status_t status;
    uint32_t grad, dy = wefti_diff_output_grad(diff, 0);
    int64_t pads[2 * WEFT_MAX_DIMS];
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    uint32_t rank = diff->graph->values[wefti_diff_input(diff, 0)].type.rank;
    const weft_attr_t *mode = wefti_node_attr(wefti_diff_node(diff), "mode");
    if (mode && (mode->type != WEFT_ATTR_STRING || strcmp(mode->s, "constant") != 0)) {
        return wefti_diff_unsupported(diff, "a mode other than 'constant'");
    }
    if (!read_pads(diff, rank, pads)) {
        return wefti_diff_unsupported(diff, "non-constant pads");
    }
    for (uint32_t i = 0; i < 2 * rank; i++) {
        if (pads[i] < 0) {
            return wefti_diff_unsupported(diff, "negative pads");
        }
    }
    weft_attr_t attr = {
        .name = "pads", .type = WEFT_ATTR_INTS, .ints = pads, .count = 2 * (size_t)rank};
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "PadGrad",
                          .inputs = &dy,
                          .input_count = 1,
                          .attrs = &attr,
                          .attr_count = 1};
    WEFT_TRY(status, wefti_diff_emit_value(diff, &op, &grad), done);
    WEFT_TRY(status, wefti_diff_give(diff, 0, grad), done);
done:
    return status;
}
