/* SPDX-License-Identifier: Apache-2.0 */
/* Orderings that no value expresses: constraints, and readers before in-place updates. */
#include "graph/ir.h"
#include "runtime/base/error.h"

typedef struct edge_list {
    const weft_allocator_t *allocator;
    wefti_constraint_t *edges;
    size_t count, capacity;
} edge_list_t;

static weft_status_t add_edge(edge_list_t *list, uint32_t before, uint32_t after)
{
    weft_status_t status = wefti_array_reserve(list->allocator, &list->edges, &list->capacity,
                                               list->count + 1, sizeof(*list->edges));
    if (status >= 0) {
        list->edges[list->count++] = (wefti_constraint_t){before, after};
    }
    return status;
}

uint32_t wefti_graph_live_node(const wefti_graph_t *graph, uint32_t node)
{
    while (node != WEFTI_NONE && graph->nodes[node].dead) {
        node = graph->nodes[node].replaced_by;
    }
    return node;
}

weft_status_t wefti_graph_add_constraint(wefti_graph_t *graph, uint32_t before, uint32_t after)
{
    weft_status_t status = wefti_array_reserve(
        graph->arena.allocator, &graph->constraints, &graph->constraint_capacity,
        (size_t)graph->constraint_count + 1, sizeof(*graph->constraints));
    if (status >= 0) {
        graph->constraints[graph->constraint_count++] = (wefti_constraint_t){before, after};
    }
    return status;
}

/* A shard is a view: what overwrites it overwrites the tensors that it is a part of. */
static void note_updater(const wefti_graph_t *graph, uint32_t *updater, uint32_t value,
                         uint32_t node)
{
    uint32_t producer = graph->values[value].producer;
    updater[value] = node;
    if (producer != WEFTI_NONE &&
        (wefti_node_range(&graph->nodes[producer]) == WEFT_RANGE_ROLE_SHARD)) {
        const wefti_node_t *shard = &graph->nodes[producer];
        for (uint32_t i = 0; i < shard->input_count; i++) {
            updater[shard->inputs[i]] = node;
        }
    }
}

/* updater[value]: the node that overwrites it, or WEFTI_NONE. Returns whether there is any. */
static bool find_updaters(const wefti_graph_t *graph, uint32_t *updater)
{
    bool any = false;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        updater[i] = WEFTI_NONE;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0;
             k < node->output_count && (node->def->effects & WEFT_EFFECT_UPDATES) != 0; k++) {
            uint32_t index = wefti_node_overwrites(node, k);
            if (index != WEFTI_NONE && node->inputs[index] != WEFTI_NONE) {
                note_updater(graph, updater, node->inputs[index], graph->order[i]);
                any = true;
            }
        }
    }
    return any;
}

static weft_status_t add_update_edges(const wefti_graph_t *graph, edge_list_t *list)
{
    weft_status_t status = WEFT_OK;
    uint32_t *updater =
        wefti_alloc(list->allocator, ((size_t)graph->value_count + 1) * sizeof(*updater));
    WEFT_RETURN_IF_NO_MEMORY(updater);
    if (!find_updaters(graph, updater)) {
        goto done;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        /* A gather of a shard completes its update: it comes after. */
        uint32_t read = wefti_node_is_flat_gather(node) ? 1 : node->input_count;
        for (uint32_t k = 0; k < read; k++) {
            uint32_t after = node->inputs[k] == WEFTI_NONE ? WEFTI_NONE : updater[node->inputs[k]];
            if (after != WEFTI_NONE && after != id) {
                WEFT_TRY(status, add_edge(list, id, after), done);
            }
        }
    }
done:
    wefti_free(list->allocator, updater);
    return status;
}

weft_status_t wefti_graph_order_edges(const wefti_graph_t *graph, wefti_constraint_t **out_edges,
                                      size_t *out_count)
{
    weft_status_t status;
    edge_list_t list = {.allocator = graph->arena.allocator};
    *out_edges = NULL;
    *out_count = 0;
    for (uint32_t i = 0; i < graph->constraint_count; i++) {
        uint32_t before = wefti_graph_live_node(graph, graph->constraints[i].before);
        uint32_t after = wefti_graph_live_node(graph, graph->constraints[i].after);
        if (before != WEFTI_NONE && after != WEFTI_NONE) {
            WEFT_TRY(status, add_edge(&list, before, after), fail);
        }
    }
    WEFT_TRY(status, add_update_edges(graph, &list), fail);
    *out_edges = list.edges;
    *out_count = list.count;
    return WEFT_OK;
fail:
    wefti_free(list.allocator, list.edges);
    return status;
}
