/* SPDX-License-Identifier: Apache-2.0 */
/* The flat view that passes read. */
#include "graph/ir.h"

#include <string.h>

#include "runtime/base/error.h"

/* All arrays of a view while it is being filled. */
typedef struct view_arrays {
    weft_view_value_t *values;
    weft_view_op_t *ops;
    uint32_t *order, *op_inputs, *op_outputs, *users, *edges;
} view_arrays_t;

static weft_reduction_t node_reduction(const wefti_node_t *node)
{
    const weft_attr_t *attr = wefti_node_attr(node, "reduction");
    for (int i = WEFT_REDUCTION_SUM;
         attr && attr->type == WEFT_ATTR_TYPE_STRING && i <= WEFT_REDUCTION_MAX; i++) {
        if (strcmp(attr->s, weft_reduction_name((weft_reduction_t)i)) == 0) {
            return (weft_reduction_t)i;
        }
    }
    return WEFT_REDUCTION_SUM;
}

static uint32_t node_group(const wefti_node_t *node)
{
    const weft_attr_t *attr = wefti_node_attr(node, "group");
    bool communicates = wefti_node_communicates(node); /* Conv has a group too */
    return communicates && attr && attr->type == WEFT_ATTR_TYPE_INT ? (uint32_t)attr->i : 0;
}

static void fill_values(const wefti_graph_t *graph, view_arrays_t *to)
{
    for (uint32_t i = 0; i < graph->value_count; i++) {
        const wefti_value_t *value = &graph->values[i];
        to->values[i] = (weft_view_value_t){
            .name = value->name,
            .dtype = value->type.dtype,
            .bytes = wefti_value_bytes(value),
            .producer = value->producer,
            /* passes look for gradients that are not reduced yet */
            .grad_of = (value->flags & WEFTI_VALUE_REDUCED) != 0 ? WEFTI_NONE : value->grad_of};
    }
}

static void fill_ops(const wefti_graph_t *graph, view_arrays_t *to)
{
    uint32_t inputs = 0, outputs = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const wefti_node_t *node = &graph->nodes[i];
        to->ops[i] = (weft_view_op_t){.name = node->name,
                                      .def = node->def,
                                      .effects = node->def->effects,
                                      .group = node_group(node),
                                      .first_input = inputs,
                                      .first_output = outputs,
                                      .reduction = node_reduction(node),
                                      .present = !node->dead};
        if (node->dead) {
            continue;
        }
        to->ops[i].input_count = node->input_count;
        to->ops[i].output_count = node->output_count;
        memcpy(&to->op_inputs[inputs], node->inputs, node->input_count * sizeof(uint32_t));
        memcpy(&to->op_outputs[outputs], node->outputs, node->output_count * sizeof(uint32_t));
        inputs += node->input_count;
        outputs += node->output_count;
    }
}

/* Users in order of execution; an op that reads a value twice is listed twice. */
static void fill_users(const wefti_graph_t *graph, view_arrays_t *to)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                to->values[node->inputs[k]].user_count++;
            }
        }
    }
    uint32_t first = 0;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        to->values[i].first_user = first;
        first += to->values[i].user_count;
        to->values[i].user_count = 0;
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            if (node->inputs[k] != WEFTI_NONE) {
                weft_view_value_t *value = &to->values[node->inputs[k]];
                to->users[value->first_user + value->user_count++] = graph->order[i];
            }
        }
    }
}

weft_status_t wefti_graph_view(const wefti_graph_t *graph, wefti_arena_t *arena,
                               weft_graph_view_t *out_view)
{
    weft_status_t status;
    uint64_t input_count = 0, output_count = 0;
    wefti_constraint_t *edges = NULL;
    size_t edge_count = 0;
    WEFT_TRY(status, wefti_graph_order_edges(graph, &edges, &edge_count), done);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        input_count += graph->nodes[graph->order[i]].input_count;
        output_count += graph->nodes[graph->order[i]].output_count;
    }
    if (input_count > UINT32_MAX || output_count > UINT32_MAX || edge_count > UINT32_MAX / 2) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "graph has too many edges");
        goto done;
    }
    view_arrays_t to = {
        .values = wefti_arena_array(arena, graph->value_count, sizeof(*to.values)),
        .ops = wefti_arena_array(arena, graph->node_count, sizeof(*to.ops)),
        .order = wefti_arena_array(arena, graph->order_count, sizeof(uint32_t)),
        .op_inputs = wefti_arena_array(arena, (size_t)input_count, sizeof(uint32_t)),
        .op_outputs = wefti_arena_array(arena, (size_t)output_count, sizeof(uint32_t)),
        .users = wefti_arena_array(arena, (size_t)input_count, sizeof(uint32_t)),
        .edges = wefti_arena_array(arena, edge_count, 2 * sizeof(uint32_t)),
    };
    if (!to.values || !to.ops || !to.order || !to.op_inputs || !to.op_outputs || !to.users ||
        !to.edges) {
        status = WEFT_ERR_NO_MEMORY;
        goto done;
    }
    fill_values(graph, &to);
    fill_ops(graph, &to);
    fill_users(graph, &to);
    if (graph->order_count) {
        memcpy(to.order, graph->order, graph->order_count * sizeof(uint32_t));
    }
    for (size_t i = 0; i < edge_count; i++) {
        to.edges[2 * i] = edges[i].before;
        to.edges[2 * i + 1] = edges[i].after;
    }
    *out_view = (weft_graph_view_t){.struct_size = sizeof(*out_view),
                                    .value_count = graph->value_count,
                                    .values = to.values,
                                    .op_count = graph->node_count,
                                    .ops = to.ops,
                                    .order_count = graph->order_count,
                                    .order = to.order,
                                    .op_inputs = to.op_inputs,
                                    .op_outputs = to.op_outputs,
                                    .users = to.users,
                                    .edge_count = (uint32_t)edge_count,
                                    .edges = to.edges};
done:
    wefti_free(graph->arena.allocator, edges);
    return status;
}
