/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inference-form: the graph that inference runs.
 *
 * Matches the marks of loss, logits and label, operators and weights that no output needs, and
 * outputs that no operator produces. Produces a graph in which the loss is an operator like others,
 * unused operators are gone, and unused weights are constants, which take no memory. Every output
 * is the result of an operator (an Identity if need be), because only those have memory of their
 * own.
 */
#include "fusion/passes/passes.h"

#include "runtime/base/error.h"

static void forget_loss(wefti_graph_t *graph)
{
    const wefti_value_flags_t marks = WEFTI_VALUE_LOSS | WEFTI_VALUE_LOGITS | WEFTI_VALUE_LABEL;
    for (uint32_t v = 0; v < graph->value_count; v++) {
        graph->values[v].flags &= ~marks;
    }
    graph->loss = graph->logits = graph->label = WEFTI_NONE;
}

/* Inputs and weights are found by name, so the value keeps it and its flag: lowering gives the
 * binding that name. A constant gives its name to the result. */
static weft_status_t add_identity(wefti_graph_t *graph, uint32_t index)
{
    uint32_t value = graph->outputs[index], node;
    const char *name = graph->values[value].name;
    bool constant = graph->values[value].kind == WEFTI_VALUE_CONST;
    if (constant) {
        const char *other = wefti_arena_printf(&graph->arena, "%s/constant", name);
        WEFT_RETURN_IF_NO_MEMORY(other);
        WEFT_RETURN_IF_ERROR(wefti_graph_rename_value(graph, value, other));
        graph->values[value].flags &= ~(wefti_value_flags_t)WEFTI_VALUE_OUTPUT;
    }
    wefti_node_params_t params = {.domain = "",
                                  .op = "Identity",
                                  .version = graph->opset,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_names = constant ? &name : NULL,
                                  .output_count = 1};
    WEFT_RETURN_IF_ERROR(wefti_graph_add_node(graph, &params, &node));
    graph->outputs[index] = graph->nodes[node].outputs[0];
    graph->values[graph->outputs[index]].flags |= WEFTI_VALUE_OUTPUT;
    return WEFT_OK;
}

/* Weights without a reader take no memory. */
static weft_status_t drop_unread(wefti_graph_t *graph)
{
    bool *read = wefti_alloc(graph->arena.allocator, (size_t)graph->value_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(read);
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

weft_status_t wefti_pass_inference_form(wefti_graph_t *graph)
{
    forget_loss(graph);
    WEFT_RETURN_IF_ERROR(wefti_graph_prune(graph));
    for (uint32_t i = 0; i < graph->output_count; i++) {
        if (graph->values[graph->outputs[i]].kind != WEFTI_VALUE_NODE) {
            WEFT_RETURN_IF_ERROR(add_identity(graph, i));
        }
    }
    return drop_unread(graph);
}

weft_status_t wefti_apply_inference_form(wefti_compiler_t *c)
{
    return wefti_pass_inference_form(c->graph);
}
