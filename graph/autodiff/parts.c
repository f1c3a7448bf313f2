/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of operators that select, split, repeat or convert elements. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_attr_t shape_attr(const weft_tensor_desc_t *type)
{
    return (weft_attr_t){.name = "input_shape",
                         .type = WEFT_ATTR_TYPE_INTS,
                         .ints = type->dims,
                         .count = type->rank};
}

/* Gather: rows that were read several times get the sum of their gradients, in order. */
weft_status_t wefti_diff_gather(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 1)};
    const weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    weft_attr_t attrs[] = {
        {.name = "axis",
         .type = WEFT_ATTR_TYPE_INT,
         .i = wefti_node_int(wefti_diff_node(diff), "axis")},
        shape_attr(&x),
    };
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "GatherGrad",
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = attrs,
                          .attr_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_slice(wefti_diff_t *diff)
{
    weft_node_desc_t desc;
    wefti_slice_range_t slice;
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    const weft_tensor_desc_t x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(diff->graph, diff->node, &desc));
    WEFT_RETURN_IF_ERROR(wefti_slice_resolve(&desc, &slice));
    if (!slice.known) {
        return wefti_diff_unsupported(diff, "starts or ends that are not constant");
    }
    for (uint32_t d = 0; d < x.rank; d++) { /* an empty slice may begin outside */
        slice.first[d] = slice.size[d] == 0 ? 0 : slice.first[d];
    }
    weft_attr_t attrs[] = {
        shape_attr(&x),
        {.name = "starts", .type = WEFT_ATTR_TYPE_INTS, .ints = slice.first, .count = x.rank},
        {.name = "steps", .type = WEFT_ATTR_TYPE_INTS, .ints = slice.step, .count = x.rank},
    };
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "SliceGrad",
                          .inputs = &grad,
                          .input_count = 1,
                          .attrs = attrs,
                          .attr_count = 3};
    return wefti_diff_give_op(diff, 0, &op);
}

/* Split: the gradients of the parts side by side; 0 for a part that the loss does not read. */
weft_status_t wefti_diff_split(wefti_diff_t *diff)
{
    uint32_t count = wefti_diff_node(diff)->output_count;
    weft_attr_t axis = {.name = "axis",
                        .type = WEFT_ATTR_TYPE_INT,
                        .i = wefti_node_int(wefti_diff_node(diff), "axis")};
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    uint32_t *inputs = wefti_arena_array(&diff->graph->arena, count, sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (uint32_t i = 0; i < count; i++) {
        inputs[i] = wefti_diff_output_grad(diff, i);
        if (inputs[i] == WEFTI_NONE) {
            if (wefti_diff_output(diff, i) == WEFTI_NONE) {
                return wefti_diff_unsupported(diff, "an absent output");
            }
            weft_tensor_desc_t type = diff->graph->values[wefti_diff_output(diff, i)].type;
            WEFT_RETURN_IF_ERROR(
                wefti_diff_constant(diff->graph, "zero_grad", &type, 0.0, &inputs[i]));
        }
    }
    wefti_diff_op_t op = {.domain = "",
                          .op = "Concat",
                          .inputs = inputs,
                          .input_count = count,
                          .attrs = &axis,
                          .attr_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}

static weft_status_t where_input(wefti_diff_t *diff, uint32_t index)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0), zero;
    weft_tensor_desc_t scalar = {.dtype = diff->graph->values[grad].type.dtype};
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, wefti_diff_input(diff, 0),
                                           index == 1 ? grad : zero, index == 1 ? zero : grad,
                                           &grad));
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_where(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, where_input);
}

/* Expand: the sum over the copies. */
weft_status_t wefti_diff_expand(wefti_diff_t *diff)
{
    return wefti_diff_give(diff, 0, wefti_diff_output_grad(diff, 0));
}

/* Cast: back to the type of the input. */
weft_status_t wefti_diff_cast(wefti_diff_t *diff)
{
    static const int64_t onnx[] = {
#define NUMBER(name, value, bytes, text, number) [WEFT_DTYPE_##name] = number,
        WEFT_DTYPE_MAP(NUMBER)
#undef NUMBER
    };
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    weft_dtype_t type = diff->graph->values[wefti_diff_input(diff, 0)].type.dtype;
    if (type == diff->graph->values[grad].type.dtype) {
        return wefti_diff_give(diff, 0, grad);
    }
    weft_attr_t to = {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = onnx[type]};
    wefti_diff_op_t op = {.domain = "",
                          .op = "Cast",
                          .inputs = &grad,
                          .input_count = 1,
                          .attrs = &to,
                          .attr_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}
