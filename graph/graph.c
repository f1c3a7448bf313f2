/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/ir.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

weft_status_t wefti_graph_create(const weft_allocator_t *allocator, const weft_registry_t *registry,
                                 size_t budget_bytes, wefti_graph_t **out_graph)
{
    *out_graph = NULL;
    wefti_graph_t *graph = wefti_alloc(allocator, sizeof(*graph));
    WEFT_RETURN_IF_NO_MEMORY(graph);
    wefti_arena_init(&graph->arena, allocator, budget_bytes);
    graph->registry = registry;
    graph->fold = weft_registry_find_op(registry, "weft", "TreeFold", 1);
    graph->name = "graph";
    graph->loss = graph->logits = graph->label = WEFTI_NONE;
    wefti_name_index_init(&graph->value_names, graph->arena.allocator);
    wefti_name_index_init(&graph->node_names, graph->arena.allocator);
    *out_graph = graph;
    return WEFT_OK;
}

void wefti_graph_destroy(wefti_graph_t *graph)
{
    if (!graph) {
        return;
    }
    const weft_allocator_t *allocator = graph->arena.allocator;
    for (uint32_t i = 0; i < graph->mapping_count; i++) {
        wefti_file_unmap(&graph->mappings[i]);
    }
    wefti_free(allocator, graph->values);
    wefti_free(allocator, graph->nodes);
    wefti_free(allocator, graph->order);
    wefti_free(allocator, graph->inputs);
    wefti_free(allocator, graph->outputs);
    wefti_free(allocator, graph->constraints);
    wefti_free(allocator, graph->mappings);
    wefti_free(allocator, graph->programs);
    wefti_free(allocator, graph->scratch);
    wefti_name_index_deinit(&graph->value_names);
    wefti_name_index_deinit(&graph->node_names);
    wefti_arena_deinit(&graph->arena);
    wefti_free(allocator, graph);
}

/* Appends one id to a growing list. */
static weft_status_t append_id(wefti_graph_t *graph, uint32_t **list, uint32_t *count,
                               size_t *capacity, uint32_t id)
{
    weft_status_t status = wefti_array_reserve(graph->arena.allocator, list, capacity,
                                               (size_t)*count + 1, sizeof(uint32_t));
    if (status >= 0) {
        (*list)[(*count)++] = id;
    }
    return status;
}

weft_status_t wefti_graph_add_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                                    const weft_tensor_desc_t *type, uint32_t *out_value)
{
    if (graph->value_count == WEFTI_NONE - 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "graph has too many values");
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(graph->arena.allocator, &graph->values,
                                             &graph->value_capacity, (size_t)graph->value_count + 1,
                                             sizeof(*graph->values)));
    uint32_t id = graph->value_count;
    wefti_value_t *value = &graph->values[id];
    memset(value, 0, sizeof(*value));
    WEFT_RETURN_IF_ERROR(
        wefti_name_index_add(&graph->value_names, &graph->arena, name, id, &value->name));
    value->kind = kind;
    value->producer = value->producer_output = WEFTI_NONE;
    value->grad_of = value->state_of = value->alias_of = WEFTI_NONE;
    if (type) {
        value->type = *type;
    }
    if (kind == WEFTI_VALUE_INPUT) {
        value->dim_names =
            wefti_arena_array(&graph->arena, WEFT_MAX_DIMS, sizeof(*value->dim_names));
        WEFT_RETURN_IF_NO_MEMORY(value->dim_names);
        WEFT_RETURN_IF_ERROR(
            append_id(graph, &graph->inputs, &graph->input_count, &graph->input_capacity, id));
    }
    graph->value_count++;
    *out_value = id;
    return WEFT_OK;
}

weft_status_t wefti_graph_rename_value(wefti_graph_t *graph, uint32_t value, const char *name)
{
    const char *old_name = graph->values[value].name;
    if (strcmp(old_name, name) == 0) {
        return WEFT_OK;
    }
    wefti_name_index_remove(&graph->value_names, old_name);
    return wefti_name_index_add(&graph->value_names, &graph->arena, name, value,
                                &graph->values[value].name);
}

weft_status_t wefti_graph_add_output(wefti_graph_t *graph, uint32_t value)
{
    if (graph->values[value].flags & WEFTI_VALUE_OUTPUT) {
        return WEFT_OK;
    }
    weft_status_t status =
        append_id(graph, &graph->outputs, &graph->output_count, &graph->output_capacity, value);
    if (status >= 0) {
        graph->values[value].flags |= WEFTI_VALUE_OUTPUT;
    }
    return status;
}

weft_status_t wefti_graph_adopt_mapping(wefti_graph_t *graph, const wefti_mapping_t *mapping)
{
    weft_status_t status =
        wefti_array_reserve(graph->arena.allocator, &graph->mappings, &graph->mapping_capacity,
                            (size_t)graph->mapping_count + 1, sizeof(*graph->mappings));
    if (status >= 0) {
        graph->mappings[graph->mapping_count++] = *mapping;
    }
    return status;
}

bool wefti_dtype_is_floating(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_F16 ||
           dtype == WEFT_DTYPE_BF16;
}

uint32_t *wefti_id_map(wefti_arena_t *arena, size_t count)
{
    uint32_t *map = wefti_arena_array(arena, count, sizeof(*map));
    if (map != NULL) {
        memset(map, 0xff, count * sizeof(*map));
    }
    return map;
}

size_t wefti_value_bytes(const wefti_value_t *value)
{
    int64_t elem_count = weft_tensor_elem_count(&value->type);
    size_t bytes;
    if (elem_count < 0 ||
        !wefti_mul_size((size_t)elem_count, weft_dtype_size_bytes(value->type.dtype), &bytes)) {
        return 0;
    }
    return bytes;
}

uint8_t *wefti_graph_spread(const wefti_graph_t *graph, wefti_arena_t *arena, wefti_spread_fn visit)
{
    uint8_t *marks = wefti_arena_alloc(arena, (size_t)graph->value_count + 1);
    for (uint32_t i = 0; marks != NULL && i < graph->input_count; i++) {
        marks[graph->inputs[i]] = 1;
    }
    for (uint32_t i = 0; marks != NULL && i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        uint8_t any = 0;
        for (uint32_t k = 0; k < node->input_count; k++) {
            any |= node->inputs[k] != WEFTI_NONE && marks[node->inputs[k]];
        }
        any = visit != NULL ? visit(node, any) : any;
        for (uint32_t k = 0; k < node->output_count; k++) {
            if (node->outputs[k] != WEFTI_NONE) {
                marks[node->outputs[k]] = any;
            }
        }
    }
    return marks;
}

uint32_t wefti_graph_find_value(const wefti_graph_t *graph, const char *name)
{
    return wefti_name_index_find(&graph->value_names, name);
}

void wefti_graph_compact_order(wefti_graph_t *graph)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (!graph->nodes[graph->order[i]].dead) {
            graph->order[kept++] = graph->order[i];
        }
    }
    graph->order_count = kept;
}

void wefti_graph_replace_uses(wefti_graph_t *graph, uint32_t from, uint32_t to,
                              uint32_t except_node)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count && graph->order[i] != except_node; k++) {
            if (node->inputs[k] == from) {
                node->inputs[k] = to;
            }
        }
    }
    if (from == to || !(graph->values[from].flags & WEFTI_VALUE_OUTPUT)) {
        return;
    }
    bool listed = (graph->values[to].flags & WEFTI_VALUE_OUTPUT) != 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->output_count; i++) {
        uint32_t id = graph->outputs[i];
        if (id != from) {
            graph->outputs[kept++] = id;
        } else if (!listed) {
            graph->outputs[kept++] = to;
        }
    }
    graph->output_count = kept;
    graph->values[from].flags &= ~WEFTI_VALUE_OUTPUT;
    graph->values[to].flags |= WEFTI_VALUE_OUTPUT;
}

uint32_t wefti_graph_replacement(const uint32_t *by, uint32_t count, uint32_t v)
{
    while (v < count && by[v] != WEFTI_NONE) {
        v = by[v];
    }
    return v;
}

void wefti_graph_replace_all(wefti_graph_t *graph, const uint32_t *by, uint32_t count)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const uint32_t id = graph->order[i];
        wefti_node_t *node = &graph->nodes[id];
        for (uint32_t k = 0; k < node->input_count; k++) {
            uint32_t to = wefti_graph_replacement(by, count, node->inputs[k]);
            if (to != node->inputs[k] && graph->values[to].producer != id) {
                node->inputs[k] = to;
            }
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->output_count; i++) {
        uint32_t from = graph->outputs[i], to = wefti_graph_replacement(by, count, from);
        if (to == from || (graph->values[to].flags & WEFTI_VALUE_OUTPUT) == 0) {
            graph->outputs[kept++] = to;
        }
        if (to != from) {
            graph->values[from].flags &= ~WEFTI_VALUE_OUTPUT;
            graph->values[to].flags |= WEFTI_VALUE_OUTPUT;
        }
    }
    graph->output_count = kept;
}

bool wefti_graph_has_gradients(const wefti_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (graph->values[i].grad_of != WEFTI_NONE) {
            return true;
        }
    }
    return false;
}

weft_status_t wefti_error_empty_param(const char *name)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "parameter '%s': no elements to train", name);
}

bool wefti_graph_is_read(const wefti_graph_t *graph, uint32_t value)
{
    bool read = (graph->values[value].flags & WEFTI_VALUE_OUTPUT) != 0;
    for (uint32_t i = 0; i < graph->order_count && !read; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            read = read || node->inputs[k] == value;
        }
    }
    return read;
}

uint32_t *wefti_graph_statistics(const wefti_graph_t *graph, wefti_arena_t *arena)
{
    uint32_t *of = wefti_id_map(arena, graph->value_count);
    for (uint32_t i = 0; i < graph->order_count && of != NULL; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 3; k < 5 && wefti_op_has(node->def, WEFT_FACT_STATISTICS); k++) {
            if (k < node->input_count && node->inputs[k] != WEFTI_NONE) {
                of[node->inputs[k]] = graph->order[i];
            }
        }
    }
    return of;
}
