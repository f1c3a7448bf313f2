/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orderings that no value shows, where one side is a collective: it is issued behind the kernel
 * that the graph puts in front of it, and the kernel that the graph puts behind it waits for it.
 * Between kernels the order of the compute stream is enough.
 */
#include "fusion/lower/lower.h"

static bool communicates(const wefti_graph_t *graph, uint32_t node)
{
    return (graph->nodes[node].def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

/* Those with a collective on one side, once more: what is before what. */
static weft_status_t collect(wefti_lowering_t *l)
{
    const wefti_graph_t *graph = l->graph;
    l->constraints =
        wefti_arena_array(&l->arena, (size_t)graph->constraint_count + 1, sizeof(*l->constraints));
    l->held = wefti_lower_map(l, graph->node_count + 1);
    l->held_next = wefti_lower_map(l, graph->constraint_count + 1);
    if (l->constraints == NULL || l->held == NULL || l->held_next == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t c = 0; c < graph->constraint_count; c++) {
        uint32_t before = wefti_graph_live_node(graph, graph->constraints[c].before);
        uint32_t after = wefti_graph_live_node(graph, graph->constraints[c].after);
        if (before == WEFTI_NONE || after == WEFTI_NONE || before == after ||
            (!communicates(graph, before) && !communicates(graph, after))) {
            continue;
        }
        uint32_t at = l->constraint_count++;
        l->constraints[at] = (wefti_constraint_t){before, after};
        l->held_next[at] = l->held[after];
        l->held[after] = at;
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_constraints(wefti_lowering_t *l)
{
    return l->graph->constraint_count > 0 ? collect(l) : WEFT_OK;
}

void wefti_lower_hold(wefti_lowering_t *l, uint32_t id, uint32_t first_bucket)
{
    uint32_t ready = 0;
    for (uint32_t at = l->constraint_count > 0 ? l->held[id] : WEFTI_NONE; at != WEFTI_NONE;
         at = l->held_next[at]) {
        uint32_t before = l->constraints[at].before, then = 0;
        if (l->bucket_of[before] != WEFTI_NONE) {
            then = l->buckets[l->bucket_of[before]].ready; /* one stream keeps their order */
        } else if (l->item_of[before] != WEFTI_NONE) {
            then = l->item_of[before] + 1;
        }
        ready = then > ready ? then : ready;
    }
    for (uint32_t b = first_bucket; b < l->bucket_count; b++) {
        l->buckets[b].ready = ready > l->buckets[b].ready ? ready : l->buckets[b].ready;
    }
}
