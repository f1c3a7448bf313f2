/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XStart .. XWait become one node, XStart, whose outputs are the complete tensors. That it starts
 * after the node before XStart, and is complete before the node after XWait, become constraints.
 */
#include <weft/types.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* The next node in the direction step that is not a collective, or WEFTI_NONE. */
static uint32_t neighbour(const wefti_graph_t *graph, uint32_t position, int step,
                          const bool *skipped)
{
    for (int64_t i = (int64_t)position + step; i >= 0 && i < graph->order_count; i += step) {
        uint32_t id = graph->order[i];
        if (!skipped[id] && !wefti_node_communicates(&graph->nodes[id])) {
            return id;
        }
    }
    return WEFTI_NONE;
}

/* All pairs of a graph: which values are in flight, and which values replace them. */
typedef struct pairs {
    wefti_graph_t *graph;
    uint32_t *start_of; /* value in flight -> the node that started it, or WEFTI_NONE */
    uint32_t *renamed;  /* value in flight -> output of its wait, or WEFTI_NONE */
    bool *waits;        /* node: the second half */
    uint32_t *waited;   /* start -> how many of its outputs are waited for */
    bool constrain;
} pairs_t;

static weft_status_t keep_order(pairs_t *p, uint32_t before, uint32_t after)
{
    if (!p->constrain || before == WEFTI_NONE || after == WEFTI_NONE) {
        return WEFT_OK;
    }
    return wefti_graph_add_constraint(p->graph, before, after);
}

static weft_status_t match_wait(pairs_t *p, uint32_t position)
{
    wefti_graph_t *graph = p->graph;
    uint32_t id = graph->order[position];
    const wefti_node_t *node = &graph->nodes[id];
    uint32_t after = neighbour(graph, position, 1, p->waits);
    uint32_t collective = wefti_op_facts(node->def).collective;
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t value = node->inputs[i];
        uint32_t start = value == WEFTI_NONE ? WEFTI_NONE : p->start_of[value];
        if (start == WEFTI_NONE || i >= node->output_count || node->outputs[i] == WEFTI_NONE ||
            wefti_op_facts(graph->nodes[start].def).collective != collective) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "node '%s' (%s): input %u must be the output of %sStart", node->name,
                               node->def->name, i,
                               weft_collective_name((weft_collective_t)collective));
        }
        if (p->renamed[value] != WEFTI_NONE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "node '%s' (%s): duplicate wait for '%s'",
                               node->name, node->def->name, graph->values[value].name);
        }
        p->renamed[value] = node->outputs[i];
        p->waited[start]++;
        WEFT_RETURN_IF_ERROR(keep_order(p, start, after));
    }
    return WEFT_OK;
}

static weft_status_t alloc_pairs(pairs_t *p, wefti_arena_t *arena)
{
    const wefti_graph_t *graph = p->graph;
    p->start_of = wefti_id_map(arena, graph->value_count);
    p->renamed = wefti_id_map(arena, graph->value_count);
    p->waits = wefti_arena_array(arena, graph->node_count, sizeof(bool));
    p->waited = wefti_arena_array(arena, graph->node_count, sizeof(uint32_t));
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

static bool is_half(const wefti_node_t *node, weft_half_t half)
{
    return wefti_op_facts(node->def).half == half;
}

/* Only the second half may read values in flight, and every one needs a wait. */
static weft_status_t check_pairs(const pairs_t *p)
{
    const wefti_graph_t *graph = p->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const wefti_node_t *node = &graph->nodes[id];
        for (uint32_t k = 0; k < node->input_count && !p->waits[id]; k++) {
            if (node->inputs[k] != WEFTI_NONE && p->start_of[node->inputs[k]] != WEFTI_NONE) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "node '%s' (%s): reads '%s', which is in flight: missing wait",
                                   node->name, node->def->name,
                                   graph->values[node->inputs[k]].name);
            }
        }
        if (is_half(node, WEFT_HALF_START) && p->waited[id] != node->output_count) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "node '%s' (%s): only %u of %u outputs have a wait", node->name,
                               node->def->name, p->waited[id], node->output_count);
        }
    }
    for (uint32_t i = 0; i < graph->output_count; i++) {
        if (p->start_of[graph->outputs[i]] != WEFTI_NONE) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "graph output '%s' is in flight: missing wait",
                               graph->values[graph->outputs[i]].name);
        }
    }
    return WEFT_OK;
}

/* The outputs of a wait become those of its start: the values keep names and readers. */
static void join_pairs(pairs_t *p)
{
    wefti_graph_t *graph = p->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        wefti_node_t *node = &graph->nodes[id];
        if (p->waits[id]) {
            node->dead = true;
        }
        for (uint32_t k = 0; k < node->output_count && is_half(node, WEFT_HALF_START); k++) {
            uint32_t flying = node->outputs[k], value = p->renamed[flying];
            graph->values[flying].producer = graph->values[value].producer; /* dead, as it is */
            wefti_graph_take_output(graph, id, k, value);
        }
    }
    wefti_graph_compact_order(graph);
}

weft_status_t wefti_graph_pair_collectives(wefti_graph_t *graph, bool constrain)
{
    weft_status_t status;
    pairs_t p = {.graph = graph, .constrain = constrain};
    wefti_arena_t arena;
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    WEFT_TRY(status, alloc_pairs(&p, &arena), done);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        p.waits[graph->order[i]] = is_half(node, WEFT_HALF_WAIT);
        for (uint32_t k = 0; k < node->output_count && is_half(node, WEFT_HALF_START); k++) {
            if (node->outputs[k] == WEFTI_NONE) {
                status = wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): missing output",
                                     node->name, node->def->name);
                goto done;
            }
            p.start_of[node->outputs[k]] = graph->order[i];
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (p.waits[id]) {
            WEFT_TRY(status, match_wait(&p, i), done);
        } else if (is_half(&graph->nodes[id], WEFT_HALF_START)) {
            uint32_t before = neighbour(graph, i, -1, p.waits);
            WEFT_TRY(status, keep_order(&p, before, id), done);
        }
    }
    WEFT_TRY(status, check_pairs(&p), done);
    join_pairs(&p);
done:
    wefti_arena_deinit(&arena);
    return status;
}
