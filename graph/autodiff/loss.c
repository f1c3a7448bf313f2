/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient of the loss, and of operators whose definition names a gradient operator. */
#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"

weft_status_t wefti_diff_cross_entropy(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), WEFTI_NONE, wefti_diff_input(diff, 1),
                         wefti_diff_input(diff, 2)};
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    if (wefti_diff_output_grad(diff, 1) != WEFTI_NONE || inputs[0] == WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "log probabilities that the loss depends on");
    }
    const weft_op_def_t *def = wefti_diff_node(diff)->def;
    WEFT_RETURN_IF_ERROR(wefti_diff_need_output(diff, def->domain, def->name, 1, &inputs[1]));
    const wefti_node_t *forward = wefti_diff_node(diff);
    wefti_diff_op_t op = {.domain = "com.microsoft",
                          .op = "SoftmaxCrossEntropyLossGrad",
                          .inputs = inputs,
                          .input_count = inputs[3] == WEFTI_NONE ? 3 : 4,
                          .attrs = forward->attrs,
                          .attr_count = forward->attr_count};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_generic(wefti_diff_t *diff)
{
    const wefti_node_t *forward = wefti_diff_node(diff);
    uint32_t input_count = forward->input_count, output_count = forward->output_count;
    uint32_t count = 2 * output_count + input_count;
    uint32_t *inputs = wefti_arena_array(&diff->graph->arena, count, sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (uint32_t i = 0; i < output_count; i++) {
        inputs[i] = wefti_diff_output_grad(diff, i);
        inputs[output_count + input_count + i] = wefti_diff_output(diff, i);
    }
    for (uint32_t i = 0; i < input_count; i++) {
        inputs[output_count + i] = wefti_diff_input(diff, i);
    }
    wefti_diff_op_t op = {.domain = forward->def->domain,
                          .op = forward->def->grad,
                          .inputs = inputs,
                          .input_count = count,
                          .attrs = forward->attrs,
                          .attr_count = forward->attr_count,
                          .output_count = input_count};
    return wefti_diff_give_each(diff, &op);
}
