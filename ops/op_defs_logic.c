/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of several tensors, element by element: comparisons, logic, bits, remainders, extremes,
 * sums, choices. */
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define BIT_BOOL WEFT_DTYPE_BIT(WEFT_DTYPE_BOOL)

/* All inputs have one type; the result has the type, or WEFT_DTYPE_NONE: that of the inputs. */
static weft_status_t infer_broadcast_all(weft_node_desc_t *node, weft_dtype_t dtype)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    for (uint32_t i = 1; i < node->input_count; i++) {
        int64_t dims[WEFT_MAX_DIMS];
        if (node->inputs[i].dtype != y.dtype) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "inputs have types %s and %s",
                               weft_dtype_name(y.dtype), weft_dtype_name(node->inputs[i].dtype));
        }
        WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&y, &node->inputs[i], &y.rank, dims));
        memcpy(y.dims, dims, y.rank * sizeof(dims[0]));
    }
    wefti_infer_set(node, 0, dtype == WEFT_DTYPE_NONE ? y.dtype : dtype, y.rank, y.dims);
    return WEFT_OK;
}

static weft_status_t infer_compare(weft_node_desc_t *node)
{
    return infer_broadcast_all(node, WEFT_DTYPE_BOOL);
}

static weft_status_t infer_extreme(weft_node_desc_t *node)
{
    return infer_broadcast_all(node, WEFT_DTYPE_NONE);
}

static weft_status_t infer_where(weft_node_desc_t *node)
{
    int64_t dims[WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    const weft_tensor_desc_t *c = &node->inputs[0], *x = &node->inputs[1], *y = &node->inputs[2];
    weft_tensor_desc_t z = *x;
    if (c->dtype != WEFT_DTYPE_BOOL || x->dtype != y->dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "inputs have types %s, %s and %s: expected bool and two equal types",
                           weft_dtype_name(c->dtype), weft_dtype_name(x->dtype),
                           weft_dtype_name(y->dtype));
    }
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(x, y, &z.rank, dims));
    memcpy(z.dims, dims, z.rank * sizeof(dims[0]));
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(c, &z, &z.rank, dims));
    wefti_infer_set(node, 0, x->dtype, z.rank, dims);
    return WEFT_OK;
}

#define PAIR(op, version, types, text, ...)                                                        \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = 2, .inputs_max = 2,      \
        .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = WEFTI_IN_PLACE_NONE,      \
        .infer = infer_compare, .cost = wefti_cost_elementwise, .doc = text,                       \
        WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE __VA_ARGS__)                                    \
    }
#define COMMUTES | WEFT_FACT_COMMUTATIVE
/* Of one type: a result of that type. */
#define SEVERAL(op, version, least, most, types, text, ...)                                        \
    .domain = "", .name = op, .since_version = version, .inputs_min = least, .inputs_max = most,   \
    .outputs_min = 1, .outputs_max = 1, .dtypes = types, .in_place = {0, -1, -1, -1},              \
    .infer = infer_extreme, .cost = wefti_cost_elementwise, .doc = text,                           \
    WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, __VA_ARGS__)
#define VARIADIC(op, text, rule)                                                                   \
    SEVERAL(op, 8, 1, WEFT_VARIADIC, WEFTI_BIT_NUMBERS, text, .gradient = rule,                    \
            .precision = WEFT_PRECISION_INPUTS)
#define INTEGERS (WEFTI_BIT_SIGNED | WEFTI_BIT_UNSIGNED)
#define TWO(op, version, types, text)                                                              \
    SEVERAL(op, version, 2, 2, types, text, .gradient = WEFT_GRADIENT_DEFAULT)
#define ATTRS(name) .attrs = name, .attr_count = WEFTI_COUNT(name)

static const weft_attr_def_t mod_attrs[] = {
    {.name = "fmod",
     .type = WEFT_ATTR_TYPE_INT,
     .doc = "0: the sign of the divisor, 1: that of the dividend"},
};
static const weft_attr_def_t shift_attrs[] = {
    {.name = "direction", .type = WEFT_ATTR_TYPE_STRING, .required = 1, .doc = "LEFT or RIGHT"},
};

static const weft_op_def_t defs[] = {
    PAIR("Equal", 7, WEFTI_BIT_ALL, "A = B, broadcasting", COMMUTES),
    PAIR("Less", 7, WEFTI_BIT_NUMBERS, "A < B, broadcasting", ),
    PAIR("LessOrEqual", 12, WEFTI_BIT_NUMBERS, "A <= B, broadcasting", ),
    PAIR("Greater", 7, WEFTI_BIT_NUMBERS, "A > B, broadcasting", ),
    PAIR("GreaterOrEqual", 12, WEFTI_BIT_NUMBERS, "A >= B, broadcasting", ),
    PAIR("And", 7, BIT_BOOL, "A and B, broadcasting", COMMUTES),
    PAIR("Or", 7, BIT_BOOL, "A or B, broadcasting", COMMUTES),
    PAIR("Xor", 7, BIT_BOOL, "A or B but not both, broadcasting", COMMUTES),
    {TWO("Mod", 10, WEFTI_BIT_NUMBERS, "the remainder of A / B, broadcasting"), ATTRS(mod_attrs)},
    {TWO("BitShift", 11, INTEGERS, "A shifted by B bits; to the right by copies of the sign"),
     ATTRS(shift_attrs)},
    {TWO("BitwiseAnd", 18, INTEGERS, "bits of A and B, broadcasting")},
    {TWO("BitwiseOr", 18, INTEGERS, "bits of A or B, broadcasting")},
    {TWO("BitwiseXor", 18, INTEGERS, "bits of A or B but not both, broadcasting")},
    {SEVERAL("PRelu", 7, 2, 2, WEFTI_BIT_NUMBERS, "X, where negative X slope, broadcasting",
             .gradient = WEFT_GRADIENT_SLOPE, .precision = WEFT_PRECISION_INPUTS)},
    {VARIADIC("Max", "the maximum of all inputs, broadcasting", WEFT_GRADIENT_EXTREME)},
    {VARIADIC("Min", "the minimum of all inputs, broadcasting", WEFT_GRADIENT_EXTREME)},
    {VARIADIC("Sum", "the sum of all inputs, broadcasting", WEFT_GRADIENT_TOTAL)},
    {VARIADIC("Mean", "the mean of all inputs, broadcasting", WEFT_GRADIENT_AVERAGE)},
    {.domain = "",
     .name = "Where",
     .since_version = 9,
     .inputs_min = 3,
     .inputs_max = 3,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = BIT_BOOL,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_where,
     .cost = wefti_cost_elementwise,
     .doc = "X where the condition holds, else Y, broadcasting",
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .gradient = WEFT_GRADIENT_CHOICE,
                 .precision = WEFT_PRECISION_INPUTS)},
};

wefti_op_family_t wefti_op_defs_logic(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
