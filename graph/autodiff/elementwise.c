/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of element-wise operators. Broadcast operands are summed by wefti_diff_give. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static weft_status_t pass_on(wefti_diff_t *diff, uint32_t index)
{
    return wefti_diff_give(diff, index, wefti_diff_output_grad(diff, 0));
}

weft_status_t wefti_diff_add(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, pass_on);
}

static weft_status_t sub_input(wefti_diff_t *diff, uint32_t index)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    /* Summed first: then there is less to negate. */
    weft_tensor_desc_t type = diff->graph->values[wefti_diff_input(diff, index)].type;
    WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, grad, type.dims, type.rank, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, grad, index == 0 ? 1.0 : -1.0, &grad));
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_sub(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, sub_input);
}

static weft_status_t mul_input(wefti_diff_t *diff, uint32_t index)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 1 - index)};
    wefti_diff_op_t op = {.domain = "", .op = "Mul", .inputs = inputs, .input_count = 2};
    return wefti_diff_give_op(diff, index, &op);
}

weft_status_t wefti_diff_mul(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, mul_input);
}

/* dA = dY / B, dB = -dA Y. */
static weft_status_t div_input(wefti_diff_t *diff, uint32_t index)
{
    uint32_t grad;
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 1)};
    wefti_diff_op_t op = {.domain = "", .op = "Div", .inputs = inputs, .input_count = 2};
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &grad));
    if (index == 1) {
        inputs[0] = grad;
        inputs[1] = wefti_diff_output(diff, 0);
        op.op = "Mul";
        WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &grad));
        weft_tensor_desc_t type = diff->graph->values[wefti_diff_input(diff, 1)].type;
        WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, grad, type.dims, type.rank, &grad));
        WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, grad, -1.0, &grad));
    }
    return wefti_diff_give(diff, index, grad);
}

weft_status_t wefti_diff_div(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, div_input);
}

weft_status_t wefti_diff_of_result(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_output(diff, 0)};
    const weft_op_ref_t rule = wefti_op_facts(wefti_diff_node(diff)->def).result_grad;
    wefti_diff_op_t op = {
        .domain = rule.domain, .op = rule.name, .inputs = inputs, .input_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}
