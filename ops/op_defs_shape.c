/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that change or read the shape, constants and type conversion. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Reshape by a list in which 0 copies (unless allowzero) and one -1 takes the rest. */
static weft_status_t reshape_to(weft_node_desc_t *node, const int64_t *want, uint32_t rank)
{
    const weft_tensor_desc_t *x = &node->inputs[0];
    bool allow_zero = weft_node_attr_int(node, "allowzero", 0) != 0;
    weft_tensor_desc_t y = {.dtype = x->dtype, .rank = rank};
    uint32_t rest = UINT32_MAX;
    int64_t known = 1;
    bool all_known = true;
    for (uint32_t d = 0; d < rank; d++) {
        y.dims[d] = want[d];
        if (want[d] == -1 && rest == UINT32_MAX) {
            rest = d;
            y.dims[d] = -1;
            continue;
        }
        if (want[d] == 0 && !allow_zero) {
            if (d >= x->rank) {
                return wefti_error(
                    WEFT_ERR_INVALID_ARGUMENT,
                    "entry %u of the shape is 0, but the input has no such dimension", d);
            }
            y.dims[d] = x->dims[d];
            all_known = all_known && y.dims[d] >= 0;
        }
        if (want[d] < 0 || (y.dims[d] >= 0 && __builtin_mul_overflow(known, y.dims[d], &known))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "shape: invalid entry %u: %" PRId64, d,
                               want[d]);
        }
    }
    int64_t total = weft_tensor_elem_count(x);
    if (total >= 0 && all_known) {
        if (rest != UINT32_MAX && known > 0 && total % known == 0) {
            y.dims[rest] = total / known;
        } else if (rest != UINT32_MAX || known != total) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "%" PRId64 " elements cannot be reshaped to %" PRId64, total, known);
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static weft_status_t infer_reshape(weft_node_desc_t *node)
{
    int64_t want[WEFT_MAX_DIMS];
    uint32_t rank;
    weft_status_t status = wefti_infer_need(node, node->version >= 5 ? 2 : 1);
    if (status < 0) {
        return status;
    }
    if (node->version < 5) {
        status = wefti_attr_ints(node, "shape", want, WEFT_MAX_DIMS, &rank);
        return status < 0 ? status : reshape_to(node, want, rank);
    }
    const weft_tensor_desc_t *shape = &node->inputs[1];
    if (wefti_const_ints(shape, want, WEFT_MAX_DIMS, &rank)) {
        return reshape_to(node, want, rank);
    }
    if (shape->rank != 1 || shape->dims[0] < 0 || shape->dims[0] > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the shape must be a list of at most %d integers", WEFT_MAX_DIMS);
    }
    rank = (uint32_t)shape->dims[0];
    for (uint32_t d = 0; d < rank; d++) {
        want[d] = -1; /* known only once the shape is */
    }
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, want);
    return WEFT_OK;
}

static int64_t product(const int64_t *dims, uint32_t count)
{
    int64_t result = 1;
    for (uint32_t d = 0; d < count; d++) {
        if (dims[d] < 0 || __builtin_mul_overflow(result, dims[d], &result)) {
            return -1;
        }
    }
    return result;
}

static weft_status_t infer_flatten(weft_node_desc_t *node)
{
    uint32_t axis;
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    int64_t given = weft_node_attr_int(node, "axis", 1);
    if (given == x->rank) { /* allowed: everything in rows */
        axis = x->rank;
    } else {
        status = wefti_infer_axis(given, x->rank, "axis", &axis);
        if (status < 0) {
            return status;
        }
    }
    int64_t dims[2] = {product(x->dims, axis), product(x->dims + axis, x->rank - axis)};
    wefti_infer_set(node, 0, x->dtype, 2, dims);
    return WEFT_OK;
}

/* A constant's value comes from exactly one attribute. */
static weft_status_t infer_constant(weft_node_desc_t *node)
{
    const weft_attr_t *attr;
    if ((attr = weft_node_attr(node, "value")) != NULL && attr->tensor != NULL) {
        wefti_infer_set_like(node, 0, attr->tensor);
    } else if (weft_node_attr(node, "value_float") != NULL) {
        wefti_infer_set(node, 0, WEFT_DTYPE_F32, 0, NULL);
    } else if (weft_node_attr(node, "value_int") != NULL) {
        wefti_infer_set(node, 0, WEFT_DTYPE_I64, 0, NULL);
    } else if ((attr = weft_node_attr(node, "value_floats")) != NULL) {
        wefti_infer_set(node, 0, WEFT_DTYPE_F32, 1, &(int64_t){(int64_t)attr->count});
    } else if ((attr = weft_node_attr(node, "value_ints")) != NULL) {
        wefti_infer_set(node, 0, WEFT_DTYPE_I64, 1, &(int64_t){(int64_t)attr->count});
    } else {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute value, value_float(s) or value_int(s) is required");
    }
    return WEFT_OK;
}

static weft_status_t infer_shape(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    int64_t rank = node->inputs[0].rank;
    int64_t start = weft_node_attr_int(node, "start", 0),
            end = weft_node_attr_int(node, "end", rank);
    start = start < -rank ? 0 : start < 0 ? start + rank : start > rank ? rank : start;
    end = end < -rank ? 0 : end < 0 ? end + rank : end > rank ? rank : end;
    wefti_infer_set(node, 0, WEFT_DTYPE_I64, 1, &(int64_t){end > start ? end - start : 0});
    return WEFT_OK;
}

static weft_status_t infer_unsqueeze(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, node->version < 13 ? 1 : 2);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    int64_t list[WEFT_MAX_DIMS];
    uint32_t added = 0, mask;
    bool given;
    if (node->version < 13) {
        status = wefti_attr_ints(node, "axes", list, WEFT_MAX_DIMS, &added);
    } else if (!wefti_const_ints(&node->inputs[1], list, WEFT_MAX_DIMS, &added)) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "axes must be a constant list of integers");
    }
    if (status >= 0 && (added == 0 || x->rank + added > WEFT_MAX_DIMS)) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "too many dimensions: %u and %u more: at most %d", x->rank, added,
                             WEFT_MAX_DIMS);
    }
    if (status < 0) {
        return status;
    }
    uint32_t rank = x->rank + added, from = 0;
    int64_t dims[WEFT_MAX_DIMS];
    status = wefti_infer_axes(node, rank, node->version >= 13, &mask, &given);
    if (status < 0) {
        return status;
    }
    for (uint32_t d = 0; d < rank; d++) {
        dims[d] = (mask & (1u << d)) != 0 ? 1 : x->dims[from++];
    }
    wefti_infer_set(node, 0, x->dtype, rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_squeeze(weft_node_desc_t *node)
{
    uint32_t mask, rank = 0;
    bool given;
    int64_t dims[WEFT_MAX_DIMS];
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    const weft_tensor_desc_t *x = &node->inputs[0];
    status = wefti_infer_axes(node, x->rank, node->version >= 13, &mask, &given);
    if (status < 0) {
        return status;
    }
    for (uint32_t d = 0; d < x->rank; d++) {
        bool drop = given ? (mask & (1u << d)) != 0 : x->dims[d] == 1;
        if (!given && x->dims[d] < 0) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "dimension %u is unknown; Squeeze without axes requires known dimensions", d);
        }
        if (drop && x->dims[d] >= 0 && x->dims[d] != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "dimension %u is %" PRId64 ", only 1 can be squeezed", d,
                               x->dims[d]);
        }
        if (!drop) {
            dims[rank++] = x->dims[d];
        }
    }
    wefti_infer_set(node, 0, x->dtype, rank, dims);
    return WEFT_OK;
}

static const char *const onnx_type_names[] = {
    "",      "FLOAT",  "UINT8", "INT8",    "UINT16", "INT16",  "INT32",
    "INT64", "STRING", "BOOL",  "FLOAT16", "DOUBLE", "UINT32", "UINT64",
};

static weft_dtype_t type_from_onnx(int64_t number)
{
    switch (number) {
#define CASE(name, value, bytes, text, onnx)                                                       \
    case onnx:                                                                                     \
        return WEFT_DTYPE_##name;
        WEFT_DTYPE_MAP(CASE)
#undef CASE
    default:
        return WEFT_DTYPE_NONE;
    }
}

static weft_status_t infer_cast(weft_node_desc_t *node)
{
    weft_status_t status = wefti_infer_need(node, 1);
    if (status < 0) {
        return status;
    }
    int64_t number = weft_node_attr_int(node, "to", 0);
    const char *text = weft_node_attr_string(node, "to", NULL);
    for (size_t i = 1; text != NULL && i < WEFTI_COUNT(onnx_type_names); i++) {
        number = strcmp(text, onnx_type_names[i]) == 0 ? (int64_t)i : number;
    }
    weft_dtype_t to = type_from_onnx(number);
    if (to == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "attribute to: unsupported type %" PRId64, number);
    }
    wefti_infer_set(node, 0, to, node->inputs[0].rank, node->inputs[0].dims);
    return WEFT_OK;
}

/* Like input 0, with the type of input 1. */
static weft_status_t infer_cast_like(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    wefti_infer_set(node, 0, node->inputs[1].dtype, node->inputs[0].rank, node->inputs[0].dims);
    return WEFT_OK;
}

static const weft_attr_def_t reshape1_attrs[] = {
    {.name = "shape",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "[]",
     .doc = "0 copies, -1 is the rest"},
};
static const weft_attr_def_t reshape14_attrs[] = {
    {.name = "allowzero", .type = WEFT_ATTR_TYPE_INT, .doc = "1: 0 in the shape means 0"},
};
static const weft_attr_def_t flatten_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "first dimension of a row"},
};
static const weft_attr_def_t constant1_attrs[] = {
    {.name = "value", .type = WEFT_ATTR_TYPE_TENSOR, .required = 1, .doc = "the constant"},
};
static const weft_attr_def_t constant12_attrs[] = {
    {.name = "value", .type = WEFT_ATTR_TYPE_TENSOR, .doc = "the constant"},
    {.name = "value_float", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "a scalar"},
    {.name = "value_floats", .type = WEFT_ATTR_TYPE_FLOATS, .default_s = "", .doc = "a list"},
    {.name = "value_int", .type = WEFT_ATTR_TYPE_INT, .doc = "a scalar"},
    {.name = "value_ints", .type = WEFT_ATTR_TYPE_INTS, .default_s = "", .doc = "a list"},
};
static const weft_attr_def_t shape15_attrs[] = {
    {.name = "end",
     .type = WEFT_ATTR_TYPE_INT,
     .default_s = "rank",
     .doc = "one after the last dimension"},
    {.name = "start", .type = WEFT_ATTR_TYPE_INT, .doc = "first dimension"},
};
static const weft_attr_def_t squeeze_attrs[] = {
    {.name = "axes",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "all of size 1",
     .doc = "dimensions that go"},
};
static const weft_attr_def_t unsqueeze_attrs[] = {
    {.name = "axes",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "new dimensions, in the result"},
};
static const weft_attr_def_t cast1_attrs[] = {
    {.name = "to", .type = WEFT_ATTR_TYPE_STRING, .required = 1, .doc = "name of an ONNX type"},
};
#define CAST_TO_EIGHT_BITS                                                                         \
    {.name = "round_mode",                                                                         \
     .type = WEFT_ATTR_TYPE_STRING,                                                                \
     .default_s = "up",                                                                            \
     .doc = "of types that are not supported"},                                                    \
    {                                                                                              \
        .name = "saturate", .type = WEFT_ATTR_TYPE_INT, .default_i = 1,                            \
        .doc = "of types that are not supported"                                                   \
    }
static const weft_attr_def_t cast6_attrs[] = {
    CAST_TO_EIGHT_BITS,
    {.name = "to", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "number of an ONNX type"},
};
static const weft_attr_def_t cast_like_attrs[] = {CAST_TO_EIGHT_BITS};

#define SHAPE(op, version, in_min, in, place, rule, price, text)                                   \
    .domain = "", .name = op, .since_version = version, .inputs_min = in_min, .inputs_max = in,    \
    .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_ALL, .in_place = {place, -1, -1, -1},  \
    .infer = rule, .cost = price, .doc = text
/* Kernels that copy; with a channels-last tensor on one side they permute. */
#define RESHAPES(shapes)                                                                           \
    WEFTI_FACTS(.flags = WEFT_FACT_VIEW, .linear_inputs = 1u, .shape_inputs = shapes,              \
                .precision = WEFT_PRECISION_INPUTS, .layout = {1u, 1u, 0, 0, 500})
#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)

static const weft_op_def_t defs[] = {
    {SHAPE("Reshape", 1, 1, 1, 0, infer_reshape, wefti_cost_copy, "same elements, another shape"),
     ATTRS(reshape1_attrs), RESHAPES(0)},
    {SHAPE("Reshape", 5, 2, 2, 0, infer_reshape, wefti_cost_copy, "same elements, another shape"),
     RESHAPES(2u)},
    {SHAPE("Reshape", 14, 2, 2, 0, infer_reshape, wefti_cost_copy, "same elements, another shape"),
     ATTRS(reshape14_attrs), RESHAPES(2u)},
    {SHAPE("Flatten", 1, 1, 1, 0, infer_flatten, wefti_cost_copy, "a matrix: split at axis"),
     ATTRS(flatten_attrs), RESHAPES(0)},
    {SHAPE("Identity", 1, 1, 1, 0, wefti_infer_same, wefti_cost_copy, "Y = X"),
     WEFTI_FACTS(.flags = WEFT_FACT_VIEW | WEFT_FACT_ELEMENTWISE, .linear_inputs = 1u,
                 .precision = WEFT_PRECISION_INPUTS)},
    {SHAPE("Constant", 1, 0, 0, -1, infer_constant, wefti_cost_free, "a constant"),
     ATTRS(constant1_attrs)},
    {SHAPE("Constant", 12, 0, 0, -1, infer_constant, wefti_cost_free, "a constant"),
     ATTRS(constant12_attrs)},
    {SHAPE("Shape", 1, 1, 1, -1, infer_shape, wefti_cost_free, "the dimensions of X"),
     WEFTI_FACTS(.flags = WEFT_FACT_READS_SHAPE)},
    {SHAPE("Shape", 15, 1, 1, -1, infer_shape, wefti_cost_free, "some dimensions of X"),
     ATTRS(shape15_attrs), WEFTI_FACTS(.flags = WEFT_FACT_READS_SHAPE)},
    {SHAPE("Squeeze", 1, 1, 1, 0, infer_squeeze, wefti_cost_copy, "drops dimensions of size 1"),
     ATTRS(squeeze_attrs),
     WEFTI_FACTS(.flags = WEFT_FACT_VIEW, .linear_inputs = 1u, .precision = WEFT_PRECISION_INPUTS)},
    {SHAPE("Squeeze", 13, 1, 2, 0, infer_squeeze, wefti_cost_copy, "drops dimensions of size 1"),
     WEFTI_FACTS(.flags = WEFT_FACT_VIEW, .linear_inputs = 1u, .precision = WEFT_PRECISION_INPUTS)},
    {SHAPE("Unsqueeze", 1, 1, 1, 0, infer_unsqueeze, wefti_cost_copy, "adds dimensions of size 1"),
     ATTRS(unsqueeze_attrs),
     WEFTI_FACTS(.flags = WEFT_FACT_VIEW, .linear_inputs = 1u, .precision = WEFT_PRECISION_INPUTS)},
    {SHAPE("Unsqueeze", 13, 2, 2, 0, infer_unsqueeze, wefti_cost_copy, "adds dimensions of size 1"),
     WEFTI_FACTS(.flags = WEFT_FACT_VIEW, .linear_inputs = 1u, .precision = WEFT_PRECISION_INPUTS)},
    {SHAPE("Cast", 1, 1, 1, -1, infer_cast, wefti_cost_elementwise, "another type"),
     ATTRS(cast1_attrs), WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE)},
    {SHAPE("Cast", 6, 1, 1, -1, infer_cast, wefti_cost_elementwise, "another type"),
     ATTRS(cast6_attrs),
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .gradient = WEFT_GRADIENT_CONVERSION)},
    {SHAPE("CastLike", 15, 2, 2, -1, infer_cast_like, wefti_cost_elementwise,
           "the type of input 1"),
     ATTRS(cast_like_attrs),
     WEFTI_FACTS(.flags = WEFT_FACT_ELEMENTWISE, .gradient = WEFT_GRADIENT_CONVERSION)},
};

wefti_op_family_t wefti_op_defs_shape(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
