/* SPDX-License-Identifier: Apache-2.0 */
/* A graph that runs as it is: no loss, no gradients; its outputs are the model's. */
#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static void forget_loss(wefti_graph_t *graph)
{
    const wefti_value_flags_t marks = WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS | WEFTI_VALUE_LABEL;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        graph->values[v].flags &= ~marks;
    }
    graph->loss = graph->logits = graph->label = WEFTI_NONE;
}

/* Before opset 12 a Dropout drops depending on who runs it; whoever infers does not train. */
static weft_status_t silence_dropout(wefti_graph_t *graph)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t n = 0; n < graph->order_count; n++) {
        wefti_node_t *node = &graph->nodes[graph->order[n]];
        if (!wefti_op_has(node->def, WEFT_FACT_DROPOUT) || node->version >= 12) {
            continue;
        }
        if (node->output_count > 1 && node->outputs[1] != WEFTI_NONE) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "node '%s' (Dropout): the mask output is not supported before opset 12",
                node->name);
        }
        node->output_count = 1;
        node->attr_count = 0;
        WEFT_TRY(status, wefti_graph_change_op(graph, graph->order[n], "", "Identity", 0), fail);
    }
fail:
    return status;
}

/* The value keeps its flag: lowering gives the binding its name. */
static weft_status_t add_identity(wefti_graph_t *graph, uint32_t index)
{
    weft_status_t status;
    uint32_t value = graph->outputs[index], node;
    wefti_node_params_t params = {.domain = "",
                                  .op = "Identity",
                                  .version = graph->opset,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = 1};
    WEFT_TRY(status, wefti_graph_add_node(graph, &params, &node), fail);
    graph->outputs[index] = graph->nodes[node].outputs[0];
    graph->values[graph->outputs[index]].flags |= WEFTI_VALUE_OUTPUT;
fail:
    return status;
}

/* Weights without a reader take no memory. */
static weft_status_t drop_unread(wefti_graph_t *graph)
{
    bool *read = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    if (read == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t n = 0; n < graph->order_count; n++) {
        const wefti_node_t *node = &graph->nodes[graph->order[n]];
        for (uint32_t i = 0; i < node->input_count; i++) {
            if (node->inputs[i] != WEFTI_NONE) {
                read[node->inputs[i]] = true;
            }
        }
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        if (graph->values[v].kind == WEFTI_VALUE_PARAM && !read[v]) {
            graph->values[v].kind = WEFTI_VALUE_CONST;
        }
    }
    wefti_free(graph->arena.allocator, read);
    return WEFT_OK;
}

weft_status_t wefti_graph_prepare_inference(wefti_graph_t *graph)
{
    weft_status_t status;
    forget_loss(graph);
    WEFT_TRY(status, silence_dropout(graph), fail);
    WEFT_TRY(status, wefti_graph_resolve_dropout(graph), fail);
    WEFT_TRY(status, wefti_graph_prune(graph), fail);
    for (uint32_t i = 0; i < graph->output_count; i++) {
        if (graph->values[graph->outputs[i]].kind != WEFTI_VALUE_NODE) {
            WEFT_TRY(status, add_identity(graph, i), fail);
        }
    }
    WEFT_TRY(status, drop_unread(graph), fail);
fail:
    return status;
}
