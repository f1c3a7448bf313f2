/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a model take one form: domain weft (weft_op_facts_t.imported_as), sizes filled in, a
 * start and wait pair as one node.
 *
 *   com.microsoft AllReduce, NcclAllReduce  -> AllReduce (sum)
 *   com.microsoft AllToAll                  -> AllToAll
 *   com.microsoft AllGather, axis 0         -> AllGather
 *   com.microsoft AllGather, other axes     -> collectives_tidy.c, once shapes are known
 *   XStart .. XWait                         -> XStart, whose outputs are the complete tensors; that
 *     it starts behind the node in front of XStart and is waited for before the one behind XWait
 *     are constraints
 */
#include <inttypes.h>
#include <string.h>

#include <weft/algo.h>

#include "graph/ir.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

static weft_status_t refuse(const wefti_node_t *node, const char *what)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED, "node '%s' (%s): %s", node->name, node->def->name,
                       what);
}

/* An integer attribute: absent gives the default, another type is an error. */
static weft_status_t int_attr(const wefti_node_t *node, const char *name, int64_t absent,
                              int64_t *out)
{
    const weft_attr_t *attr = wefti_node_attr(node, name);
    *out = attr != NULL ? attr->i : absent;
    return attr == NULL || attr->type == WEFT_ATTR_INT
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT, "node '%s' (%s): attribute '%s' must be an integer",
                             node->name, node->def->name, name);
}

/* Of the world; a graph may say so or leave it open. */
static weft_status_t check_size(const wefti_node_t *node, uint32_t world_size)
{
    int64_t size = 0, group = 0;
    weft_status_t status;
    WEFT_TRY(status, int_attr(node, "group_size", 0, &size), done);
    WEFT_TRY(status, int_attr(node, "group", 0, &group), done);
    if (group == 0 && size != 0 && size != world_size) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "node '%s' (%s): group_size does not match world_size: %" PRId64
                             ", world_size %u",
                             node->name, node->def->name, size, world_size);
    }
done:
    return status;
}

/* ONNX Runtime's kinds of groups: a plan has one group, that of all ranks. */
static weft_status_t check_type(const wefti_node_t *node, bool infer)
{
    int64_t type = 0;
    weft_status_t status = int_attr(node, "group_type", 0, &type);
    bool data = type == 0 || type == 1, model = type == 4 || type == 5;
    if (status == WEFT_OK && !data && !(model && infer)) {
        status = wefti_error(
            WEFT_ERR_UNSUPPORTED, "node '%s' (%s): unsupported group_type %" PRId64 "%s",
            node->name, node->def->name, type,
            model ? " (a model-parallel group): in training only 0 and 1, the group of all ranks"
                  : ": the only group is that of all ranks");
    }
    return status;
}

static bool has_attr(const weft_op_def_t *def, const char *name)
{
    for (size_t i = 0; i < def->attr_count; i++) {
        if (strcmp(def->attrs[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t set_int(wefti_graph_t *graph, uint32_t id, const char *name, int64_t value)
{
    weft_attr_t attr = {.name = name, .type = WEFT_ATTR_INT, .i = value};
    return wefti_graph_set_attr(graph, id, &attr);
}

static weft_status_t become(wefti_graph_t *graph, uint32_t id, const char *op)
{
    graph->nodes[id].attr_count = 0;
    return wefti_graph_change_op(graph, id, "weft", op, 0);
}

/* Writes default attributes explicitly: comparing two collectives then needs no defaults. */
static weft_status_t say_defaults(wefti_graph_t *graph, uint32_t id)
{
    weft_status_t status = WEFT_OK;
    const wefti_node_t *node = &graph->nodes[id];
    weft_attr_t sum = {.name = "reduction", .type = WEFT_ATTR_STRING, .s = "sum"};
    if (has_attr(node->def, "group") && wefti_node_attr(node, "group") == NULL) {
        WEFT_TRY(status, set_int(graph, id, "group", 0), done);
    }
    if (has_attr(node->def, "reduction") && wefti_node_attr(node, "reduction") == NULL) {
        WEFT_TRY(status, wefti_graph_set_attr(graph, id, &sum), done);
    }
done:
    return status;
}

/* op: the operator of domain weft, or "". */
static weft_status_t import_collective(wefti_graph_t *graph, uint32_t id, const char *op,
                                       uint32_t world_size, bool infer)
{
    weft_status_t status;
    const wefti_node_t *node = &graph->nodes[id];
    int64_t axis = 0;
    WEFT_TRY(status, check_size(node, world_size), done);
    WEFT_TRY(status, check_type(node, infer), done);
    if (*op == '\0') {
        return refuse(node,
                      "unsupported operator: how ONNX Runtime divides its buffer is not defined; "
                      "use AllGather and ReduceScatter of domain weft, or shard_optimizer");
    }
    if (!has_attr(node->def, "axis")) {
        return become(graph, id, op);
    }
    if (wefti_node_attr(node, "axis") == NULL) {
        return refuse(node, "missing attribute 'axis'");
    }
    WEFT_TRY(status, int_attr(node, "axis", 0, &axis), done);
    WEFT_TRY(status, set_int(graph, id, "group_size", world_size), done);
    if (axis == 0) {
        WEFT_TRY(status, become(graph, id, op), done);
        WEFT_TRY(status, set_int(graph, id, "group_size", world_size), done);
    }
done:
    return status;
}

/* The node behind or in front of position in the order that is no collective, or WEFTI_NONE. */
static uint32_t neighbour(const wefti_graph_t *graph, uint32_t position, int step,
                          const bool *skipped)
{
    for (int64_t i = (int64_t)position + step; i >= 0 && i < graph->order_count; i += step) {
        uint32_t id = graph->order[i];
        if (!skipped[id] && !(graph->nodes[id].def->effects & WEFT_EFFECT_COMMUNICATES)) {
            return id;
        }
    }
    return WEFTI_NONE;
}

/* Every pair of one graph: what is in flight, by value, and where it is waited for. */
typedef struct pairs {
    wefti_graph_t *graph;
    uint32_t *start_of; /* value in flight -> the node that started it, or WEFTI_NONE */
    uint32_t *renamed;  /* value -> what to read in its place */
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
    weft_status_t status = WEFT_OK;
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
        WEFT_TRY(status, keep_order(p, start, after), done);
    }
done:
    return status;
}

static weft_status_t alloc_pairs(pairs_t *p, wefti_arena_t *arena)
{
    const wefti_graph_t *graph = p->graph;
    p->start_of = wefti_arena_array(arena, graph->value_count, sizeof(uint32_t));
    p->renamed = wefti_arena_array(arena, graph->value_count, sizeof(uint32_t));
    p->waits = wefti_arena_array(arena, graph->node_count, sizeof(bool));
    p->waited = wefti_arena_array(arena, graph->node_count, sizeof(uint32_t));
    if (p->start_of == NULL || p->renamed == NULL || p->waits == NULL || p->waited == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t v = 0; v < graph->value_count; v++) {
        p->start_of[v] = p->renamed[v] = WEFTI_NONE;
    }
    return WEFT_OK;
}

static bool is_half(const wefti_node_t *node, weft_half_t half)
{
    return wefti_op_facts(node->def).half == half;
}

/* Only the second half may read what is in flight, and all of it has to be waited for. */
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

/* The start makes what its wait made: same values, so names and readers stay. */
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
            node->outputs[k] = value;
            graph->values[value].producer = id;
            graph->values[value].producer_output = k;
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
                status = refuse(node, "missing output");
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

weft_status_t wefti_graph_normalize_collectives(wefti_graph_t *graph, uint32_t world_size,
                                                bool infer)
{
    weft_status_t status = WEFT_OK;
    bool halves = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const weft_op_def_t *def = graph->nodes[id].def;
        halves = halves || is_half(&graph->nodes[id], WEFT_HALF_START) ||
                 is_half(&graph->nodes[id], WEFT_HALF_WAIT);
        if (!(def->effects & WEFT_EFFECT_COMMUNICATES)) {
            continue;
        }
        graph->nodes[id].phase = WEFTI_PHASE_COMM;
        weft_op_facts_t facts = wefti_op_facts(def);
        if (facts.imported_as != NULL) {
            WEFT_TRY(status, import_collective(graph, id, facts.imported_as, world_size, infer),
                     done);
            def = graph->nodes[id].def;
            facts = wefti_op_facts(def);
        }
        if (facts.imported_as != NULL || facts.collective == 0) {
            continue; /* waits for shapes, or has a meaning of its own */
        }
        WEFT_TRY(status, say_defaults(graph, id), done);
        WEFT_TRY(status, check_size(&graph->nodes[id], world_size), done);
        if (has_attr(def, "group_size")) {
            WEFT_TRY(status, set_int(graph, id, "group_size", world_size), done);
        }
    }
    if (halves) {
        WEFT_TRY(status, wefti_graph_pair_collectives(graph, true), done);
    }
done:
    return status;
}
