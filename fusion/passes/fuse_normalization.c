/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuse-normalization: BatchNormalization in training adds the residual and is the Relu that follow
 * it, and its gradient is also the one of the Relu before it. Results between are never in memory.
 *
 *   %y = BatchNormTraining(%x, ..)  %s = Add(%y, %r)  %z = Relu(%s)
 *     -> %z = BatchNormTraining(%x, .., %r) {activation="Relu"}
 *   %d = ReluGrad(%g, %z)  %dx = BatchNormGrad(%d, %x, ..)  ->  %dx = BatchNormGrad(%g, %x, .., %z)
 *
 * Addition and Relu each may be absent. Only a result that no other node reads disappears, and the
 * residual is computed before the operator, so that no node runs later. Bits are equal.
 */
#include "fusion/passes/passes.h"
#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define MORE 5u /* the input that is added, or whose sign counts */

typedef struct fuser {
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_readers_t readers;
    uint32_t *position; /* by node */
    const weft_op_def_t *norm, *norm_grad, *add, *relu, *relu_grad;
} fuser_t;

/* The node that reads a value which no other node and nobody outside reads, or WEFTI_NONE. */
static uint32_t only_reader(const fuser_t *f, uint32_t value)
{
    const wefti_value_t *v = &f->graph->values[value];
    const uint32_t first = f->readers.first[value];
    return v->flags == 0 && v->grad_of == WEFTI_NONE && f->readers.first[value + 1] == first + 1
               ? f->readers.nodes[first]
               : WEFTI_NONE;
}

/* The only reader of value if it is operator def and runs in the phase of node. */
static uint32_t next(const fuser_t *f, uint32_t node, uint32_t value, const weft_op_def_t *def)
{
    const uint32_t id = only_reader(f, value);
    return id != WEFTI_NONE && wefti_op_same(f->graph->nodes[id].def, def) &&
                   f->graph->nodes[id].phase == f->graph->nodes[node].phase
               ? id
               : WEFTI_NONE;
}

/* What an addition adds to value; WEFTI_NONE where its shape differs, or it is computed later. */
static uint32_t residual_of(const fuser_t *f, uint32_t node, uint32_t add, uint32_t value)
{
    const uint32_t *inputs = f->graph->nodes[add].inputs;
    const uint32_t other = inputs[inputs[0] == value], from = wefti_producer(f->graph, other);
    const weft_tensor_desc_t *a = &f->graph->values[value].type;
    const weft_tensor_desc_t *b = &f->graph->values[other].type;
    bool fits = other != value && a->rank == b->rank && a->dtype == b->dtype &&
                (from == WEFTI_NONE || f->position[from] < f->position[node]);
    for (uint32_t d = 0; d < a->rank && fits; d++) {
        fits = a->dims[d] == b->dims[d];
    }
    return fits ? other : WEFTI_NONE;
}

static weft_status_t fuse_forward(fuser_t *f, uint32_t id)
{
    wefti_graph_t *graph = f->graph;
    const uint32_t value = graph->nodes[id].outputs[0];
    const uint32_t add = next(f, id, value, f->add);
    const uint32_t residual = add == WEFTI_NONE ? WEFTI_NONE : residual_of(f, id, add, value);
    const uint32_t sum = residual == WEFTI_NONE ? value : graph->nodes[add].outputs[0];
    const uint32_t relu = next(f, id, sum, f->relu);
    const weft_attr_t attr = {.name = "activation", .type = WEFT_ATTR_TYPE_STRING, .s = "Relu"};
    const uint32_t gone[] = {residual == WEFTI_NONE ? WEFTI_NONE : add, relu};
    if (residual != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(wefti_graph_set_input(graph, id, MORE, residual));
    }
    if (relu != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(wefti_graph_set_attr(graph, id, &attr));
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (gone[i] != WEFTI_NONE) {
            const uint32_t before = graph->nodes[id].outputs[0];
            wefti_graph_take_output(graph, id, 0, graph->nodes[gone[i]].outputs[0]);
            wefti_graph_take_output(graph, gone[i], 0, before);
            graph->nodes[gone[i]].dead = true;
            graph->nodes[gone[i]].replaced_by = id;
        }
    }
    return WEFT_OK;
}

static weft_status_t fuse_backward(fuser_t *f, uint32_t id)
{
    wefti_graph_t *graph = f->graph;
    const uint32_t dy = graph->nodes[id].inputs[0], relu = wefti_producer(graph, dy);
    if (relu == WEFTI_NONE || graph->nodes[relu].def != f->relu_grad ||
        graph->nodes[relu].phase != graph->nodes[id].phase || only_reader(f, dy) != id) {
        return WEFT_OK;
    }
    const uint32_t *inputs = graph->nodes[relu].inputs;
    WEFT_RETURN_IF_ERROR(wefti_graph_set_input(graph, id, 0, inputs[0]));
    WEFT_RETURN_IF_ERROR(wefti_graph_set_input(graph, id, MORE, inputs[1]));
    graph->nodes[relu].dead = true;
    graph->nodes[relu].replaced_by = id;
    return WEFT_OK;
}

static weft_status_t fuse(fuser_t *f)
{
    wefti_graph_t *graph = f->graph;
    const uint32_t count = graph->order_count;
    f->norm = weft_registry_find_op(graph->registry, "weft", "BatchNormTraining", 1);
    f->norm_grad = weft_registry_find_op(graph->registry, "weft", "BatchNormGrad", 1);
    f->add = weft_registry_find_op(graph->registry, "", "Add", INT32_MAX);
    f->relu = weft_registry_find_op(graph->registry, "", "Relu", INT32_MAX);
    f->relu_grad = weft_registry_find_op(graph->registry, "com.microsoft", "ReluGrad", 1);
    f->position = wefti_id_map(&f->arena, graph->node_count);
    WEFT_RETURN_IF_NO_MEMORY(f->position);
    WEFT_RETURN_IF_ERROR(wefti_graph_readers(graph, graph->order, count, &f->arena, &f->readers));
    for (uint32_t i = 0; i < count; i++) {
        f->position[graph->order[i]] = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = graph->order[i];
        const weft_op_def_t *def = graph->nodes[id].dead ? NULL : graph->nodes[id].def;
        WEFT_RETURN_IF_ERROR(def == NULL           ? WEFT_OK
                             : def == f->norm      ? fuse_forward(f, id)
                             : def == f->norm_grad ? fuse_backward(f, id)
                                                   : WEFT_OK);
    }
    return wefti_graph_sort(graph);
}

weft_status_t wefti_pass_fuse_normalization(wefti_graph_t *graph)
{
    fuser_t f = {.graph = graph};
    wefti_arena_init(&f.arena, graph->arena.allocator, 0);
    weft_status_t status = fuse(&f);
    wefti_arena_deinit(&f.arena);
    return status;
}

weft_status_t wefti_apply_fuse_normalization(wefti_compiler_t *c)
{
    return wefti_pass_fuse_normalization(c->graph);
}
