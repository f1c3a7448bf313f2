/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of reductions over dimensions. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

/* What a rule needs of the node. */
typedef struct reduction {
    weft_tensor_desc_t x;
    int64_t kept[WEFT_MAX_DIMS]; /* X with reduced dimensions of size 1 */
    double count;                /* elements of X for one of Y */
    uint32_t dy, y;              /* in that shape */
} reduction_t;

static weft_status_t read_reduction(wefti_diff_t *diff, bool result, reduction_t *out)
{
    weft_node_desc_t desc;
    uint32_t mask;
    out->x = diff->graph->values[wefti_diff_input(diff, 0)].type;
    out->count = 1.0;
    WEFT_RETURN_IF_ERROR(
        wefti_graph_node_desc(diff->graph, diff->node, &diff->graph->arena, &desc));
    WEFT_RETURN_IF_ERROR(wefti_reduce_axes(&desc, &mask));
    for (uint32_t d = 0; d < out->x.rank; d++) {
        bool reduced = (mask >> d & 1) != 0;
        out->kept[d] = reduced ? 1 : out->x.dims[d];
        out->count *= reduced ? (double)out->x.dims[d] : 1.0;
    }
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, wefti_diff_output_grad(diff, 0), out->kept,
                                            out->x.rank, &out->dy));
    return result ? wefti_diff_reshape(diff, wefti_diff_output(diff, 0), out->kept, out->x.rank,
                                       &out->y)
                  : WEFT_OK;
}

/* dY repeated along reduced dimensions. */
static weft_status_t repeat(wefti_diff_t *diff, bool mean)
{
    reduction_t r;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, false, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, r.dy, mean ? 1.0 / r.count : 1.0, &r.dy));
    uint32_t inputs[] = {r.dy, WEFTI_NONE};
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "shape", r.x.dims, r.x.rank, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Expand", .inputs = inputs, .input_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}

weft_status_t wefti_diff_reduce_sum(wefti_diff_t *diff)
{
    return repeat(diff, false);
}

weft_status_t wefti_diff_reduce_mean(wefti_diff_t *diff)
{
    return repeat(diff, true);
}

/* dX = dY slope, which broadcasts. */
static weft_status_t give_product(wefti_diff_t *diff, uint32_t dy, uint32_t slope)
{
    uint32_t grad;
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Mul", slope, dy, &grad));
    return wefti_diff_give(diff, 0, grad);
}

/* ReduceMax, ReduceMin: elements that are equal share the gradient, as in torch. */
weft_status_t wefti_diff_reduce_extreme(wefti_diff_t *diff)
{
    reduction_t r;
    uint32_t equal, zero, shares, grad;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, true, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_zero_like(diff, wefti_diff_input(diff, 0), &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_equal(diff, wefti_diff_input(diff, 0), r.y, &equal, &shares));
    WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, shares, r.kept, r.x.rank, &shares));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", r.dy, shares, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, equal, grad, zero, &grad));
    return wefti_diff_give(diff, 0, grad);
}

/* A product of zeros and others: that of the others, and the number of zeros. */
weft_status_t wefti_diff_reduce_product(wefti_diff_t *diff)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    uint32_t inputs[] = {WEFTI_NONE, wefti_diff_input(diff, 1)}, zeros, grad;
    wefti_diff_factor_t x;
    reduction_t r;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    wefti_diff_op_t op = {.domain = "",
                          .op = "ReduceProd",
                          .inputs = inputs,
                          .input_count = inputs[1] == WEFTI_NONE ? 1 : 2,
                          .attrs = node->attrs,
                          .attr_count = node->attr_count};
    WEFT_RETURN_IF_ERROR(read_reduction(diff, false, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_factor(diff, wefti_diff_input(diff, 0), &x));
    inputs[0] = x.other;
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_reshape(diff, grad, r.kept, r.x.rank, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Mul", r.dy, grad, &grad));
    WEFT_RETURN_IF_ERROR(wefti_diff_sum_to(diff, x.is_zero, r.kept, r.x.rank, &zeros));
    return wefti_diff_give_factor(diff, 0, &x, grad, zeros);
}

weft_status_t wefti_diff_reduce_squares(wefti_diff_t *diff)
{
    reduction_t r;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, false, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_scale(diff, r.dy, 2.0, &r.dy));
    return give_product(diff, r.dy, wefti_diff_input(diff, 0));
}

weft_status_t wefti_diff_norm_1(wefti_diff_t *diff)
{
    reduction_t r;
    uint32_t sign;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, false, &r));
    WEFT_RETURN_IF_ERROR(
        wefti_diff_two(diff, "Sign", wefti_diff_input(diff, 0), WEFTI_NONE, &sign));
    return give_product(diff, r.dy, sign);
}

/* dX = X dY / Y, and 0 where Y is. */
weft_status_t wefti_diff_norm_2(wefti_diff_t *diff)
{
    reduction_t r;
    uint32_t zero, none, share;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, true, &r));
    weft_tensor_desc_t scalar = {.dtype = r.x.dtype};
    WEFT_RETURN_IF_ERROR(wefti_diff_constant(diff->graph, "zero", &scalar, 0.0, &zero));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Equal", r.y, zero, &none));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", r.dy, r.y, &share));
    WEFT_RETURN_IF_ERROR(wefti_diff_choose(diff, none, zero, share, &share));
    return give_product(diff, share, wefti_diff_input(diff, 0));
}

/* Y = log(S): dX = dY / S. */
weft_status_t wefti_diff_log_sum(wefti_diff_t *diff)
{
    reduction_t r;
    uint32_t sum, share;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, true, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Exp", r.y, WEFTI_NONE, &sum));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Div", r.dy, sum, &share));
    uint32_t inputs[] = {share, WEFTI_NONE};
    WEFT_RETURN_IF_ERROR(wefti_diff_ints(diff, "shape", r.x.dims, r.x.rank, &inputs[1]));
    wefti_diff_op_t op = {.domain = "", .op = "Expand", .inputs = inputs, .input_count = 2};
    return wefti_diff_give_op(diff, 0, &op);
}

/* dX = dY exp(X - Y) */
weft_status_t wefti_diff_log_sum_exp(wefti_diff_t *diff)
{
    reduction_t r;
    uint32_t share;
    if (!wefti_diff_wants(diff, 0)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(read_reduction(diff, true, &r));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Sub", wefti_diff_input(diff, 0), r.y, &share));
    WEFT_RETURN_IF_ERROR(wefti_diff_two(diff, "Exp", share, WEFTI_NONE, &share));
    return give_product(diff, r.dy, share);
}
