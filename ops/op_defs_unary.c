/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one tensor, with their gradients, and Pow. */
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_unary_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 1));
    return wefti_infer_same(node);
}

/* Before opset 12 both types are equal; since then the exponent has any type. */
static weft_status_t infer_pow(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&node->inputs[0], &node->inputs[1], &rank, dims));
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_pow_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    return wefti_infer_same(node);
}

static void cost_exp(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 20.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t gelu_attrs[] = {
    {.name = "approximate",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "none",
     .doc = "none, or tanh"},
};

#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define FUNCTION(op, version, types, price, text, ...)                                             \
    .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = 1,          \
    .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = {0, -1, -1, -1},              \
    .infer = wefti_infer_same, .cost = price, .doc = text,                                         \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .layout = {1u, 1u, 1, 0, 0}, __VA_ARGS__)
#define SLOPE(op, text)                                                                            \
    .domain = "weft", .name = op, .since_version = 1, .inputs_min = 2, .inputs_max = 2,            \
    .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS, .in_place = {0, -1, -1, -1},   \
    .infer = infer_unary_grad, .cost = wefti_cost_elementwise, .doc = text,                        \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u, .layout = {3u, 1u, 1, 0, 0})
#define OF_RESULT(space, op) .gradient = WEFT_GRADIENT_OF_RESULT, .result_grad = {space, op}
#define OF_INPUTS(space, op) .gradient = WEFT_GRADIENT_OF_INPUTS, .result_grad = {space, op}

static const weft_op_def_t defs[] = {
    {FUNCTION("Neg", 1, WEFTI_BIT_FLOATS | WEFTI_BIT_SIGNED, wefti_cost_elementwise, "Y = -X",
              .linear_inputs = 1u, .gradient = WEFT_GRADIENT_NEGATION)},
    {FUNCTION("Exp", 1, WEFTI_BIT_FLOATS, cost_exp, "Y = exp(X)", OF_RESULT("", "Mul"),
              .cost_curve = WEFT_COST_CURVE_EXP)},
    {FUNCTION("Log", 1, WEFTI_BIT_FLOATS, cost_exp, "Y = log(X)", OF_INPUTS("", "Div"),
              .cost_curve = WEFT_COST_CURVE_EXP)},
    {FUNCTION("Sqrt", 1, WEFTI_BIT_FLOATS, wefti_cost_elementwise, "the square root of X",
              OF_RESULT("weft", "SqrtGrad"))},
    {FUNCTION("Reciprocal", 1, WEFTI_BIT_FLOATS, wefti_cost_elementwise, "Y = 1 / X",
              OF_RESULT("weft", "ReciprocalGrad"))},
    {FUNCTION("Erf", 9, WEFTI_BIT_FLOATS, cost_exp, "the error function of X",
              OF_INPUTS("weft", "ErfGrad"), .cost_curve = WEFT_COST_CURVE_EXP)},
    {FUNCTION("Gelu", 20, WEFTI_BIT_FLOATS, cost_exp,
              "X times the normal distribution function of X", OF_INPUTS("weft", "GeluGrad"),
              .cost_curve = WEFT_COST_CURVE_EXP),
     ATTRS(gelu_attrs)},
    {FUNCTION("Cos", 7, WEFTI_BIT_FLOATS, cost_exp, "Y = cos(X)", )},
    {FUNCTION("Sin", 7, WEFTI_BIT_FLOATS, cost_exp, "Y = sin(X)", )},
    {SLOPE("SqrtGrad", "dX = dY / (2 Y)")},
    {SLOPE("ReciprocalGrad", "dX = -dY Y^2")},
    {SLOPE("ErfGrad", "dX = dY times the slope of Erf at X")},
    {SLOPE("GeluGrad", "dX = dY times the slope of Gelu at X"), ATTRS(gelu_attrs)},
    {.domain = "",
     .name = "Pow",
     .since_version = 7,
     .inputs_min = 2,
     .inputs_max = 2,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_NUMBERS,
     .in_place = {0, -1, -1, -1},
     .infer = infer_pow,
     .cost = cost_exp,
     .doc = "X to the power of an exponent, broadcasting",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .gradient = WEFT_GRADIENT_POWER)},
    {.domain = "weft",
     .name = "PowGrad",
     .since_version = 1,
     .inputs_min = 3,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = {0, -1, -1, -1},
     .infer = infer_pow_grad,
     .cost = cost_exp,
     .doc = "dX from dY, X and the exponent E: dY E X^(E - 1)",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u)},
};

wefti_op_family_t wefti_op_defs_unary(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
