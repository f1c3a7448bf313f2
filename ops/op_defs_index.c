/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors and tensors from parts: GatherElements, Split, Expand, Trilu, and gradients. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_gather_elements(weft_node_desc_t *node)
{
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const weft_tensor_desc_t *x = &node->inputs[0], *indices = &node->inputs[1];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), x->rank, "axis", &axis));
    if (x->rank != indices->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "X has %u dimensions, the indices have %u",
                           x->rank, indices->rank);
    }
    wefti_infer_set(node, 0, x->dtype, indices->rank, indices->dims);
    return WEFT_OK;
}

/* Shape of dX by attribute input_shape. */
static weft_status_t infer_input_shape(weft_node_desc_t *node)
{
    weft_tensor_desc_t dx = {0};
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "input_shape", dx.dims, WEFT_MAX_DIMS, &dx.rank));
    for (uint32_t d = 0; d < dx.rank; d++) {
        if (dx.dims[d] < 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute input_shape: invalid entry %u: %" PRId64, d, dx.dims[d]);
        }
    }
    wefti_infer_set(node, 0, node->inputs[0].dtype, dx.rank, dx.dims);
    return WEFT_OK;
}

weft_status_t wefti_split_sizes(const weft_node_desc_t *node, uint32_t *out_axis,
                                int64_t *out_sizes)
{
    const weft_tensor_desc_t *x = &node->inputs[0];
    uint32_t parts = node->output_count, count = 0;
    bool known = true, given;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), x->rank, "axis", out_axis));
    int64_t size = x->dims[*out_axis];
    if (parts == 0 || parts > WEFTI_SPLIT_MAX) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%u outputs: expected 1 to %d", parts,
                           WEFTI_SPLIT_MAX);
    }
    if (node->version >= 13) {
        given = wefti_infer_input(node, 1) != NULL;
        known = !given || wefti_const_ints(&node->inputs[1], out_sizes, WEFTI_SPLIT_MAX, &count);
    } else {
        given = weft_node_attr(node, "split") != NULL;
        WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "split", out_sizes, WEFTI_SPLIT_MAX, &count));
    }
    if (!known || size < 0) {
        for (uint32_t i = 0; i < parts; i++) {
            out_sizes[i] = -1;
        }
        return WEFT_OK;
    }
    int64_t each = size / parts + (size % parts != 0), total = 0; /* the last one may be smaller */
    for (uint32_t i = 0; i < parts && !given; i++) {
        int64_t left = size - total;
        out_sizes[i] = left < each ? left : each;
        total += out_sizes[i];
    }
    bool fits = !given || count == parts;
    for (uint32_t i = 0; i < count && fits && given; i++) {
        fits = out_sizes[i] >= 0 && out_sizes[i] <= size - total;
        total += fits ? out_sizes[i] : 0;
    }
    if (!fits || total != size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "split: %u sizes with the sum %" PRId64 " do not match %u outputs of "
                           "%" PRId64 " elements",
                           count, total, parts, size);
    }
    return WEFT_OK;
}

static weft_status_t infer_split(weft_node_desc_t *node)
{
    int64_t sizes[WEFTI_SPLIT_MAX];
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_split_sizes(node, &axis, sizes));
    for (uint32_t i = 0; i < node->output_count; i++) {
        weft_tensor_desc_t y = node->inputs[0];
        y.dims[axis] = sizes[i];
        wefti_infer_set_like(node, i, &y);
    }
    return WEFT_OK;
}

static weft_status_t infer_expand(weft_node_desc_t *node)
{
    weft_tensor_desc_t shape = {0};
    int64_t dims[WEFT_MAX_DIMS];
    uint32_t rank;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    WEFT_RETURN_IF_ERROR(wefti_shape_input(node, 1, shape.dims, &shape.rank));
    WEFT_RETURN_IF_ERROR(wefti_infer_broadcast(&node->inputs[0], &shape, &rank, dims));
    for (uint32_t i = 0; i < shape.rank; i++) { /* a dimension that comes later may be anything */
        dims[rank - 1 - i] = shape.dims[shape.rank - 1 - i] < 0 ? -1 : dims[rank - 1 - i];
    }
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, dims);
    return WEFT_OK;
}

static const weft_attr_def_t axis_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "the dimension indices select from"},
};
static const weft_attr_def_t gather_grad_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "as the forward operator"},
    {.name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "shape of dX"},
};
static const weft_attr_def_t slice_grad_attrs[] = {
    {.name = "input_shape", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "shape of dX"},
    {.name = "starts",
     .type = WEFT_ATTR_TYPE_INTS,
     .required = 1,
     .doc = "the first element in each dimension; not negative"},
    {.name = "steps", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "in each dimension"},
};
static const weft_attr_def_t split2_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "the dimension that is split"},
    {.name = "split", .type = WEFT_ATTR_TYPE_INTS, .default_s = "equal", .doc = "sizes"},
};
static const weft_attr_def_t split13_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "the dimension that is split"},
};
static const weft_attr_def_t split18_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "the dimension that is split"},
    {.name = "num_outputs",
     .type = WEFT_ATTR_TYPE_INT,
     .default_s = "outputs",
     .doc = "the number of parts"},
};
static const weft_attr_def_t trilu_attrs[] = {
    {.name = "upper",
     .type = WEFT_ATTR_TYPE_INT,
     .default_i = 1,
     .doc = "1: the upper triangle stays, 0: the lower one"},
};

#define ROW(space, op, version, in_min, in, out, types, rule, text)                                \
    .domain = space, .name = op, .since_version = version, .inputs_min = in_min, .inputs_max = in, \
    .outputs_min = 1, .outputs_max = out, .dtypes = types, .in_place = WEFTI_IN_PLACE_NONE,        \
    .infer = rule, .cost = wefti_cost_copy, .doc = text
#define ATTRS(list) .attrs = list, .attr_count = WEFTI_COUNT(list)
#define SPLIT_FACTS                                                                                \
    WEFTI_FACTS(.linear_inputs = 1u, .gradient = WEFT_GRADIENT_PARTS,                              \
                .precision = WEFT_PRECISION_INPUTS)

static const weft_op_def_t defs[] = {
    {ROW("", "GatherElements", 11, 2, 2, 1, WEFTI_BIT_ALL, infer_gather_elements,
         "selects elements by an index for each"),
     ATTRS(axis_attrs),
     WEFTI_FACTS(.linear_inputs = 1u, .gradient = WEFT_GRADIENT_SELECTED_ELEMENTS,
                 .precision = WEFT_PRECISION_INPUTS)},
    {ROW("weft", "GatherGrad", 1, 2, 2, 1, WEFTI_BIT_FLOATS, infer_input_shape,
         "dX of Gather from dY and the indices: rows of one index are added in order"),
     ATTRS(gather_grad_attrs), WEFTI_FACTS(.linear_inputs = 1u)},
    {ROW("weft", "SliceGrad", 1, 1, 1, 1, WEFTI_BIT_FLOATS, infer_input_shape,
         "dX of Slice: dY in its place, 0 elsewhere"),
     ATTRS(slice_grad_attrs), WEFTI_FACTS(.linear_inputs = 1u)},
    {ROW("", "Split", 2, 1, 1, WEFT_VARIADIC, WEFTI_BIT_ALL, infer_split, "parts along an axis"),
     ATTRS(split2_attrs), SPLIT_FACTS},
    {ROW("", "Split", 13, 1, 2, WEFT_VARIADIC, WEFTI_BIT_ALL, infer_split,
         "parts along an axis; sizes are an input"),
     ATTRS(split13_attrs), SPLIT_FACTS},
    {ROW("", "Split", 18, 1, 2, WEFT_VARIADIC, WEFTI_BIT_ALL, infer_split,
         "parts along an axis; the last one may be smaller"),
     ATTRS(split18_attrs), SPLIT_FACTS},
    {ROW("", "Expand", 8, 2, 2, 1, WEFTI_BIT_ALL, infer_expand, "repeats X by broadcasting"),
     WEFTI_FACTS(.linear_inputs = 1u, .gradient = WEFT_GRADIENT_REPEATED,
                 .precision = WEFT_PRECISION_INPUTS)},
    {ROW("", "Trilu", 14, 1, 2, 1, WEFTI_BIT_ALL, wefti_infer_same,
         "a triangle of matrices, 0 elsewhere; k is its diagonal"),
     ATTRS(trilu_attrs),
     WEFTI_FACTS(.linear_inputs = 1u, .gradient = WEFT_GRADIENT_TRIANGLE,
                 .precision = WEFT_PRECISION_INPUTS)},
};

wefti_op_family_t wefti_op_defs_index(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
