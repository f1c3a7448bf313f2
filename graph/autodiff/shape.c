/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of operators that only move elements. */
#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"

/* Views: back to the shape of the input. */
weft_status_t wefti_diff_same_elements(wefti_diff_t *diff)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, x.dims, x.rank, &grad));
    return wefti_diff_give(diff, 0, grad);
}

weft_status_t wefti_diff_transpose(wefti_diff_t *diff)
{
    int64_t inverse[WEFT_MAX_DIMS];
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    uint32_t rank = diff->graph->values[wefti_diff_input(diff, 0)].type.rank;
    const weft_attr_t *perm = wefti_node_attr(wefti_diff_node(diff), "perm");
    for (uint32_t d = 0; d < rank; d++) {
        /* The shape rule has checked that perm is an order of the dimensions. */
        inverse[perm ? perm->ints[d] : rank - 1 - d] = d;
    }
    weft_attr_t attr = {
        .name = "perm", .type = WEFT_ATTR_TYPE_INTS, .ints = inverse, .count = rank};
    wefti_diff_op_t op = {.domain = "",
                          .op = "Transpose",
                          .inputs = &dy,
                          .input_count = 1,
                          .attrs = &attr,
                          .attr_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_concat(wefti_diff_t *diff)
{
    const wefti_node_t *forward = wefti_diff_node(diff);
    uint32_t count = forward->input_count, inputs[] = {wefti_diff_output_grad(diff, 0), WEFTI_NONE};
    int64_t axis = wefti_node_int(forward, "axis");
    int64_t *sizes = wefti_arena_array(&diff->graph->arena, count, sizeof(*sizes));
    WEFT_RETURN_IF_NO_MEMORY(sizes);
    for (uint32_t i = 0; i < count; i++) {
        const weft_tensor_desc_t *type = &diff->graph->values[forward->inputs[i]].type;
        sizes[i] = type->dims[axis < 0 ? axis + type->rank : axis];
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "sizes", sizes, count, &inputs[1]));
    const weft_attr_t attr = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = axis};
    wefti_diff_op_t op = {.domain = "",
                          .op = "Split",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = &attr,
                          .attr_count = 1,
                          .output_count = count};
    return wefti_diff_give_each(diff, &op);
}
