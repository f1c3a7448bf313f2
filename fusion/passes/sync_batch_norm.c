/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync-batchnorm: statistics of BatchNormalization over the batches of all ranks.
 *
 * Matches operators with WEFT_FACT_STATISTICS and their gradient operator. Produces before each a
 * BatchNormMoments and an AllReduce that averages both moments of a layer at once; the result is
 * the last input of the operator. Batches of ranks have one size, so averages of means are means.
 *
 *   X -> Moments -> AllReduce -> BatchNormTraining     dY, X -> Moments -> AllReduce -> ..Grad
 *
 * In f64, because the variance is a difference of moments. Evaluation reads the running statistics
 * and needs none of these (programs.c).
 */
#include "fusion/passes/passes.h"

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* The averages of all ranks become input 5 of a node. */
static weft_status_t synchronize(wefti_graph_t *graph, uint32_t id, const uint32_t *inputs,
                                 uint32_t input_count)
{
    static const weft_attr_t attrs[] = {
        {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "avg"},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT},
        {.name = "reason", .type = WEFT_ATTR_TYPE_STRING, .s = "statistics of all ranks' batches"}};
    uint32_t moments, all;
    const wefti_node_params_t own = {.domain = "weft",
                                     .op = "BatchNormMoments",
                                     .phase = graph->nodes[id].phase,
                                     .inputs = inputs,
                                     .input_count = input_count};
    const wefti_node_params_t average = {.domain = "weft",
                                         .op = "AllReduce",
                                         .phase = WEFTI_PHASE_COMM,
                                         .inputs = &moments,
                                         .input_count = 1,
                                         .attrs = attrs,
                                         .attr_count = 3};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(graph, id, "moments", own, &moments));
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_for(graph, id, "moments of all ranks", average, &all));
    return wefti_graph_set_input(graph, id, 6, all);
}

/* The gradient operator of a forward node: the one that reads its mean. Only dX depends on other
 * ranks; dScale and dB are reduced as all gradients are. */
static weft_status_t synchronize_gradient(wefti_graph_t *graph, uint32_t forward, uint32_t count)
{
    const weft_op_ref_t grad = wefti_op_facts(graph->nodes[forward].def).result_grad;
    for (uint32_t i = 0; i < count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (node->phase == WEFTI_PHASE_BACKWARD && node->input_count == 5 &&
            node->outputs[0] != WEFTI_NONE && node->inputs[3] == graph->nodes[forward].outputs[1] &&
            weft_registry_find_op(graph->registry, grad.domain, grad.name, 1) == node->def) {
            const uint32_t inputs[] = {node->inputs[1], node->inputs[3], node->inputs[0]};
            WEFT_RETURN_IF_ERROR(synchronize(graph, graph->order[i], inputs, 3));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_pass_sync_batch_norm(wefti_graph_t *graph)
{
    const uint32_t count = graph->order_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        if (wefti_op_has(graph->nodes[id].def, WEFT_FACT_STATISTICS) &&
            graph->nodes[id].input_count == 5 && graph->nodes[id].output_count > 1 &&
            wefti_op_facts(graph->nodes[id].def).result_grad.name != NULL) {
            const uint32_t x = graph->nodes[id].inputs[0];
            WEFT_RETURN_IF_ERROR(synchronize_gradient(graph, id, count));
            WEFT_RETURN_IF_ERROR(synchronize(graph, id, &x, 1));
        }
    }
    return graph->order_count > count ? wefti_graph_sort(graph) : WEFT_OK;
}

weft_status_t wefti_apply_sync_batch_norm(wefti_compiler_t *c)
{
    return wefti_pass_sync_batch_norm(c->graph);
}
