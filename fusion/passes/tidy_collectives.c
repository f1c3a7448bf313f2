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

#include <string.h>

#include <weft/types.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

typedef struct tidy {
    wefti_graph_t *graph;
    uint32_t world_size;
    wefti_readers_t readers;
    bool changed;
} tidy_t;

/* A constant of one element. */
static bool read_constant(const wefti_value_t *value, double *out)
{
    return value->kind == WEFTI_VALUE_CONST && wefti_tensor_number(&value->type, out);
}

weft_status_t wefti_insert_swap(wefti_graph_t *graph, uint32_t value, uint32_t rank, uint32_t axis,
                                const char *of, const char *suffix, uint32_t at,
                                uint32_t *out_value)
{
    int64_t perm[WEFT_MAX_DIMS];
    uint32_t node;
    for (uint32_t d = 0; d < rank; d++) {
        perm[d] = d == 0 ? axis : d == axis ? 0 : d;
    }
    const weft_attr_t attr = {
        .name = "perm", .type = WEFT_ATTR_TYPE_INTS, .ints = perm, .count = rank};
    const wefti_node_params_t params = {.op = "Transpose",
                                        .name =
                                            wefti_arena_printf(&graph->arena, "%s/%s", of, suffix),
                                        .version = graph->opset,
                                        .phase = WEFTI_PHASE_FORWARD,
                                        .inputs = &value,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = &attr,
                                        .attr_count = 1};
    WEFT_RETURN_IF_NO_MEMORY(params.name);
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, at, &node));
    *out_value = graph->nodes[node].outputs[0];
    return WEFT_OK;
}

/* Tensor index of a gather along axis: x -> swap -> AllGather -> swap -> y, which keeps its id. */
static weft_status_t gather_along(tidy_t *t, uint32_t id, uint32_t index)
{
    wefti_graph_t *graph = t->graph;
    uint32_t x = graph->nodes[id].inputs[index], y = graph->nodes[id].outputs[index], node;
    uint32_t rank = graph->values[x].type.rank, value;
    int64_t axis = wefti_node_attr(&graph->nodes[id], "axis")->i;
    axis += axis < 0 ? rank : 0;
    const char *name = graph->nodes[id].name;
    WEFT_RETURN_IF_ERROR(
        wefti_insert_swap(graph, x, rank, (uint32_t)axis, name, "to_front", id, &value));
    const weft_attr_t *group = wefti_node_attr(&graph->nodes[id], "group");
    const weft_attr_t attrs[] = {
        {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = t->world_size},
        {.name = "group", .type = WEFT_ATTR_TYPE_INT, .i = group != NULL ? group->i : 0}};
    const wefti_node_params_t params = {.domain = "weft",
                                        .op = "AllGather",
                                        .name =
                                            wefti_arena_printf(&graph->arena, "%s/gather", name),
                                        .phase = WEFTI_PHASE_COMM,
                                        .inputs = &value,
                                        .input_count = 1,
                                        .output_count = 1,
                                        .attrs = attrs,
                                        .attr_count = 2};
    WEFT_RETURN_IF_ERROR(wefti_graph_insert_node(graph, &params, id, &node));
    WEFT_RETURN_IF_ERROR(wefti_insert_swap(graph, graph->nodes[node].outputs[0], rank,
                                           (uint32_t)axis, name, "back", id, &value));
    node = graph->values[value].producer;
    graph->values[value].producer = id; /* unused: of the removed node */
    wefti_graph_take_output(graph, node, 0, y);
    return WEFT_OK;
}

static weft_status_t rewrite_gather(tidy_t *t, uint32_t id)
{
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
        WEFT_RETURN_IF_ERROR(gather_along(t, id, i));
    }
    t->graph->nodes[id].dead = true;
    t->changed = true;
    return WEFT_OK;
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

static uint32_t only_reader(const tidy_t *t, uint32_t value)
{
    uint32_t first = t->readers.first[value];
    return t->readers.first[value + 1] == first + 1 ? t->readers.nodes[first] : WEFTI_NONE;
}

/* All outputs of a sum are divided by their only readers: it makes what they made. */
static weft_status_t absorb(tidy_t *t, uint32_t id)
{
    wefti_graph_t *graph = t->graph;
    wefti_node_t *node = &graph->nodes[id];
    if (!is_sum(node) || t->world_size < 2) {
        return WEFT_OK;
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k];
        uint32_t reader = value == WEFTI_NONE ? WEFTI_NONE : only_reader(t, value);
        if (reader == WEFTI_NONE || graph->nodes[reader].dead || graph->values[value].flags != 0 ||
            !divides(t, &graph->nodes[reader])) {
            return WEFT_OK;
        }
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k], by = only_reader(t, value);
        wefti_node_t *reader = &graph->nodes[by];
        uint32_t result = reader->outputs[0];
        if (graph->values[value].grad_of != WEFTI_NONE) {
            graph->values[result].grad_of = graph->values[value].grad_of;
            graph->values[value].grad_of = WEFTI_NONE;
        }
        reader->dead = true;
        reader->replaced_by = id; /* who waited for it waits for the average */
        wefti_graph_take_output(graph, id, k, result);
        graph->values[value].producer = by;
    }
    t->changed = true;
    weft_attr_t attr = {.name = "reduction", .type = WEFT_ATTR_TYPE_STRING, .s = "avg"};
    return wefti_graph_set_attr(graph, id, &attr);
}

weft_status_t wefti_pass_tidy_collectives(wefti_graph_t *graph, uint32_t world_size)
{
    weft_status_t status = WEFT_OK;
    tidy_t t = {.graph = graph, .world_size = world_size};
    uint32_t count = graph->order_count;
    bool any = false;
    wefti_arena_t arena;
    for (uint32_t i = 0; i < count && !any; i++) {
        any = wefti_node_communicates(&graph->nodes[graph->order[i]]);
    }
    if (!any) {
        return WEFT_OK;
    }
    wefti_arena_init(&arena, graph->arena.allocator, 0);
    WEFT_TRY(status, wefti_graph_readers(graph, graph->order, count, &arena, &t.readers), done);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = graph->order[i];
        if (!graph->nodes[id].dead) {
            WEFT_TRY(status, absorb(&t, id), done);
            WEFT_TRY(status, rewrite_gather(&t, id), done);
        }
    }
    if (t.changed) {
        status = wefti_graph_sort(graph);
    }
done:
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_apply_tidy_collectives(wefti_compiler_t *c)
{
    return wefti_pass_tidy_collectives(c->graph, c->params.world_size);
}
