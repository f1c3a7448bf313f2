/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions. */
#include "ops/op_infer.h"
#include "runtime/base/error.h"

weft_status_t wefti_reduce_axes(const weft_node_desc_t *node, uint32_t *out_mask)
{
    uint32_t rank = node->inputs[0].rank;
    bool given;
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axes(node, rank, weft_node_attr(node, "axes") == NULL, out_mask, &given));
    if (*out_mask == 0 && weft_node_attr_int(node, "noop_with_empty_axes", 0) == 0) {
        *out_mask = (1u << rank) - 1;
    }
    return WEFT_OK;
}

weft_status_t wefti_infer_reduce(weft_node_desc_t *node)
{
    uint32_t mask;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_reduce_axes(node, &mask));
    const weft_tensor_desc_t *x = &node->inputs[0];
    weft_tensor_desc_t y = {.dtype = x->dtype};
    bool keep = weft_node_attr_int(node, "keepdims", 1) != 0;
    for (uint32_t d = 0; d < x->rank; d++) {
        if ((mask >> d & 1) == 0 || keep) {
            y.dims[y.rank++] = (mask >> d & 1) != 0 ? 1 : x->dims[d];
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static void cost_reduce(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define KEEPDIMS                                                                                   \
    {                                                                                              \
        .name = "keepdims", .type = WEFT_ATTR_TYPE_INT, .default_i = 1,                            \
        .doc = "1: reduced dimensions stay, with size 1"                                           \
    }
static const weft_attr_def_t reduce_attrs_old[] = {
    {.name = "axes", .type = WEFT_ATTR_TYPE_INTS, .default_s = "all", .doc = "dimensions"},
    KEEPDIMS,
};
static const weft_attr_def_t reduce_attrs[] = {
    KEEPDIMS,
    {.name = "noop_with_empty_axes",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "1: without axes Y = X; 0: without axes all dimensions are reduced"},
};
#define REDUCE(types, op, version, inputs, list, linear, rule, text)                               \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = inputs, \
        .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = WEFTI_IN_PLACE_NONE,      \
        .attrs = list, .attr_count = WEFTI_COUNT(list), .infer = wefti_infer_reduce,               \
        .cost = cost_reduce, .doc = text,                                                          \
        WEFTI_FACTS(.linear_inputs = linear, .gradient = rule, .layout = {1u, 1u, 0, 0, 0})        \
    }

/* Both forms: axes are an attribute, or since version an input. */
#define BOTH(...) BOTH_OF(WEFTI_BIT_NUMBERS, __VA_ARGS__)
#define BOTH_OF(types, op, version, linear, rule, text)                                            \
    REDUCE(types, op, 1, 1, reduce_attrs_old, linear, rule, text),                                 \
        REDUCE(types, op, version, 2, reduce_attrs, linear, rule, text "; axes are an input")

static const weft_op_def_t defs[] = {
    BOTH("ReduceSum", 13, 1u, WEFT_GRADIENT_SUM, "sum over dimensions"),
    BOTH("ReduceMean", 18, 1u, WEFT_GRADIENT_MEAN, "mean over dimensions"),
    BOTH_OF(WEFTI_BIT_ALL, "ReduceMax", 18, 0u, WEFT_GRADIENT_REDUCED_EXTREME,
            "maximum over dimensions"),
    BOTH_OF(WEFTI_BIT_ALL, "ReduceMin", 18, 0u, WEFT_GRADIENT_REDUCED_EXTREME,
            "minimum over dimensions"),
    BOTH("ReduceProd", 18, 0u, WEFT_GRADIENT_REDUCED_PRODUCT, "product over dimensions"),
    BOTH("ReduceSumSquare", 18, 0u, WEFT_GRADIENT_REDUCED_SQUARES,
         "sum of squares over dimensions"),
    BOTH("ReduceL1", 18, 0u, WEFT_GRADIENT_NORM_1, "sum of absolute values over dimensions"),
    BOTH("ReduceL2", 18, 0u, WEFT_GRADIENT_NORM_2, "root of the sum of squares over dimensions"),
    BOTH("ReduceLogSum", 18, 0u, WEFT_GRADIENT_LOG_SUM, "log of the sum over dimensions"),
    BOTH("ReduceLogSumExp", 18, 0u, WEFT_GRADIENT_LOG_SUM_EXP,
         "log of the sum of exp(X) over dimensions"),
};

wefti_op_family_t wefti_op_defs_reduce(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
