/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: which ranks run a node where not all ranks run the same. The stages of a pipeline, and
 * models of which each runs on a rank of its own, are places on an axis of the mesh. Transfers alone
 * say so, and no pass has to mark what it adds:
 *
 *   place 0:  a -> b -> Transfer{root=0,to=2} -.      nodes that values connect, but for transfers,
 *   place 1:                                   '-> c  are at one place: root, to - 1
 *
 * A transfer itself runs on all ranks. So does what is computed from constants, scalars and what all
 * ranks have received alone (the learning rate of a step, the scale of clipped gradients), which
 * connects nothing.
 */
#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"
#include "runtime/base/sets.h"

bool wefti_node_transfers(const wefti_node_t *node)
{
    return wefti_op_facts(node->def).gradient == WEFT_GRADIENT_TRANSFER;
}

typedef struct finder {
    const wefti_graph_t *graph;
    uint32_t *parent; /* by value, then by node */
    uint32_t *place;  /* by root of a set */
    uint8_t *fed;     /* by value: depends on more than what all ranks have */
} finder_t;

static void join(finder_t *f, uint32_t a, uint32_t b)
{
    wefti_sets_join(f->parent, &a, &b);
}

static void join_node(finder_t *f, uint32_t id)
{
    const wefti_graph_t *graph = f->graph;
    const wefti_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t value = node->inputs[i];
        if (value != WEFTI_NONE && graph->values[value].kind == WEFTI_VALUE_NODE && f->fed[value]) {
            join(f, value, graph->value_count + id);
        }
    }
    for (uint32_t i = 0; i < node->output_count; i++) {
        uint32_t value = node->outputs[i];
        if (value != WEFTI_NONE && f->fed[value]) {
            uint32_t of = graph->values[value].alias_of;
            join(f, value, graph->value_count + id);
            join(f, value, of == WEFTI_NONE ? value : of);
        }
    }
}

static weft_status_t put(finder_t *f, const wefti_node_t *transfer, uint32_t value, uint32_t place)
{
    uint32_t *at = &f->place[wefti_sets_root(f->parent, value)];
    if (place == 0 || f->graph->values[value].kind != WEFTI_VALUE_NODE) {
        return WEFT_OK;
    }
    if (*at != 0 && *at != place) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "node '%s' (%s): value '%s' is connected with operators of places %u and "
            "%u, and nothing is sent between them",
            transfer->name, transfer->def->name, f->graph->values[value].name, *at - 1, place - 1);
    }
    *at = place;
    return WEFT_OK;
}

static weft_status_t find(finder_t *f, uint32_t *places)
{
    const wefti_graph_t *graph = f->graph;
    for (uint32_t i = 0; i < graph->value_count + graph->node_count; i++) {
        f->parent[i] = i;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (!wefti_node_transfers(&graph->nodes[graph->order[i]])) {
            join_node(f, graph->order[i]);
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (wefti_node_transfers(node)) {
            uint32_t from = (uint32_t)wefti_node_int(node, "root") + 1;
            WEFT_RETURN_IF_ERROR(put(f, node, node->inputs[0], from));
            WEFT_RETURN_IF_ERROR(
                put(f, node, node->outputs[0], (uint32_t)wefti_node_int(node, "to")));
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        places[id] = wefti_node_transfers(&graph->nodes[id])
                         ? 0
                         : f->place[wefti_sets_root(f->parent, graph->value_count + id)];
    }
    return WEFT_OK;
}

static uint8_t is_fed(const wefti_graph_t *graph, const wefti_node_t *node, const uint8_t *fed)
{
    uint8_t any = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t value = node->inputs[i];
        wefti_value_kind_t kind =
            value == WEFTI_NONE ? WEFTI_VALUE_CONST : graph->values[value].kind;
        any |= kind == WEFTI_VALUE_NODE ? fed[value]
                                        : kind != WEFTI_VALUE_CONST && kind != WEFTI_VALUE_SCALAR;
    }
    return any;
}

weft_status_t wefti_graph_places(const wefti_graph_t *graph, wefti_arena_t *arena,
                                 uint32_t **out_places)
{
    bool any = false;
    size_t count = (size_t)graph->value_count + graph->node_count;
    *out_places = NULL;
    for (uint32_t i = 0; i < graph->order_count && !any; i++) {
        any = wefti_node_transfers(&graph->nodes[graph->order[i]]);
    }
    if (!any) {
        return WEFT_OK;
    }
    finder_t f = {.graph = graph,
                  .parent = wefti_arena_array(arena, count, sizeof(*f.parent)),
                  .place = wefti_arena_array(arena, count, sizeof(*f.place)),
                  .fed = wefti_arena_array(arena, graph->value_count, sizeof(*f.fed))};
    uint32_t *places = wefti_arena_array(arena, graph->node_count, sizeof(*places));
    WEFT_RETURN_IF_NO_MEMORY(f.parent && f.place && f.fed && places);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->output_count; k++) {
            bool everywhere = wefti_node_transfers(node) && wefti_node_int(node, "to") == 0;
            if (node->outputs[k] != WEFTI_NONE) {
                f.fed[node->outputs[k]] = everywhere ? 0 : is_fed(graph, node, f.fed);
            }
        }
    }
    WEFT_RETURN_IF_ERROR(find(&f, places));
    *out_places = places;
    return WEFT_OK;
}
