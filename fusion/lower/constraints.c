/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orderings that no value expresses, where one side is a collective. It is issued after the kernel
 * that the graph orders before it; the kernel that the graph orders after it waits for it. Between
 * kernels the order of the compute stream is enough.
 */
#include "fusion/lower/lower.h"

static bool communicates(const wefti_graph_t *graph, uint32_t node)
{
    return wefti_node_communicates(&graph->nodes[node]);
}

/* Those with a collective on one side, once more: what is before what. */
static weft_status_t collect(wefti_lowering_t *l)
{
    const wefti_graph_t *graph = l->graph;
    l->constraints =
        wefti_arena_array(&l->arena, (size_t)graph->constraint_count + 1, sizeof(*l->constraints));
    if (l->constraints == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t c = 0; c < graph->constraint_count; c++) {
        uint32_t before = wefti_graph_live_node(graph, graph->constraints[c].before);
        uint32_t after = wefti_graph_live_node(graph, graph->constraints[c].after);
        if (before == WEFTI_NONE || after == WEFTI_NONE || before == after ||
            (!communicates(graph, before) && !communicates(graph, after))) {
            continue;
        }
        l->constraints[l->constraint_count++] = (wefti_constraint_t){before, after};
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_constraints(wefti_lowering_t *l)
{
    return l->graph->constraint_count > 0 ? collect(l) : WEFT_OK;
}
