/* SPDX-License-Identifier: Apache-2.0 */
/* Removes unused nodes: keeps those that outputs, gradients and effects depend on. */
#include "graph/ir.h"
#include "runtime/base/error.h"

/* A node that must stay whatever its users are. */
static bool is_root(const wefti_graph_t *graph, const wefti_node_t *node)
{
    if (node->def->effects & ~(weft_effects_t)WEFT_EFFECT_RANDOM) {
        return true;
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (node->outputs[i] == WEFTI_NONE) {
            continue;
        }
        const wefti_value_t *value = &graph->values[node->outputs[i]];
        if (value->flags || value->grad_of != WEFTI_NONE) {
            return true;
        }
    }
    return false;
}

static void keep(const wefti_graph_t *graph, uint32_t id, uint8_t *kept, uint32_t *stack,
                 uint32_t *depth)
{
    if (!kept[id]) {
        kept[id] = 1;
        stack[(*depth)++] = id;
    }
    while (*depth) {
        const wefti_node_t *node = &graph->nodes[stack[--*depth]];
        for (uint32_t i = 0; i < node->input_count; i++) {
            uint32_t producer = wefti_producer(graph, node->inputs[i]);
            if (producer != WEFTI_NONE && !kept[producer]) {
                kept[producer] = 1;
                stack[(*depth)++] = producer;
            }
        }
    }
}

weft_status_t wefti_graph_prune(wefti_graph_t *graph)
{
    const weft_allocator_t *allocator = graph->arena.allocator;
    uint8_t *kept = wefti_alloc(allocator, (size_t)graph->node_count + 1);
    uint32_t *stack = wefti_alloc(allocator, ((size_t)graph->node_count + 1) * sizeof(*stack));
    weft_status_t status = kept && stack ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    uint32_t depth = 0;
    for (uint32_t i = 0; status == WEFT_OK && i < graph->order_count; i++) {
        if (is_root(graph, &graph->nodes[graph->order[i]])) {
            keep(graph, graph->order[i], kept, stack, &depth);
        }
    }
    for (uint32_t i = 0; status == WEFT_OK && i < graph->order_count; i++) {
        graph->nodes[graph->order[i]].dead = !kept[graph->order[i]];
    }
    wefti_graph_compact_order(graph);
    wefti_free(allocator, kept);
    wefti_free(allocator, stack);
    return status;
}
