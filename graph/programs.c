/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of a graph: lists of nodes that keep the order of the graph. */
#include <string.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

uint32_t wefti_graph_variant_of(const wefti_graph_t *graph, uint32_t node)
{
    const wefti_node_t *at = &graph->nodes[node];
    for (uint32_t i = 0; i < at->output_count; i++) {
        uint32_t of =
            at->outputs[i] == WEFTI_NONE ? WEFTI_NONE : graph->values[at->outputs[i]].alias_of;
        if (of != WEFTI_NONE) {
            return graph->values[of].producer;
        }
    }
    return WEFTI_NONE;
}

bool wefti_graph_outside_step(const wefti_graph_t *graph, uint32_t node)
{
    const wefti_node_t *at = &graph->nodes[node];
    for (uint32_t i = 0; i < at->output_count; i++) {
        const wefti_value_t *value =
            at->outputs[i] == WEFTI_NONE ? NULL : &graph->values[at->outputs[i]];
        if (value != NULL &&
            (value->alias_of != WEFTI_NONE || (value->flags & WEFTI_VALUE_PERSISTENT) != 0)) {
            return true;
        }
    }
    return false;
}

bool wefti_graph_is_fold(const wefti_graph_t *graph, uint32_t node)
{
    return graph->nodes[node].def == graph->fold;
}

weft_status_t wefti_graph_mark_needed(const wefti_graph_t *graph, bool *needed, bool evaluates)
{
    for (uint32_t i = graph->order_count; i-- > 0;) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (!needed[graph->order[i]]) {
            continue;
        }
        if (node->phase == WEFTI_PHASE_UPDATE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s': an output of the forward pass depends on this update",
                               node->name);
        }
        /* Evaluation reads running statistics, not moments of the batch. */
        bool running = evaluates && wefti_op_has(node->def, WEFT_FACT_STATISTICS);
        for (uint32_t k = 0; k < node->input_count && !(running && k == 6); k++) {
            uint32_t producer = wefti_producer(graph, node->inputs[k]);
            if (producer != WEFTI_NONE) {
                needed[producer] = true;
            }
        }
    }
    return WEFT_OK;
}

const wefti_program_t *wefti_graph_find_program(const wefti_graph_t *graph, const char *name)
{
    for (uint32_t i = 0; i < graph->program_count; i++) {
        if (strcmp(graph->programs[i].name, name) == 0) {
            return &graph->programs[i];
        }
    }
    return NULL;
}

/* has: by node, in no program on entry and on return. */
static void sort_program(const wefti_graph_t *graph, wefti_program_t *program, bool *has)
{
    for (uint32_t i = 0; i < program->node_count; i++) {
        uint32_t id = wefti_graph_live_node(graph, program->nodes[i]);
        if (id != WEFTI_NONE) {
            has[id] = true;
        }
    }
    program->node_count = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (has[graph->order[i]]) {
            program->nodes[program->node_count++] = graph->order[i];
            has[graph->order[i]] = false;
        }
    }
}

weft_status_t wefti_graph_refresh_programs(wefti_graph_t *graph)
{
    if (graph->program_count == 0) {
        return WEFT_OK;
    }
    bool *has = wefti_alloc(graph->arena.allocator, (size_t)graph->node_count + 1);
    WEFT_RETURN_IF_NO_MEMORY(has);
    for (uint32_t i = 0; i < graph->program_count; i++) {
        sort_program(graph, &graph->programs[i], has);
    }
    wefti_free(graph->arena.allocator, has);
    return WEFT_OK;
}

static bool reads_output(const wefti_graph_t *graph, uint32_t reader, uint32_t node)
{
    const wefti_node_t *at = &graph->nodes[reader];
    for (uint32_t i = 0; i < at->input_count; i++) {
        if (at->inputs[i] != WEFTI_NONE && graph->values[at->inputs[i]].producer == node) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_graph_join_programs(wefti_graph_t *graph, uint32_t node)
{
    for (uint32_t i = 0; i < graph->program_count; i++) {
        wefti_program_t *program = &graph->programs[i];
        bool joins = false;
        for (uint32_t k = 0; k < program->node_count && !joins; k++) {
            joins = reads_output(graph, program->nodes[k], node);
        }
        if (!joins) {
            continue;
        }
        uint32_t *nodes =
            wefti_arena_array(&graph->arena, (size_t)program->node_count + 1, sizeof(*nodes));
        WEFT_RETURN_IF_NO_MEMORY(nodes);
        memcpy(nodes, program->nodes, program->node_count * sizeof(*nodes));
        nodes[program->node_count++] = node;
        program->nodes = nodes;
    }
    return wefti_graph_refresh_programs(graph);
}

weft_status_t wefti_graph_add_program(wefti_graph_t *graph, const char *name, const uint32_t *nodes,
                                      uint32_t count)
{
    weft_status_t status;
    if (wefti_graph_find_program(graph, name) != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "duplicate program '%s'", name);
    }
    WEFT_TRY(status,
             wefti_array_reserve(graph->arena.allocator, &graph->programs, &graph->program_capacity,
                                 (size_t)graph->program_count + 1, sizeof(*graph->programs)),
             fail);
    wefti_program_t *program = &graph->programs[graph->program_count];
    program->name = wefti_arena_strdup(&graph->arena, name);
    program->nodes = wefti_arena_memdup(&graph->arena, nodes, count * sizeof(*nodes));
    program->node_count = count;
    bool *has = wefti_alloc(graph->arena.allocator, (size_t)graph->node_count + 1);
    status = program->name == NULL || program->nodes == NULL || has == NULL ? WEFT_ERR_NO_MEMORY
                                                                            : WEFT_OK;
    if (status == WEFT_OK) {
        sort_program(graph, program, has);
        graph->program_count++;
    }
    wefti_free(graph->arena.allocator, has);
fail:
    return status;
}
