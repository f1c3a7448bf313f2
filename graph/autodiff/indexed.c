/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of selections by index, running sums, copies side by side and triangles. */
#include <string.h>

#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"

/* Zeros of the shape of a value. */
static weft_status_t zeros_like(wefti_diff_t *diff, uint32_t value, uint32_t *out_value)
{
    const weft_tensor_desc_t like = diff->graph->values[value].type;
    weft_tensor_desc_t scalar = {.dtype = like.dtype};
    uint32_t inputs[2];
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, &inputs[0]));
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "shape", like.dims, like.rank, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Expand", .inputs = inputs, .input_count = 2};
    return wefti_diff_emit_value(diff, &op, out_value);
}

/* base with updates at indices; slices: ScatterND, else ScatterElements. */
static weft_status_t scatter(wefti_diff_t *diff, bool slices, const char *reduction, uint32_t base,
                             uint32_t indices, uint32_t updates, uint32_t *out_value)
{
    uint32_t inputs[] = {base, indices, updates};
    weft_attr_t attrs[] = {
        {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = reduction},
        {.name = "axis",
         .type = WEFT_ATTR_TYPE_INT,
         .i = slices ? 0 : wefti_node_int(wefti_diff_node(diff), "axis")},
    };
    wefti_diff_op_t op = {.domain = "",
                          .op = slices ? "ScatterND" : "ScatterElements",
                          .inputs = inputs,
                          .input_count = 3,
                          .attrs = attrs,
                          .attr_count = slices ? 1 : 2};
    return wefti_diff_emit_value(diff, &op, out_value);
}

/* dX of a selection: elements that were selected several times get a sum, in order. */
static weft_status_t add_selected(wefti_diff_t *diff, bool slices, uint32_t indices)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0), zeros;
    if (!wefti_diff_wants(diff, 0) || grad == WEFTI_NONE) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(zeros_like(diff, wefti_diff_input(diff, 0), &zeros));
    WEFT_RETURN_IF_ERROR(scatter(diff, slices, "add", zeros, indices, grad, &grad));
    return wefti_diff_give(diff, 0, grad);
}

/* Indices whose tuples begin with the position in the first batch dimensions. */
static weft_status_t with_positions(wefti_diff_t *diff, uint32_t batch, uint32_t *indices)
{
    wefti_graph_t *graph = diff->graph;
    weft_tensor_desc_t type = graph->values[*indices].type;
    const weft_dtype_t dtype = type.dtype;
    type.dtype = WEFT_DTYPE_I64;
    type.dims[type.rank - 1] = batch;
    int64_t count = weft_tensor_elem_count(&type), rows = batch > 0 ? count / batch : 0;
    int64_t *list = wefti_arena_array(&graph->arena, (size_t)count + 1, sizeof(*list));
    WEFT_RETURN_IF_NO_MEMORY(list);
    for (int64_t row = 0; row < rows; row++) {
        int64_t rest = row;
        for (uint32_t d = type.rank - 1; d-- > 0;) {
            if (d < batch) {
                list[row * batch + d] = rest % type.dims[d];
            }
            rest /= type.dims[d];
        }
    }
    uint32_t inputs[2] = {WEFTI_NONE, *indices};
    type.data = list;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_add_value(graph, "positions", WEFTI_VALUE_CONST, &type, &inputs[0]));
    if (dtype != WEFT_DTYPE_I64) {
        WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "CastLike", *indices, inputs[0], &inputs[1]));
    }
    const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = -1};
    const wefti_diff_op_t op = {.domain = "",
                                .op = "Concat",
                                .inputs = inputs,
                                .input_count = 2,
                                .attrs = &axis,
                                .attr_count = 1};
    return wefti_diff_emit_value(diff, &op, indices);
}

weft_status_t wefti_diff_gather_nd(wefti_diff_t *diff)
{
    const int64_t batch = wefti_node_int(wefti_diff_node(diff), "batch_dims");
    uint32_t indices = wefti_diff_input(diff, 1);
    if (batch > 0 && wefti_diff_wants(diff, 0)) {
        WEFT_RETURN_IF_ERROR(with_positions(diff, (uint32_t)batch, &indices));
    }
    return add_selected(diff, true, indices);
}

weft_status_t wefti_diff_gather_elements(wefti_diff_t *diff)
{
    return add_selected(diff, false, wefti_diff_input(diff, 1));
}

weft_status_t wefti_diff_top(wefti_diff_t *diff)
{
    if (wefti_diff_output(diff, 1) == WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "an absent output");
    }
    return add_selected(diff, false, wefti_diff_output(diff, 1));
}

/* The selection of data at indices. */
static weft_status_t gather(wefti_diff_t *diff, bool slices, uint32_t data, uint32_t *out_value)
{
    weft_attr_t axis = {.name = "axis",
                        .type = WEFT_ATTR_TYPE_INT,
                        .i = slices ? 0 : wefti_node_int(wefti_diff_node(diff), "axis")};
    wefti_diff_op_t op = {.domain = "",
                          .op = slices ? "GatherND" : "GatherElements",
                          .inputs = (const uint32_t[]){data, wefti_diff_input(diff, 1)},
                          .input_count = 2,
                          .attrs = &axis,
                          .attr_count = slices ? 0 : 1};
    return wefti_diff_emit_value(diff, &op, out_value);
}

/* An element of Y is a product of one of X and updates. */
static weft_status_t multiplied(wefti_diff_t *diff, bool slices, uint32_t dy)
{
    const uint32_t indices = wefti_diff_input(diff, 1);
    wefti_diff_factor_t x, updates;
    uint32_t grad, zeros;
    WEFT_RETURN_IF_ERROR(wefti_diff_factor(diff, wefti_diff_input(diff, 0), &x));
    WEFT_RETURN_IF_ERROR(wefti_diff_factor(diff, wefti_diff_input(diff, 2), &updates));
    WEFT_RETURN_IF_ERROR(scatter(diff, slices, "mul", x.other, indices, updates.other, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Mul", dy, grad, &grad));
    WEFT_RETURN_IF_ERROR(scatter(diff, slices, "add", x.is_zero, indices, updates.is_zero, &zeros));
    if (wefti_diff_wants(diff, 0)) {
        WEFT_RETURN_IF_ERROR(wefti_diff_give_factor(diff, 0, &x, grad, zeros));
    }
    if (wefti_diff_wants(diff, 2)) {
        WEFT_RETURN_IF_ERROR(gather(diff, slices, grad, &grad));
        WEFT_RETURN_IF_ERROR(gather(diff, slices, zeros, &zeros));
        return wefti_diff_give_factor(diff, 2, &updates, grad, zeros);
    }
    return WEFT_OK;
}

/* The element of X and the updates that are equal to that of Y share the gradient, as in torch. */
static weft_status_t extreme(wefti_diff_t *diff, bool slices, uint32_t dy)
{
    const uint32_t indices = wefti_diff_input(diff, 1), y = wefti_diff_output(diff, 0);
    uint32_t is_x, is_update, x_ones, ones, zero, grad, result;
    WEFT_RETURN_IF_ERROR(wefti_diff_zero_like(diff, dy, &zero));
    WEFT_RETURN_IF_ERROR(gather(diff, slices, y, &result));
    WEFT_RETURN_IF_ERROR(wefti_diff_equal(diff, wefti_diff_input(diff, 0), y, &is_x, &x_ones));
    WEFT_RETURN_IF_ERROR(
        wefti_diff_equal(diff, wefti_diff_input(diff, 2), result, &is_update, &ones));
    WEFT_RETURN_IF_ERROR(scatter(diff, slices, "add", x_ones, indices, ones, &ones));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", dy, ones, &dy));
    if (wefti_diff_wants(diff, 0)) {
        WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, is_x, dy, zero, &grad));
        WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, 0, grad));
    }
    if (wefti_diff_wants(diff, 2)) {
        WEFT_RETURN_IF_ERROR(gather(diff, slices, dy, &grad));
        WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, is_update, grad, zero, &grad));
        return wefti_diff_give(diff, 2, grad);
    }
    return WEFT_OK;
}

/* Without a reduction dX is dY without the elements that were replaced, which are those of the
 * updates. */
static weft_status_t scattered(wefti_diff_t *diff, bool slices)
{
    const char *reduction = wefti_node_text(wefti_diff_node(diff), "reduction");
    const bool adds = strcmp(reduction, "add") == 0;
    uint32_t dy = wefti_diff_output_grad(diff, 0), rest = dy;
    if (strcmp(reduction, "mul") == 0) {
        return multiplied(diff, slices, dy);
    }
    if (strcmp(reduction, "max") == 0 || strcmp(reduction, "min") == 0) {
        return extreme(diff, slices, dy);
    }
    if (wefti_diff_wants(diff, 0) && !adds) {
        uint32_t zeros;
        WEFT_RETURN_IF_ERROR(zeros_like(diff, wefti_diff_input(diff, 2), &zeros));
        WEFT_RETURN_IF_ERROR(
            scatter(diff, slices, "none", dy, wefti_diff_input(diff, 1), zeros, &rest));
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, 0, rest));
    if (!wefti_diff_wants(diff, 2)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(gather(diff, slices, dy, &dy));
    return wefti_diff_give(diff, 2, dy);
}

weft_status_t wefti_diff_scatter_nd(wefti_diff_t *diff)
{
    return scattered(diff, true);
}

weft_status_t wefti_diff_scatter_elements(wefti_diff_t *diff)
{
    return scattered(diff, false);
}

/* The sum from the other end. */
weft_status_t wefti_diff_running_sum(wefti_diff_t *diff)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 1)};
    weft_attr_t attrs[] = {
        {.name = "exclusive", .type = WEFT_ATTR_TYPE_INT, .i = wefti_node_int(node, "exclusive")},
        {.name = "reverse", .type = WEFT_ATTR_TYPE_INT, .i = !wefti_node_int(node, "reverse")},
    };
    wefti_diff_op_t op = {.domain = "",
                          .op = "CumSum",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = attrs,
                          .attr_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}

/* The sum of the copies: dimensions become (copies, size) pairs where there are several. */
weft_status_t wefti_diff_tiles(wefti_diff_t *diff)
{
    int64_t split[2 * WEFT_MAX_DIMS], one[2 * WEFT_MAX_DIMS];
    uint32_t rank = 0, grad = wefti_diff_output_grad(diff, 0);
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    const weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    const weft_tensor_desc_t y = diff->graph->values[wefti_diff_output(diff, 0)].type;
    for (uint32_t d = 0; d < x.rank; d++) {
        if (x.dims[d] > 0 && y.dims[d] != x.dims[d]) {
            split[rank] = y.dims[d] / x.dims[d];
            one[rank++] = 1;
        }
        split[rank] = one[rank] = x.dims[d];
        rank++;
    }
    if (rank > WEFT_MAX_DIMS) {
        return wefti_diff_unsupported(diff, "so many dimensions");
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, split, rank, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, grad, one, rank, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, x.dims, x.rank, &grad));
    return wefti_diff_give(diff, 0, grad);
}

/* The same triangle. */
weft_status_t wefti_diff_triangle(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 1)};
    weft_attr_t upper = {.name = "upper",
                         .type = WEFT_ATTR_TYPE_INT,
                         .i = wefti_node_int(wefti_diff_node(diff), "upper")};
    wefti_diff_op_t op = {.domain = "",
                          .op = "Trilu",
                          .inputs = inputs,
                          .input_count = inputs[1] == WEFTI_NONE ? 1 : 2,
                          .attrs = &upper,
                          .attr_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}
