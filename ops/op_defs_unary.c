/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of elements and tests of elements, with their gradients, and Pow. */
#include <float.h>
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

/* A test of elements. */
static weft_status_t infer_test(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    wefti_infer_set(node, 0, WEFT_DTYPE_BOOL, node->inputs[0].rank, node->inputs[0].dims);
    return WEFT_OK;
}

static const weft_attr_def_t gelu_attrs[] = {
    {.name = "approximate",
     .type = WEFT_ATTR_TYPE_STRING,
     .default_s = "none",
     .doc = "none, or tanh"},
};
#define ALPHA(value, text)                                                                         \
    {                                                                                              \
        .name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = value, .doc = text             \
    }
static const weft_attr_def_t hard_sigmoid_attrs[] = {
    ALPHA(0.2f, "factor of X"),
    {.name = "beta", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 0.5f, .doc = "addend"},
};
static const weft_attr_def_t clip_attrs[] = {
    {.name = "max", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = FLT_MAX, .doc = "upper bound"},
    {.name = "min", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = -FLT_MAX, .doc = "lower bound"},
};
static const weft_attr_def_t alpha_attrs[] = {ALPHA(1.0f, "see the formula")};
static const weft_attr_def_t leaky_attrs[] = {ALPHA(0.01f, "slope of negative X")};
static const weft_attr_def_t selu_attrs[] = {
    ALPHA(1.67326319f, "see the formula"),
    {.name = "gamma", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 1.05070102f, .doc = "factor"},
};
static const weft_attr_def_t shrink_attrs[] = {
    {.name = "bias", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "added towards 0"},
    {.name = "lambd", .type = WEFT_ATTR_TYPE_FLOAT, .default_f = 0.5f, .doc = "threshold"},
};
static const weft_attr_def_t infinity_attrs[] = {
    {.name = "detect_negative", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "0: not -inf"},
    {.name = "detect_positive", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "0: not +inf"},
};

#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define OF_INPUT(op, version, inputs, types, price, text, ...)                                     \
    .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = inputs,     \
    .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = {0, -1, -1, -1},              \
    .infer = wefti_infer_same, .cost = price, .doc = text,                                         \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .layout = {1u, 1u, 1, 0, 0}, __VA_ARGS__)
/* Some operations, or those of an exponential. */
#define FUNCTION(op, version, types, text, ...)                                                    \
    OF_INPUT(op, version, 1, types, wefti_cost_elementwise, text, __VA_ARGS__)
#define EXPONENTIAL(op, version, text, ...)                                                        \
    OF_INPUT(op, version, 1, WEFTI_BIT_FLOATS, cost_exp, text, __VA_ARGS__,                        \
             .cost_curve = WEFT_COST_CURVE_EXP)
/* Half types hold the result as well as the input. */
#define TAME .precision = WEFT_PRECISION_INPUTS
#define SLOPE_OF(space, op, inputs, text)                                                          \
    .domain = space, .name = op, .since_version = 1, .inputs_min = 2, .inputs_max = inputs,        \
    .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_FLOATS, .in_place = {0, -1, -1, -1},   \
    .infer = infer_unary_grad, .cost = wefti_cost_elementwise, .doc = text,                        \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u, .layout = {3u, 1u, 1, 0, 0})
#define SLOPE(op, text) SLOPE_OF("weft", op, 2, text)
#define TEST(op, version, types, text)                                                             \
    .domain = "", .name = op, .since_version = version, .inputs_min = 1, .inputs_max = 1,          \
    .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = WEFTI_IN_PLACE_NONE,          \
    .infer = infer_test, .cost = wefti_cost_elementwise, .doc = text,                              \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE)
#define OF_RESULT(space, op) .gradient = WEFT_GRADIENT_OF_RESULT, .result_grad = {space, op}
#define OF_INPUTS(space, op) .gradient = WEFT_GRADIENT_OF_INPUTS, .result_grad = {space, op}
#define NO_SLOPE .gradient = WEFT_GRADIENT_ZERO
#define NONE .gradient = WEFT_GRADIENT_DEFAULT
#define FLOATS WEFTI_BIT_FLOATS
#define SIGNED (WEFTI_BIT_FLOATS | WEFTI_BIT_SIGNED)

static const weft_op_def_t defs[] = {
    {FUNCTION("Neg", 1, SIGNED, "Y = -X", .linear_inputs = 1u, .gradient = WEFT_GRADIENT_NEGATION,
              TAME)},
    {FUNCTION("Relu", 1, SIGNED, "Y = max(X, 0)", OF_RESULT("com.microsoft", "ReluGrad"), TAME)},
    {FUNCTION("Tanh", 1, FLOATS, "Y = tanh(X)", OF_RESULT("weft", "TanhGrad"), TAME)},
    {FUNCTION("Abs", 1, WEFTI_BIT_NUMBERS, "the absolute value of X", OF_INPUTS("weft", "AbsGrad"),
              TAME)},
    {FUNCTION("Sign", 9, WEFTI_BIT_NUMBERS, "-1, 0 or 1: the sign of X", NO_SLOPE, TAME)},
    {FUNCTION("Floor", 1, FLOATS, "the integer at or below X", NO_SLOPE, TAME)},
    {FUNCTION("Ceil", 1, FLOATS, "the integer at or above X", NO_SLOPE, TAME)},
    {FUNCTION("Round", 11, FLOATS, "the nearest integer, halves to even", NO_SLOPE, TAME)},
    {EXPONENTIAL("Exp", 1, "Y = exp(X)", OF_RESULT("", "Mul"))},
    {EXPONENTIAL("Log", 1, "Y = log(X)", OF_INPUTS("", "Div"))},
    {FUNCTION("Sqrt", 1, FLOATS, "the square root of X", OF_RESULT("weft", "SqrtGrad"))},
    {FUNCTION("Reciprocal", 1, FLOATS, "Y = 1 / X", OF_RESULT("weft", "ReciprocalGrad"))},
    {EXPONENTIAL("Erf", 9, "the error function of X", OF_INPUTS("weft", "ErfGrad"), TAME)},
    {EXPONENTIAL("Gelu", 20, "X times the normal distribution function of X",
                 OF_INPUTS("weft", "GeluGrad"), TAME),
     ATTRS(gelu_attrs)},
    {EXPONENTIAL("Sigmoid", 1, "Y = 1 / (1 + exp(-X))", OF_RESULT("weft", "SigmoidGrad"), TAME)},
    {FUNCTION("HardSigmoid", 1, FLOATS, "Y = max(0, min(1, alpha X + beta))",
              OF_RESULT("weft", "HardSigmoidGrad"), TAME),
     ATTRS(hard_sigmoid_attrs)},
    {FUNCTION("HardSwish", 14, FLOATS, "Y = X max(0, min(1, X / 6 + 1 / 2))",
              OF_INPUTS("weft", "HardSwishGrad"), TAME)},
    {FUNCTION("Clip", 1, FLOATS, "Y = min(max(X, min), max)", OF_INPUTS("weft", "ClipGrad"), TAME),
     ATTRS(clip_attrs)},
    {OF_INPUT("Clip", 11, 3, WEFTI_BIT_NUMBERS, wefti_cost_elementwise,
              "Y = min(max(X, min), max); bounds are inputs, and not trained",
              OF_INPUTS("weft", "ClipGrad"), TAME)},
    {EXPONENTIAL("Cos", 7, "Y = cos(X)", OF_INPUTS("weft", "CosGrad"))},
    {EXPONENTIAL("Sin", 7, "Y = sin(X)", OF_INPUTS("weft", "SinGrad"))},
    {EXPONENTIAL("Tan", 7, "Y = tan(X)", OF_INPUTS("weft", "TanGrad"))},
    {EXPONENTIAL("Acos", 7, "the arc cosine of X", OF_INPUTS("weft", "AcosGrad"))},
    {EXPONENTIAL("Asin", 7, "the arc sine of X", OF_INPUTS("weft", "AsinGrad"))},
    {EXPONENTIAL("Atan", 7, "the arc tangent of X", OF_INPUTS("weft", "AtanGrad"))},
    {EXPONENTIAL("Cosh", 9, "Y = cosh(X)", OF_INPUTS("weft", "CoshGrad"))},
    {EXPONENTIAL("Sinh", 9, "Y = sinh(X)", OF_INPUTS("weft", "SinhGrad"))},
    {EXPONENTIAL("Acosh", 9, "the inverse of cosh", OF_INPUTS("weft", "AcoshGrad"))},
    {EXPONENTIAL("Asinh", 9, "the inverse of sinh", OF_INPUTS("weft", "AsinhGrad"))},
    {EXPONENTIAL("Atanh", 9, "the inverse of tanh", OF_INPUTS("weft", "AtanhGrad"))},
    {EXPONENTIAL("Elu", 1, "X, where negative alpha (exp(X) - 1)", OF_INPUTS("weft", "EluGrad"),
                 TAME),
     ATTRS(alpha_attrs)},
    {EXPONENTIAL("Selu", 1, "gamma X, where negative gamma alpha (exp(X) - 1)",
                 OF_INPUTS("weft", "SeluGrad"), TAME),
     ATTRS(selu_attrs)},
    {EXPONENTIAL("Celu", 12, "X, where negative alpha (exp(X / alpha) - 1)",
                 OF_INPUTS("weft", "CeluGrad"), TAME),
     ATTRS(alpha_attrs)},
    {FUNCTION("LeakyRelu", 1, FLOATS, "X, where negative alpha X",
              OF_INPUTS("weft", "LeakyReluGrad"), TAME),
     ATTRS(leaky_attrs)},
    {FUNCTION("ThresholdedRelu", 10, FLOATS, "X where X > alpha, else 0",
              OF_INPUTS("weft", "ThresholdedReluGrad"), TAME),
     ATTRS(alpha_attrs)},
    {FUNCTION("Shrink", 9, WEFTI_BIT_NUMBERS,
              "X + bias where X < -lambd, X - bias where X > lambd, else 0", NONE, TAME),
     ATTRS(shrink_attrs)},
    {EXPONENTIAL("Softplus", 1, "Y = log(1 + exp(X))", OF_INPUTS("weft", "SoftplusGrad"))},
    {FUNCTION("Softsign", 1, FLOATS, "Y = X / (1 + |X|)", OF_INPUTS("weft", "SoftsignGrad"), TAME)},
    {EXPONENTIAL("Mish", 18, "Y = X tanh(log(1 + exp(X)))", OF_INPUTS("weft", "MishGrad"), TAME)},
    {EXPONENTIAL("Swish", 24, "Y = X / (1 + exp(-alpha X))", OF_INPUTS("weft", "SwishGrad"), TAME),
     ATTRS(alpha_attrs)},
    {FUNCTION("BitwiseNot", 18, WEFTI_BIT_SIGNED | WEFTI_BIT_UNSIGNED, "all bits of X inverted",
              NONE)},
    {TEST("Not", 1, WEFT_DTYPE_BIT(WEFT_DTYPE_BOOL), "not X")},
    {TEST("IsNaN", 9, FLOATS, "X is not a number")},
    {TEST("IsInf", 10, FLOATS, "X is infinite"), ATTRS(infinity_attrs)},
    {SLOPE_OF("com.microsoft", "ReluGrad", 2, "dX = dY where Y > 0, else 0")},
    {SLOPE("TanhGrad", "dX = dY (1 - Y^2)")},
    {SLOPE("AbsGrad", "dX = dY times the sign of X")},
    {SLOPE("SqrtGrad", "dX = dY / (2 Y)")},
    {SLOPE("ReciprocalGrad", "dX = -dY Y^2")},
    {SLOPE("ErfGrad", "dX = dY times the slope of Erf at X")},
    {SLOPE("GeluGrad", "dX = dY times the slope of Gelu at X"), ATTRS(gelu_attrs)},
    {SLOPE("SigmoidGrad", "dX = dY Y (1 - Y)")},
    {SLOPE("HardSigmoidGrad", "dX = alpha dY where 0 < Y < 1, else 0"), ATTRS(hard_sigmoid_attrs)},
    {SLOPE("HardSwishGrad", "dX = dY times the slope of HardSwish at X")},
    {SLOPE_OF("weft", "ClipGrad", 4, "dX = dY where min < X < max, else 0; bounds as of Clip"),
     ATTRS(clip_attrs)},
    {SLOPE("CosGrad", "dX = -dY sin(X)")},
    {SLOPE("SinGrad", "dX = dY cos(X)")},
    {SLOPE("TanGrad", "dX = dY / cos(X)^2")},
    {SLOPE("AcosGrad", "dX = -dY / sqrt(1 - X^2)")},
    {SLOPE("AsinGrad", "dX = dY / sqrt(1 - X^2)")},
    {SLOPE("CoshGrad", "dX = dY sinh(X)")},
    {SLOPE("SinhGrad", "dX = dY cosh(X)")},
    {SLOPE("AcoshGrad", "dX = dY / sqrt(X^2 - 1)")},
    {SLOPE("AsinhGrad", "dX = dY / sqrt(X^2 + 1)")},
    {SLOPE("AtanhGrad", "dX = dY / (1 - X^2)")},
    {SLOPE("AtanGrad", "dX = dY / (1 + X^2)")},
    {SLOPE("EluGrad", "dX = dY times the slope of Elu at X"), ATTRS(alpha_attrs)},
    {SLOPE("SeluGrad", "dX = dY times the slope of Selu at X"), ATTRS(selu_attrs)},
    {SLOPE("CeluGrad", "dX = dY times the slope of Celu at X"), ATTRS(alpha_attrs)},
    {SLOPE("LeakyReluGrad", "dX = dY where X > 0, else alpha dY"), ATTRS(leaky_attrs)},
    {SLOPE("ThresholdedReluGrad", "dX = dY where X > alpha, else 0"), ATTRS(alpha_attrs)},
    {SLOPE("SoftplusGrad", "dX = dY / (1 + exp(-X))")},
    {SLOPE("SoftsignGrad", "dX = dY / (1 + |X|)^2")},
    {SLOPE("MishGrad", "dX = dY times the slope of Mish at X")},
    {SLOPE("SwishGrad", "dX = dY times the slope of Swish at X"), ATTRS(alpha_attrs)},
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
