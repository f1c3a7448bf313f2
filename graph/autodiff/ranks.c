/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of values that all ranks have. */
#include "graph/autodiff/differentiate.h"
#include "runtime/base/error.h"

/* Each rank computes a part of what the value leads to: its gradient is the sum over ranks. */
weft_status_t wefti_diff_shared(wefti_diff_t *diff)
{
    const weft_attr_t attrs[] = {{.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "sum"},
                                 {.name = "group",
                                  .type = WEFT_ATTR_TYPE_INT,
                                  .i = wefti_node_int(wefti_diff_node(diff), "group")},
                                 {.name = "reason",
                                  .type = WEFT_ATTR_TYPE_STRING,
                                  .s = "sums the gradients of a value that all ranks read"}};
    uint32_t grad = wefti_diff_output_grad(diff, 0), sum;
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "AllReduce",
                          .inputs = &grad,
                          .input_count = 1,
                          .attrs = attrs,
                          .attr_count = 3};
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &sum));
    diff->graph->nodes[diff->graph->values[sum].producer].phase = WEFTI_PHASE_COMM;
    return wefti_diff_give(diff, 0, sum);
}

/* What crosses from one place to another: its gradient goes the way back. */
weft_status_t wefti_diff_transfer(wefti_diff_t *diff)
{
    const wefti_node_t *node = wefti_diff_node(diff);
    const weft_attr_t attrs[] = {
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = wefti_node_int(node, "group")},
        {.name = "root", .type = WEFT_ATTR_TYPE_INT, .i = wefti_node_int(node, "to") - 1},
        {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = wefti_node_int(node, "root") + 1},
        {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = "the gradient of what was sent"}};
    uint32_t grad = wefti_diff_output_grad(diff, 0), back;
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "Transfer",
                          .inputs = &grad,
                          .input_count = 1,
                          .attrs = attrs,
                          .attr_count = 4};
    WEFT_RETURN_IF_ERROR(wefti_diff_emit_value(diff, &op, &back));
    diff->graph->nodes[diff->graph->values[back].producer].phase = WEFTI_PHASE_COMM;
    return wefti_diff_give(diff, 0, back);
}
