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

/* dX of the operator that the definition names, with the attributes if that has any. */
static weft_status_t of_operator(wefti_diff_t *diff, const uint32_t *inputs, uint32_t count)
{
    const wefti_node_t *forward = wefti_diff_node(diff);
    const weft_op_ref_t rule = wefti_op_facts(forward->def).result_grad;
    const weft_op_def_t *def =
        weft_registry_find_op(diff->graph->registry, rule.domain, rule.name, INT32_MAX);
    wefti_diff_op_t op = {.domain = rule.domain,
                          .op = rule.name,
                          .inputs = inputs,
                          .input_count = count,
                          .attrs = forward->attrs,
                          .attr_count =
                              def != NULL && def->attr_count > 0 ? forward->attr_count : 0};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_of_result(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_output(diff, 0)};
    return of_operator(diff, inputs, 2);
}

weft_status_t wefti_diff_of_inputs(wefti_diff_t *diff)
{
    uint32_t count = wefti_diff_node(diff)->input_count;
    uint32_t *inputs = wefti_arena_array(&diff->graph->arena, (size_t)count + 1, sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    inputs[0] = wefti_diff_output_grad(diff, 0);
    for (uint32_t i = 0; i < count; i++) {
        inputs[i + 1] = wefti_diff_input(diff, i);
    }
    return of_operator(diff, inputs, count + 1);
}

/* Y = X ^ E: dX = dY E X ^ (E - 1). Exponents are not trained. */
weft_status_t wefti_diff_power(wefti_diff_t *diff)
{
    uint32_t inputs[] = {wefti_diff_output_grad(diff, 0), wefti_diff_input(diff, 0),
                         wefti_diff_input(diff, 1)};
    wefti_diff_op_t op = {.domain = "weft", .op = "PowGrad", .inputs = inputs, .input_count = 3};
    if (wefti_diff_wants(diff, 1)) {
        return wefti_diff_unsupported(diff, "an exponent that is trained");
    }
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_negate(wefti_diff_t *diff)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0);
    wefti_diff_op_t op = {.domain = "", .op = "Neg", .inputs = &grad, .input_count = 1};
    return wefti_diff_give_op(diff, 0, &op);
}

/* The inputs of Sum or Mean. */
static weft_status_t addends(wefti_diff_t *diff, double factor)
{
    uint32_t count = wefti_diff_node(diff)->input_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t grad = wefti_diff_output_grad(diff, 0);
        if (wefti_diff_wants(diff, i)) { /* each its own: a parameter's is reduced in place */
            WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, grad, factor, &grad));
            WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, i, grad));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_diff_total(wefti_diff_t *diff)
{
    return addends(diff, 1.0);
}

weft_status_t wefti_diff_average(wefti_diff_t *diff)
{
    return addends(diff, 1.0 / wefti_diff_node(diff)->input_count);
}

weft_status_t wefti_diff_zero(wefti_diff_t *diff)
{
    (void)diff;
    return WEFT_OK;
}

/* Max, Min: inputs that are equal share the gradient, as in torch. */
weft_status_t wefti_diff_extreme(wefti_diff_t *diff)
{
    uint32_t count = wefti_diff_node(diff)->input_count, shares = WEFTI_NONE, zero, one;
    uint32_t grad = wefti_diff_output_grad(diff, 0), y = wefti_diff_output(diff, 0);
    uint32_t *equal = wefti_arena_array(&diff->graph->arena, count, sizeof(*equal));
    WEFT_RETURN_IF_NO_MEMORY(equal);
    weft_tensor_desc_t scalar = {.dtype = diff->graph->values[grad].type.dtype};
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "one", &scalar, 1.0, &one));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t term;
        WEFT_RETURN_IF_ERROR(
            wefti_diff_two(diff, "Equal", wefti_diff_input(diff, i), y, &equal[i]));
        WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, equal[i], one, zero, &term));
        if (i == 0) {
            shares = term;
        } else {
            WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Add", shares, term, &shares));
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", grad, shares, &grad));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t part;
        WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, equal[i], grad, zero, &part));
        WEFT_RETURN_IF_ERROR(wefti_diff_give(diff, i, part));
    }
    return WEFT_OK;
}

/* PRelu: dY where X > 0, else dY slope; the slope gets dY X elsewhere. */
static weft_status_t prelu_input(wefti_diff_t *diff, uint32_t index)
{
    uint32_t grad = wefti_diff_output_grad(diff, 0), zero, positive, product;
    weft_tensor_desc_t scalar = {.dtype = diff->graph->values[grad].type.dtype};
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, &zero));
    WEFT_RETURN_IF_ERROR(
        wefti_diff_two(diff, "Greater", wefti_diff_input(diff, 0), zero, &positive));
    WEFT_RETURN_IF_ERROR(
        wefti_diff_two(diff, "Mul", grad, wefti_diff_input(diff, 1 - index), &product));
    WEFT_RETURN_IF_ERROR(
        wefti_diff_choose(diff, positive, index == 0 ? grad : zero, product, &product));
    return wefti_diff_give(diff, index, product);
}

weft_status_t wefti_diff_slope(wefti_diff_t *diff)
{
    return wefti_diff_each_input(diff, prelu_input);
}
