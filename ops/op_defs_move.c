/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move elements: pad, transpose, concatenate, slice, gather. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Since opset 18 pads may cover only the dimensions in axes. */
static weft_status_t spread_pads(const weft_node_desc_t *node, int64_t *pads, uint32_t *count)
{
    int64_t axes[WEFT_MAX_DIMS], full[2 * WEFT_MAX_DIMS] = {0};
    uint32_t axis_count, rank = node->inputs[0].rank;
    if (wefti_infer_input(node, 3) == NULL) {
        return WEFT_OK;
    }
    if (!wefti_const_ints(&node->inputs[3], axes, WEFT_MAX_DIMS, &axis_count) ||
        *count != 2 * axis_count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "axes must be constant, and pads must have two entries per axis");
    }
    for (uint32_t i = 0; i < axis_count; i++) {
        uint32_t axis;
        weft_status_t status = wefti_infer_axis(axes[i], rank, "axis", &axis);
        if (status < 0) {
            return status;
        }
        full[axis] = pads[i];
        full[rank + axis] = pads[axis_count + i];
    }
    memcpy(pads, full, sizeof(full));
    *count = 2 * rank;
    return WEFT_OK;
}

weft_status_t wefti_pad_amounts(const weft_node_desc_t *node, int64_t *out_pads, bool *out_known)
{
    uint32_t count;
    weft_status_t status;
    *out_known = true;
    WEFT_TRY(status, wefti_infer_need(node, node->version < 11 ? 1 : 2), out);
    if (node->version < 11) {
        const char *name = node->version < 2 ? "paddings" : "pads";
        WEFT_TRY(status, wefti_attr_ints(node, name, out_pads, 2 * WEFT_MAX_DIMS, &count), out);
    } else if (wefti_const_ints(&node->inputs[1], out_pads, 2 * WEFT_MAX_DIMS, &count)) {
        WEFT_TRY(status, spread_pads(node, out_pads, &count), out);
    } else {
        *out_known = false;
        goto out;
    }
    if (count != 2 * node->inputs[0].rank) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT, "pads has %u entries for %u dimensions",
                             count, node->inputs[0].rank);
    }
out:
    return status;
}

static weft_status_t infer_pad(weft_node_desc_t *node)
{
    int64_t pads[2 * WEFT_MAX_DIMS];
    bool known;
    weft_status_t status = wefti_pad_amounts(node, pads, &known);
    if (status < 0) {
        return status;
    }
    weft_tensor_desc_t y = node->inputs[0];
    for (uint32_t d = 0; d < y.rank; d++) {
        int64_t size =
            known ? y.dims[d] : -1; /* pads may come later: then only the rank is known */
        if (size >= 0 && (__builtin_add_overflow(size, pads[d], &size) ||
                          __builtin_add_overflow(size, pads[y.rank + d], &size) || size < 0)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "pads %" PRId64 " and %" PRId64
                               " are invalid for dimension %u of size %" PRId64,
                               pads[d], pads[y.rank + d], d, y.dims[d]);
        }
        y.dims[d] = size;
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static weft_status_t infer_transpose(weft_node_desc_t *node)
{
    int64_t perm[WEFT_MAX_DIMS], dims[WEFT_MAX_DIMS];
    uint32_t count, seen = 0;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_attr_ints(node, "perm", perm, WEFT_MAX_DIMS, &count));
    const weft_tensor_desc_t *x = &node->inputs[0];
    for (uint32_t d = 0; weft_node_attr(node, "perm") == NULL && d < x->rank; d++) {
        perm[d] = x->rank - 1 - d;
        count = x->rank;
    }
    for (uint32_t d = 0; d < count && count == x->rank; d++) {
        if (perm[d] < 0 || perm[d] >= x->rank) {
            break;
        }
        seen |= 1u << perm[d];
        dims[d] = x->dims[perm[d]];
    }
    if (count != x->rank || seen != (1u << x->rank) - 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute perm is not a permutation of the %u dimensions", x->rank);
    }
    wefti_infer_set(node, 0, x->dtype, x->rank, dims);
    return WEFT_OK;
}

static weft_status_t infer_concat(weft_node_desc_t *node)
{
    uint32_t axis;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 1), y.rank, "axis", &axis));
    for (uint32_t i = 1; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = &node->inputs[i];
        bool fits = x->rank == y.rank && x->dtype == y.dtype;
        for (uint32_t d = 0; fits && d < y.rank; d++) {
            if (d == axis) {
                bool unknown = y.dims[d] < 0 || x->dims[d] < 0;
                fits = unknown || !__builtin_add_overflow(y.dims[d], x->dims[d], &y.dims[d]);
                y.dims[d] = unknown ? -1 : y.dims[d];
            } else {
                fits = wefti_dim_merge(y.dims[d], x->dims[d], &y.dims[d]);
            }
        }
        if (!fits) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "the shape of input %u differs from input 0 outside axis %u", i,
                               axis);
        }
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

static weft_status_t infer_gather(weft_node_desc_t *node)
{
    uint32_t axis, rank = 0;
    int64_t dims[2 * WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 2));
    const weft_tensor_desc_t *x = &node->inputs[0], *indices = &node->inputs[1];
    WEFT_RETURN_IF_ERROR(
        wefti_infer_axis(weft_node_attr_int(node, "axis", 0), x->rank, "axis", &axis));
    if (x->rank - 1 + indices->rank > WEFT_MAX_DIMS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "the result has more than %d dimensions",
                           WEFT_MAX_DIMS);
    }
    for (uint32_t d = 0; d < axis; d++) {
        dims[rank++] = x->dims[d];
    }
    for (uint32_t d = 0; d < indices->rank; d++) {
        dims[rank++] = indices->dims[d];
    }
    for (uint32_t d = axis + 1; d < x->rank; d++) {
        dims[rank++] = x->dims[d];
    }
    wefti_infer_set(node, 0, x->dtype, rank, dims);
    return WEFT_OK;
}

typedef struct {
    int64_t starts[WEFT_MAX_DIMS], ends[WEFT_MAX_DIMS], axes[WEFT_MAX_DIMS], steps[WEFT_MAX_DIMS];
    uint32_t count;
    bool known; /* false: not constant, the sizes come later */
} slice_t;

static weft_status_t read_slice(const weft_node_desc_t *node, slice_t *s)
{
    uint32_t start_count = 0, end_count = 0, axis_count = 0, step_count = 0;
    weft_status_t status = WEFT_OK;
    s->known = true;
    if (node->version < 10) {
        WEFT_TRY(status, wefti_attr_ints(node, "starts", s->starts, WEFT_MAX_DIMS, &start_count),
                 out);
        WEFT_TRY(status, wefti_attr_ints(node, "ends", s->ends, WEFT_MAX_DIMS, &end_count), out);
        WEFT_TRY(status, wefti_attr_ints(node, "axes", s->axes, WEFT_MAX_DIMS, &axis_count), out);
    } else {
        const weft_tensor_desc_t *axes = wefti_infer_input(node, 3);
        const weft_tensor_desc_t *steps = wefti_infer_input(node, 4);
        s->known = wefti_const_ints(&node->inputs[1], s->starts, WEFT_MAX_DIMS, &start_count) &&
                   wefti_const_ints(&node->inputs[2], s->ends, WEFT_MAX_DIMS, &end_count) &&
                   (axes == NULL || wefti_const_ints(axes, s->axes, WEFT_MAX_DIMS, &axis_count)) &&
                   (steps == NULL || wefti_const_ints(steps, s->steps, WEFT_MAX_DIMS, &step_count));
    }
    s->count = start_count;
    for (uint32_t i = axis_count; axis_count == 0 && i < start_count; i++) {
        s->axes[i] = i;
    }
    for (uint32_t i = step_count; step_count == 0 && i < start_count; i++) {
        s->steps[i] = 1;
    }
    if (s->known && (end_count != start_count || (axis_count != 0 && axis_count != start_count) ||
                     (step_count != 0 && step_count != start_count))) {
        status =
            wefti_error(WEFT_ERR_INVALID_ARGUMENT, "starts, ends, axes and steps differ in length");
    }
out:
    return status;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Elements that start:end:step takes of size, as in numpy. */
static int64_t slice_size(int64_t size, int64_t start, int64_t end, int64_t step,
                          int64_t *out_first)
{
    start = start < 0 && start >= -size ? start + size : start;
    end = end < 0 && end >= -size ? end + size : end;
    if (step > 0) {
        *out_first = start = clamp(start, 0, size);
        end = clamp(end, 0, size);
        return end > start ? (end - start - 1) / step + 1 : 0;
    }
    *out_first = start = clamp(start, -1, size - 1);
    end = clamp(end, -1, size - 1);
    /* A step of INT64_MIN cannot be negated: no size is large enough for a second element. */
    return start > end ? (start - end - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1 : 0;
}

weft_status_t wefti_slice_resolve(const weft_node_desc_t *node, wefti_slice_range_t *out_slice)
{
    slice_t s;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->version < 10 ? 1 : 3));
    WEFT_RETURN_IF_ERROR(read_slice(node, &s));
    const weft_tensor_desc_t *x = &node->inputs[0];
    out_slice->known = s.known;
    for (uint32_t d = 0; d < x->rank; d++) {
        out_slice->first[d] = 0;
        out_slice->step[d] = 1;
        out_slice->size[d] = s.known ? x->dims[d] : -1;
    }
    for (uint32_t i = 0; s.known && i < s.count; i++) {
        uint32_t axis;
        WEFT_RETURN_IF_ERROR(wefti_infer_axis(s.axes[i], x->rank, "axis", &axis));
        if (s.steps[i] == 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "step %u is 0", i);
        }
        if (x->dims[axis] >= 0) {
            out_slice->step[axis] = s.steps[i];
            out_slice->size[axis] = slice_size(x->dims[axis], s.starts[i], s.ends[i], s.steps[i],
                                               &out_slice->first[axis]);
        }
    }
    return WEFT_OK;
}

static weft_status_t infer_slice(weft_node_desc_t *node)
{
    wefti_slice_range_t slice;
    WEFT_RETURN_IF_ERROR(wefti_slice_resolve(node, &slice));
    wefti_infer_set(node, 0, node->inputs[0].dtype, node->inputs[0].rank, slice.size);
    return WEFT_OK;
}

#define MODE                                                                                       \
    {                                                                                              \
        .name = "mode", .type = WEFT_ATTR_TYPE_STRING, .default_s = "constant",                    \
        .doc = "constant; reflect and edge have no kernel"                                         \
    }
static const weft_attr_def_t pad1_attrs[] = {
    MODE,
    {.name = "paddings", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "begins, then ends"},
    {.name = "value", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "of the new elements"},
};
static const weft_attr_def_t pad2_attrs[] = {
    MODE,
    {.name = "pads", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "begins, then ends"},
    {.name = "value", .type = WEFT_ATTR_TYPE_FLOAT, .doc = "of the new elements"},
};
static const weft_attr_def_t pad11_attrs[] = {MODE};
static const weft_attr_def_t transpose_attrs[] = {
    {.name = "perm",
     .type = WEFT_ATTR_TYPE_INTS,
     .default_s = "reversed",
     .doc = "source of each dimension"},
};
static const weft_attr_def_t concat1_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .default_i = 1, .doc = "the dimension that grows"},
};
static const weft_attr_def_t concat4_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "the dimension that grows"},
};
static const weft_attr_def_t gather_attrs[] = {
    {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .doc = "the dimension indices select from"},
};
static const weft_attr_def_t slice1_attrs[] = {
    {.name = "axes", .type = WEFT_ATTR_TYPE_INTS, .default_s = "[0, 1, ...]", .doc = "dimensions"},
    {.name = "ends", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "one after the last"},
    {.name = "starts", .type = WEFT_ATTR_TYPE_INTS, .required = 1, .doc = "the first"},
};

#define MOVE(op, version, in_min, in, list, count, rule, text, ...)                                \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = in_min,                  \
        .inputs_max = in, .outputs_min = 1, .outputs_max = 1, .dtypes = WEFTI_BIT_ALL,             \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = count, .infer = rule,        \
        .cost = wefti_cost_copy, .doc = text, WEFTI_FACTS(__VA_ARGS__)                             \
    }
#define LIST(list) list, WEFTI_COUNT(list)
/* Expands LIST into two arguments first. */
#define ROW(...) MOVE(__VA_ARGS__)

static const weft_op_def_t defs[] = {
    ROW("Pad", 1, 1, 1, LIST(pad1_attrs), infer_pad, "adds elements around X",
        .gradient = WEFT_GRADIENT_PADDING, .expansion = WEFT_EXPANSION_PAD,
        .precision = WEFT_PRECISION_INPUTS, .layout = {1u, 1u, 1, 0, 0}),
    ROW("Pad", 2, 1, 1, LIST(pad2_attrs), infer_pad, "adds elements around X",
        .gradient = WEFT_GRADIENT_PADDING, .expansion = WEFT_EXPANSION_PAD,
        .precision = WEFT_PRECISION_INPUTS, .layout = {1u, 1u, 1, 0, 0}),
    ROW("Pad", 11, 2, 3, LIST(pad11_attrs), infer_pad, "adds elements around X; pads are an input",
        .gradient = WEFT_GRADIENT_PADDING, .expansion = WEFT_EXPANSION_PAD,
        .precision = WEFT_PRECISION_INPUTS, .layout = {1u, 1u, 1, 0, 0}),
    ROW("Pad", 18, 2, 4, LIST(pad11_attrs), infer_pad, "adds elements around X in some dimensions",
        .gradient = WEFT_GRADIENT_PADDING, .expansion = WEFT_EXPANSION_PAD,
        .precision = WEFT_PRECISION_INPUTS, .layout = {1u, 1u, 1, 0, 0}),
    ROW("Transpose", 1, 1, 1, LIST(transpose_attrs), infer_transpose, "exchanges dimensions",
        .linear_inputs = 1u, .gradient = WEFT_GRADIENT_PERMUTATION,
        .precision = WEFT_PRECISION_INPUTS),
    ROW("Concat", 1, 1, WEFT_VARIADIC, LIST(concat1_attrs), infer_concat, "joins along an axis",
        .mixing = WEFT_MIXING_AXIS, .gradient = WEFT_GRADIENT_JOIN,
        .precision = WEFT_PRECISION_INPUTS),
    ROW("Concat", 4, 1, WEFT_VARIADIC, LIST(concat4_attrs), infer_concat, "joins along an axis",
        .mixing = WEFT_MIXING_AXIS, .gradient = WEFT_GRADIENT_JOIN,
        .precision = WEFT_PRECISION_INPUTS),
    ROW("Gather", 1, 2, 2, LIST(gather_attrs), infer_gather, "selects slices by index",
        .linear_inputs = 1u, .mixing = WEFT_MIXING_AXIS, .gradient = WEFT_GRADIENT_SELECTED,
        .precision = WEFT_PRECISION_INPUTS),
    ROW("Slice", 1, 1, 1, LIST(slice1_attrs), infer_slice, "a range of some dimensions",
        .linear_inputs = 1u, .gradient = WEFT_GRADIENT_RANGE, .precision = WEFT_PRECISION_INPUTS),
    ROW("Slice", 10, 3, 5, NULL, 0, infer_slice, "a range of some dimensions, with steps",
        .linear_inputs = 1u, .gradient = WEFT_GRADIENT_RANGE, .precision = WEFT_PRECISION_INPUTS),
};

wefti_op_family_t wefti_op_defs_move(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
