/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of operators on rows: Softmax, LogSoftmax, LayerNormalization. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_facts.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* Before opset 13 a row has all dimensions from axis on: then the gradient is that of a matrix. */
weft_status_t wefti_diff_softmax(wefti_diff_t *diff)
{
    weft_node_desc_t desc;
    int64_t outer, length, inner;
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_output(diff, 0)}, grad;
    const weft_op_ref_t rule = wefti_op_facts(wefti_diff_node(diff)->def).result_grad;
    const weft_tensor_desc_t x = diff->graph->values[inputs[1]].type;
    weft_attr_t axis = {.name = "axis",
                        .type = WEFT_ATTR_TYPE_INT,
                        .i = wefti_node_int(wefti_diff_node(diff), "axis")};
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    if (wefti_diff_node(diff)->version < 13) {
        WEFT_RETURN_IF_ERROR(wefti_graph_scratch_desc(diff->graph, diff->node, &desc));
        WEFT_RETURN_IF_ERROR(wefti_softmax_axis(&desc, &outer, &length, &inner));
        const int64_t matrix[] = {outer, length};
        WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, inputs[0], matrix, 2, &inputs[0]));
        WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, inputs[1], matrix, 2, &inputs[1]));
        axis.i = 1;
    }
    wefti_diff_op_t op = {.domain = rule.domain,
                          .op = rule.name,
                          .inputs = inputs,
                          .input_count = 2,
                          .attrs = &axis,
                          .attr_count = 1};
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, x.dims, x.rank, &grad));
    return wefti_diff_give(diff, 0, grad);
}

/* The statistics of rows become outputs of the forward node. */
weft_status_t wefti_diff_layer_norm(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 0),
                         wefti_diff_input(diff, 1), WEFTI_NONE, WEFTI_NONE};
    weft_attr_t axis = {.name = "axis",
                        .type = WEFT_ATTR_TYPE_INT,
                        .i = wefti_node_int(wefti_diff_node(diff), "axis")};
    if (inputs[0] == WEFTI_NONE || wefti_diff_output_grad(diff, 1) != WEFTI_NONE ||
        wefti_diff_output_grad(diff, 2) != WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "statistics that the loss depends on");
    }
    uint32_t input_count = wefti_diff_node(diff)->input_count;
    for (uint32_t i = 1; i < 3; i++) {
        WEFT_RETURN_IF_ERROR(
            wefti_diff_need_output(diff, "", "LayerNormalization", i, &inputs[2 + i]));
        if (inputs[2 + i] == WEFTI_NONE) {
            return wefti_diff_unsupported(diff, "one of two statistics");
        }
    }
    wefti_diff_op_t op = {.domain = "com.microsoft",
                          .op = "LayerNormalizationGrad",
                          .inputs = inputs,
                          .input_count = 5,
                          .attrs = &axis,
                          .attr_count = 1,
                          .output_count = input_count < 3 ? 2 : 3};
    return wefti_diff_give_each(diff, &op);
}
