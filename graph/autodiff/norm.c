/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of normalizations. Statistics of the batch count as gradients of running statistics:
 * they are averaged over micro-batches and ranks as gradients are. */
#include "graph/autodiff/differentiate.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static bool is_training_form(const wefti_node_t *node)
{
    if (wefti_op_has(node->def, WEFT_FACT_STATISTICS)) {
        return true;
    }
    return node->version < 14 ? node->output_count > 1 && node->outputs[1] != WEFTI_NONE
                              : wefti_node_int(node, "training_mode") != 0;
}

/* The forward node becomes one whose outputs 1 and 2 are the statistics of the batch. */
static weft_status_t expose_statistics(wefti_diff_t *diff)
{
    wefti_graph_t *graph = diff->graph;
    wefti_node_t *node = wefti_diff_node(diff);
    const weft_attr_t attrs[] = {
        {.name = "epsilon", .type = WEFT_ATTR_TYPE_FLOAT, .f = wefti_node_float(node, "epsilon")},
        {.name = "momentum", .type = WEFT_ATTR_TYPE_FLOAT, .f = wefti_node_float(node, "momentum")},
    };
    for (uint32_t k = 1; k < node->output_count; k++) {
        if (node->outputs[k] != WEFTI_NONE && wefti_graph_is_read(graph, node->outputs[k])) {
            return wefti_diff_unsupported(diff, "running statistics that other nodes read");
        }
    }
    node->attr_count = 0;
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, diff->node, &attrs[0]));
    WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, diff->node, &attrs[1]));
    for (uint32_t i = 1; i < 3; i++) {
        uint32_t statistic;
        WEFT_RETURN_IF_ERROR(
            wefti_diff_need_output(diff, "weft", "BatchNormTraining", i, &statistic));
        if (statistic == WEFTI_NONE) {
            return wefti_diff_unsupported(diff, "one of two running statistics");
        }
    }
    return WEFT_OK;
}

/* Gradients are reduced in place, so they are copies of what the backward pass reads. */
static weft_status_t give_statistic(wefti_diff_t *diff, uint32_t input, uint32_t statistic)
{
    uint32_t running = wefti_diff_input(diff, input);
    const wefti_diff_op_t copy = {
        .domain = "", .op = "Identity", .inputs = &statistic, .input_count = 1};
    if (!wefti_diff_wants(diff, input)) {
        return WEFT_OK;
    }
    if (diff->graph->values[running].kind != WEFTI_VALUE_PARAM ||
        diff->grads[running] != WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "running statistics that two nodes share");
    }
    return wefti_diff_emit_value(diff, &copy, &diff->grads[running]);
}

weft_status_t wefti_diff_batch_norm(wefti_diff_t *diff)
{
    uint32_t dy = wefti_diff_output_grad(diff, 0);
    bool training = is_training_form(wefti_diff_node(diff));
    if (dy == WEFTI_NONE) {
        return wefti_diff_unsupported(diff, "its statistics");
    }
    if (training) {
        WEFT_RETURN_IF_ERROR(expose_statistics(diff));
        WEFT_RETURN_IF_ERROR(give_statistic(diff, 3, wefti_diff_output(diff, 1)));
        WEFT_RETURN_IF_ERROR(give_statistic(diff, 4, wefti_diff_output(diff, 2)));
    }
    uint32_t inputs[] = {dy, wefti_diff_input(diff, 0), wefti_diff_input(diff, 1),
                         training ? wefti_diff_output(diff, 1) : wefti_diff_input(diff, 3),
                         training ? wefti_diff_output(diff, 2) : wefti_diff_input(diff, 4)};
    const weft_attr_t attrs[] = {
        {.name = "epsilon",
         .type = WEFT_ATTR_TYPE_FLOAT,
         .f = wefti_node_float(wefti_diff_node(diff), "epsilon")},
        {.name = "frozen", .type = WEFT_ATTR_TYPE_INT, .i = !training},
    };
    wefti_diff_op_t op = {.domain = "weft",
                          .op = "BatchNormGrad",
                          .inputs = inputs,
                          .input_count = 5,
                          .attrs = attrs,
                          .attr_count = 2,
                          .output_count = 3};
    return wefti_diff_give_each(diff, &op);
}
