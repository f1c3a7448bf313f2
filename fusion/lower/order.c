/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two streams run, in the order of the graph: items are kernels, commands collectives. A
 * command starts after the items in front of it. A kernel of the compute stream stands for its
 * variants in other programs as well.
 */
#include <string.h>

#include "fusion/lower/lower.h"
#include "fusion/passes/gradient_sums.h"
#include "runtime/base/error.h"

/* Of all collectives together: ids stay far from their limits whatever a model file asks for. */
#define MAX_PARTS (1u << 20)
#define MAX_PIECES (4 * MAX_PARTS) /* and of kernels */

uint32_t wefti_lower_members(const wefti_node_t *node, uint32_t *out_first)
{
    uint32_t members = wefti_node_range(node) == WEFT_RANGE_ROLE_REDUCE_UPDATE
                           ? (uint32_t)wefti_node_int(node, "members")
                           : 0;
    *out_first = wefti_node_is_flat_gather(node) ? 1 : members;
    return members > 0 ? members : node->input_count - *out_first;
}

uint32_t wefti_lower_range_update(const wefti_graph_t *graph, const wefti_node_t *update)
{
    if (update->phase != WEFTI_PHASE_UPDATE) {
        return WEFTI_NONE;
    }
    bool fused = wefti_node_range(update) == WEFT_RANGE_ROLE_UPDATE;
    uint32_t at = fused ? (uint32_t)wefti_node_int(update, "members") : 1;
    uint32_t value = at < update->input_count ? update->inputs[at] : WEFTI_NONE;
    uint32_t reduce = wefti_producer(graph, value);
    bool is_range =
        reduce != WEFTI_NONE && (fused ? wefti_reduces_gradients(graph, &graph->nodes[reduce])
                                       : !wefti_node_communicates(update) &&
                                             wefti_node_is_flat_scatter(&graph->nodes[reduce]));
    return is_range ? reduce : WEFTI_NONE;
}

/* Pieces of a collective that is split. */
static weft_status_t collective_parts(const wefti_graph_t *graph, const wefti_node_t *node,
                                      uint32_t *out_parts)
{
    const weft_attr_t *attr = wefti_node_attr(node, "parts");
    uint32_t first;
    *out_parts = 1;
    if (attr == NULL) {
        return WEFT_OK;
    }
    uint64_t bytes = wefti_lower_members(node, &first) == 1 && node->inputs[first] != WEFTI_NONE
                         ? wefti_value_bytes(&graph->values[node->inputs[first]])
                         : 0;
    uint64_t most = (bytes + WEFTI_PLAN_ALIGNMENT - 1) / WEFTI_PLAN_ALIGNMENT;
    most = most < MAX_PARTS ? most : MAX_PARTS;
    if (attr->type != WEFT_ATTR_TYPE_INT || attr->i < 1 || (uint64_t)attr->i > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "node '%s' (%s): attribute 'parts' must be between 1 and %llu: %lld",
                           node->name, node->def->name, (unsigned long long)most,
                           attr->type == WEFT_ATTR_TYPE_INT ? (long long)attr->i : 0);
    }
    *out_parts = (uint32_t)attr->i;
    return WEFT_OK;
}

/* How many items or commands a node is. An update of a range has a piece for each that its
 * collective reduces. */
static weft_status_t parts_of(const wefti_lowering_t *l, uint32_t id, uint32_t *out_parts)
{
    const wefti_graph_t *graph = l->graph;
    const wefti_node_t *node = &graph->nodes[id];
    uint32_t reduce = wefti_lower_range_update(graph, node);
    *out_parts = 1;
    if (wefti_node_communicates(node) || reduce != WEFTI_NONE) {
        return collective_parts(graph, reduce == WEFTI_NONE ? node : &graph->nodes[reduce],
                                out_parts);
    }
    const weft_attr_t *parts = wefti_lower_is_fold(l, id) ? wefti_node_attr(node, "parts") : NULL;
    if (parts != NULL && parts->type == WEFT_ATTR_TYPE_INT && parts->i > 0 &&
        parts->i < UINT32_MAX) {
        *out_parts = (uint32_t)parts->i;
    }
    return WEFT_OK;
}

/* Does it run on activations: a command per tensor? */
static bool is_on_activations(const wefti_graph_t *graph, const wefti_node_t *node)
{
    return wefti_node_communicates(node) && !wefti_node_is_flat_gather(node) &&
           !wefti_node_is_flat_scatter(node) &&
           wefti_node_range(node) != WEFT_RANGE_ROLE_REDUCE_UPDATE &&
           !wefti_reduces_gradients(graph, node);
}

/* All nodes that the two streams run; init and eval run in streams that are otherwise idle. */
static weft_status_t find_nodes(wefti_lowering_t *l, wefti_order_t *o)
{
    const wefti_graph_t *graph = l->graph;
    bool *runs = wefti_arena_array(&l->arena, graph->node_count, sizeof(*runs));
    o->nodes = wefti_id_map(&l->arena, graph->order_count);
    o->variant_of = wefti_id_map(&l->arena, graph->node_count);
    o->next_variant = wefti_id_map(&l->arena, graph->node_count);
    WEFT_RETURN_IF_NO_MEMORY(runs && o->nodes && o->variant_of && o->next_variant);
    for (uint32_t p = 0; p < graph->program_count; p++) {
        const wefti_program_t *program = &graph->programs[p];
        bool steps = strcmp(program->name, "init") != 0 && strcmp(program->name, "eval") != 0;
        for (uint32_t i = 0; steps && i < program->node_count; i++) {
            runs[program->nodes[i]] = true;
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], of = wefti_graph_variant_of(graph, id);
        if (of != WEFTI_NONE) {
            o->next_variant[id] = o->variant_of[of];
            o->variant_of[of] = id;
        } else if (runs[id]) {
            o->nodes[o->node_count++] = id;
        }
    }
    return wefti_graph_readers(graph, o->nodes, o->node_count, &l->arena, &o->readers);
}

/* Room for items and commands. */
static weft_status_t reserve(wefti_lowering_t *l, wefti_order_t *o)
{
    const wefti_graph_t *graph = l->graph;
    size_t pieces = 0, items = 0, commands = 0;
    for (uint32_t i = 0; i < o->node_count; i++) {
        const wefti_node_t *node = &graph->nodes[o->nodes[i]];
        uint32_t parts;
        WEFT_RETURN_IF_ERROR(parts_of(l, o->nodes[i], &parts));
        pieces += parts > 1 ? parts : 0;
        items += wefti_node_communicates(node) ? 0 : parts;
        commands += !wefti_node_communicates(node)   ? 0
                    : is_on_activations(graph, node) ? node->input_count
                                                     : parts;
        if (pieces > MAX_PIECES) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "collectives split into too many pieces: limit %u", MAX_PIECES);
        }
    }
    o->items = wefti_arena_array(&l->arena, items, sizeof(*o->items));
    o->commands = wefti_arena_array(&l->arena, commands, sizeof(*o->commands));
    o->item_of = wefti_id_map(&l->arena, graph->node_count);
    o->command_of = wefti_id_map(&l->arena, graph->node_count);
    return o->items == NULL || o->commands == NULL || o->item_of == NULL || o->command_of == NULL
               ? WEFT_ERR_NO_MEMORY
               : WEFT_OK;
}

static void add_items(wefti_order_t *o, uint32_t node, uint32_t parts)
{
    o->item_of[node] = o->item_count;
    for (uint32_t v = o->variant_of[node]; v != WEFTI_NONE; v = o->next_variant[v]) {
        o->item_of[v] = o->item_count;
    }
    for (uint32_t part = 0; part < parts; part++) {
        o->items[o->item_count++] = (wefti_item_t){node, part};
    }
}

/* A piece is ready after its own item of the node that writes its input, not after that of all
 * pieces. */
static void add_commands(const wefti_graph_t *graph, wefti_order_t *o, uint32_t id, uint32_t parts)
{
    const wefti_node_t *node = &graph->nodes[id];
    uint32_t first;
    wefti_lower_members(node, &first);
    uint32_t value = node->inputs[wefti_node_is_flat_gather(node) ? 0 : first];
    uint32_t producer = wefti_producer(graph, value);
    uint32_t from = producer == WEFTI_NONE ? WEFTI_NONE : o->item_of[producer];
    bool by_piece = from != WEFTI_NONE && from + parts == o->item_count &&
                    o->items[o->item_count - 1].node == producer;
    o->command_of[id] = o->command_count;
    for (uint32_t part = 0; part < parts; part++) {
        o->commands[o->command_count++] =
            (wefti_command_t){.node = id,
                              .part = part,
                              .parts = parts,
                              .ready = by_piece ? from + part + 1 : o->item_count};
    }
}

static weft_status_t add_node(wefti_lowering_t *l, wefti_order_t *o, uint32_t id)
{
    const wefti_node_t *node = &l->graph->nodes[id];
    uint32_t parts;
    if (wefti_lower_is_view(node)) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(parts_of(l, id, &parts));
    if (is_on_activations(l->graph, node)) {
        WEFT_RETURN_IF_ERROR(wefti_lower_check_activations(l, node));
        parts = node->input_count;
    }
    if (wefti_node_communicates(node)) {
        add_commands(l->graph, o, id, parts);
    } else {
        add_items(o, id, parts);
    }
    return WEFT_OK;
}

/* Orderings that no value expresses, with a collective on one side: it is issued after the kernel
 * that the graph orders before it, and the kernel that the graph orders after it waits for it.
 * Between kernels the order of the compute stream is enough. */
static weft_status_t find_constraints(wefti_lowering_t *l, wefti_order_t *o)
{
    const wefti_graph_t *graph = l->graph;
    o->constraints =
        wefti_arena_array(&l->arena, (size_t)graph->constraint_count + 1, sizeof(*o->constraints));
    WEFT_RETURN_IF_NO_MEMORY(o->constraints);
    for (uint32_t c = 0; c < graph->constraint_count; c++) {
        uint32_t before = wefti_graph_live_node(graph, graph->constraints[c].before);
        uint32_t after = wefti_graph_live_node(graph, graph->constraints[c].after);
        if (before != WEFTI_NONE && after != WEFTI_NONE && before != after &&
            (wefti_node_communicates(&graph->nodes[before]) ||
             wefti_node_communicates(&graph->nodes[after]))) {
            o->constraints[o->constraint_count++] = (wefti_constraint_t){before, after};
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_lower_order(wefti_lowering_t *l, wefti_order_t *out)
{
    WEFT_RETURN_IF_ERROR(find_nodes(l, out));
    WEFT_RETURN_IF_ERROR(reserve(l, out));
    WEFT_RETURN_IF_ERROR(find_constraints(l, out));
    for (uint32_t i = 0; i < out->node_count; i++) {
        WEFT_RETURN_IF_ERROR(add_node(l, out, out->nodes[i]));
    }
    return WEFT_OK;
}
