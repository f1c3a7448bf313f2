/* SPDX-License-Identifier: Apache-2.0 */
/* Activations and their gradients: Sigmoid, HardSigmoid, HardSwish, Clip. */
#include <float.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* dX of a gradient operator is like dY, and so is the tensor after it: Y or X. */
static weft_status_t infer_activation_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    WEFT_RETURN_IF_ERROR(wefti_infer_match(node, 0, 1));
    return wefti_infer_same(node);
}

static void cost_exp(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 20.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

static const weft_attr_def_t hard_sigmoid_attrs[] = {
    {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 0.2f, .doc = "factor of X"},
    {.name = "beta", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 0.5f, .doc = "addend"},
};
static const weft_attr_def_t clip_attrs[] = {
    {.name = "max", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = FLT_MAX, .doc = "upper bound"},
    {.name = "min", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = -FLT_MAX, .doc = "lower bound"},
};

#define LIST(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define ACTIVATION(op, version, inputs, cost_rule, text, ...)                                      \
    .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = inputs,     \
    .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS, .in_place = {0, -1, -1, -1},   \
    .infer = wefti_infer_same, .cost = cost_rule, .doc = text,                                     \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .layout = {1u, 1u, 1, 0, 0}, __VA_ARGS__)
#define GRADIENT(op, inputs, text)                                                                 \
    .domain = "weft", .name = op, .since_version = 1, .inputs_min = 2, .inputs_max = inputs,       \
    .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS, .in_place = {0, -1, -1, -1},   \
    .infer = infer_activation_grad, .cost = wefti_cost_elementwise, .doc = text,                   \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u, .layout = {3u, 1u, 1, 0, 0})
#define OF_RESULT(op) .gradient = WEFT_GRADIENT_OF_RESULT, .result_grad = {"weft", op}
#define OF_INPUTS(op) .gradient = WEFT_GRADIENT_OF_INPUTS, .result_grad = {"weft", op}

static const weft_op_def_t defs[] = {
    {ACTIVATION("Sigmoid", 1, 1, cost_exp, "Y = 1 / (1 + exp(-X))", OF_RESULT("SigmoidGrad"),
                .cost_curve = WEFT_COST_CURVE_EXP)},
    {ACTIVATION("HardSigmoid", 1, 1, wefti_cost_elementwise, "Y = max(0, min(1, alpha X + beta))",
                OF_RESULT("HardSigmoidGrad")),
     LIST(hard_sigmoid_attrs)},
    {ACTIVATION("HardSwish", 14, 1, wefti_cost_elementwise, "Y = X max(0, min(1, X / 6 + 1 / 2))",
                OF_INPUTS("HardSwishGrad"))},
    {ACTIVATION("Clip", 1, 1, wefti_cost_elementwise, "Y = min(max(X, min), max)",
                OF_INPUTS("ClipGrad")),
     LIST(clip_attrs)},
    {ACTIVATION("Clip", 11, 3, wefti_cost_elementwise,
                "Y = min(max(X, min), max); bounds are inputs, and not trained",
                OF_INPUTS("ClipGrad"))},
    {GRADIENT("SigmoidGrad", 2, "dX = dY Y (1 - Y)")},
    {GRADIENT("HardSigmoidGrad", 2, "dX = alpha dY where 0 < Y < 1, else 0"),
     LIST(hard_sigmoid_attrs)},
    {GRADIENT("HardSwishGrad", 2, "dX = dY times the slope of HardSwish at X")},
    {GRADIENT("ClipGrad", 4, "dX = dY where min < X < max, else 0; bounds as of Clip"),
     LIST(clip_attrs)},
};

wefti_op_family_t wefti_op_defs_activation(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
