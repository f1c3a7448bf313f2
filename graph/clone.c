/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of a graph, for a pass that tries out the passes after it. */
#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

/* Lists that passes change. */
static weft_status_t copy_lists(wefti_graph_t *copy)
{
    wefti_arena_t *arena = &copy->arena;
    for (uint32_t i = 0; i < copy->node_count; i++) {
        wefti_node_t *node = &copy->nodes[i];
        node->inputs =
            wefti_arena_memdup(arena, node->inputs, node->input_count * sizeof(*node->inputs));
        node->outputs =
            wefti_arena_memdup(arena, node->outputs, node->output_count * sizeof(*node->outputs));
        node->attrs =
            wefti_arena_memdup(arena, node->attrs, node->attr_count * sizeof(*node->attrs));
    }
    for (uint32_t i = 0; i < copy->program_count; i++) {
        wefti_program_t *program = &copy->programs[i];
        program->nodes =
            wefti_arena_memdup(arena, program->nodes, program->node_count * sizeof(uint32_t));
    }
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* An array of the graph that grows: *capacity becomes its size. */
static weft_status_t copy_array(const wefti_graph_t *graph, void *array_of_copy, size_t *capacity,
                                const void *from, size_t count, size_t size_bytes)
{
    void *array = count > 0 ? wefti_alloc(graph->arena.allocator, count * size_bytes) : NULL;
    if (array != NULL) {
        memcpy(array, from, count * size_bytes);
    }
    memcpy(array_of_copy, &array, sizeof(array));
    *capacity = array != NULL ? count : 0;
    return count > 0 && array == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

#define COPY(array, count, capacity)                                                               \
    WEFT_TRY(status,                                                                               \
             copy_array(graph, &copy->array, &copy->capacity, graph->array, graph->count,          \
                        sizeof(*graph->array)),                                                    \
             fail);                                                                                \
    copy->count = graph->count

weft_status_t wefti_graph_clone(const wefti_graph_t *graph, wefti_graph_t **out_copy)
{
    weft_status_t status;
    wefti_graph_t *copy = NULL;
    *out_copy = NULL;
    WEFT_TRY(status, wefti_graph_create(graph->arena.allocator, graph->registry, 0, &copy), fail);
    COPY(values, value_count, value_capacity);
    COPY(nodes, node_count, node_capacity);
    COPY(order, order_count, order_capacity);
    COPY(inputs, input_count, input_capacity);
    COPY(outputs, output_count, output_capacity);
    COPY(constraints, constraint_count, constraint_capacity);
    COPY(programs, program_count, program_capacity);
    WEFT_TRY(status, wefti_name_index_copy(&graph->value_names, &copy->value_names), fail);
    WEFT_TRY(status, wefti_name_index_copy(&graph->node_names, &copy->node_names), fail);
    copy->parameters = graph->parameters;
    copy->parameter_count = graph->parameter_count;
    copy->name = graph->name;
    copy->opset = graph->opset;
    copy->batch = graph->batch;
    copy->loss = graph->loss;
    copy->logits = graph->logits;
    copy->label = graph->label;
    WEFT_TRY(status, copy_lists(copy), fail);
    *out_copy = copy;
    return WEFT_OK;
fail:
    wefti_graph_destroy(copy);
    return status;
}
