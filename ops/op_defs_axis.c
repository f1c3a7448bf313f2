/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators on the rows along an axis, selections by index, and rearrangements: CumSum, ArgMax,
 * TopK, GatherND, ScatterElements, Tile, OneHot, DepthToSpace.
 */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* The rule of operators whose output is like input 0; the first two or three inputs are there. */
static weft_status_t infer_like_first(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    return wefti_infer_same(node);
}

static weft_status_t infer_arg(weft_node_desc_t *node)
{
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), y.rank, "axis", &axis));
    if (weft_node_attr_int(node, "keepdims", 1) != 0) {
        y.dims[axis] = 1;
    } else {
        memmove(&y.dims[axis], &y.dims[axis + 1], (y.rank - axis - 1) * sizeof(y.dims[0]));
        y.rank--;
    }
    wefti_infer_set(node, 0, WEFT_DTYPE_I64, y.rank, y.dims);
    return WEFT_OK;
}

static weft_status_t infer_top(weft_node_desc_t *node)
{
    uint32_t axis, count;
    int64_t k = weft_node_attr_int(node, "k", -1);
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", -1), y.rank, "axis", &axis));
    if (node->version >= 10 &&
        (!wefti_const_ints(wefti_infer_input(node, 1), &k, 1, &count) || count != 1)) {
        k = -1; /* known later */
    } else if (k < 0 || (y.dims[axis] >= 0 && k > y.dims[axis])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "k is %" PRId64 ", the dimension %" PRId64, k,
                           y.dims[axis]);
    }
    y.dims[axis] = k;
    wefti_infer_set_like(node, 0, &y);
    wefti_infer_set(node, 1, WEFT_DTYPE_I64, y.rank, y.dims);
    return WEFT_OK;
}

static weft_status_t infer_gather_nd(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const weft_tensor_desc_t *x = &node->inputs[0], *indices = &node->inputs[1];
    int64_t batch = weft_node_attr_int(node, "batch_dims", 0);
    int64_t tuple = indices->rank > 0 ? indices->dims[indices->rank - 1] : -1;
    weft_tensor_desc_t y = {.dtype = x->dtype};
    if (indices->rank == 0 || batch < 0 || batch >= indices->rank || tuple < 1 ||
        batch + tuple > x->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tuples of %" PRId64 " indices after %" PRId64
                           " batch dimensions do not match %u dimensions",
                           tuple, batch, x->rank);
    }
    uint32_t rest = x->rank - (uint32_t)(batch + tuple);
    if (indices->rank - 1 + rest > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the result has more than %d dimensions",
                           WEFT_MAX_DIMS);
    }
    for (uint32_t d = 0; d + 1 < indices->rank; d++) {
        y.dims[y.rank++] = indices->dims[d];
    }
    for (uint32_t d = x->rank - rest; d < x->rank; d++) {
        y.dims[y.rank++] = x->dims[d];
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static weft_status_t infer_tile(weft_node_desc_t *node)
{
    int64_t repeats[WEFT_MAX_DIMS];
    uint32_t count;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    weft_tensor_desc_t y = node->inputs[0];
    bool known = wefti_const_ints(&node->inputs[1], repeats, WEFT_MAX_DIMS, &count);
    if (known && count != y.rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%u repeats for %u dimensions", count,
                           y.rank);
    }
    for (uint32_t d = 0; d < y.rank; d++) {
        int64_t size = y.dims[d];
        y.dims[d] = -1;
        if (known && (repeats[d] < 0 ||
                      (size >= 0 && __builtin_mul_overflow(size, repeats[d], &y.dims[d])))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "repeats: invalid entry %u: %" PRId64, d,
                               repeats[d]);
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static bool read_depth(const weft_tensor_desc_t *x, int64_t *out)
{
    uint32_t count;
    float f32;
    if (x->dtype == WEFT_DTYPE_F32 && x->data != NULL && weft_tensor_elem_count(x) == 1) {
        memcpy(&f32, x->data, sizeof(f32));
        *out = f32 >= 0.0f && f32 < 0x1p31f ? (int64_t)f32 : -1;
        return true;
    }
    return wefti_const_ints(x, out, 1, &count) && count == 1;
}

static weft_status_t infer_one_hot(weft_node_desc_t *node)
{
    uint32_t axis;
    int64_t depth;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    weft_tensor_desc_t y = node->inputs[0];
    if (y.rank == WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the result has more than %d dimensions",
                           WEFT_MAX_DIMS);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", -1), y.rank + 1, "axis", &axis));
    if (!read_depth(&node->inputs[1], &depth)) {
        depth = -1; /* known later */
    } else if (depth < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid depth");
    }
    memmove(&y.dims[axis + 1], &y.dims[axis], (y.rank - axis) * sizeof(y.dims[0]));
    y.dims[axis] = depth;
    wefti_infer_set(node, 0, node->inputs[2].dtype, y.rank + 1, y.dims);
    return WEFT_OK;
}

/* The type with the number of ONNX; NONE if it is not supported. */
static weft_dtype_t onnx_dtype(int64_t number)
{
    static const struct {
        int64_t number;
        weft_dtype_t dtype;
    } numbers[] = {
#define NUMBER(name, value, bytes, text, onnx) {onnx, WEFT_DTYPE_##name},
        WEFT_DTYPE_MAP(NUMBER)
#undef NUMBER
    };
    for (size_t i = 0; i < WEFTI_COUNT(numbers); i++) {
        if (numbers[i].number == number && number > 0) {
            return numbers[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

static weft_status_t infer_eye(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    const weft_tensor_desc_t *x = &node->inputs[0];
    const weft_attr_t *type = weft_node_attr(node, "dtype");
    weft_dtype_t dtype = type != NULL ? onnx_dtype(type->i) : x->dtype;
    if (x->rank != 2 || dtype == WEFT_DTYPE_NONE) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "expected a matrix and a supported type, got %u dimensions", x->rank);
    }
    wefti_infer_set(node, 0, dtype, 2, x->dims);
    return WEFT_OK;
}

/* into_depth: SpaceToDepth. */
static weft_status_t infer_blocks(weft_node_desc_t *node, bool into_depth)
{
    int64_t block = weft_node_attr_int(node, "blocksize", 0);
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    if (y.rank != 4 || block < 1 || block > INT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%u dimensions and blocks of %" PRId64 ": expected 4, and at least 1",
                           y.rank, block);
    }
    for (uint32_t d = 1; d < 4; d++) {
        int64_t by = d == 1 ? block * block : block;
        bool divides = (d == 1) != into_depth;
        if (y.dims[d] >= 0 &&
            (divides ? y.dims[d] % by != 0 : __builtin_mul_overflow(y.dims[d], by, &y.dims[d]))) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "dimension %u does not match blocks of %" PRId64, d, block);
        }
        y.dims[d] = divides && y.dims[d] >= 0 ? y.dims[d] / by : y.dims[d];
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static weft_status_t infer_depth_to_space(weft_node_desc_t *node)
{
    return infer_blocks(node, false);
}

static weft_status_t infer_space_to_depth(weft_node_desc_t *node)
{
    return infer_blocks(node, true);
}

/* dX is like X. */
static weft_status_t infer_blocks_grad(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    wefti_infer_set_like(node, 0, &node->inputs[1]);
    return WEFT_OK;
}

#define INT(key, value, text)                                                                      \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .default_i = value, .doc = text                   \
    }
#define AXIS(value) INT("axis", value, "the dimension of a row")
static const weft_attr_def_t sum_attrs[] = {
    INT("exclusive", 0, "1: without the element itself"),
    INT("reverse", 0, "1: from the end"),
};
static const weft_attr_def_t arg_attrs[] = {
    AXIS(0),
    INT("keepdims", 1, "1: the dimension stays, with size 1"),
    INT("select_last_index", 0, "1: the last of equal elements"),
};
static const weft_attr_def_t top_attrs_1[] = {
    AXIS(-1),
    {.name = "k", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "how many elements"},
};
static const weft_attr_def_t top_attrs_10[] = {AXIS(-1)};
static const weft_attr_def_t top_attrs_11[] = {
    AXIS(-1),
    INT("largest", 1, "0: the smallest elements"),
    INT("sorted", 1, "the result is sorted in any case"),
};
static const weft_attr_def_t hard_attrs_1[] = {INT("axis", 1, "first dimension of a row")};
static const weft_attr_def_t hard_attrs_13[] = {AXIS(-1)};
static const weft_attr_def_t gather_nd_attrs[] = {
    INT("batch_dims", 0, "leading dimensions that X and the indices share"),
};
static const weft_attr_def_t scatter_attrs[] = {AXIS(0)};
#define REDUCTION                                                                                  \
    {                                                                                              \
        .name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .default_s = "none",                   \
        .doc = "none, add, mul, max or min"                                                        \
    }
static const weft_attr_def_t scatter_elements_attrs[] = {AXIS(0), REDUCTION};
static const weft_attr_def_t scatter_nd_attrs[] = {REDUCTION};
static const weft_attr_def_t one_hot_attrs[] = {INT("axis", -1, "the new dimension")};
static const weft_attr_def_t eye_attrs[] = {
    {.name = "dtype", .type = WEFT_ATTR_TYPE_INT, .default_s = "of X", .doc = "type of the result"},
    INT("k", 0, "the diagonal"),
};
static const weft_attr_def_t block_attrs[] = {
    {.name = "blocksize", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "width of a block"},
    {.name = "mode", .type = WEFT_ATTR_TYPE_STRING, .default_s = "DCR", .doc = "DCR or CRD"},
};

#define ROW(space, op, version, in, out, types, rule, text, ...)                                   \
    .domain = space, .name = op, .since_version = version, .inputs_min = in, .inputs_max = in,     \
    .outputs_min = 1, .outputs_max = out, .dtypes = types, .in_place = WEFTI_IN_PLACE_NONE,        \
    .infer = rule, .cost = wefti_cost_copy, .doc = text, WEFTI_FACTS(__VA_ARGS__)
#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define NO_GRADIENT .gradient = WEFT_GRADIENT_DEFAULT
#define NUMBERS WEFTI_BIT_NUMBERS
#define ARG(op, text)                                                                              \
    {                                                                                              \
        ROW("", op, 1, 1, 1, NUMBERS, infer_arg, text, NO_GRADIENT), ATTRS(arg_attrs)              \
    }
#define TOP(version, in, list)                                                                     \
    {                                                                                              \
        ROW("", "TopK", version, in, 2, NUMBERS, infer_top, "the k largest elements of each row",  \
            .gradient = WEFT_GRADIENT_LARGEST),                                                    \
            ATTRS(list)                                                                            \
    }
#define BLOCKS(op, rule, list, text)                                                               \
    {ROW("", op, 1, 1, 1, WEFTI_BIT_ALL, rule, text, .linear_inputs = 1u,                          \
         .gradient = WEFT_GRADIENT_OF_INPUTS, .precision = WEFT_PRECISION_INPUTS,                  \
         .result_grad = {"weft", op "Grad"}),                                                      \
     ATTRS(list)},                                                                                 \
    {                                                                                              \
        ROW("weft", op "Grad", 1, 2, 1, WEFTI_BIT_ALL, infer_blocks_grad,                          \
            "dX of " op " from dY; X gives the shape", .linear_inputs = 1u),                       \
            ATTRS(list)                                                                            \
    }

static const weft_op_def_t defs[] = {
    {ROW("", "CumSum", 11, 2, 1, NUMBERS, infer_like_first, "sums of the elements so far",
         .linear_inputs = 1u, .gradient = WEFT_GRADIENT_RUNNING_SUM),
     ATTRS(sum_attrs)},
    ARG("ArgMax", "the index of the largest element of each row"),
    ARG("ArgMin", "the index of the smallest element of each row"),
    TOP(1, 1, top_attrs_1),
    TOP(10, 2, top_attrs_10),
    TOP(11, 2, top_attrs_11),
    {ROW("", "Hardmax", 1, 1, 1, WEFTI_BIT_FLOATS, wefti_infer_same,
         "1 at the first largest element of each row, the input seen as a matrix", NO_GRADIENT),
     ATTRS(hard_attrs_1)},
    {ROW("", "Hardmax", 13, 1, 1, WEFTI_BIT_FLOATS, wefti_infer_same,
         "1 at the first largest element of each row, 0 elsewhere", NO_GRADIENT),
     ATTRS(hard_attrs_13)},
    {ROW("", "GatherND", 11, 2, 1, WEFTI_BIT_ALL, infer_gather_nd,
         "selects slices by tuples of indices", .linear_inputs = 1u,
         .gradient = WEFT_GRADIENT_SELECTED_SLICES),
     ATTRS(gather_nd_attrs)},
    {ROW("", "Scatter", 9, 3, 1, WEFTI_BIT_ALL, infer_like_first,
         "X with elements replaced, by an index for each", NO_GRADIENT),
     ATTRS(scatter_attrs)},
    {ROW("", "ScatterElements", 11, 3, 1, WEFTI_BIT_ALL, infer_like_first,
         "X with elements replaced or updated, by an index for each",
         .gradient = WEFT_GRADIENT_REPLACED_ELEMENTS),
     ATTRS(scatter_elements_attrs)},
    {ROW("", "ScatterND", 11, 3, 1, WEFTI_BIT_ALL, infer_like_first,
         "X with slices replaced or updated, by tuples of indices",
         .gradient = WEFT_GRADIENT_REPLACED_SLICES),
     ATTRS(scatter_nd_attrs)},
    {ROW("", "Tile", 6, 2, 1, WEFTI_BIT_ALL, infer_tile, "copies of X side by side",
         .linear_inputs = 1u, .gradient = WEFT_GRADIENT_TILES, .precision = WEFT_PRECISION_INPUTS)},
    {ROW("", "OneHot", 9, 3, 1, NUMBERS, infer_one_hot,
         "a value at the index in a new dimension, another one elsewhere", NO_GRADIENT),
     ATTRS(one_hot_attrs)},
    {ROW("", "EyeLike", 9, 1, 1, WEFTI_BIT_ALL, infer_eye, "1 on a diagonal, 0 elsewhere",
         .flags = WEFT_FACT_READS_SHAPE),
     ATTRS(eye_attrs)},
    BLOCKS("DepthToSpace", infer_depth_to_space, block_attrs, "channels become blocks of pixels"),
    BLOCKS("SpaceToDepth", infer_space_to_depth, block_attrs, "blocks of pixels become channels"),
};

wefti_op_family_t wefti_op_defs_axis(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
