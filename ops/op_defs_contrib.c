/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of domain com.microsoft, version 1, that ONNX Runtime's optimizer writes into exported
 * models. graph/expand_contrib.c replaces them by those of ONNX.
 */
#include <inttypes.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Is the input of that index a vector with an element per element of a row of X, or absent? */
static weft_status_t check_row(const weft_node_desc_t *node, uint32_t index)
{
    const weft_tensor_desc_t *x = &node->inputs[0], *row = wefti_infer_input(node, index);
    int64_t merged;
    if (row == NULL || (x->rank > 0 && row->rank == 1 && row->dtype == x->dtype &&
                        wefti_dim_merge(row->dims[0], x->dims[x->rank - 1], &merged))) {
        return WEFT_OK;
    }
    return wefti_error(
        WEFT_ERR_INVALID_ARGUMENT,
        "input %u must have the type of input 0 and 1 dimension, the last of input 0", index);
}

/* Input 1, if present, is a bias. */
static weft_status_t infer_gelu(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(check_row(node, 1));
    wefti_infer_set_like(node, 0, &node->inputs[0]);
    return WEFT_OK;
}

/* Skip may be of one sample. */
static weft_status_t infer_skip(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    for (uint32_t i = 2; i < node->input_count; i++) {
        WEFT_RETURN_IF_ERROR(check_row(node, i));
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    if (x->rank < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input 0 has no dimensions");
    }
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(x, &node->inputs[1], &rank, dims));
    if (rank != x->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input 1 has %u dimensions, more than the %u of input 0", rank, x->rank);
    }
    wefti_infer_set_like(node, 0, x);
    wefti_infer_set_like(node, 3, x);
    weft_tensor_desc_t rows = *x; /* of outputs that the pass expand refuses by name */
    rows.dims[rows.rank - 1] = 1;
    wefti_infer_set(node, 1, WEFT_DTYPE_F32, rows.rank, rows.dims);
    wefti_infer_set(node, 2, WEFT_DTYPE_F32, rows.rank, rows.dims);
    return WEFT_OK;
}

/* Output 1 is 1 / root of each row, in f32 where X is narrower. */
static weft_status_t infer_simplified(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    weft_tensor_desc_t rows = node->inputs[0];
    int64_t axis = weft_node_attr_int(node, "axis", -1);
    axis = axis < 0 ? axis + rows.rank : axis;
    if (axis < 0 || axis >= rows.rank || node->inputs[1].dtype != rows.dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "X is %s with %u dimensions, scale is %s: attribute axis is %" PRId64,
                           weft_dtype_name(rows.dtype), rows.rank,
                           weft_dtype_name(node->inputs[1].dtype), axis);
    }
    wefti_infer_set_like(node, 0, &node->inputs[0]);
    for (int64_t d = axis; d < rows.rank; d++) {
        rows.dims[d] = 1;
    }
    wefti_infer_set(node, 1, rows.dtype == WEFT_DTYPE_F64 ? WEFT_DTYPE_F64 : WEFT_DTYPE_F32,
                    rows.rank, rows.dims);
    return WEFT_OK;
}

static void cost_rows(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 8.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define EPSILON(value)                                                                             \
    {                                                                                              \
        .name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = value,                       \
        .doc = "added to the variance"                                                             \
    }
static const weft_attr_def_t quick_attrs[] = {
    {.name = "alpha",
     .type = WEFT_ATTR_TYPE_FLOAT,
     .default_f = 1.702f,
     .doc = "factor in the sigmoid"},
};
static const weft_attr_def_t skip_attrs[] = {EPSILON(1e-12f)};
static const weft_attr_def_t simplified_attrs[] = {
    {.name = "axis",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = -1,
     .doc = "the first dimension of a row"},
    EPSILON(1e-5f),
    {.name = "stash_type",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "type of the computation"},
};

#define ROW(space, op, least, most, out, rule, becomes, text)                                      \
    .domain = space, .name = op, .since_version = 1, .inputs_min = least, .inputs_max = most,      \
    .outputs_min = 1, .outputs_max = out, .dtypes = WEFTI_BIT_FLOATS,                              \
    .in_place = WEFTI_IN_PLACE_NONE, .infer = rule, .cost = cost_rows, .doc = text,                \
    WEFTI_FACTS(.expansion = WEFT_EXPANSION_##becomes)
#define MS(...) ROW("com.microsoft", __VA_ARGS__)
#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)

static const weft_op_def_t defs[] = {
    {MS("BiasGelu", 2, 2, 1, infer_gelu, GELU, "Gelu of X + B")},
    {MS("FastGelu", 1, 2, 1, infer_gelu, FAST_GELU, "Gelu of X + B by tanh; B may be absent")},
    {MS("Gelu", 1, 1, 1, infer_gelu, GELU, "X times the normal distribution function of X")},
    {MS("QuickGelu", 1, 1, 1, infer_gelu, QUICK_GELU, "X times the sigmoid of alpha X"),
     ATTRS(quick_attrs)},
    {ROW("", "SimplifiedLayerNormalization", 2, 2, 2, infer_simplified, RMS_NORM,
         "RMSNormalization in graphs of ONNX Runtime; output 1: 1 / root"),
     ATTRS(simplified_attrs)},
    {MS("SimplifiedLayerNormalization", 2, 2, 2, infer_simplified, RMS_NORM,
        "RMSNormalization; output 1: 1 / root"),
     ATTRS(simplified_attrs)},
    {MS("SkipLayerNormalization", 3, 5, 4, infer_skip, SKIP_LAYER_NORM,
        "LayerNormalization of input + skip + bias, which is output 3"),
     ATTRS(skip_attrs)},
    {MS("SkipSimplifiedLayerNormalization", 3, 4, 4, infer_skip, SKIP_RMS_NORM,
        "RMSNormalization of input + skip + bias, which is output 3"),
     ATTRS(skip_attrs)},
};

wefti_op_family_t wefti_op_defs_contrib(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
