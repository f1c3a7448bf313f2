/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on rows: LayerNormalization, and gradients of it and of Softmax. */
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t check_row(const weft_tensor_desc_t *x, uint32_t axis,
                               const weft_tensor_desc_t *scale, const char *what)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    weft_tensor_desc_t row = {.dtype = x->dtype, .rank = x->rank - axis};
    memcpy(row.dims, x->dims + axis, row.rank * sizeof(row.dims[0]));
    if (!wefti_infer_parameter_type(x, scale->dtype) || scale->rank > row.rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s differs from X in type, or has more than %u dimensions", what,
                           row.rank);
    }
    return wefti_infer_broadcast(&row, scale, &rank, dims);
}

/* Mean and InvStdDev have one element per row: dimensions from axis on are 1. */
static weft_status_t infer_layer_norm(weft_node_desc_t *node)
{
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const weft_tensor_desc_t *x = &node->inputs[0], *bias = wefti_infer_input(node, 2);
    weft_tensor_desc_t statistic = *x;
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", -1), x->rank, "axis", &axis));
    WEFT_RETURN_IF_ERROR(check_row(x, axis, &node->inputs[1], "Scale"));
    if (bias != NULL) {
        WEFT_RETURN_IF_ERROR(check_row(x, axis, bias, "B"));
    }
    for (uint32_t d = axis; d < x->rank; d++) {
        statistic.dims[d] = 1;
    }
    wefti_infer_set_like(node, 0, x);
    wefti_infer_set(node, 1, WEFT_DTYPE_F32, statistic.rank, statistic.dims);
    wefti_infer_set(node, 2, WEFT_DTYPE_F32, statistic.rank, statistic.dims);
    return WEFT_OK;
}

static weft_status_t infer_layer_norm_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 5));
    WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 1));
    wefti_infer_set_like(node, 0, &node->inputs[1]);
    wefti_infer_set_like(node, 1, &node->inputs[2]);
    wefti_infer_set_like(node, 2, &node->inputs[2]);
    return WEFT_OK;
}

static weft_status_t infer_softmax_grad(weft_node_desc_t *node)
{
    int64_t outer, length, inner;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 1));
    WEFT_RETURN_IF_ERROR(wefti_infer_same(node));
    return wefti_softmax_axis(node, &outer, &length, &inner);
}

static void cost_rows(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 10.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t layer_norm_attrs[] = {
    {.name = "axis",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = -1,
     .doc = "first dimension of a row"},
    {.name = "epsilon",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 1e-5f,
     .doc = "added to the variance"},
    {.name = "stash_type",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "type of the statistics; 1 is f32"},
};
static const weft_attr_def_t layer_norm_grad_attrs[] = {
    {.name = "axis",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = -1,
     .doc = "first dimension of a row"},
};
static const weft_attr_def_t softmax_grad_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .default_i = -1, .doc = "as the forward operator"},
};

#define SOFTMAX_GRAD(op, text)                                                                     \
    {                                                                                              \
        .domain = "weft", .name = op, .since_version = 1, .inputs_min = 2, .inputs_max = 2,        \
        .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS,                            \
        .in_place = {0, -1, -1, -1}, .attrs = softmax_grad_attrs,                                  \
        .attr_count = WEFTI_COUNT(softmax_grad_attrs), .infer = infer_softmax_grad,                \
        .cost = cost_rows, .doc = text,                                                            \
        WEFTI_FACTS(.mixing = WEFT_MIXING_AXIS, .linear_inputs = 1u)                               \
    }

static const weft_op_def_t defs[] = {
    {.domain = "",
     .name = "LayerNormalization",
     .since_version = 1, /* of ONNX 17; ONNX Runtime's optimizer writes it into older models */
     .inputs_min = 2,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 3,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = layer_norm_attrs,
     .attr_count = WEFTI_COUNT(layer_norm_attrs),
     .infer = infer_layer_norm,
     .cost = cost_rows,
     .doc = "(X - mean) / deviation of each row, times Scale, plus B",
     WEFTI_FACTS(.mixing = WEFT_MIXING_FROM_AXIS, .gradient = WEFT_GRADIENT_ROW_NORM,
                 .cost_curve = WEFT_COST_CURVE_NORM, .precision = WEFT_PRECISION_INPUTS,
                 .f32_inputs = ~1u)},
    {.domain = "com.microsoft",
     .name = "LayerNormalizationGrad",
     .since_version = 1,
     .inputs_min = 5,
     .inputs_max = 5,
     .outputs_min = 1,
     .outputs_max = 3,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = layer_norm_grad_attrs,
     .attr_count = WEFTI_COUNT(layer_norm_grad_attrs),
     .infer = infer_layer_norm_grad,
     .cost = cost_rows,
     .doc = "dX, dScale and dB from dY, X, Scale, mean and 1 / deviation; each may be absent",
     WEFTI_FACTS(.linear_inputs = 1u, .cost_curve = WEFT_COST_CURVE_NORM)},
    SOFTMAX_GRAD("SoftmaxGrad", "dX = Y (dY - sum of dY Y along the axis)"),
    SOFTMAX_GRAD("LogSoftmaxGrad", "dX = dY - exp(Y) times the sum of dY along the axis"),
};

wefti_op_family_t wefti_op_defs_rows(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
