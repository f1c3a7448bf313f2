/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tidy-collectives: rewrites of collectives that need shapes.
 *
 * Matches an AllGather of ONNX Runtime along a dimension other than the first, and a sum over ranks
 * whose only reader divides it by their number. Produces an AllGather along the first dimension
 * between two Transposes, because blocks of ranks are contiguous only there; and an average, which
 * has the same bits and can share a bucket with other averages.
 */
#include "fusion/passes/passes.h"

#include <stdio.h>
#include <string.h>

#include <weft/types.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

/* New nodes go where their node was: keys by node, as for wefti_graph_sort_by. */
typedef struct tidy {
    wefti_graph_t *graph;
    uint32_t world_size;
    uint32_t *readers; /* per value: how many, outputs of the graph count */
    uint64_t *keys;
    size_t key_capacity;
    bool changed;
} tidy_t;

/* A constant of one element. */
static bool read_constant(const wefti_value_t *value, double *out)
{
    return value->kind == WEFTI_VALUE_CONST && wefti_tensor_number(&value->type, out);
}

static weft_status_t set_key(tidy_t *t, uint32_t id, uint64_t key)
{
    weft_status_t status = wefti_array_reserve(t->graph->arena.allocator, &t->keys,
                                               &t->key_capacity, (size_t)id + 1, sizeof(uint64_t));
    if (status == WEFT_OK) {
        t->keys[id] = key;
    }
    return status;
}

/* A Transpose that exchanges dimensions 0 and axis. */
static weft_status_t add_swap(tidy_t *t, uint32_t value, uint32_t axis, const char *name,
                              uint64_t key, uint32_t *out_value)
{
    wefti_graph_t *graph = t->graph;
    int64_t perm[WEFT_MAX_DIMS];
    uint32_t rank = graph->values[value].type.rank, node;
    for (uint32_t d = 0; d < rank; d++) {
        perm[d] = d == 0 ? axis : d == axis ? 0 : d;
    }
    weft_attr_t attr = {.name = "perm", .type = WEFT_ATTR_TYPE_INTS, .ints = perm, .count = rank};
    wefti_node_params_t params = {.domain = "",
                                  .op = "Transpose",
                                  .name = name,
                                  .version = graph->opset,
                                  .phase = WEFTI_PHASE_FORWARD,
                                  .inputs = &value,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = &attr,
                                  .attr_count = 1};
    weft_status_t status = wefti_graph_add_node(graph, &params, &node);
    if (status == WEFT_OK) {
        *out_value = graph->nodes[node].outputs[0];
        status = set_key(t, node, key);
    }
    return status;
}

/* Tensor index of a gather along axis: x -> swap -> AllGather -> swap -> y, which keeps its id. */
static weft_status_t gather_along(tidy_t *t, uint32_t id, uint32_t index)
{
    weft_status_t status;
    wefti_graph_t *graph = t->graph;
    const weft_attr_t *axis_attr = wefti_node_attr(&graph->nodes[id], "axis");
    uint32_t x = graph->nodes[id].inputs[index], y = graph->nodes[id].outputs[index];
    uint32_t rank = graph->values[x].type.rank, swapped, node;
    int64_t axis = axis_attr->i < 0 ? axis_attr->i + rank : axis_attr->i;
    uint64_t key = t->keys[id] + 3 * (uint64_t)index;
    char name[200];
    snprintf(name, sizeof(name), "%.160s/to_front", graph->nodes[id].name);
    WEFT_TRY(status, add_swap(t, x, (uint32_t)axis, name, key, &swapped), done);
    weft_attr_t size = {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = t->world_size};
    snprintf(name, sizeof(name), "%.160s/gather", graph->nodes[id].name);
    wefti_node_params_t params = {.domain = "weft",
                                  .op = "AllGather",
                                  .name = name,
                                  .phase = WEFTI_PHASE_COMM,
                                  .inputs = &swapped,
                                  .input_count = 1,
                                  .output_count = 1,
                                  .attrs = &size,
                                  .attr_count = 1};
    WEFT_TRY(status, wefti_graph_add_node(graph, &params, &node), done);
    WEFT_TRY(status, set_key(t, node, key + 1), done);
    snprintf(name, sizeof(name), "%.160s/back", graph->nodes[id].name);
    WEFT_TRY(status,
             add_swap(t, graph->nodes[node].outputs[0], (uint32_t)axis, name, key + 2, &swapped),
             done);
    /* Its own result steps aside: y is what others know. */
    node = graph->values[swapped].producer;
    graph->nodes[node].outputs[0] = y;
    graph->values[y].producer = node;
    graph->values[y].producer_output = 0;
    graph->values[swapped].producer = id; /* dead */
done:
    return status;
}

static weft_status_t rewrite_gather(tidy_t *t, uint32_t id)
{
    weft_status_t status = WEFT_OK;
    const wefti_node_t *node = &t->graph->nodes[id];
    if (wefti_op_facts(node->def).imported_as == NULL || !wefti_node_attr(node, "axis")) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < t->graph->nodes[id].input_count; i++) {
        if (t->graph->nodes[id].inputs[i] == WEFTI_NONE ||
            t->graph->nodes[id].outputs[i] == WEFTI_NONE) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "node '%s' (AllGather): missing input or output %u",
                               t->graph->nodes[id].name, i);
        }
        WEFT_TRY(status, gather_along(t, id, i), done);
    }
    t->graph->nodes[id].dead = true;
    t->changed = true;
done:
    return status;
}

static bool is_sum(const wefti_node_t *node)
{
    const weft_attr_t *reduction = wefti_node_attr(node, "reduction");
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    return facts.collective == WEFT_COLLECTIVE_ALL_REDUCE && facts.half != WEFT_HALF_WAIT &&
           (reduction == NULL ||
            (reduction->type == WEFT_ATTR_TYPE_STRING && strcmp(reduction->s, "sum") == 0));
}

/* Does the node divide by the number of ranks? Multiplying is the same bits for powers of two. */
static bool divides(const tidy_t *t, const wefti_node_t *node)
{
    double factor;
    weft_arithmetic_t arithmetic = wefti_op_facts(node->def).arithmetic;
    bool mul = arithmetic == WEFT_ARITHMETIC_MULTIPLY, div = arithmetic == WEFT_ARITHMETIC_DIVIDE;
    for (uint32_t side = 0; side < 2 && node->input_count == 2; side++) {
        if ((div || mul) && (mul || side == 1) && node->inputs[side] != WEFTI_NONE &&
            read_constant(&t->graph->values[node->inputs[side]], &factor) &&
            weft_tensor_elem_count(&t->graph->values[node->inputs[1 - side]].type) ==
                weft_tensor_elem_count(&t->graph->values[node->outputs[0]].type)) {
            return div ? factor == (double)t->world_size
                       : (t->world_size & (t->world_size - 1)) == 0 &&
                             factor * (double)t->world_size == 1.0;
        }
    }
    return false;
}

/* All outputs of a sum are divided by their only readers: it makes what they made. */
static weft_status_t absorb(tidy_t *t, uint32_t id, const uint32_t *only_reader)
{
    wefti_graph_t *graph = t->graph;
    wefti_node_t *node = &graph->nodes[id];
    if (!is_sum(node) || t->world_size < 2) {
        return WEFT_OK;
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k];
        uint32_t reader =
            value == WEFTI_NONE || t->readers[value] != 1 ? WEFTI_NONE : only_reader[value];
        if (reader == WEFTI_NONE || graph->nodes[reader].dead || graph->values[value].flags != 0 ||
            !divides(t, &graph->nodes[reader])) {
            return WEFT_OK;
        }
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k];
        wefti_node_t *reader = &graph->nodes[only_reader[value]];
        uint32_t result = reader->outputs[0];
        if (graph->values[value].grad_of != WEFTI_NONE) {
            graph->values[result].grad_of = graph->values[value].grad_of;
            graph->values[value].grad_of = WEFTI_NONE;
        }
        reader->dead = true;
        reader->replaced_by = id; /* who waited for it waits for the average */
        node->outputs[k] = result;
        graph->values[result].producer = id;
        graph->values[result].producer_output = k;
        graph->values[value].producer = only_reader[value];
    }
    t->changed = true;
    weft_attr_t attr = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "avg"};
    return wefti_graph_set_attr(graph, id, &attr);
}

static weft_status_t prepare(tidy_t *t, wefti_arena_t *arena, uint32_t **out_only_reader)
{
    weft_status_t status = WEFT_OK;
    const wefti_graph_t *graph = t->graph;
    uint32_t *only_reader = wefti_arena_array(arena, graph->value_count, sizeof(uint32_t));
    t->readers = wefti_arena_array(arena, graph->value_count, sizeof(uint32_t));
    if (only_reader == NULL || t->readers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = graph->order_count; i-- > 0;) {
        uint32_t id = graph->order[i];
        WEFT_TRY(status, set_key(t, id, ((uint64_t)i + 1) << 32), done);
        for (uint32_t k = 0; k < graph->nodes[id].input_count; k++) {
            uint32_t value = graph->nodes[id].inputs[k];
            if (value != WEFTI_NONE) {
                t->readers[value]++;
                only_reader[value] = id;
            }
        }
    }
    *out_only_reader = only_reader;
done:
    return status;
}

weft_status_t wefti_pass_tidy_collectives(wefti_graph_t *graph, uint32_t world_size)
{
    weft_status_t status = WEFT_OK;
    tidy_t t = {.graph = graph, .world_size = world_size};
    uint32_t *only_reader = NULL, count = graph->order_count;
    bool any = false;
    wefti_arena_t arena;
    for (uint32_t i = 0; i < count && !any; i++) {
        any = (graph->nodes[graph->order[i]].def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
    }
    if (!any) {
        return WEFT_OK;
    }
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    WEFT_TRY(status, prepare(&t, &arena, &only_reader), done);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        if (!graph->nodes[id].dead) {
            WEFT_TRY(status, absorb(&t, id, only_reader), done);
            WEFT_TRY(status, rewrite_gather(&t, id), done);
        }
    }
    if (t.changed) {
        status = wefti_graph_reorder(graph, t.keys);
    }
done:
    wefti_free(graph->arena.allocator, t.keys);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_tidy_collectives(wefti_compiler_t *c)
{
    return wefti_pass_tidy_collectives(c->graph, c->params.world_size);
}
